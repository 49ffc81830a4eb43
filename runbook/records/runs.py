"""The state of a run, read from its folder alone.

read_run(run_folder) -> RunState            read_runs(runs_folder) -> list[RunState], the newest first
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from runbook.errors import ParamsError, RecordError
from runbook.params.schema import PHASES
from runbook.params.yaml12 import read_file
from runbook.records.evidence import newest_job
from runbook.records.history import earlier
from runbook.records.state import State
from runbook.records.twin import Twin, find_twin
from runbook.schedulers.base import JobFolder
from runbook.schedulers.files import ended, heartbeat_age
from runbook.schedulers.lock import may_be_held

KEY_NUMBERS = ("parameters", "iterations", "first_loss", "last_loss", "tokens_per_second")
"""Results that a list of runs shows."""
ORDER = ("fail", "warn", "unknown", "pass")
TRACES = ("run.yaml", "run.yaml.part", "plan.json", "records", "jobs", "steps", "events.jsonl", "metrics.jsonl")
"""Any of them makes a folder one of a run, however much of it is there."""
BEATS_FOR_SECONDS = 120.0
"""A job gives a sign of life every few seconds; one that was silent for longer is not called running here."""


@dataclass(frozen=True)
class PhaseState:
    """A phase as its newest record tells it."""

    phase: str
    state: str
    """A state of a twin, or `running`, `not run`, `unreadable`."""
    twin: Twin | None
    problem: str = ""
    """What is wrong with a record that cannot be read."""
    files: tuple[str, ...] = ()
    """Record files that exist, relative to the run's folder."""
    earlier: tuple[str, ...] = ()
    """Files of earlier executions, newest first."""


@dataclass(frozen=True)
class RunState:
    """A run as its folder tells it."""

    name: str
    folder: Path
    state: str
    """`done`, `running`, how the newest phase ended badly, `3 of 6 done`, `unreadable` or `no run.yaml`."""
    phase: str
    """The newest phase that was executed."""
    verdict: str
    """The worst of all phases; never `pass` before every phase is done."""
    changed: datetime
    phases: tuple[PhaseState, ...]
    numbers: dict[str, Any]
    """Key results of the latest phase that has them."""
    problem: str = ""
    """What is wrong with the folder itself."""

    @property
    def is_broken(self) -> bool:
        """Nothing can be said of it but its problem."""
        return self.state in ("unreadable", "no run.yaml")


def read_run(run_folder: Path) -> RunState:
    """State of a run; nothing but files is asked, so a copy on another machine says the same."""
    phases = tuple(_phase(run_folder, phase) for phase in PHASES)
    twins = [phase.twin for phase in phases if phase.twin is not None]
    newest = max(twins, key=lambda twin: twin.started, default=None)
    missing, problem = not (run_folder / "run.yaml").exists(), _problem(run_folder)
    state = "unreadable" if problem and not missing else "no run.yaml" if missing and not twins else _state(phases)
    bad = any(phase.problem for phase in phases) or state == "unreadable"
    words = {twin.verdict for twin in twins} | ({"fail"} if bad else set())
    words |= set() if state == State.DONE else {"unknown"}
    numbers = {name: twin.results[name] for twin in twins for name in KEY_NUMBERS if name in twin.results}
    changed = datetime.fromisoformat(newest.ended or newest.started) if newest else _modified(run_folder)
    return RunState(
        name=run_folder.name,
        folder=run_folder,
        state=state,
        phase=newest.phase if newest else "",
        verdict=next((word for word in ORDER if word in words), "unknown"),
        changed=changed,
        phases=phases,
        numbers=numbers,
        problem=problem,
    )


def read_runs(runs_folder: Path) -> list[RunState]:
    """Every folder that holds a run or what is left of one, the newest first."""
    folders = [path for path in runs_folder.glob("*") if any((path / name).exists() for name in TRACES)]
    return sorted((read_run(folder) for folder in folders), key=lambda run: run.changed, reverse=True)


def _problem(run_folder: Path) -> str:
    """Why its run.yaml cannot be read; empty where it can."""
    path = run_folder / "run.yaml"
    if not path.exists():
        return "run.yaml is missing: the folder was not made whole, or only part of it was copied"
    try:
        read_file(path, "run.yaml")
    except ParamsError as error:
        return str(error)
    return ""


def _phase(run_folder: Path, phase: str) -> PhaseState:
    files = tuple(
        f"records/{phase}{suffix}"
        for suffix in (".html", ".ipynb", ".json")
        if (run_folder / "records" / f"{phase}{suffix}").exists()
    )
    before = tuple(path.relative_to(run_folder).as_posix() for path in earlier(run_folder, phase))
    try:
        twin = find_twin(run_folder, phase)
    except RecordError as error:
        return PhaseState(phase, "unreadable", None, str(error), files, before)
    if twin is None:
        return PhaseState(phase, "not run", None, "", files, before)
    # Whoever executes a notebook holds the run's lock; an open twin without it was left by a killed kernel, or by a
    # person who closed the page: then its job may go on.
    running = (twin.is_open and may_be_held(run_folder)) or (twin.state != State.DONE and _job_lives(run_folder, phase))
    return PhaseState(phase, "running" if running else str(twin.state), twin, "", files, before)


def _job_lives(run_folder: Path, phase: str) -> bool:
    """Whether the newest job of a phase gave a sign of life lately and has not ended."""
    path = newest_job(run_folder, phase)
    if path is None or ended(JobFolder(path), "") is not None:
        return False
    age = heartbeat_age(JobFolder(path))
    return age is not None and age < BEATS_FOR_SECONDS


def _state(phases: Sequence[PhaseState]) -> str:
    executed = [phase for phase in phases if phase.state != "not run"]
    if not executed:
        return "not run"
    if any(phase.state == "running" for phase in executed):
        return "running"
    bad = [phase.state for phase in executed if phase.state != State.DONE]
    if bad:
        return bad[-1]
    return "done" if len(executed) == len(phases) else f"{len(executed)} of {len(phases)} done"


def _modified(folder: Path) -> datetime:
    return datetime.fromtimestamp(folder.stat().st_mtime, UTC)
