"""A person's wish that a run's job saves and stops; nobody who watches it then resumes it.

    stop_gently(folder, scheduler) -> str            was_asked(job) -> bool

To end a job at once is `status.cancel_jobs`.
"""

from __future__ import annotations

import time
from pathlib import Path

from runbook.errors import JobError
from runbook.phases.status import job_folders
from runbook.records.files import write_text
from runbook.schedulers.base import ACTIVE, JobFolder, Scheduler

MARK = "stop_requested"
"""In the job's folder: whoever watches the job does not resume it."""


def stop_gently(folder: Path, scheduler: Scheduler) -> str:
    """Ask every living job of a run to save and stop, as a queue does before its time limit."""
    living = [job for job in job_folders(folder) if scheduler.state(job).state in ACTIVE]
    return "\n".join(_ask(job, scheduler) for job in living) or "No job of this run is running; none was stopped."


def was_asked(job: JobFolder | None) -> bool:
    """Whether somebody asked this job to stop."""
    return job is not None and (job.path / MARK).exists()


def _ask(job: JobFolder, scheduler: Scheduler) -> str:
    _mark(job)
    try:
        scheduler.signal(job, "SIGTERM")
    except JobError:
        if scheduler.state(job).state in ACTIVE:
            (job.path / MARK).unlink(missing_ok=True)
            raise
        return f"{job.path.name}: it had ended by itself"
    return f"{job.path.name}: asked to save and stop; it ends with exit code 75 when it has saved"


def _mark(job: JobFolder) -> None:
    write_text(job.path / MARK, time.strftime("%Y-%m-%dT%H:%M:%SZ\n", time.gmtime()))
