"""What is in the run folders: every run, one run, its jobs; rebuilt from the files each time."""

from __future__ import annotations

import difflib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from runbook import params
from runbook.display import Table
from runbook.errors import JobError, RecordError
from runbook.params.schema import PHASES
from runbook.phases.campaign import runs_folder
from runbook.phases.queue_view import asked_by, is_called, nodes_of, queue_rows, tails
from runbook.records.runs import PhaseState, RunState, read_run, read_runs
from runbook.schedulers import get_scheduler
from runbook.schedulers.base import ACTIVE, JobFolder, JobStatus, Scheduler, State
from runbook.units import show_duration


def all_runs(runs: Path | None = None) -> list[Path]:
    """Every run folder with its run.yaml, by name."""
    root = runs or runs_folder(params.project_root())
    return sorted(path.parent for path in root.glob("*/run.yaml"))


def run_folder(name: str, runs: Path | None = None) -> Path:
    """The folder of a run given as its name, `RUN:VARIANT`, or a path; the nearest names where there is none."""
    root = runs or runs_folder(params.project_root())
    stem = name.removesuffix(".yaml").rpartition("/")[2].replace(":", "--")
    for folder in (Path(name), root / stem):
        if (folder / "run.yaml").exists():
            return folder.absolute()
    names = [folder.name for folder in all_runs(root)]
    near = difflib.get_close_matches(stem, names) or names
    there = f"; there are {', '.join(near)}" if near else "; there are no runs yet"
    raise RecordError(f"{root / stem} is not a run's folder{there}. runbook run {stem} makes it.")


def job_folders(folder: Path) -> list[JobFolder]:
    """Every job of a run, in the order of phases and attempts."""
    paths = [path for path in (folder / "jobs").glob("*/") if (path / "job.json").exists()]
    return [JobFolder(path) for path in sorted(paths, key=lambda path: _attempt(path.name))]


def scheduler_of(folder: Path) -> Scheduler:
    """The scheduler that a run's jobs went through."""
    return get_scheduler(params.load(str(folder / "run.yaml")).site)


def job_rows(folder: Path) -> Iterator[dict[str, Any]]:
    """One row a job: its folder, id, state, how long, partition, nodes, why."""
    scheduler = scheduler_of(folder)
    for job in job_folders(folder):
        status = scheduler.state(job)
        yield {
            "job": job.path.name,
            "id": status.job_id,
            "state": str(status.state),
            "time": _lasted(status),
            "partition": asked_by(job).partition,
            "nodes": nodes_of(job),
            "why": status.reason,
        }


def status_of_all(runs: Path | None) -> str:
    """A table of all runs."""
    root = runs or runs_folder(params.project_root())
    rows = [_run_row(run) for run in sorted(read_runs(root), key=lambda run: run.name)]
    if not rows:
        return "No runs yet: runbook run local makes the first one."
    return Table(rows).as_text()


def status_of_one(name: str, runs: Path | None) -> str:
    """Phases and jobs of a run; for jobs that have not ended, their queue and the last lines they wrote."""
    folder = run_folder(name, runs)
    run = read_run(folder)
    parts = [str(folder), Table([_phase_row(phase) for phase in run.phases]).as_text()]
    if run.problem:
        return "\n\n".join([*parts, f"{run.problem}\nWithout it the queue of its jobs is not known."])
    jobs = list(job_rows(folder))
    if jobs:
        parts.append(Table(_without_empty(jobs)).as_text())
    states = {row["job"]: State(row["state"]) for row in jobs}
    living = [job for job in job_folders(folder) if states[job.path.name] in (*ACTIVE, State.UNKNOWN)]
    if living and (queues := queue_rows(scheduler_of(folder), living)):
        parts.append(Table(queues).as_text())
    if living and (words := tails(living)):
        parts.append(words)
    return "\n\n".join(parts)


def find_job(job_id: str, runs: Path | None) -> str:
    """The job folder of a job id."""
    for folder in all_runs(runs):
        for job in job_folders(folder):
            if is_called(job, job_id.strip()):
                return f"{folder.name}: {job.path}"
    raise JobError(
        f"No run here submitted a job {job_id}; runbook status lists the runs, runbook status RUN their jobs."
    )


def cancel_jobs(name: str, runs: Path | None) -> str:
    """End every living job of a run."""
    lines = []
    folder = run_folder(name, runs)
    scheduler = scheduler_of(folder)
    for job in job_folders(folder):
        if scheduler.state(job).state in (*ACTIVE, State.UNKNOWN):
            status = scheduler.cancel(job)
            lines.append(f"{job.path.name}: {status.state} ({status.reason})")
    return "\n".join(lines) or "No job of this run is running; nothing was cancelled."


def refuse_while_a_job_runs(folder: Path, scheduler: Scheduler) -> None:
    """Raise where a job of the run still writes to the files that are about to be moved."""
    for job in job_folders(folder):
        status = scheduler.state(job)
        if status.state in ACTIVE:
            raise JobError(
                f"{job.path} is {status.state} ({status.reason}); what it works on is not moved away. Wait until it "
                f"has ended, or end it: runbook cancel {folder.name}."
            )


def _attempt(name: str) -> tuple[str, int, str]:
    """What jobs are sorted by: phase, number, and the part of the phase's work where it has several jobs."""
    for phase in PHASES:
        if name == phase or name.startswith(f"{phase}-"):
            part, _, number = name[len(phase) + 1 :].rpartition("-")
            return phase, int(number) if number.isdigit() else 1, part if number.isdigit() else f"{part}-{number}"
    return name, 0, ""


def _without_empty(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows without the columns that none fills."""
    return [{key: value for key, value in row.items() if any(other[key] for other in rows)} for row in rows]


def _lasted(status: JobStatus) -> str:
    if status.started is None:
        return ""
    return show_duration((status.ended or time.time()) - status.started)


def _phase_row(phase: PhaseState) -> dict[str, Any]:
    twin = phase.twin
    return {
        "phase": phase.phase,
        "state": phase.state,
        "verdict": twin.verdict if twin else "",
        "ended": twin.ended if twin else "",
        "numbers": _numbers(twin.results) if twin else phase.problem.partition(". ")[0],
    }


def _run_row(run: RunState) -> dict[str, Any]:
    return {
        "run": run.name,
        "phase": run.phase,
        "state": run.state,
        "verdict": run.verdict,
        "age": show_duration(max(0.0, time.time() - run.changed.timestamp())),
        "numbers": run.problem.splitlines()[0] if run.problem else _numbers(run.numbers),
    }


def _numbers(results: Mapping[str, Any]) -> str:
    if results.get("last_loss") is None:
        return ""
    speed = f", {_number(results['tokens_per_second'], ',.0f')} tokens/s" if results.get("tokens_per_second") else ""
    return f"loss {_number(results.get('first_loss'), '.2f')} to {_number(results['last_loss'], '.2f')}{speed}"


def _number(value: Any, form: str) -> str:
    """A number as a table shows it; a loss that became `nan`, or what somebody wrote into a record, as it is there."""
    return f"{value:{form}}" if isinstance(value, int | float) else str(value)
