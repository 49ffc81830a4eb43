"""Done markers: what a finished step read and wrote, and whether results are of an earlier training."""

import contextlib
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ConfigDict

from runbook.core.errors import RecordError
from runbook.core.files import read_json_record
from runbook.plan_file.phase_names import ANALYSIS, EVALUATION, FULL, SMOKE
from runbook.records.messages import RecordMessage

TRAININGS_READ = {ANALYSIS: (SMOKE, FULL), EVALUATION: (FULL,)}
"""The trainings whose results a phase reads."""


@dataclass(frozen=True)
class StepOutput:
    """A file written by a step, with a checksum used to detect changes."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class DoneMark:
    """A finished step: its inputs and outputs."""

    __pydantic_config__ = ConfigDict(extra="forbid")
    step: str
    version: int
    fingerprint: str
    finished: float
    outputs: tuple[StepOutput, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)


def fingerprint(version: int, inputs: Mapping[str, object]) -> str:
    """Return sixteen hexadecimal digits that depend on the step version and all inputs.

    >>> fingerprint(1, {"a": 1}) == fingerprint(1, {"a": 1}), fingerprint(1,
    ... {"a": 1}) == fingerprint(2, {"a": 1})
    (True, False)
    """
    text = json.dumps({"version": version, "inputs": inputs}, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def mark_path(run_folder: Path, step: str) -> Path:
    """Return the path to the done marker for a step."""
    return run_folder / "steps" / f"{step}.json"


def read_mark(run_folder: Path, step: str) -> DoneMark | None:
    """Return the done marker for a step, or None if there is no marker.

    Raise an error if the marker is broken.
    """
    meaning = RecordMessage.DONE_MARK.fill()
    remedy = RecordMessage.DELETE_MARK.fill()
    return read_json_record(mark_path(run_folder, step), DoneMark, meaning, remedy)


def train_name(training: str) -> str:
    """Return the name of the step whose marker records that a training run is done."""
    return f"{training}--train"


def output_checksums(run_folder: Path, step: str) -> list[str] | None:
    """Return checksums for the outputs of a step, or None if it is not done.

    Manifests are left out, because they contain times and speeds, which change if the same text is
    tokenized again.
    """
    mark = read_mark(run_folder, step)
    if not mark:
        return None
    checksums = []
    for file in mark.outputs:
        if not file.path.endswith(".manifest.json"):
            checksums.append(file.sha256)

    return checksums


def training_checksums(run_folder: Path, phase: str) -> dict[str, object]:
    """Return checksums for the outputs of the trainings that a phase reads."""
    checksums: dict[str, object] = {}
    for training in TRAININGS_READ[phase]:
        checksums[training] = output_checksums(run_folder, train_name(training))
    return checksums


def is_of_earlier_training(run_folder: Path, phase: str) -> bool:
    """Return whether a phase ended with the results of a training that was repeated or extended.

    Return False for a phase without a marker, or with one that cannot be read.
    """
    if phase not in TRAININGS_READ:
        return False
    with contextlib.suppress(RecordError):
        mark = read_mark(run_folder, phase)
        if mark is None or not _DIGEST.fullmatch(mark.fingerprint):
            return False
        return mark.fingerprint != fingerprint(mark.version, training_checksums(run_folder, phase))
    return False


_DIGEST = re.compile("[0-9a-f]{16}")
"""A fingerprint. A phase that is to be repeated has a reason in its place."""
