"""manifest.json: size and sha256 of every file of a run, written when a phase ends.

    write_manifest(run_folder, written=()) -> Path      everything; `written` names the records just made
    note_files(run_folder, paths)                       bring the entries of a few files up to date
    rename_files(run_folder, {old: new})                entries follow files that were moved
    read_manifest(run_folder) -> dict[str, Entry]       covered(run_folder) -> list of relative paths

A record that was changed since it was recorded keeps its old entry when the manifest is written anew, unless it is
among `written`: so a later phase does not bless an edit, and `verify` still finds it.
"""

from __future__ import annotations

import fnmatch
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from runbook.errors import RecordError
from runbook.records.files import sha256_of, write_text

SCHEMA = 1
NAME = "manifest.json"
LEFT_OUT_FILES = (NAME, "lock.json", "lock", "*.lock", "heartbeat", "*.part", "*.pyc", ".DS_Store")
"""Files that change while nothing is wrong, or are no result."""
LEFT_OUT_FOLDERS = ("cache", "__pycache__", ".ipynb_checkpoints", "*.part", "redacted")
"""Folders that hold nothing a run could not make again."""


@dataclass(frozen=True)
class Entry:
    """What a file was when it was recorded."""

    bytes: int
    sha256: str
    modified: int = 0
    """Its time of change in nanoseconds: an unchanged file is not read again when the manifest is written anew."""


def covered(run_folder: Path) -> list[str]:
    """Every file that a manifest has to name, relative to the run's folder, sorted."""
    found = []
    for folder, folders, names in os.walk(run_folder):
        folders[:] = [name for name in folders if not _matches(name, LEFT_OUT_FOLDERS)]
        inside = Path(folder).relative_to(run_folder)
        found += [(inside / name).as_posix() for name in names if not _matches(name, LEFT_OUT_FILES)]
    return sorted(found)


def write_manifest(run_folder: Path, written: Iterable[Path] = ()) -> Path:
    """Record every file as it is now, but earlier records as they were recorded; returns the manifest's path."""
    before = read_manifest(run_folder)
    fresh = {path.relative_to(run_folder).as_posix() for path in written}
    entries = {}
    for name in covered(run_folder):
        old = before.get(name)
        if old is not None and name.startswith("records/") and name not in fresh:
            entries[name] = old
        else:
            entries[name] = _entry(run_folder / name, old)
    missing = {name: old for name, old in before.items() if name.startswith("records/") and name not in entries}
    return _write(run_folder, entries | missing)


def note_files(run_folder: Path, paths: Iterable[Path]) -> None:
    """Bring the entries of these files up to date, and no other; nothing where the run has no manifest yet."""
    if (run_folder / NAME).exists():
        new = {path.relative_to(run_folder).as_posix(): _entry(path, None) for path in paths}
        _write(run_folder, read_manifest(run_folder) | new)


def rename_files(run_folder: Path, moved: Mapping[Path, Path]) -> None:
    """Let entries follow their files, checksums unchanged; nothing where the run has no manifest yet."""
    if not (run_folder / NAME).exists():
        return
    names = {
        old.relative_to(run_folder).as_posix(): new.relative_to(run_folder).as_posix() for old, new in moved.items()
    }
    _write(run_folder, {names.get(name, name): entry for name, entry in read_manifest(run_folder).items()})


def read_manifest(run_folder: Path) -> dict[str, Entry]:
    """Entries by relative path; empty where there is no manifest, `RecordError` where it is broken."""
    path = run_folder / NAME
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["schema"] != SCHEMA:
            raise ValueError(f"schema {content['schema']!r}, this program reads {SCHEMA}")
        return {name: Entry(**entry) for name, entry in content["files"].items()}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise RecordError(
            f"{path} is not a manifest ({error}), so nothing can be said about later edits of this run. Restore it "
            "from a copy; only if none exists, delete it and execute a phase again to have a new one."
        ) from error


def _write(run_folder: Path, entries: Mapping[str, Entry]) -> Path:
    files = {name: asdict(entries[name]) for name in sorted(entries)}
    write_text(run_folder / NAME, json.dumps({"schema": SCHEMA, "files": files}, indent=1, ensure_ascii=False) + "\n")
    return run_folder / NAME


def _entry(path: Path, old: Entry | None) -> Entry:
    status = path.stat()
    if old is not None and (old.bytes, old.modified) == (status.st_size, status.st_mtime_ns):
        return old
    return Entry(status.st_size, sha256_of(path), status.st_mtime_ns)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)
