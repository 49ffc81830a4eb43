"""Reads, writes and checks manifest.json, which lists every file in a run with size and sha256.

Earlier records are kept in records/history. A recorded entry changes in only three cases: the
program that writes the file records it again; the phase that writes the file (`writer_of`) ends
again; or jobs append to the file before its phase is done (`may_grow`), and the file still begins
with the recorded content. No later phase or report can therefore hide an edit from `verify`.
"""

import contextlib
import fnmatch
import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from html import unescape
from pathlib import Path
from typing import Literal

from runbook.core.errors import RecordError
from runbook.core.files import free_name, name_time, read_json_record, sha256_of, write_text
from runbook.plan_file import sample_order_file
from runbook.plan_file.checkpoint_folder import METADATA, newest_checkpoint
from runbook.plan_file.phase_names import (
    ANALYSIS,
    DATA,
    ENVIRONMENT,
    EVALUATION,
    FULL,
    PHASES,
    PLAN,
    SMOKE,
)
from runbook.records.messages import RecordMessage
from runbook.records.phase_record import (
    PhaseRecord,
    find_phase_record,
    phases_done,
    read_phase_record,
)

MANIFEST_NAME = "manifest.json"
LEFT_OUT_FILES = (
    MANIFEST_NAME,
    "lock.json",
    "lock",
    "*.lock",
    "heartbeat",
    "*.part",
    "*.pyc",
    ".DS_Store",
)
"""Files that may legitimately change, or that are not results."""
LEFT_OUT_FOLDERS = (
    *("cache", "trackers", "replay", "redacted"),
    *("__pycache__", ".ipynb_checkpoints", "*.part"),
)
"""Folders whose contents a run can recreate."""

_LINES = ("metrics", "rank_times", "validation", "samples")
WRITTEN_BY = {
    PLAN: ("run.yaml", "plan.json"),
    ENVIRONMENT: ("environment/*",),
    DATA: ("data/*",),
    SMOKE: ("smoke/*",),
    FULL: (
        *(f"{name}.jsonl" for name in _LINES),
        "checkpoints/*",
        "tensorboard/*",
        "forecasts.json",
    ),
    ANALYSIS: ("results.csv", "variants.csv"),
    EVALUATION: ("evaluation/*",),
}
"""Files that each phase writes outside its job and step folders.

These files are recorded again only when their phase ends.
"""
GROWING = (
    "events.jsonl",
    *(f"{folder}{name}.jsonl" for folder in ("", "smoke/") for name in _LINES),
    *(f"{folder}tensorboard/*" for folder in ("", "smoke/")),
    "jobs/*/out",
    "jobs/*/err",
)
"""Files that jobs append to across restarts."""


@dataclass(frozen=True)
class Entry:
    """The size, checksum and modification time that a file had when it was recorded."""

    bytes: int
    sha256: str
    modified: int = 0
    """Modification time in nanoseconds.

    An unchanged time lets a later manifest skip reading the file.
    """


@dataclass(frozen=True)
class _Manifest:
    schema: Literal[1]
    files: dict[str, Entry]


def covered(run_folder: Path) -> list[str]:
    """Return sorted paths to all files covered by a manifest, relative to the run folder."""
    names = []
    for folder, subfolders, file_names in os.walk(run_folder, onerror=_refuse_folder):
        # os.walk visits only the folders that remain in this list.
        subfolders[:] = [name for name in subfolders if not _matches(name, LEFT_OUT_FOLDERS)]
        relative_folder = Path(folder).relative_to(run_folder)
        for file_name in file_names:
            if not _matches(file_name, LEFT_OUT_FILES):
                names.append((relative_folder / file_name).as_posix())

    return sorted(names)


def _refuse_folder(error: OSError) -> None:
    """Raise an error if a folder cannot be listed, so that the folder does not count as empty.

    A folder that has vanished is ignored, because a newer folder has replaced it.
    """
    if not isinstance(error, FileNotFoundError):
        raise RecordError(
            RecordMessage.FOLDER_NOT_LISTED, filename=error.filename, reason=error.strerror
        ) from error


def writer_of(name: str) -> str:
    """Return which phase writes a file in the run folder.

    Return an empty string if more than one phase writes the file.

    >>> writer_of("metrics.jsonl"), writer_of("jobs/04-training-2/out")
    ('04-training', '04-training')
    >>> writer_of("steps/02-data--tokenize.json")
    '02-data'
    >>> writer_of("events.jsonl"), writer_of("history/04-training-20251121T060000Z/metrics.jsonl")
    ('', '')
    """
    if name.startswith(("jobs/", "steps/")):
        below = name.partition("/")[2]
        return next((phase for phase in PHASES if below.startswith(phase)), "")

    return next((phase for phase, places in WRITTEN_BY.items() if _matches(name, places)), "")


def may_grow(name: str, done: Set[str]) -> bool:
    """Return whether jobs may still append to a file.

    Jobs may append until every phase that writes the file is done.
    """
    if not _matches(name, GROWING):
        return False
    writer = writer_of(name)
    if writer:
        return writer not in done
    return done != set(PHASES)


def begins_as(path: Path, entry: Entry) -> bool:
    """Return whether an append-only file still begins with the recorded content."""
    return path.stat().st_size >= entry.bytes and sha256_of(path, entry.bytes) == entry.sha256


def write_manifest(run_folder: Path, phase: str = "", written: Iterable[Path] = ()) -> None:
    """Record new files, files that have grown, and the current files from `phase`, which has ended.

    `written` lists the records that were just written. A job folder is closed once its exit code
    is recorded.
    """
    recorded = read_manifest(run_folder)
    just_written = {path.relative_to(run_folder).as_posix() for path in written}
    ended_jobs = _ended_job_folders(recorded)
    done = phases_done(run_folder) - {phase}
    present = covered(run_folder)
    entries = dict(recorded)
    for name in present:
        path = run_folder / name
        entry = recorded.get(name)
        if entry is None or name in just_written:
            entries[name] = _entry(path, entry)
        elif _matches(name, GROWING):
            entries[name] = _grown_entry(path, name, entry, done)
        elif _is_written_by(name, phase) and not name.startswith(ended_jobs):
            entries[name] = _entry(path, entry)

    for name in recorded.keys() - set(present):
        is_job_file = name.startswith("jobs/")
        if _is_written_by(name, phase) and not is_job_file and not _matches(name, GROWING):
            # An old checkpoint was deleted to free space, or a step is about to be repeated.
            del entries[name]

    _write(run_folder, entries)


def _grown_entry(
    path: Path,
    name: str,
    entry: Entry,
    done: Set[str],
) -> Entry:
    """Return the new entry for a file to which jobs append.

    The entry changes only if the file still begins with the recorded content.
    """
    if not may_grow(name, done):
        return entry
    grown = _entry(path, entry)
    if grown is entry or not begins_as(path, entry):
        return entry
    return grown


def _is_written_by(name: str, phase: str) -> bool:
    return bool(phase) and writer_of(name) == phase


def _ended_job_folders(recorded: Iterable[str]) -> tuple[str, ...]:
    """Return the folders of jobs that have a recorded exit code, each with a / at the end."""
    exit_codes = (name for name in recorded if _matches(name, ["jobs/*/exit_code"]))
    return tuple(name.removesuffix("exit_code") for name in exit_codes)


def note_files(run_folder: Path, paths: Iterable[Path]) -> None:
    """Update only the entries for these files.

    If the run has no manifest yet, do nothing.
    """
    if not (run_folder / MANIFEST_NAME).exists():
        return
    recorded = read_manifest(run_folder)
    entries = dict(recorded)
    for path in paths:
        name = path.relative_to(run_folder).as_posix()
        entries[name] = _entry(path, recorded.get(name))

    if entries != recorded:
        _write(run_folder, entries)


def move_files(run_folder: Path, moved: Mapping[Path, Path]) -> None:
    """Move files and folders inside the run folder, together with their unchanged entries.

    Files have no entry while they are being moved. If the process is killed during the move, the
    files are later recorded as new files and do not contradict an entry.
    """
    recorded = read_manifest(run_folder)
    new_names: dict[str, str] = {}
    for name in recorded:
        for source, target in moved.items():
            if (run_folder / name).is_relative_to(source):
                new_path = target / (run_folder / name).relative_to(source)
                new_names[name] = new_path.relative_to(run_folder).as_posix()

    entries = {}
    for name, entry in recorded.items():
        if name not in new_names:
            entries[name] = entry

    if new_names:
        _write(run_folder, entries)
    for source, target in moved.items():
        shutil.move(source, target)
    if new_names:
        for name, new_name in new_names.items():
            entries[new_name] = recorded[name]
        _write(run_folder, entries)


def read_manifest(run_folder: Path) -> dict[str, Entry]:
    """Return the manifest entries by relative path. The result is empty if there is no manifest.

    Raise `RecordError` if the manifest is broken.
    """
    path = run_folder / MANIFEST_NAME
    remedy = RecordMessage.RESTORE_MANIFEST.fill()
    manifest = read_json_record(path, _Manifest, RecordMessage.MANIFEST.fill(), remedy)
    return manifest.files if manifest else {}


def _write(run_folder: Path, entries: Mapping[str, Entry]) -> None:
    content = asdict(_Manifest(1, {name: entries[name] for name in sorted(entries)}))
    write_text(run_folder / MANIFEST_NAME, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def _entry(path: Path, old: Entry | None) -> Entry:
    status = path.stat()
    if old is not None and (old.bytes, old.modified) == (status.st_size, status.st_mtime_ns):
        return old
    return Entry(status.st_size, sha256_of(path, status.st_size), status.st_mtime_ns)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


SUFFIXES = (".ipynb", ".html", ".json")


def set_aside(run_folder: Path, phase: str, *, keep_newer_notebook: bool = False) -> list[Path]:
    """Move the notebook, report and JSON for a phase to records/history/<phase>-<UTC start>.

    Return the new paths. Set `keep_newer_notebook` while a notebook runs: a notebook that is from a
    different execution than the record is then not moved, because papermill may be writing it.
    """
    records = run_folder / "records"
    started = ""
    # If the record is missing or broken, the new name uses the time when the newest file was
    # modified.
    with contextlib.suppress(RecordError):
        started = read_phase_record(records / f"{phase}.json").started
    paths = [records / f"{phase}{suffix}" for suffix in SUFFIXES]
    present = [path for path in paths if path.exists()]
    notebook = records / f"{phase}.ipynb"
    # An executed notebook names its execution in the output of `session.attach`.
    may_stay = keep_newer_notebook and started and notebook in present
    if may_stay and started not in notebook.read_text("utf-8", "replace"):
        present.remove(notebook)
    if not present:
        return []
    newest_change = max(path.stat().st_mtime for path in present)
    changed = datetime.fromtimestamp(newest_change, UTC).isoformat()
    history = records / "history"
    history.mkdir(parents=True, exist_ok=True)
    stem = free_name(history, f"{phase}-{name_time(started or changed)}", SUFFIXES)
    moved = {path: history / f"{stem}{path.suffix}" for path in present}
    move_files(run_folder, moved)
    return list(moved.values())


def earlier_records(run_folder: Path, phase: str) -> list[Path]:
    """Return the files from earlier executions of a phase, newest first."""
    pattern = re.compile(re.escape(phase) + r"-\d{8}T\d{6}Z(-\d+)?\.(ipynb|html|json)")
    folder = run_folder / "records" / "history"
    paths = [path for path in folder.glob("*") if pattern.fullmatch(path.name)]
    return sorted(paths, reverse=True)


COPIES = "lab"
"""Folder for notebook copies that belong to the user (`runbook lab`).

These copies are not records, and may change.
"""


@dataclass(frozen=True)
class Finding:
    """A file that differs from its entry in the manifest, or contradicts its record."""

    # Changed, missing, added, unreadable or contradictory
    kind: str
    # The path relative to the run folder
    file: str
    expected: str
    got: str

    def __str__(self) -> str:
        return RecordMessage.FILE_DIFFERS.fill(
            kind=self.kind, file=self.file, expected=self.expected, got=self.got
        )


def _size_text(num_bytes: int) -> str:
    """Return a file size as text."""
    return RecordMessage.BYTES.fill(size=num_bytes)


def verify_run(run_folder: Path) -> list[Finding]:
    """Return the files that have been edited, lost or added since they were last recorded."""
    if not (run_folder / MANIFEST_NAME).exists():
        no_manifest = "none: no phase of this run has ended yet"
        return [Finding("missing", MANIFEST_NAME, "a manifest", no_manifest)]

    entries = read_manifest(run_folder)
    done = phases_done(run_folder)
    findings = []
    for name in covered(run_folder):
        if name not in entries and not _is_copy(name):
            size = (run_folder / name).lstat().st_size
            added = Finding("added", name, RecordMessage.NO_SUCH_FILE.fill(), _size_text(size))
            findings.append(added)

    for name, entry in entries.items():
        if _is_copy(name):
            finding = None
        else:
            finding = _compare(run_folder, name, entry, done)

        if finding:
            findings.append(finding)

    findings += records_agree(run_folder)
    findings += cache_agrees(run_folder)
    return sorted(findings, key=lambda finding: (finding.file, finding.kind))


DRAWN = (
    "events.jsonl",
    *(f"{folder}{name}.jsonl" for folder in ("", "smoke/") for name in _LINES),
    "records/*.json",
    "evaluation/*",
)
"""Files that a report takes its numbers from."""


def changed_records(run_folder: Path) -> list[Finding]:
    """Return the report sources that have changed or disappeared since they were recorded.

    Return an empty list if nothing has been recorded yet. Checkpoints and token files are not
    checked.
    """
    if not (run_folder / MANIFEST_NAME).exists():
        return []
    done = phases_done(run_folder)
    drawn = {}
    for name, entry in read_manifest(run_folder).items():
        if _matches(name, DRAWN) and not name.startswith("records/history/"):
            drawn[name] = entry

    findings = [_compare(run_folder, name, entry, done) for name, entry in drawn.items()]
    return [finding for finding in findings if finding is not None]


def _is_copy(name: str) -> bool:
    return name.startswith(f"{COPIES}/")


CACHES = ("data/cache", "smoke/data/cache")
"""Folders where the trainer caches the sample order.

The files in these folders are not results, but an edited file would change training.
"""
CHECKPOINTS = {"data/cache": "checkpoints", "smoke/data/cache": "smoke/checkpoints"}
"""For each cache, the folder with the checkpoints that record its checksums."""


def cache_agrees(run_folder: Path) -> list[Finding]:
    """Return the cached sample orders that differ from their recorded checksums.

    Each cached file must match the checksum from when the file was built, and the checksum in the
    newest checkpoint.
    """
    findings = []
    for cache in CACHES:
        built = sample_order_file.read_checksums(run_folder / cache)
        saved = _saved_order(run_folder / CHECKPOINTS[cache])
        for path in sorted((run_folder / cache).glob("*.npy")):
            entry = built.get(path.name)
            if entry is None:
                # The cache was written by an older version or is still being built. It is rebuilt
                # when training next starts.
                continue

            digest = sha256_of(path)
            saved_digest = saved.get(path.name, entry.sha256)
            expected = saved_digest if digest != saved_digest else entry.sha256
            if digest != expected:
                name = f"{cache}/{path.name}"
                findings.append(Finding("changed", name, f"sha256 {expected}", f"sha256 {digest}"))

    return findings


def _saved_order(checkpoints: Path) -> dict[str, str]:
    """Return the checksums that the newest checkpoint contains for cached files.

    Return an empty dict if there is no checkpoint, or if the checkpoint has no checksums.
    """
    newest = newest_checkpoint(checkpoints)
    if newest is None:
        return {}
    try:
        saved = json.loads((newest / METADATA).read_text(encoding="utf-8"))["data_cache"]
        return {str(name): str(digest) for name, digest in saved.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def split_unrecorded(
    findings: Sequence[Finding], *, is_running: bool
) -> tuple[list[Finding], list[Finding]]:
    """Split the findings, and put files from a running phase into the second list.

    A phase records its files only when it ends.
    """
    unrecorded = [finding for finding in findings if _is_unrecorded(finding)]
    if not is_running or not unrecorded:
        return list(findings), []
    return [finding for finding in findings if finding not in unrecorded], unrecorded


def _is_unrecorded(finding: Finding) -> bool:
    return finding.kind == "added" or (finding.kind, finding.file) == ("missing", MANIFEST_NAME)


def records_agree(run_folder: Path) -> list[Finding]:
    """Return a finding for each notebook or report that contradicts its record."""
    findings = []
    for phase in PHASES:
        try:
            record = find_phase_record(run_folder, phase)
        except RecordError as error:
            name = f"records/{phase}.json"
            findings.append(Finding("unreadable", name, "the record of a notebook", str(error)))
            continue

        if record is not None and not record.is_open:
            findings += _contradictions(run_folder, phase, record)

    return findings


def _compare(
    run_folder: Path,
    name: str,
    entry: Entry,
    done: set[str],
) -> Finding | None:
    path = run_folder / name
    try:
        size = path.stat().st_size
        if size > entry.bytes and may_grow(name, done) and begins_as(path, entry):
            return None
        if size != entry.bytes:
            return Finding("changed", name, _size_text(entry.bytes), _size_text(size))
        digest = sha256_of(path)
    except (FileNotFoundError, NotADirectoryError):
        return Finding("missing", name, _size_text(entry.bytes), RecordMessage.NO_FILE.fill())
    except OSError as error:
        return Finding("unreadable", name, _size_text(entry.bytes), error.strerror or str(error))

    if digest == entry.sha256:
        return None
    return Finding("changed", name, f"sha256 {entry.sha256}", f"sha256 {digest}")


def _contradictions(run_folder: Path, phase: str, record: PhaseRecord) -> list[Finding]:
    expected = {"state": str(record.state), "verdict": record.verdict, "execution": record.started}
    readers = {
        f"records/{phase}.ipynb": _said_by_notebook,
        f"records/{phase}.html": said_by_html,
    }
    findings = []
    for name, reader in readers.items():
        try:
            identity = reader(run_folder / name)
        except FileNotFoundError:
            # A missing file is not reported here, because the manifest shows whether the file
            # existed.
            continue
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            return [Finding("unreadable", name, "a record", f"{type(error).__name__}: {error}")]

        for key, value in expected.items():
            if identity.get(key) != value:
                expected_value = RecordMessage.VALUE_OF_RECORD.fill(key=key, value=value)
                in_record = RecordMessage.VALUE_ONLY.fill(
                    key=key, value=identity.get(key, "not stated")
                )
                findings.append(Finding("contradiction", name, expected_value, in_record))

    return findings


def _said_by_notebook(path: Path) -> dict[str, str]:
    return dict(json.loads(path.read_text(encoding="utf-8"))["metadata"].get("runbook", {}))


def said_by_html(path: Path) -> dict[str, str]:
    """Return the state, verdict and execution shown on the report card.

    Return an empty dict if the page is not a report.
    """
    card = re.search(r'<[^<>]* id="record"[^<>]*>', path.read_text(encoding="utf-8"))
    if card is None:
        return {}
    attributes = re.findall(r' data-([\w-]+)="([^"]*)"', card[0])
    return {name: unescape(value) for name, value in attributes}
