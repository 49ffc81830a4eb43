"""Earlier records of a phase, set aside in records/history; none is ever overwritten.

set_aside(run_folder, phase, *, keep_newer_notebook=False) -> list[Path]
earlier(run_folder, phase) -> list[Path]
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

from runbook.errors import RecordError
from runbook.records.files import name_time
from runbook.records.manifest import rename_files
from runbook.records.twin import read_twin

SUFFIXES = (".ipynb", ".html", ".json")


def set_aside(run_folder: Path, phase: str, *, keep_newer_notebook: bool = False) -> list[Path]:
    """Move notebook, report and twin of a phase to records/history/<phase>-<UTC start>; returns the new places.

    With `keep_newer_notebook`, for use while a notebook runs, a notebook that is not the twin's own stays:
    papermill may just be writing it there.
    """
    records = run_folder / "records"
    started = _started(records, phase)
    present = [records / f"{phase}{suffix}" for suffix in SUFFIXES]
    present = [path for path in present if path.exists() and not (keep_newer_notebook and _is_newer(path, started))]
    if not present:
        return []
    history = records / "history"
    history.mkdir(parents=True, exist_ok=True)
    stem = _free_stem(history, f"{phase}-{name_time(started or _changed(present))}")
    moved = {path: history / f"{stem}{path.suffix}" for path in present}
    for old, new in moved.items():
        old.rename(new)
    rename_files(run_folder, moved)
    return list(moved.values())


def earlier(run_folder: Path, phase: str) -> list[Path]:
    """Files of earlier executions of a phase, newest first."""
    pattern = re.compile(re.escape(phase) + r"-\d{8}T\d{6}Z(-\d+)?\.(ipynb|html|json)")
    folder = run_folder / "records" / "history"
    return sorted((path for path in folder.glob("*") if pattern.fullmatch(path.name)), reverse=True)


def _started(records: Path, phase: str) -> str:
    try:
        return read_twin(records / f"{phase}.json").started
    except RecordError:  # none, or a broken one: it is set aside under the time of its file
        return ""


def _is_newer(path: Path, started: str) -> bool:
    # An executed notebook names its execution in the output of `session.announce`.
    return (
        path.suffix == ".ipynb" and bool(started) and started not in path.read_text(encoding="utf-8", errors="replace")
    )


def _changed(paths: list[Path]) -> str:
    return datetime.fromtimestamp(max(path.stat().st_mtime for path in paths), UTC).isoformat()


def _free_stem(folder: Path, stem: str) -> str:
    number, free = 1, stem
    while any((folder / f"{free}{suffix}").exists() for suffix in SUFFIXES):
        number += 1
        free = f"{stem}-{number}"
    return free
