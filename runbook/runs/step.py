"""Steps in a run: inputs, fingerprint, outputs, and the marker that proves a step is done."""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

from runbook.core.errors import RecordError
from runbook.core.files import sha256_of, write_text
from runbook.records.done_marks import (
    DoneMark,
    StepOutput,
    fingerprint,
    mark_path,
    read_mark,
    start_path,
)
from runbook.runs.messages import RunMessage


def write_mark(
    run_folder: Path,
    step: str,
    version: int,
    digest: str,
    outputs: Iterable[Path],
    **facts: Any,
) -> None:
    """Write the done marker as the last file, atomically, with the checksum of each output."""
    step_outputs = tuple(
        StepOutput(str(path.relative_to(run_folder)), path.stat().st_size, sha256_of(path))
        for path in sorted(outputs)
    )
    mark = DoneMark(
        step,
        version,
        digest,
        time.time(),
        step_outputs,
        facts,
    )
    write_text(mark_path(run_folder, step), json.dumps(asdict(mark), indent=1) + "\n")


class StepState(StrEnum):
    """The state of a step, according to its done marker and its outputs."""

    DONE = "done"
    NOT_DONE = "not done yet"
    INPUTS_CHANGED = "its parameters or inputs changed"
    OUTPUT_MISSING = "an output is missing"
    OUTPUT_CHANGED = "an output was changed"


class Reading(StrEnum):
    """How much to read from the outputs to check that they are unchanged."""

    EVERYTHING = "everything"
    """Every byte. Terabytes of tokens or weights take hours."""
    LINE_FILES = "line files"
    """Every byte of the .jsonl files, which contain the results, but no other file."""
    SIZES = "sizes"
    """Only the file sizes."""


@dataclass(frozen=True)
class StepStatus:
    """The state of a step, and the file that caused it."""

    state: StepState
    file: str = ""
    """The file path, relative to the run folder."""
    bytes: int | None = None
    """The current file size, if it differs from the recorded size."""
    recorded_bytes: int = 0

    @property
    def lost_an_output(self) -> bool:
        """Whether a file has changed since the finished step wrote it."""
        return self.state in (StepState.OUTPUT_MISSING, StepState.OUTPUT_CHANGED)

    def as_text(self) -> str:
        """Return why the step is not done, or an empty string if it is done."""
        if self.state is StepState.DONE:
            return ""
        if self.state is StepState.OUTPUT_MISSING:
            return RunMessage.OUTPUT_MISSING.fill(file=self.file)
        if self.state is StepState.OUTPUT_CHANGED and self.bytes is not None:
            return RunMessage.OUTPUT_SIZE_CHANGED.fill(
                file=self.file, size=self.bytes, recorded_size=self.recorded_bytes
            )
        if self.state is StepState.OUTPUT_CHANGED:
            return RunMessage.OUTPUT_CHANGED.fill(file=self.file)
        return str(self.state)


def step_status(
    run_folder: Path,
    step: str,
    digest: str = "",
    reading: Reading = Reading.EVERYTHING,
) -> StepStatus:
    """Return the status of a step. Its inputs are not compared if `digest` is empty."""
    mark = read_mark(run_folder, step)
    if mark is None:
        return StepStatus(StepState.NOT_DONE)
    if digest and mark.fingerprint != digest:
        return StepStatus(StepState.INPUTS_CHANGED)
    return outputs_status(run_folder, mark, reading)


def outputs_status(
    run_folder: Path,
    mark: DoneMark,
    reading: Reading = Reading.EVERYTHING,
) -> StepStatus:
    """Check whether files from a finished step are unchanged, and return a status."""
    for output in mark.outputs:
        if reading is Reading.LINE_FILES and not output.path.endswith(".jsonl"):
            continue
        path = run_folder / output.path
        if not path.exists():
            return StepStatus(StepState.OUTPUT_MISSING, output.path)
        size = path.stat().st_size
        if size != output.bytes:
            return StepStatus(StepState.OUTPUT_CHANGED, output.path, size, output.bytes)
        if reading is not Reading.SIZES and sha256_of(path) != output.sha256:
            return StepStatus(StepState.OUTPUT_CHANGED, output.path)

    return StepStatus(StepState.DONE)


class ChangedOutputError(RecordError):
    """A file has changed since a finished step wrote it, so it must not be used."""

    def __init__(
        self,
        step: str,
        status: StepStatus,
        remedy: str,
    ) -> None:
        self.step = step
        self.status = status
        super().__init__(
            RunMessage.STEP_OUTPUT_CHANGED, step=step, fault=status.as_text(), remedy=remedy
        )


@dataclass(frozen=True)
class StepOfRun:
    """A step in a run, with the inputs at the time when this object was created.

    Create a new object to update the inputs.
    """

    run_folder: Path
    name: str
    """Name used for the done marker."""
    version: int
    """Increase the version when the code writes different outputs, so that the step runs again."""
    inputs: Mapping[str, object]
    """The values that the outputs depend on. If one of them changes, the step runs again."""
    outputs: Callable[[], Sequence[Path]] = tuple
    """Return the files written by the step. The done marker records them."""
    remedy: str = ""
    """How to repeat the step, for the end of an error message."""

    @cached_property
    def fingerprint(self) -> str:
        """Hash that covers the version and the inputs."""
        return fingerprint(self.version, self.inputs)

    @property
    def marker_path(self) -> Path:
        """Path to the done marker."""
        return mark_path(self.run_folder, self.name)

    def marker(self) -> DoneMark | None:
        """Return the done marker, even if its inputs differ, or None if the step has no marker."""
        return read_mark(self.run_folder, self.name)

    def status(self, reading: Reading = Reading.EVERYTHING) -> StepStatus:
        """Return whether the step is done with these inputs, and its outputs are unchanged."""
        return step_status(self.run_folder, self.name, self.fingerprint, reading)

    def why_not_done(self, reading: Reading = Reading.EVERYTHING) -> str:
        """Return why the step must run, or an empty string if it is done."""
        return self.status(reading).as_text()

    def require_unchanged(self, reading: Reading = Reading.EVERYTHING) -> StepStatus:
        """Return the step status. Raise `ChangedOutputError` if an output is lost or changed."""
        status = self.status(reading)
        self.refuse(status)
        return status

    def refuse(self, status: StepStatus) -> None:
        """Raise `ChangedOutputError` if this status says that an output was lost or changed."""
        if status.lost_an_output:
            raise ChangedOutputError(self.name, status, self.remedy)

    def mark_done(self, **facts: Any) -> None:
        """Write the done marker with a checksum for each output."""
        self._write_marker(self.fingerprint, **facts)

    def mark_for_repeat(self, reason: str, **facts: Any) -> None:
        """Write a marker with a reason in place of the fingerprint, so that the step is done again."""
        self._write_marker(reason, **facts)

    @property
    def started_path(self) -> Path:
        """Path to the file with the fingerprint from when the step was last started."""
        return start_path(self.run_folder, self.name)

    def was_started(self) -> bool:
        """Whether the outputs in the run folder, finished or not, come from these inputs."""
        path = self.started_path
        return path.exists() and path.read_text().partition("\n")[0] == self.fingerprint

    def note_start(self, facts: Mapping[str, object]) -> None:
        """Record the inputs for this start, with facts for a process that continues the step."""
        write_text(self.started_path, f"{self.fingerprint}\n{json.dumps(facts)}\n")

    def _write_marker(self, digest: str, **facts: Any) -> None:
        write_mark(
            self.run_folder,
            self.name,
            self.version,
            digest,
            self.outputs(),
            **facts,
        )
