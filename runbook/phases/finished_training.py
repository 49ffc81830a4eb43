"""Tells whether a training is finished, so that no phase records half of it as its result."""

from runbook.core.checks import Check, counted, judge
from runbook.core.errors import JobError
from runbook.jobs import get_scheduler
from runbook.phases.messages import PhaseMessage
from runbook.phases.phase_steps import train_step
from runbook.phases.training_results import TrainingResults
from runbook.runs.planned_run import PlannedRun
from runbook.runs.status import active_jobs
from runbook.runs.step import Reading


def why_not_finished(run: PlannedRun, training: str) -> str:
    """Return why a training is not finished, or an empty string if it is.

    Only the sizes of its outputs are compared, because checkpoints may be terabytes in size.
    """
    return train_step(run, training).why_not_done(Reading.SIZES)


def refuse_running_job(run: PlannedRun, phase: str) -> None:
    """Raise `JobError` if a job of a phase is active."""
    _refuse_jobs(run, phase, PhaseMessage.JOB_NOT_FINISHED, waiting=phase)


def refuse_running_training(run: PlannedRun, training: str, waiting: str) -> None:
    """Raise `JobError` if a training's job is active while a later phase wants to end.

    The later phase would record results that the job still changes.
    """
    _refuse_jobs(run, training, PhaseMessage.TRAINING_STILL_RUNS, waiting=waiting)


def _refuse_jobs(run: PlannedRun, phase: str, message: PhaseMessage, waiting: str) -> None:
    for job, status in active_jobs(run.folder, get_scheduler(run.settings.site)):
        if f"{job.path.name}-".startswith(f"{phase}-"):
            raise JobError(
                message,
                phase=waiting,
                job_name=job.path.name,
                state=status.state,
                reason=status.reason,
                settings_name=run.settings.name,
            )


def results_so_far(run: PlannedRun, training: TrainingResults) -> str:
    """Return a sentence for the top of results that are not final, or an empty string."""
    missing = why_not_finished(run, training.phase)
    if not missing:
        return ""
    return PhaseMessage.RESULTS_SO_FAR.fill(
        phase=training.phase,
        last=training.summary.last_iteration,
        planned=counted(training.phase_plan.duration.iterations, "iteration"),
        missing=missing,
    )


def finished_check(run: PlannedRun, training: TrainingResults) -> Check:
    """Check that a training is finished.

    The results of a training that was given up may be recorded too, with a warning.
    """
    planned = counted(training.phase_plan.duration.iterations, "iteration")
    return judge(
        f"{training.phase}: finished",
        not why_not_finished(run, training.phase),
        f"{training.summary.last_iteration:,} of {planned}",
        "the training is finished, so its results are final",
        otherwise="warn",
    )
