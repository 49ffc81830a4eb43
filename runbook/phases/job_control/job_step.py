"""Submits the job for a step only once, finds it again, and resubmits it if it stopped.

This module does not depend on what a job trains; `training_jobs.training_step` defines that.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from runbook.core.errors import JobError
from runbook.display import show_text
from runbook.jobs import job_folder
from runbook.jobs.job_folder import ACTIVE, JobFolder, JobState, Scheduler
from runbook.jobs.render.training_job import RenderedJob, write_job
from runbook.phases.messages import PhaseMessage
from runbook.runs.run_folder import hold_run
from runbook.runs.step import StepOfRun, StepState, StepStatus, outputs_status

Gate = Callable[[], None]
"""Called to raise an error if the job must not be submitted."""


@dataclass(frozen=True)
class JobStep:
    """A step carried out by jobs, with everything needed to submit them."""

    run_name: str
    phase: str
    """The phase after which its job folders are named: jobs/<phase>, jobs/<phase>-2 and so on."""
    step: StepOfRun
    scheduler: Scheduler
    slow_gate: Gate
    """A gate that may take minutes.

    It runs before the run is locked, so that other processes can use the run in the meantime.
    """
    gate: Gate
    """A gate that runs while the run is locked, even if an earlier cell already showed that it
    passes.
    """
    why_continued: Callable[[], str]
    """Explain why the next job continues from the outputs in the folder although inputs changed.

    The text is empty if the job starts from the beginning.
    """
    prepare_folder: Callable[[], None]
    """Keeps the outputs that the job continues from, or moves outputs from a different step aside.
    """
    render: Callable[[], RenderedJob]
    """Return the job files. The job avoids the nodes known to be bad."""
    record_event: Callable[..., None]
    chain: int = 1
    """Number of jobs to queue. Each continues where the previous one stopped."""

    def hold(self, purpose: str) -> AbstractContextManager[None]:
        """Prevent other processes from changing the run within the block."""
        return hold_run(self.step.run_folder, f"{purpose} {self.phase}")

    def latest(self) -> JobFolder | None:
        """Return the folder for the newest job, or None if none was submitted."""
        return job_folder.latest_job_folder(self.step.run_folder, self.phase)


def launch(job_step: JobStep) -> None:
    """Submit a job for the step, find the running one, or report that the step is done.

    Nothing runs twice. A job is submitted only if the gates pass now.
    """
    status = require_unchanged(job_step)
    if status.state is StepState.DONE:
        show_text(PhaseMessage.NOTHING_TO_LAUNCH.fill(phase=job_step.phase))
        return

    if _is_submitted(job_step):
        return
    job_step.slow_gate()
    with job_step.hold("submitting"):
        if _is_submitted(job_step):
            return
        job_step.gate()
        job_step.prepare_folder()
        folder = _submit(job_step)

    job_id = job_step.scheduler.state(folder).job_id
    show_text(
        PhaseMessage.JOB_SUBMITTED.fill(
            missing=status.as_text().capitalize(), folder_name=folder.path.name, job_id=job_id
        )
    )


def resubmit(job_step: JobStep) -> JobFolder:
    """Submit a job again, to continue from the newest checkpoint."""
    with job_step.hold("resuming"):
        job_step.gate()
        return _submit(job_step)


def require_unchanged(job_step: JobStep) -> StepStatus:
    """Return the step status.

    Raise `ChangedOutputError` if a file from a finished step has changed. A finished step is never
    marked done again after its outputs change, because that would make the change part of the
    record.
    """
    step = job_step.step
    status = step.status()
    if status.state is StepState.INPUTS_CHANGED and not _was_submitted_since(job_step):
        # The training run was extended or its layout changed, so its starting point must be
        # unchanged, too.
        marker = step.marker()
        if marker and job_step.why_continued():
            step.refuse(outputs_status(step.run_folder, marker))

    step.refuse(status)
    return status


def _was_submitted_since(job_step: JobStep) -> bool:
    """Return whether a job was submitted after the step was done and may have written files."""
    marker = job_step.step.marker()
    latest = job_step.latest()
    if marker is None or latest is None:
        return False
    record = job_folder.read_record(latest)
    return (
        record is None or record.submitted > marker.finished
    )  # None if the job was submitted by hand


def _is_submitted(job_step: JobStep) -> bool:
    """Return whether the newest job is doing this work or has done it, and print its state if so.

    Raise an error if an active job has different inputs.
    """
    latest = job_step.latest()
    if not latest:
        return False
    status = job_step.scheduler.state(latest)
    is_ours = job_step.step.was_started()
    if status.state in ACTIVE and not is_ours:
        raise JobError(
            PhaseMessage.JOB_WITH_OTHER_PARAMETERS,
            latest=latest.path,
            state=status.state,
            reason=status.reason,
            settings_name=job_step.run_name,
        )

    if status.state in ACTIVE:
        show_text(
            PhaseMessage.JOB_WATCHED.fill(
                job_id=status.job_id, folder_name=latest.path.name, state=status.state
            )
        )
        return True

    if status.state is JobState.DONE and is_ours:
        show_text(PhaseMessage.JOB_FINISHED_UNWATCHED.fill(job_id=status.job_id))
        return True

    return False


def _submit(job_step: JobStep) -> JobFolder:
    """Write the job files into the next folder, and pass them to the scheduler."""
    folder = job_folder.next_job_folder(job_step.step.run_folder, job_step.phase)
    write_job(folder, job_step.render())
    job_id = job_step.scheduler.submit(folder)
    job_step.record_event("submitted", job=folder.path.name, id=job_id)
    if job_step.chain > 1:
        _queue_followers(job_step, folder)
    return folder


def _queue_followers(job_step: JobStep, folder: JobFolder) -> None:
    """Queue the other jobs in a chain.

    If the queue refuses one of them, the job already submitted trains without successors.
    """
    try:
        followers = job_step.scheduler.queue_followers(folder, job_step.chain - 1)
    except JobError as error:
        show_text(f"The chain is shorter than jobs.training.chain={job_step.chain}: {error}")
        return

    show_text(
        f"A chain of {job_step.chain} jobs in jobs/{folder.path.name}, of which the queue holds "
        f"{', '.join(followers)}: each continues where the previous one stopped. Nobody has to "
        "stay logged in."
    )
