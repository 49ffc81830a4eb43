"""Determines the run state, using only the run folder."""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from runbook.core.errors import ParamsError, RecordError
from runbook.core.files import write_text
from runbook.core.locks import may_be_held
from runbook.jobs.job_folder import heartbeat_age, latest_job_folder, read_end
from runbook.params.yaml12 import read_file
from runbook.plan_file.phase_names import EVALUATION, FULL, PHASES, SMOKE
from runbook.records.done_marks import TRAININGS_READ, is_outdated, mark_path
from runbook.records.engine.execution_end import ExecutionState
from runbook.records.manifest import earlier_records
from runbook.records.messages import RecordMessage
from runbook.records.phase_record import PhaseRecord, find_phase_record, verdict_of

METRICS = {SMOKE: "smoke/metrics.jsonl", FULL: "metrics.jsonl"}
"""File that the trainer writes its losses to."""


def evidence_links(run_folder: Path, phase: str) -> list[tuple[str, str]]:
    """Return the evidence files that exist, as name and path, newest job first."""
    files = []
    job = latest_job_folder(run_folder, phase)
    if job is not None:
        files += [("script", job.script), ("log", job.out), ("errors", job.err)]
    if phase in METRICS:
        files.append(("metrics", run_folder / METRICS[phase]))
    existing = [(name, path) for name, path in files if path.exists()]
    return [(name, path.relative_to(run_folder).as_posix()) for name, path in existing]


KEY_NUMBERS = ("parameters", "iterations", "first_loss", "last_loss", "tokens_per_second")
"""Results that the list of runs shows."""
ORDER = ("fail", "warn", "unknown", "pass")
OUTDATED = "outdated"
"""State of a phase that is done, but with an earlier plan, other data or an earlier training."""
NOT_RUN = "not run"
UNREADABLE = "unreadable"
RECORD_MISSING = "record missing"
"""State of a phase that has ended, but whose record was deleted or not copied."""
TRACES = (
    "run.yaml",
    "run.yaml.part",
    "plan.json",
    "records",
    "jobs",
    "steps",
    "events.jsonl",
    "metrics.jsonl",
)
"""If any of these exists, the folder belongs to a run, even if it is incomplete."""
STATES_NAME = "phase-states.json"
"""File in a published copy with the phase states that only the done markers tell.

A copy has no done markers. Without this file, outdated results would look finished in it.
"""
BEAT_MARGIN_SECONDS = 8.0
"""A running job wrote its last heartbeat at most this long before a phase ended: jobs write one
every 5 seconds."""
BEATS_FOR_SECONDS = 120.0
"""A job without a heartbeat for longer than this does not count as running.

Running jobs write a heartbeat every few seconds.
"""


@dataclass(frozen=True)
class PhaseState:
    """A phase, as its newest record describes it."""

    phase: str
    # A state of a record, or `running`, `not run`, `unreadable`, `outdated`, `record missing`
    state: str
    record: PhaseRecord | None
    # What is wrong with a record that is missing or cannot be read
    problem: str = ""
    # Record files that exist, relative to the run folder
    files: tuple[str, ...] = ()
    # Record files from earlier executions, newest first
    earlier: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunState:
    """A run, as its folder describes it."""

    name: str
    folder: Path
    state: str
    """The run state as text.

    The text is `done`, `running`, `3 of 6 done`, `unreadable`, `no run.yaml`, or the state of the
    newest phase if that is not done.
    """
    phase: str
    """The phase that `state` refers to, or else the phase executed last."""
    # The worst verdict in any phase; never `pass` before every phase is done
    verdict: str
    changed: datetime
    phases: tuple[PhaseState, ...]
    # Key results, each from the last phase that has it
    numbers: dict[str, Any]
    # What is wrong with the run folder
    problem: str = ""


def read_run(run_folder: Path) -> RunState:
    """Return the state of a run.

    Only files decide the state, so a copied folder gives the same answer on a different machine.
    """
    recorded = _with_outdated(run_folder, [_phase(run_folder, phase) for phase in PHASES])
    phases = _without_answered_checks(recorded)
    records = [phase.record for phase in phases if phase.record is not None]
    newest = max(records, key=lambda record: record.started, default=None)
    if newest is not None:
        changed = datetime.fromisoformat(newest.ended or newest.started)
    else:
        changed = datetime.fromtimestamp(run_folder.stat().st_mtime, UTC)

    problem = _problem(run_folder)
    state = _run_state(run_folder, phases, problem)
    return RunState(
        name=run_folder.name,
        folder=run_folder,
        state=state,
        phase=_deciding_phase(phases) or (newest.phase if newest else ""),
        verdict="fail" if state == UNREADABLE else run_verdict(phases),
        changed=changed,
        phases=phases,
        # If more than one phase has a result, the result of the last phase is used.
        numbers=dict(_key_numbers(_current_phases(phases))),
        problem=problem,
    )


def write_states_for_copy(run_folder: Path, copy: Path) -> None:
    """Write to a copy which phases are outdated, or have a lost or broken record.

    Call this before the pages of the copy are written.
    """
    states = {}
    for phase in read_run(run_folder).phases:
        if phase.state in (OUTDATED, RECORD_MISSING, UNREADABLE):
            states[phase.phase] = phase.state

    if states:
        write_text(copy / STATES_NAME, json.dumps(states, indent=1) + "\n")


def _copied_states(run_folder: Path) -> dict[str, str]:
    """Return the states that a copy was published with; empty if this is no such copy."""
    path = run_folder / STATES_NAME
    if not path.exists():
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise RecordError(RecordMessage.STATES_NOT_READABLE, path=path, error=error) from error


def _with_outdated(run_folder: Path, phases: Sequence[PhaseState]) -> list[PhaseState]:
    """Mark each phase that is done, but with an earlier plan, other data or an earlier training.

    A phase is also marked if it read the results of a training that is marked. While a training is
    not done, its own state tells that its results still change.
    """
    done = {phase.phase for phase in phases if phase.state == ExecutionState.DONE}
    copied_states = _copied_states(run_folder)
    outdated: set[str] = set()
    marked = []
    for phase in phases:
        trainings = TRAININGS_READ.get(phase.phase, ())
        is_judged = done.issuperset({*trainings, phase.phase})
        was_outdated = copied_states.get(phase.phase) == OUTDATED
        read_outdated = was_outdated or not outdated.isdisjoint(trainings)
        if is_judged and (read_outdated or is_outdated(run_folder, phase.phase)):
            outdated.add(phase.phase)
            marked.append(replace(phase, state=OUTDATED))
        else:
            marked.append(phase)

    return marked


def has_current_scores(run: RunState) -> bool:
    """Return whether scores on file belong to the run in its current state.

    They do not if 06-evaluation is outdated, or was not executed since an earlier phase began again.
    """
    (evaluation,) = (phase for phase in run.phases if phase.phase == EVALUATION)
    if evaluation.state == OUTDATED:
        return False
    return evaluation.record is None or evaluation in _current_phases(run.phases)


def _current_phases(phases: Sequence[PhaseState]) -> list[PhaseState]:
    """Return the phases whose results belong to the run in its current state.

    While a phase is executed again, or after it was interrupted, the older results of later phases
    belong to its earlier execution.
    """
    current = []
    unfinished_since = ""
    for phase in phases:
        record = phase.record
        if record is None or record.started < unfinished_since:
            continue
        current.append(phase)
        if phase.state not in (ExecutionState.DONE, OUTDATED):
            unfinished_since = max(unfinished_since, record.started)

    return current


def _without_answered_checks(phases: Sequence[PhaseState]) -> tuple[PhaseState, ...]:
    """Leave out each unknown check that a later phase repeated with a known verdict.

    For example, 00-plan cannot know how many tokens your own text has, but 02-data counts them.
    """
    answered: set[str] = set()
    remaining: list[PhaseState] = []
    for phase in reversed(phases):
        record = phase.record
        if record is None:
            remaining.append(phase)
            continue
        checks = tuple(
            check
            for check in record.checks
            if check.verdict != "unknown" or check.name not in answered
        )
        if len(checks) < len(record.checks):
            verdict = verdict_of(record.state, checks)
            phase = replace(phase, record=replace(record, checks=checks, verdict=verdict))
        remaining.append(phase)
        answered |= {check.name for check in record.checks if check.verdict != "unknown"}

    return tuple(reversed(remaining))


def _run_state(run_folder: Path, phases: Sequence[PhaseState], problem: str) -> str:
    has_run_file = (run_folder / "run.yaml").exists()
    if problem and has_run_file:
        return UNREADABLE
    was_executed = any(phase.record is not None for phase in phases)
    if not has_run_file and not was_executed:
        return "no run.yaml"
    return _state(phases)


def _key_numbers(phases: Sequence[PhaseState]) -> Iterator[tuple[str, Any]]:
    """Yield the key results from each phase with their names, but none that is outdated."""
    for phase in phases:
        if phase.record is None or phase.state == OUTDATED:
            continue
        for name in KEY_NUMBERS:
            if name in phase.record.results:
                yield name, phase.record.results[name]


def run_verdict(phases: Sequence[PhaseState]) -> str:
    """Return the worst verdict in these phases; never `pass` before every phase is done."""
    verdicts = {phase.record.verdict for phase in phases if phase.record is not None}
    verdicts |= {"fail" for phase in phases if phase.problem and phase.state != RECORD_MISSING}
    verdicts |= {"unknown" for phase in phases if phase.state != ExecutionState.DONE}
    return next((verdict for verdict in ORDER if verdict in verdicts), "unknown")


def read_runs(runs_folder: Path) -> list[RunState]:
    """Return the state of every complete or partial run in a folder, newest first."""
    runs = []
    for folder in runs_folder.glob("*"):
        if _has_traces(folder):
            runs.append(read_run(folder))

    return sorted(runs, key=lambda run: run.changed, reverse=True)


def _has_traces(folder: Path) -> bool:
    return any((folder / name).exists() for name in TRACES)


def _problem(run_folder: Path) -> str:
    path = run_folder / "run.yaml"
    if not path.exists():
        return "run.yaml is missing: the folder is incomplete, or only part of it was copied"
    try:
        read_file(path, "run.yaml")
    except ParamsError as error:
        return str(error)

    return ""


def _phase(run_folder: Path, phase: str) -> PhaseState:
    names = [f"records/{phase}{suffix}" for suffix in (".html", ".ipynb", ".json")]
    files = tuple(name for name in names if (run_folder / name).exists())
    earlier_paths = earlier_records(run_folder, phase)
    earlier = tuple(path.relative_to(run_folder).as_posix() for path in earlier_paths)
    try:
        record = find_phase_record(run_folder, phase)
    except RecordError as error:
        return PhaseState(
            phase,
            UNREADABLE,
            None,
            str(error),
            files,
            earlier,
        )

    if record is None:
        # A report is written when a phase ends, a done marker when it is done.
        has_report = f"records/{phase}.html" in files
        has_ended = has_report or mark_path(run_folder, phase).exists()
        has_ended = has_ended or phase in _copied_states(run_folder)
        problem = ""
        if has_ended:
            problem = RecordMessage.RECORD_MISSING.fill(phase=phase, run=run_folder.name)
        return PhaseState(
            phase,
            RECORD_MISSING if has_ended else NOT_RUN,
            None,
            problem,
            files,
            earlier,
        )

    if _is_running(run_folder, phase, record):
        state = "running"
    else:
        state = str(record.state)

    return PhaseState(
        phase,
        state,
        record,
        "",
        files,
        earlier,
    )


def _is_running(run_folder: Path, phase: str, record: PhaseRecord) -> bool:
    # The run is locked while a notebook is being executed. An open record without a lock was left
    # by a killed kernel or by someone who closed the page. The job for this phase may still be
    # running.
    if record.is_open and may_be_held(run_folder):
        return True
    if record.state == ExecutionState.DONE:
        return False
    job = latest_job_folder(run_folder, phase)
    if job is None or read_end(job, "") is not None:
        return False
    age = heartbeat_age(job)
    if age is None or age >= BEATS_FOR_SECONDS:
        return False
    if record.state != ExecutionState.FAILED or not record.ended:
        return True
    # The phase fails after a job that was killed and could write no exit code. A job that goes on
    # after another failure writes heartbeats later than the end of the record.
    ended = datetime.fromisoformat(record.ended).timestamp()
    return time.time() - age > ended - BEAT_MARGIN_SECONDS


def _deciding_phase(phases: Sequence[PhaseState]) -> str:
    """Return the running phase, or else the last phase that ended but is not done.

    Return an empty string if all phases are done.
    """
    executed = [phase for phase in phases if phase.state != NOT_RUN]
    running = [phase.phase for phase in executed if phase.state == "running"]
    bad = [phase.phase for phase in executed if phase.state != ExecutionState.DONE]
    return (running or bad or [""])[-1]


def _state(phases: Sequence[PhaseState]) -> str:
    states = [phase.state for phase in phases if phase.state != NOT_RUN]
    if not states or "running" in states:
        return "running" if states else NOT_RUN
    bad = [state for state in states if state != ExecutionState.DONE]
    if bad:
        return bad[-1]
    if len(states) == len(phases):
        return "done"
    return RecordMessage.STATES_DONE.fill(done=len(states), phases=len(phases))
