"""The twin of an executed notebook: what it was, what it found and how it ended, as strict JSON.

    Twin(run, phase, state, verdict, ...)      the record; its file is records/<phase>.json
    read_twin(path) -> Twin                    find_twin(run_folder, phase) -> Twin | None
    write_twin(twin, path)                     twin_path(run_folder, phase) -> Path
    verdict_of(state, checks) -> str           pass | warn | fail | unknown

While its notebook runs a twin has no `ended` and says `interrupted`: what a killed kernel leaves behind is then true.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from runbook.errors import RecordError
from runbook.params.secrets import mask
from runbook.plan.checks import Check
from runbook.records.files import write_text
from runbook.records.state import State

SCHEMA = 1
"""Raised when a reader of the old twins would misread the new ones."""
CHECK_KEYS = ("name", "verdict", "value", "rule")
"""What a twin keeps of a check; the remedy is for the person at the notebook."""
RUNNING = "not finished: still running, or ended without a word"
"""The reason in a twin whose notebook has not come to its end."""


@dataclass(frozen=True)
class Cell:
    """A code cell of the master notebook: completed, failed, or pending where it was not reached."""

    id: str
    state: str


@dataclass(frozen=True)
class Twin:
    """The machine-readable record of one execution of one phase."""

    run: str
    phase: str
    state: State
    verdict: str
    started: str
    """UTC; also the name of the execution: no two have the same."""
    ended: str
    """UTC; empty while the notebook runs."""
    reason: str
    """Why it is not done; empty when it is."""
    commit: str
    """Of the project; `-dirty` where files differ from it, empty where it is not in git."""
    versions: Mapping[str, str]
    parameters: Mapping[str, Any]
    plan: Mapping[str, Any]
    """What was foreseen, under the same keys as the results where they can be compared."""
    results: Mapping[str, Any]
    checks: tuple[Check, ...]
    cells: tuple[Cell, ...]
    schema: int = SCHEMA

    @property
    def is_open(self) -> bool:
        """Still running, or killed without a word."""
        return not self.ended


def verdict_of(state: State, checks: Iterable[Check]) -> str:
    """One word for all checks: the worst of them, and never `pass` for what did not come to its end.

    >>> verdict_of(State.DONE, [Check("a", "pass", "1", "1"), Check("b", "warn", "2", "1")])
    'warn'
    >>> verdict_of(State.DONE, []), verdict_of(State.TIMEOUT, []), verdict_of(State.INTERRUPTED, [])
    ('unknown', 'fail', 'unknown')
    """
    words = {check.verdict for check in checks}
    if "fail" in words or state in (State.FAILED, State.TIMEOUT, State.KERNEL_DIED):
        return "fail"
    if state is State.INTERRUPTED:
        return "unknown"
    return next((word for word in ("warn", "unknown") if word in words), "pass" if words else "unknown")


def twin_path(run_folder: Path, phase: str) -> Path:
    """Where the twin of a phase's newest execution lies."""
    return run_folder / "records" / f"{phase}.json"


def find_twin(run_folder: Path, phase: str) -> Twin | None:
    """The twin of a phase's newest execution, or None where the phase was never executed."""
    path = twin_path(run_folder, phase)
    return read_twin(path) if path.exists() else None


def read_twin(path: Path) -> Twin:
    """The twin in a file; `RecordError` names what is wrong with one that is missing, cut off or of another shape."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return twin_from(content)
    except FileNotFoundError:
        raise RecordError(f"{path} does not exist: the phase was not executed yet.") from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise RecordError(
            f"{path} is not the twin of a notebook ({error}). It was written by runbook and changed later, or its disk "
            "failed; `runbook verify` says which. Execute the phase again to have a new one."
        ) from error


def twin_from(content: Mapping[str, Any]) -> Twin:
    """The twin that a JSON object describes; an unknown or missing key is a `ValueError`."""
    known = {field.name for field in fields(Twin)}
    if content.keys() != known:
        raise ValueError(
            f"unknown keys {sorted(content.keys() - known)}, missing keys {sorted(known - content.keys())}"
        )
    if content["schema"] != SCHEMA:
        raise ValueError(f"schema {content['schema']!r}, this program reads {SCHEMA}")
    for name in ("run", "phase", "verdict", "started", "ended", "reason", "commit"):
        if not isinstance(content[name], str):
            raise ValueError(f"{name} is {content[name]!r}, not text")
    for name in ("started", "ended"):
        if (content[name] and datetime.fromisoformat(content[name]).tzinfo is None) or not content["started"]:
            raise ValueError(f"{name} is {content[name]!r}, not a time in UTC")
    for name in ("versions", "parameters", "plan", "results"):
        if not isinstance(content[name], dict):
            raise ValueError(f"{name} is {content[name]!r}, not a table")
    rest = {name: content[name] for name in known - {"state", "checks", "cells"}}
    return Twin(
        state=State(content["state"]),
        checks=tuple(Check(**check) for check in content["checks"]),
        cells=tuple(Cell(**cell) for cell in content["cells"]),
        **rest,
    )


def twin_as_dict(twin: Twin) -> dict[str, Any]:
    """The twin as a JSON object, schema first."""
    content = asdict(twin)
    content["state"] = str(twin.state)
    content["checks"] = [{name: check[name] for name in CHECK_KEYS} for check in content["checks"]]
    return {"schema": content.pop("schema"), **content}


def write_twin(twin: Twin, path: Path) -> None:
    """Write the twin whole or not at all; what looks like a real token is cut to its first letters."""
    write_text(path, mask(json.dumps(twin_as_dict(twin), indent=1, ensure_ascii=False, allow_nan=False)) + "\n")


def plain(value: Any, where: str = "value") -> Any:
    """A value as JSON can hold it: numpy numbers become numbers, paths become text, and what is no number says so.

    >>> plain({"loss": float("nan"), "folder": Path("a/b"), "shape": (2, 3)})
    {'loss': 'nan', 'folder': 'a/b', 'shape': [2, 3]}
    """
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value.value if isinstance(value, StrEnum) else value
    if isinstance(value, Mapping):
        return {str(key): plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        items = sorted(value) if isinstance(value, set | frozenset) else value
        return [plain(item, f"{where}[{index}]") for index, item in enumerate(items)]
    if isinstance(value, Path):
        return value.as_posix()
    if callable(getattr(value, "item", None)) and getattr(value, "ndim", None) == 0:
        return plain(value.item(), where)
    raise RecordError(
        f"{where} is {value!r} ({type(value).__name__}); a record holds numbers, text, true, false, lists and tables. "
        "Convert it before it is recorded."
    )
