"""Whether a run's files are still what they were when they were recorded, and whether its records agree.

verify_run(run_folder) -> list[Finding]         changed, missing, added, unreadable files; records that contradict
records_agree(run_folder) -> list[Finding]      notebook, report and twin of each phase say the same
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from runbook.errors import RecordError
from runbook.params.schema import PHASES
from runbook.records.files import sha256_of
from runbook.records.html import said_by_html
from runbook.records.manifest import NAME, Entry, covered, read_manifest
from runbook.records.twin import Twin, find_twin


@dataclass(frozen=True)
class Finding:
    """A file that is not what it should be."""

    kind: str
    """changed, missing, added, unreadable or contradiction."""
    file: str
    """Relative to the run's folder."""
    expected: str
    got: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.file} (expected {self.expected}, got {self.got})"


def verify_run(run_folder: Path) -> list[Finding]:
    """Everything that was edited, lost or added after it was recorded; empty where nothing was."""
    if not (run_folder / NAME).exists():
        return [Finding("missing", NAME, "a manifest", "none: no phase of this run has ended yet")]
    entries = read_manifest(run_folder)
    present = covered(run_folder)
    findings = [
        Finding("added", name, "no such file", f"{(run_folder / name).stat().st_size:,} bytes")
        for name in present
        if name not in entries
    ]
    findings += [finding for name, entry in entries.items() if (finding := _compare(run_folder, name, entry))]
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


def _compare(run_folder: Path, name: str, entry: Entry) -> Finding | None:
    path = run_folder / name
    if not path.exists():
        return Finding("missing", name, f"{entry.bytes:,} bytes", "no file")
    try:
        size = path.stat().st_size
        if size != entry.bytes:
            return Finding("changed", name, f"{entry.bytes:,} bytes", f"{size:,} bytes")
        digest = sha256_of(path)
    except OSError as error:
        return Finding("unreadable", name, f"{entry.bytes:,} bytes", error.strerror or str(error))
    return None if digest == entry.sha256 else Finding("changed", name, f"sha256 {entry.sha256}", f"sha256 {digest}")


def _contradictions(run_folder: Path, phase: str, twin: Twin) -> list[Finding]:
    wanted = {"state": str(twin.state), "verdict": twin.verdict, "execution": twin.started}
    said = {}
    for suffix, reader in ((".ipynb", _said_by_notebook), (".html", said_by_html)):
        path = run_folder / "records" / f"{phase}{suffix}"
        if path.exists():
            try:
                said[path.relative_to(run_folder).as_posix()] = reader(path)
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                return [Finding("unreadable", f"records/{path.name}", "a record", str(error))]
    return [
        Finding("contradiction", name, f"{key} {value} as in its twin", f"{key} {told.get(key, 'not said')}")
        for name, told in said.items()
        for key, value in wanted.items()
        if told.get(key) != value
    ]


def _said_by_notebook(path: Path) -> dict[str, str]:
    told: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))["metadata"].get("runbook", {})
    return told
