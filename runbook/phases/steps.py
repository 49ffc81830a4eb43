"""What was finished, from which inputs: fingerprints and done-marks, so that nothing is done twice."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from runbook.errors import RecordError
from runbook.records.files import sha256_of, write_text


@dataclass(frozen=True)
class Output:
    """A file that a step made; a checksum tells whether it is still the same."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Mark:
    """A finished step: what it was made from and what it made."""

    step: str
    version: int
    fingerprint: str
    finished: float
    outputs: tuple[Output, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


def fingerprint(version: int, inputs: Mapping[str, Any]) -> str:
    """Sixteen hexadecimal digits that change when the step's version or one of its inputs does.

    >>> fingerprint(1, {"a": 1}) == fingerprint(1, {"a": 1}), fingerprint(1, {"a": 1}) == fingerprint(2, {"a": 1})
    (True, False)
    """
    text = json.dumps({"version": version, "inputs": inputs}, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def mark_path(run_folder: Path, step: str) -> Path:
    """Where the done-mark of a step lies."""
    return run_folder / "steps" / f"{step}.json"


def read_mark(run_folder: Path, step: str) -> Mark | None:
    """The done-mark of a step, or None where there is none; a broken one is refused by name."""
    path = mark_path(run_folder, step)
    try:
        data = json.loads(path.read_text())
        return Mark(**{**data, "outputs": tuple(Output(**output) for output in data["outputs"])})
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise RecordError(
            f"{path} is not a done-mark ({error}). Delete it: the step then runs again and finds what is already there."
        ) from error


def write_mark(run_folder: Path, step: str, version: int, digest: str, outputs: Iterable[Path], **facts: Any) -> Mark:
    """Write the done-mark, last and by rename; each output is read once for its checksum."""
    made = tuple(
        Output(str(path.relative_to(run_folder)), path.stat().st_size, sha256_of(path)) for path in sorted(outputs)
    )
    mark = Mark(step, version, digest, time.time(), made, facts)
    write_text(mark_path(run_folder, step), json.dumps(asdict(mark), indent=1) + "\n")
    return mark


def what_is_missing(run_folder: Path, step: str, digest: str) -> str:
    """Why the step must run (again), or an empty string where it is done and its outputs are still the same."""
    mark = read_mark(run_folder, step)
    if mark is None:
        return "not done yet"
    if mark.fingerprint != digest:
        return "its parameters or inputs changed"
    for output in mark.outputs:
        path = run_folder / output.path
        if not path.exists():
            return f"{output.path} is missing"
        if path.stat().st_size != output.bytes:
            return f"{output.path} has {path.stat().st_size:,} bytes instead of {output.bytes:,}"
        if sha256_of(path) != output.sha256:
            return f"{output.path} was changed after it was made"
    return ""
