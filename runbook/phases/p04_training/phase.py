"""04-training: runs the training phase to completion, with a planned stop on request."""

import importlib.util
from collections.abc import Sequence
from functools import partial
from typing import Any

from runbook.core.errors import JobError, RecordError
from runbook.display import CheckTable, Table, View, show_text
from runbook.jobs.job_folder import JobState
from runbook.next_job.decisions import Decision
from runbook.phases import trained_model, training_results
from runbook.phases.job_control import job_step, readiness, training_jobs
from runbook.phases.job_control.job_step import JobStep
from runbook.phases.job_control.training_jobs import training_step
from runbook.phases.messages import PhaseMessage
from runbook.phases.open_phase import binder
from runbook.phases.phase_end import plain_end
from runbook.phases.phase_steps import FULL_TRAINING
from runbook.phases.recorded_checks import record_checks
from runbook.phases.sealed_forecasts import seal_forecasts
from runbook.phases.steps import PhaseStep, step
from runbook.phases.training_results import show_account as show_account
from runbook.phases.training_results import show_loss as show_loss
from runbook.plan_file import offline_defaults
from runbook.plan_file.job_ends import Action
from runbook.plan_file.phase_names import FULL
from runbook.planning import Check
from runbook.records.session import Session
from runbook.results import gates
from runbook.results.history import Event, History, events_named, read_events
from runbook.runs.planned_run import PlannedRun, PlannedTraining

PHASE = FULL
bind = binder(PHASE)
finish = plain_end(PHASE)


@step(takes=lambda opened: (opened.training, opened.session))
def check_ready(training: PlannedTraining, session: Session) -> CheckTable:
    """Show the smoke-test verdict and the token files; stop if either failed or is missing."""
    return record_checks(session, readiness.readiness_checks(training, session))


@step(takes=lambda opened: (_sealed_training(opened.training, opened.session),), work=FULL_TRAINING)
def launch(training_job: JobStep) -> None:
    """Seal the forecasts for training, then submit its job or find the running job.

    Nothing runs twice.
    """
    job_step.launch(training_job)


def _sealed_training(training: PlannedTraining, session: Session) -> JobStep:
    """Return the training run as a job step that seals the forecasts before the job starts."""
    return training_step(training, session, before_submit=partial(_seal, training.run))


def _seal(run: PlannedRun) -> None:
    """Seal the forecasts for a training run.

    Changed forecasts do not stop training, but 05-analysis refuses to score them.
    """
    try:
        seal_forecasts(run)
    except RecordError as error:
        show_text(f"The forecasts of this training run are not sealed again. {error}")


@step(takes=lambda opened: (opened.training, training_step(opened.training, opened.session)))
def rehearse_stop(training: PlannedTraining, training_job: JobStep) -> None:
    """Let the job reach `training.rehearse_stop`, ask it to save and stop, and submit it again."""
    at = training.settings.run.training.rehearse_stop
    if not at:
        show_text(PhaseMessage.NO_STOP_REHEARSED.fill())
        return

    if training.job.chain > 1:
        show_text("jobs.training.chain already queues the next jobs, so no planned stop is needed.")
        return

    if stops(training):
        show_text(PhaseMessage.STOP_REHEARSED_ALREADY.fill())
        return

    if not FULL_TRAINING.of(training.run).why_not_done():
        show_text(PhaseMessage.FINISHED_BEFORE_THE_STOP.fill(at=at))
        return

    status = training_jobs.follow(training, until=at)
    if status.state is JobState.RUNNING:
        status = training_jobs.stop_gently(training)
    if status.state is JobState.DONE:
        show_text(PhaseMessage.FINISHED_BEFORE_THE_STOP.fill(at=at))
        return

    if status.state is not JobState.STOPPED:
        raise JobError(training_jobs.failure_text(training, status))
    planned = Decision(Action.GO_ON, PhaseMessage.PLANNED_STOP.fill(at=at))
    training_jobs.note_job_end(training, status, planned, planned=True)
    folder = job_step.resubmit(training_job)
    stopped = stops(training)
    where = "before the first step"
    if stopped:
        where = f"at iteration {stopped[-1].iteration}, saved"
    show_text(PhaseMessage.STOPPED_AND_RESUMED.fill(where=where, folder_name=folder.path.name))


watch = step(
    takes=lambda opened: (opened.training, training_step(opened.training, opened.session)),
    work=FULL_TRAINING,
)(training_jobs.watch)


@step(takes=lambda opened: (opened.training,))
def show_samples(training: PlannedTraining) -> View:
    """Show the samples before the first step and after the last."""
    rows = training_results.sample_rows(
        training.folder, training.phase_plan, training.settings.tokenizer
    )
    if not rows:
        return View(["training.sample_prompt is empty: no sample was requested."])
    return View([Table(rows, "The same prompt before and after")])


@step(takes=lambda opened: (opened.training,))
def continue_text(
    training: PlannedTraining,
    prompt: str = "",
    *,
    tokens: int = offline_defaults.TOKENS,
    temperature: float = offline_defaults.TEMPERATURE,
) -> View:
    """Let the trained model continue a prompt from the user, in a separate process.

    `runbook sample RUN` does the same.
    """
    is_ours = training.settings.run.training.framework == "runbook"
    if not is_ours or importlib.util.find_spec("torch") is None:
        reason = (
            "No text is generated here: that requires a checkpoint of our own trainer, and torch "
            "in this environment."
        )
        return View([reason])

    sampling = training.phase_plan.sampling
    # An empty prompt starts a new document, which requires an end-of-document token before it.
    if not prompt and not sampling.prompt and sampling.end_of_document < 0:
        reason = (
            "There is no prompt to continue: set training.sample_prompt, or pass one in this cell."
        )
        return View([reason])

    (sample,) = trained_model.sample_texts(
        training.folder,
        [prompt],
        tokens=tokens,
        temperature=temperature,
    )
    row = {
        "after iteration": sample.iteration,
        "prompt": sample.prompt,
        "continuation": sample.continuation,
    }
    return View([Table([row], "From the newest checkpoint")])


@step(takes=lambda opened: (opened.training, opened.session))
def judge(training: PlannedTraining, session: Session) -> CheckTable:
    """Check the finished training run against its rules."""
    trained = training_results.read_results(training.folder, training.run.plan, PHASE)
    session.add_results(trained.results())
    steps = gates.steps_check(trained.history, training.phase_plan.duration.iterations)
    checks = [
        steps,
        *gates.resume_check(trained.history, trained.events),
        *planned_stop_check(training, trained.history),
        *own_checkpoints(training.settings.run.run, trained.events),
    ]
    # If steps are missing, the first recorded loss may belong to a later step.
    if steps.verdict == "pass":
        plan = training.phase_plan
        smallest_fall = gates.smallest_fall_of(plan.duration.tokens, plan.model.shape.vocabulary)
        checks += gates.learning_check(trained.history, smallest_fall=smallest_fall)

    return record_checks(session, checks)


def planned_stop_check(training: PlannedTraining, history: History) -> list[Check]:
    """Warn if the planned stop did not happen and training was never resumed for another reason.

    Return no check if the training was resumed, or if no stop is planned.
    """
    at = training.settings.run.training.rehearse_stop
    is_planned = 0 < at < training.phase_plan.duration.iterations and training.job.chain == 1
    if history.restarts or not is_planned:
        return []
    return [
        Check(
            "planned stop",
            "warn",
            PhaseMessage.NEVER_STOPPED.fill(),
            f"training.rehearse_stop={at} stops the job once, to prove that it can be resumed",
        )
    ]


def stops(training: PlannedTraining) -> list[Event]:
    """Return an event for every point at which this training run stopped after a save."""
    events = read_events(training.events_path, PHASE)
    return events_named(events, "stopped")


def own_checkpoints(run_name: str, events: Sequence[Event]) -> list[Check]:
    """Check that each resume continued this training run, not a different one in the same folder.

    Return no check if the training never resumed.
    """
    resumed = events_named(events, "resumed")
    if not resumed:
        return []
    rule = (
        "each job continues from a checkpoint of this training run; if not, runbook run "
        f"{run_name} --redo training starts over"
    )
    foreign = [event.folder for event in resumed if not event.same_fingerprint]
    if foreign:
        value = PhaseMessage.CHECKPOINTS_OF_ANOTHER_TRAINING.fill(foreign=", ".join(foreign))
        return [Check("own checkpoints", "fail", value, rule)]

    return [Check("own checkpoints", "pass", f"{len(resumed)} resumed", rule)]


STEPS: tuple[PhaseStep[Any], ...] = (
    check_ready,
    launch,
    rehearse_stop,
    watch,
    show_loss,
    show_account,
    show_samples,
    continue_text,
    judge,
    finish,
)
