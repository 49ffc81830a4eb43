"""manifest.json: size and sha256 of every file of a run, compared by `verify_run`; earlier records in records/history.

What was recorded stays recorded as it was. An entry changes in three cases only: the file's own writer notes it, the
phase that writes the file ends again (`writer_of`), or the file is one that jobs append to, still begins with what was
recorded, and its phase is not done (`may_grow`). So no later phase and no report blesses an edit: `verify` finds it.
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
from runbook.params.schema.run_file import PHASES
from runbook.plan_file import data_cache
from runbook.plan_file.checkpoint_folder import METADATA, newest_checkpoint
from runbook.records.twin import Twin, find_twin, phases_done, read_twin

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
"""Files that change while nothing is wrong, or are no result."""
LEFT_OUT_FOLDERS = ("cache", "__pycache__", ".ipynb_checkpoints", "*.part", "redacted")
"""Folders that hold nothing a run could not make again."""

_LINES = ("metrics", "rank_times", "validation", "samples")
WRITTEN_BY = {
    "00-plan": ("run.yaml", "plan.json"),
    "01-environment": ("environment/*",),
    "02-data": ("data/*",),
    "03-smoke-test": ("smoke/*",),
    "04-training": (*(f"{name}.jsonl" for name in _LINES), "checkpoints/*", "tensorboard/*"),
    "05-analysis": ("results.csv", "variants.csv"),
    "06-evaluation": ("evaluation/*",),
}
"""Whose files they are, beside its jobs and steps; nobody else's end of a phase records them again."""
GROWING = (
    "events.jsonl",
    *(f"{folder}{name}.jsonl" for folder in ("", "smoke/") for name in _LINES),
    *(f"{folder}tensorboard/*" for folder in ("", "smoke/")),
    "jobs/*/out",
    "jobs/*/err",
)
"""Files that jobs append to, over all restarts."""


@dataclass(frozen=True)
class Entry:
    """What a file was when it was recorded."""

    bytes: int
    sha256: str
    modified: int = 0
    """Its time of change in nanoseconds: an unchanged file is not read again when the manifest is written again."""


@dataclass(frozen=True)
class _Manifest:
    schema: Literal[1]
    files: dict[str, Entry]


def covered(run_folder: Path) -> list[str]:
    """Every file that a manifest has to name, relative to the run's folder, sorted."""
    paths = []
    for folder, folders, names in os.walk(run_folder, onerror=_refuse_folder):
        folders[:] = [name for name in folders if not _matches(name, LEFT_OUT_FOLDERS)]
        inside = Path(folder).relative_to(run_folder)
        paths += [
            (inside / name).as_posix() for name in names if not _matches(name, LEFT_OUT_FILES)
        ]
    return sorted(paths)


def _refuse_folder(error: OSError) -> None:
    """A folder that cannot be listed is no empty folder; one that vanished meanwhile made room for a newer one."""
    if not isinstance(error, FileNotFoundError):
        raise RecordError(
            f"{error.filename} cannot be listed ({error.strerror}), so nothing can be said about the files in it. Give "
            "this user the right to read it, or look after its disk."
        ) from error


def writer_of(name: str) -> str:
    """The phase that writes a file of the run's folder; empty where no single phase does.

    >>> writer_of("metrics.jsonl"), writer_of("jobs/04-training-2/out"), writer_of("steps/02-data--tokenize.json")
    ('04-training', '04-training', '02-data')
    >>> writer_of("events.jsonl"), writer_of("history/04-training-20251121T060000Z/metrics.jsonl")
    ('', '')
    """
    if name.startswith(("jobs/", "steps/")):
        return next((phase for phase in PHASES if name.partition("/")[2].startswith(phase)), "")
    return next((phase for phase, places in WRITTEN_BY.items() if _matches(name, places)), "")


def may_grow(name: str, done: Set[str]) -> bool:
    """Whether somebody may still append to a file: the phase that writes it (of several, one of them) is not done."""
    writer = writer_of(name)
    return _matches(name, GROWING) and (writer not in done if writer else done != set(PHASES))


def begins_as(path: Path, entry: Entry) -> bool:
    """Whether a file that only grows still begins with what was recorded."""
    return path.stat().st_size >= entry.bytes and sha256_of(path, entry.bytes) == entry.sha256


def write_manifest(run_folder: Path, phase: str = "", written: Iterable[Path] = ()) -> None:
    """Record new files, grown ones, and those that `phase` writes as they are at its end.

    `written` names the records just made. A job's folder is closed once its exit code was recorded.
    """
    before = read_manifest(run_folder)
    fresh = {path.relative_to(run_folder).as_posix() for path in written}
    ended = tuple(name.removesuffix("exit_code") for name in before if name.endswith("/exit_code"))
    done = phases_done(run_folder) - {phase}
    entries = dict(before)
    present = covered(run_folder)
    for name in present:
        path = run_folder / name
        old = before.get(name)
        if old is None or name in fresh:
            entries[name] = _entry(path, old)
        elif _matches(name, GROWING):
            grown = _entry(path, old) if may_grow(name, done) else old
            entries[name] = grown if grown is old or begins_as(path, old) else old
        elif (
            phase
            and writer_of(name) == phase
            and not (name.startswith("jobs/") and name.startswith(ended))
        ):
            entries[name] = _entry(path, old)
    for name in before.keys() - set(present):
        if (
            phase
            and writer_of(name) == phase
            and not _matches(name, GROWING)
            and not name.startswith("jobs/")
        ):
            del entries[name]  # an older checkpoint made room, a step is to be done again
    _write(run_folder, entries)


def note_files(run_folder: Path, paths: Iterable[Path]) -> None:
    """Bring the entries of these files up to date, and no other; nothing where the run has no manifest yet."""
    if (run_folder / MANIFEST_NAME).exists():
        before = read_manifest(run_folder)
        names = {path.relative_to(run_folder).as_posix(): path for path in paths}
        after = before | {name: _entry(path, before.get(name)) for name, path in names.items()}
        if after != before:
            _write(run_folder, after)


def move_files(run_folder: Path, moved: Mapping[Path, Path]) -> None:
    """Move files and folders inside the run's folder; their entries follow, checksums unchanged.

    Meanwhile they have no entry: whoever is killed in between leaves files to be recorded again, no contradiction.
    """
    before = read_manifest(run_folder)
    renamed = {
        name: (new / (run_folder / name).relative_to(old)).relative_to(run_folder).as_posix()
        for name in before
        for old, new in moved.items()
        if (run_folder / name).is_relative_to(old)
    }
    kept = {name: entry for name, entry in before.items() if name not in renamed}
    if renamed:
        _write(run_folder, kept)
    for source, target in moved.items():
        shutil.move(source, target)
    if renamed:
        _write(run_folder, kept | {new: before[name] for name, new in renamed.items()})


def read_manifest(run_folder: Path) -> dict[str, Entry]:
    """Entries by relative path; empty where there is no manifest, `RecordError` where it is broken."""
    remedy = (
        "So nothing can be said about later edits of this run. Restore it from a copy; only if none exists, delete it "
        "and execute a phase again to have a new one."
    )
    manifest = read_json_record(run_folder / MANIFEST_NAME, _Manifest, "a manifest", remedy)
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
    """Move notebook, report and twin of a phase to records/history/<phase>-<UTC start>; returns the new places.

    With `keep_newer_notebook`, for use while a notebook runs, a notebook that is not the twin's own stays:
    papermill may just be writing it there.
    """
    records = run_folder / "records"
    started = ""
    with contextlib.suppress(
        RecordError
    ):  # none, or a broken one: it is set aside under the time of its file
        started = read_twin(records / f"{phase}.json").started
    present = [path for suffix in SUFFIXES if (path := records / f"{phase}{suffix}").exists()]
    notebook = records / f"{phase}.ipynb"
    # An executed notebook names its execution in the output of `session.attach`.
    may_stay = keep_newer_notebook and started and notebook in present
    if may_stay and started not in notebook.read_text("utf-8", "replace"):
        present.remove(notebook)
    if not present:
        return []
    changed = datetime.fromtimestamp(max(path.stat().st_mtime for path in present), UTC).isoformat()
    history = records / "history"
    history.mkdir(parents=True, exist_ok=True)
    stem = free_name(history, f"{phase}-{name_time(started or changed)}", SUFFIXES)
    moved = {path: history / f"{stem}{path.suffix}" for path in present}
    move_files(run_folder, moved)
    return list(moved.values())


def earlier_records(run_folder: Path, phase: str) -> list[Path]:
    """Files of earlier executions of a phase, newest first."""
    pattern = re.compile(re.escape(phase) + r"-\d{8}T\d{6}Z(-\d+)?\.(ipynb|html|json)")
    folder = run_folder / "records" / "history"
    return sorted((path for path in folder.glob("*") if pattern.fullmatch(path.name)), reverse=True)


COPIES = "lab"  # folder of a person's own copies of the notebooks (`runbook lab`): they are no records, and may change


@dataclass(frozen=True)
class Finding:
    """A file that is not what it should be."""

    kind: str  # changed, missing, added, unreadable or contradiction
    file: str  # relative to the run's folder
    expected: str
    got: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.file} (expected {self.expected}, got {self.got})"


def verify_run(run_folder: Path) -> list[Finding]:
    """Everything that was edited, lost or added after it was recorded; empty where nothing was."""
    if not (run_folder / MANIFEST_NAME).exists():
        return [
            Finding(
                "missing", MANIFEST_NAME, "a manifest", "none: no phase of this run has ended yet"
            )
        ]
    own = f"{COPIES}/"
    entries = {
        name: entry for name, entry in read_manifest(run_folder).items() if not name.startswith(own)
    }
    present = [name for name in covered(run_folder) if not name.startswith(own)]
    findings = [
        Finding("added", name, "no such file", f"{(run_folder / name).lstat().st_size:,} bytes")
        for name in present
        if name not in entries
    ]
    done = phases_done(run_folder)
    findings += [
        finding
        for name, entry in entries.items()
        if (finding := _compare(run_folder, name, entry, done))
    ]
    findings += [*records_agree(run_folder), *cache_agrees(run_folder)]
    return sorted(findings, key=lambda finding: (finding.file, finding.kind))


CACHES = ("data/cache", "smoke/data/cache")
"""Where the trainer caches the order of the text. Their files are no results, but a changed one changes a training."""
CHECKPOINTS = {"data/cache": "checkpoints", "smoke/data/cache": "smoke/checkpoints"}
"""Where the checkpoints lie that were saved with such a cache."""


def cache_agrees(run_folder: Path) -> list[Finding]:
    """Where a cached order of the text is not the one that was built, or that the newest checkpoint was saved with."""
    findings = []
    for cache in CACHES:
        known = data_cache.read_checksums(run_folder / cache)
        saved = _saved_order(run_folder / CHECKPOINTS[cache])
        for path in sorted((run_folder / cache).glob("*.npy")):
            name = f"{cache}/{path.name}"
            built = known.get(path.name)
            if built is None:  # of an older version, or being built: the next start builds it again
                continue
            digest = sha256_of(path)
            wanted = saved.get(path.name, built.sha256)
            if digest != built.sha256 or digest != wanted:
                expected = wanted if digest != wanted else built.sha256
                findings.append(Finding("changed", name, f"sha256 {expected}", f"sha256 {digest}"))
    return findings


def _saved_order(checkpoints: Path) -> dict[str, str]:
    """Checksums of the cache in the newest checkpoint; empty where there is none, or it has none."""
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
    """Findings, and apart from them the files of a running phase, which records them only when it ends."""
    unrecorded = [
        finding
        for finding in findings
        if finding.kind == "added" or (finding.kind, finding.file) == ("missing", MANIFEST_NAME)
    ]
    if not is_running or not unrecorded:
        return list(findings), []
    return [finding for finding in findings if finding not in unrecorded], unrecorded


def records_agree(run_folder: Path) -> list[Finding]:
    """Where the notebook or the report of a phase says another state, verdict or execution than its twin."""
    findings = []
    for phase in PHASES:
        try:
            twin = find_twin(run_folder, phase)
        except RecordError as error:
            findings.append(
                Finding("unreadable", f"records/{phase}.json", "the twin of a notebook", str(error))
            )
            continue
        if twin is not None and not twin.is_open:
            findings += _contradictions(run_folder, phase, twin)
    return findings


def _compare(run_folder: Path, name: str, entry: Entry, done: set[str]) -> Finding | None:
    path = run_folder / name
    try:
        size = path.stat().st_size
        if size > entry.bytes and may_grow(name, done) and begins_as(path, entry):
            return None
        if size != entry.bytes:
            return Finding("changed", name, f"{entry.bytes:,} bytes", f"{size:,} bytes")
        digest = sha256_of(path)
    except (FileNotFoundError, NotADirectoryError):
        return Finding("missing", name, f"{entry.bytes:,} bytes", "no file")
    except OSError as error:
        return Finding("unreadable", name, f"{entry.bytes:,} bytes", error.strerror or str(error))
    if digest == entry.sha256:
        return None
    return Finding("changed", name, f"sha256 {entry.sha256}", f"sha256 {digest}")


def _contradictions(run_folder: Path, phase: str, twin: Twin) -> list[Finding]:
    wanted = {"state": str(twin.state), "verdict": twin.verdict, "execution": twin.started}
    findings = []
    for name, reader in (
        (f"records/{phase}.ipynb", _said_by_notebook),
        (f"records/{phase}.html", said_by_html),
    ):
        try:
            identity = reader(run_folder / name)
        except FileNotFoundError:
            continue  # the manifest says whether there was one
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            return [Finding("unreadable", name, "a record", f"{type(error).__name__}: {error}")]
        findings += [
            Finding(
                "contradiction",
                name,
                f"{key} {value} as in its twin",
                f"{key} {identity.get(key, 'not said')}",
            )
            for key, value in wanted.items()
            if identity.get(key) != value
        ]
    return findings


def _said_by_notebook(path: Path) -> dict[str, str]:
    return dict(json.loads(path.read_text(encoding="utf-8"))["metadata"].get("runbook", {}))


def said_by_html(path: Path) -> dict[str, str]:
    """What the card of a report says about its record; empty where the file is no report."""
    card = re.search(r'<[^<>]* id="record"[^<>]*>', path.read_text(encoding="utf-8"))
    return {
        name: unescape(value)
        for name, value in re.findall(r' data-([\w-]+)="([^"]*)"', card[0] if card else "")
    }
