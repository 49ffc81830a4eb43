"""Done markers: what a finished step read and wrote, and whether that has changed since."""

import contextlib
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ConfigDict

from runbook.core.errors import RecordError
from runbook.core.files import read_json_record
from runbook.plan_file.errors import RefusedError
from runbook.plan_file.identity import step_inputs
from runbook.plan_file.phase_names import ANALYSIS, DATA, EVALUATION, FULL, SMOKE, TRAINING_PHASES
from runbook.plan_file.schema import PhasePlan, parse, read_plan
from runbook.records.messages import RecordMessage

TOKENIZE_STEP = f"{DATA}--tokenize"
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


def start_path(run_folder: Path, step: str) -> Path:
    """Return the path to the file about the last start of a step."""
    return mark_path(run_folder, step).with_suffix(".started")


def read_start_facts(path: Path) -> dict[str, Any]:
    """Return the facts recorded when a step was last started.

    Return an empty dict before the first start, and after a start by an older version.
    """
    if not path.exists():
        return {}
    text = path.read_text().partition("\n")[2]
    return json.loads(text) if text else {}


def is_finished(run_folder: Path, training: str) -> bool:
    """Return whether a training has ended with the inputs that it was last started with.

    It has not if it was extended and goes on. The plan is not read for this, because plan.json
    also contains the tokens of the prompt, which a fingerprint may lack.
    """
    step = train_name(training)
    mark = read_mark(run_folder, step)
    if mark is None:
        return False
    path = start_path(run_folder, step)
    return not path.exists() or path.read_text().partition("\n")[0] == mark.fingerprint


def is_outdated(run_folder: Path, phase: str) -> bool:
    """Return whether a phase that is done read something that has changed since then.

    A training reads the plan and the token files. Later phases read the results of trainings.
    Return False if the files do not tell.
    """
    if phase in TRAINING_PHASES:
        return _has_other_plan_or_data(run_folder, phase)
    if phase in TRAININGS_READ:
        return _has_other_training(run_folder, phase)
    return False


def _has_other_plan_or_data(run_folder: Path, training: str) -> bool:
    """Return whether a training was started with another plan or other token files.

    Both plans are read by this version, so a newer version, which adds keys, changes nothing.
    """
    try:
        facts = read_start_facts(start_path(run_folder, train_name(training)))
        if not facts:
            return False
        started = _inputs_without_prompt(parse(facts["phase"]))
        planned = _inputs_without_prompt(read_plan(run_folder / "plan.json", training))
        data = output_checksums(run_folder, TOKENIZE_STEP)
        return started != planned or facts["inputs"]["data"] != data
    except (RecordError, RefusedError, OSError, ValueError, KeyError, TypeError):
        return False


def _inputs_without_prompt(plan: PhasePlan) -> dict[str, object]:
    """Return the inputs of a training without the tokens of its prompt.

    Only plan.json contains them.
    """
    return step_inputs(replace(plan, sampling=replace(plan.sampling, prompt_ids=())))


def _has_other_training(run_folder: Path, phase: str) -> bool:
    """Return whether a training has other results than those that a phase ended with."""
    with contextlib.suppress(RecordError):
        mark = read_mark(run_folder, phase)
        if mark is None or not _DIGEST.fullmatch(mark.fingerprint):
            return False
        return mark.fingerprint != fingerprint(mark.version, training_checksums(run_folder, phase))
    return False


_DIGEST = re.compile("[0-9a-f]{16}")
"""A fingerprint. A phase that is to be repeated has a reason in its place."""
