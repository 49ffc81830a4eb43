"""Verify a run: files are what they were when they were recorded, and records agree."""

import json
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

from runbook.core.atomic_files import sha256_of
from runbook.core.errors import RecordError
from runbook.params.schema.run_file import PHASES
from runbook.records.manifest import MANIFEST_NAME, Entry, begins_as, covered, may_grow, read_manifest
from runbook.records.twin import Twin, find_twin, phases_done

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
        return [Finding("missing", MANIFEST_NAME, "a manifest", "none: no phase of this run has ended yet")]
    own = f"{COPIES}/"
    entries = {name: entry for name, entry in read_manifest(run_folder).items() if not name.startswith(own)}
    present = [name for name in covered(run_folder) if not name.startswith(own)]
    findings = [
        Finding("added", name, "no such file", f"{(run_folder / name).lstat().st_size:,} bytes")
        for name in present
        if name not in entries
    ]
    done = phases_done(run_folder)
    findings += [finding for name, entry in entries.items() if (finding := _compare(run_folder, name, entry, done))]
    return sorted(findings + records_agree(run_folder), key=lambda finding: (finding.file, finding.kind))


def records_agree(run_folder: Path) -> list[Finding]:
    """Where the notebook or the report of a phase says another state, verdict or execution than its twin."""
    findings = []
    for phase in PHASES:
        try:
            twin = find_twin(run_folder, phase)
        except RecordError as error:
            findings.append(Finding("unreadable", f"records/{phase}.json", "the twin of a notebook", str(error)))
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
    return None if digest == entry.sha256 else Finding("changed", name, f"sha256 {entry.sha256}", f"sha256 {digest}")


def _contradictions(run_folder: Path, phase: str, twin: Twin) -> list[Finding]:
    wanted = {"state": str(twin.state), "verdict": twin.verdict, "execution": twin.started}
    findings = []
    for name, reader in ((f"records/{phase}.ipynb", _said_by_notebook), (f"records/{phase}.html", said_by_html)):
        try:
            identity = reader(run_folder / name)
        except FileNotFoundError:
            continue  # the manifest says whether there was one
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, AssertionError) as error:
            return [Finding("unreadable", name, "a record", f"{type(error).__name__}: {error}")]
        findings += [
            Finding("contradiction", name, f"{key} {value} as in its twin", f"{key} {identity.get(key, 'not said')}")
            for key, value in wanted.items()
            if identity.get(key) != value
        ]
    return findings


def _said_by_notebook(path: Path) -> dict[str, str]:
    return dict(json.loads(path.read_text(encoding="utf-8"))["metadata"].get("runbook", {}))


def said_by_html(path: Path) -> dict[str, str]:
    """What the card of a report says about its record; empty where the file is no report."""
    reader = _CardReader()
    reader.feed(path.read_text(encoding="utf-8"))
    return reader.identity


class _CardReader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.identity: dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if values.get("id") == "record" and not self.identity:
            self.identity = {name[5:]: value or "" for name, value in values.items() if name.startswith("data-")}
