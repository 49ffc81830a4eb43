"""Work of the environment and data phases as jobs of the site's queue: submitted or found, watched to the end."""

from __future__ import annotations

import time
from collections.abc import Sequence

from runbook.display import Progress, show_text
from runbook.errors import JobError
from runbook.phases.campaign import Campaign
from runbook.render import PACKAGE, JobFolder, Task, asks_for_queue, render_task, write_job
from runbook.schedulers import get_scheduler
from runbook.schedulers.base import ACTIVE, JobStatus, State, latest_job_folder, next_job_folder
from runbook.schedulers.elements import element_folders
from runbook.schedulers.files import last_words
from runbook.schedulers.queue import QueueScheduler

POLL_SECONDS = 1.0


def wanted(campaign: Campaign) -> bool:
    """Whether this phase's work goes through the queue here."""
    return asks_for_queue(campaign.settings, campaign.phase)


def run_tasks(campaign: Campaign, tasks: Sequence[Task]) -> list[JobFolder]:
    """Submit tasks, each to begin when all of the one before has ended well, and watch them to their end.

    A job that runs already is found. One that failed is told in its own last words.
    """
    scheduler = get_scheduler(campaign.settings.site)
    assert isinstance(scheduler, QueueScheduler), "only a queue is asked for"
    folders: list[JobFolder] = []
    with campaign.hold(f"submitting {campaign.phase}"):
        for task in tasks:
            folders.append(_submit(campaign, scheduler, task, folders[-1:]))
    for folder in folders:
        status = _follow(scheduler, folder)
        if status.state is not State.DONE:
            raise JobError(failure_text(folder, status))
    return folders


def outputs(folder: JobFolder) -> str:
    """All that a task's job said."""
    parts = element_folders(folder) or [folder]
    return "".join(part.out.read_text(encoding="utf-8", errors="replace") for part in parts if part.out.exists())


def failure_text(folder: JobFolder, status: JobStatus) -> str:
    """Why a task's job did not do its work, in its own last words."""
    parts = element_folders(folder) or [folder]
    logs = [log for part in parts for log in (part.err, part.out)]
    words = [line for log in logs for line in last_words(log, 6)]
    return (
        f"{folder.path} ended as {status.state} ({status.reason}). Its last words:\n"
        + ("\n".join(f"  {line}" for line in words) or "  nothing")
        + "\nAfter mending the cause, run the cell again: what is done is not done twice."
    )


def _submit(campaign: Campaign, scheduler: QueueScheduler, task: Task, after: Sequence[JobFolder]) -> JobFolder:
    name = task.folder(campaign.phase)
    latest = latest_job_folder(campaign.folder, name)
    if latest is not None and (status := scheduler.state(latest)).state in ACTIVE:
        show_text(
            f"Job {status.job_id} of jobs/{latest.path.name} is {status.state}; it is watched, not started again."
        )
        return latest
    folder = next_job_folder(campaign.folder, name)
    write_job(folder, render_task(campaign.settings, campaign.phase, task, PACKAGE))
    job_id = scheduler.submit(folder, after=after)
    behind = f", to begin after jobs/{after[0].path.name}" if after else ""
    show_text(f"{task.what}: submitted jobs/{folder.path.name} as {job_id}{behind}.")
    return folder


def _follow(scheduler: QueueScheduler, folder: JobFolder) -> JobStatus:
    parts = element_folders(folder)
    with Progress(folder.path.name, total=len(parts) or 1, unit="jobs") as progress:
        while True:
            status = scheduler.state(folder)
            done = sum(part.exit_code.exists() for part in parts) if parts else int(status.final)
            progress.update(done=done, job=status.job_id, state=str(status.state), why=status.reason)
            if status.final:
                return status
            time.sleep(POLL_SECONDS)
