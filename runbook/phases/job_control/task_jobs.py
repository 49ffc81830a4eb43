"""Submits and watches queue jobs that do not train.

Either all jobs are submitted, or none. Jobs that are already running are found, and watched until
they end.
"""

import time
from collections.abc import Sequence

from runbook.core.errors import JobError, JobFailedError
from runbook.display import Progress, show_text
from runbook.jobs import get_scheduler, job_folder
from runbook.jobs.job_folder import ACTIVE, JobFolder, JobState, JobStatus
from runbook.jobs.job_request import element_folders
from runbook.jobs.queue import QueueScheduler
from runbook.jobs.render.task_job import Task, render_task
from runbook.jobs.render.training_job import PACKAGE, write_job
from runbook.phases.job_control import live_view
from runbook.phases.messages import PhaseMessage
from runbook.runs.planned_run import PlannedRun


def run_tasks(run: PlannedRun, phase: str, tasks: Sequence[Task]) -> None:
    """Submit tasks and watch them until they end.

    Each task starts when the previous one has succeeded. A job that is already running is watched.
    Raise `JobFailedError` with the last lines printed by a failed job.
    """
    scheduler = get_scheduler(run.settings.site)
    assert isinstance(scheduler, QueueScheduler), "only requested from a queue"
    with run.hold(f"submitting {phase}"):
        folders = _submit_tasks(run, phase, scheduler, tasks)
    for folder in folders:
        status = _follow_task(scheduler, folder)
        if status.state is not JobState.DONE:
            text = end_text(
                str(folder.path),
                status,
                element_folders(folder) or [folder],
                num_lines=6,
            )
            raise JobFailedError(
                f"{text}\nAfter fixing the cause, run the cell again: "
                "finished work is not repeated.",
                status.exit_code,
            )


def end_text(
    name: str,
    status: JobStatus,
    folders: Sequence[JobFolder],
    num_lines: int = 12,
) -> str:
    """Return how a job ended, with the last lines that it printed."""
    lines = []
    for part in folders:
        for log in (part.err, part.out):
            for line in job_folder.log_tail(log, num_lines):
                lines.append(f"  {line}")

    ended = PhaseMessage.JOB_ENDED.fill(name=name, state=status.state, reason=status.reason)
    return "\n".join([ended, *(lines or ["  nothing"])])


def _submit_tasks(
    run: PlannedRun,
    phase: str,
    scheduler: QueueScheduler,
    tasks: Sequence[Task],
) -> list[JobFolder]:
    """Submit all tasks, or none: if a task is refused, the earlier ones are cancelled."""
    folders: list[JobFolder] = []
    submitted: list[JobFolder] = []
    try:
        for task in tasks:
            name = task.folder(phase)
            latest = job_folder.latest_job_folder(run.folder, name)
            if latest and (status := scheduler.state(latest)).state in ACTIVE:
                state = f"Job {status.job_id} of jobs/{latest.path.name} is {status.state}"
                show_text(PhaseMessage.TASK_JOB_WATCHED.fill(state=state))
                folders.append(latest)
                continue

            folder = job_folder.next_job_folder(run.folder, name)
            after = folders[-1:]
            write_job(folder, render_task(run.settings, phase, task, PACKAGE))
            job_id = scheduler.submit(folder, after=after)
            if after:
                behind = f", to begin after jobs/{after[0].path.name}"
            else:
                behind = ""

            show_text(
                PhaseMessage.TASK_JOB_SUBMITTED.fill(
                    task=task.what, folder_name=folder.path.name, job_id=job_id, behind=behind
                )
            )
            folders.append(folder)
            submitted.append(folder)
    except JobError:
        for job in submitted:
            scheduler.cancel(job)
            show_text(f"jobs/{job.path.name} is cancelled, because the next job was not submitted.")

        raise

    return folders


def _follow_task(scheduler: QueueScheduler, folder: JobFolder) -> JobStatus:
    parts = element_folders(folder)
    with Progress(folder.path.name, total=len(parts) or 1, unit="jobs") as progress:
        while True:
            status = scheduler.state(folder)
            if parts:
                done = sum(part.exit_code.exists() for part in parts)
            else:
                done = int(status.final)

            progress.update(
                done=done,
                job=status.job_id,
                state=str(status.state),
                why=status.reason,
            )
            if status.final:
                return status
            time.sleep(live_view.POLL_SECONDS)
