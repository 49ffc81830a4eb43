"""The record of how a phase was executed: the JSON file next to the executed notebook.

While the notebook runs, the record has no `ended` and its state is `interrupted`. A killed kernel
therefore leaves a correct record behind.
"""

import contextlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict

from runbook.core.checks import Check
from runbook.core.errors import RecordError
from runbook.core.files import read_json_record, write_text
from runbook.params.secrets import mask_value
from runbook.plan_file.phase_names import PHASES
from runbook.records.code_version import commit_of, versions
from runbook.records.engine.execution_end import ExecutionState
from runbook.records.messages import RecordMessage

RUNNING = RecordMessage.STILL_RUNNING.fill()
"""The reason that a record gives until its notebook has ended."""


def _in_utc(moment: str) -> str:
    if datetime.fromisoformat(moment).tzinfo is None:
        raise ValueError("not a time in UTC")
    return moment


Moment = Annotated[str, AfterValidator(_in_utc)]


@dataclass(frozen=True)
class Cell:
    """A code cell of the master notebook, and how the cell ended.

    Its state is completed, failed, interrupted, or pending if it was not reached.
    """

    id: str
    state: str


@dataclass(frozen=True)
class PhaseRecord:
    """Machine-readable record of how a phase was executed."""

    __pydantic_config__ = ConfigDict(extra="forbid")
    # Increase this number if a reader of old records would misread new ones.
    schema: Literal[1]
    run: str
    phase: str
    state: ExecutionState
    verdict: str
    # Start in UTC. It also identifies the execution, because no two start at the same time.
    started: Moment
    # The end in UTC; empty while the notebook runs
    ended: Moment | Literal[""]
    # The reason why the phase is not done; empty if it is done
    reason: str
    # Commit of the project. It ends with `-dirty` if files differ from the commit, and is empty
    # without git.
    commit: str
    versions: Mapping[str, str]
    parameters: Mapping[str, Any]
    plan: Mapping[str, Any]
    """The planned values.

    A value to be compared with a result has the same key as the result.
    """
    results: Mapping[str, Any]
    checks: tuple[Check, ...]
    cells: tuple[Cell, ...]

    @property
    def is_open(self) -> bool:
        """Whether the notebook is still running, or was killed before it could record its end."""
        return not self.ended


def open_phase_record(
    run: str,
    phase: str,
    started: str,
    project: Path,
    **known_fields: Any,
) -> PhaseRecord:
    """Return the record for an execution that has begun, with the fields known so far."""
    empty: dict[str, Any] = {
        "parameters": {},
        "plan": {},
        "results": {},
        "checks": (),
        "cells": (),
    }
    return PhaseRecord(
        1,
        run,
        phase,
        ExecutionState.INTERRUPTED,
        "unknown",
        started,
        "",
        RUNNING,
        commit_of(project),
        versions(),
        **(empty | known_fields),
    )


def verdict_of(state: ExecutionState, checks: Iterable[Check]) -> str:
    """Return the worst verdict among all checks.

    The result is `pass` only if the notebook ended normally.

    >>> checks = [Check("a", "pass", "1", "1"), Check("b", "warn", "2", "1")]
    >>> verdict_of(ExecutionState.DONE, checks)
    'warn'
    >>> [verdict_of(ExecutionState(word), []) for word in ("done", "timeout", "interrupted")]
    ['unknown', 'fail', 'unknown']
    """
    verdicts = {check.verdict for check in checks}
    if "fail" in verdicts or state in _FAILED_STATES:
        return "fail"
    if state is ExecutionState.INTERRUPTED:
        return "unknown"
    if "warn" in verdicts:
        return "warn"
    if "unknown" in verdicts or not verdicts:
        return "unknown"
    return "pass"


_FAILED_STATES = (ExecutionState.FAILED, ExecutionState.TIMEOUT, ExecutionState.KERNEL_DIED)


def phase_record_path(run_folder: Path, phase: str) -> Path:
    """Return the path to the newest record for a phase."""
    return run_folder / "records" / f"{phase}.json"


def find_phase_record(run_folder: Path, phase: str) -> PhaseRecord | None:
    """Return the newest record for a phase, or None if there is none."""
    path = phase_record_path(run_folder, phase)
    return read_phase_record(path) if path.exists() else None


def phases_with_record(run_folder: Path) -> list[str]:
    """Return the phases whose newest record exists and can be read."""
    phases = []
    for phase in PHASES:
        with contextlib.suppress(RecordError):
            if find_phase_record(run_folder, phase) is not None:
                phases.append(phase)

    return phases


def phases_done(run_folder: Path) -> set[str]:
    """Return the phases done according to their newest records.

    A record that cannot be read is ignored.
    """
    done = set()
    for phase in PHASES:
        with contextlib.suppress(RecordError):
            record = find_phase_record(run_folder, phase)
            if record is not None and record.state is ExecutionState.DONE and not record.is_open:
                done.add(phase)

    return done


def read_phase_record(path: Path) -> PhaseRecord:
    """Return the record in a file.

    Raise `RecordError`, which names the fault, if the file is missing, cut off or malformed.
    """
    meaning = RecordMessage.PHASE_RECORD.fill()
    record = read_json_record(path, PhaseRecord, meaning, RecordMessage.EXECUTE_AGAIN.fill())
    if record is None:
        raise RecordError(RecordMessage.NOT_EXECUTED_YET, path=path)
    return record


def phase_record_as_dict(record: PhaseRecord) -> dict[str, Any]:
    """Return the record as a JSON object."""
    content = asdict(record)
    content["checks"] = [check.as_dict() for check in record.checks]
    for check in content["checks"]:
        # Remedies are meant for the person who runs the notebook, so the record leaves them out.
        del check["remedy"]

    return content


def write_phase_record(record: PhaseRecord, path: Path) -> None:
    """Write the record atomically.

    Anything that looks like a real access token is cut to its first four characters.
    """
    write_text(
        path,
        json.dumps(
            mask_value(phase_record_as_dict(record)), indent=1, ensure_ascii=False, allow_nan=False
        )
        + "\n",
    )


def plain(value: Any, where: str = "value") -> Any:
    """Convert a value to a type that JSON supports.

    numpy numbers become numbers, paths become text, and NaN and infinity become their names. Raise
    `RecordError` for other types; `where` is used to name the value in the error.

    >>> plain({"loss": float("nan"), "folder": Path("a/b"), "shape": (2, 3)})
    {'loss': 'nan', 'folder': 'a/b', 'shape': [2, 3]}
    """
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        items = sorted(value) if isinstance(value, set | frozenset) else value
        return [plain(item, f"{where}[{index}]") for index, item in enumerate(items)]

    if isinstance(value, Path):
        return value.as_posix()
    if _is_numpy_number(value):
        return plain(value.item(), where)
    raise RecordError(
        RecordMessage.VALUE_NOT_RECORDABLE, where=where, value=value, kind=type(value).__name__
    )


def _is_numpy_number(value: Any) -> bool:
    """Return whether a value is a numpy or torch scalar. Neither package is imported."""
    return callable(getattr(value, "item", None)) and getattr(value, "ndim", None) == 0
