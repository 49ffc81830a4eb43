"""04-training: the run itself.

It is stopped once on purpose if requested, resumed, and watched to its end.
"""

import importlib.util
from collections.abc import Sequence

from runbook.core.errors import JobError, RecordError
from runbook.display import CheckTable, Table, View, show_text
from runbook.jobs.job_folder import JobState
from runbook.next_job.decisions import Action, Decision
from runbook.phases import trained_model, training_results
from runbook.phases.job_control import readiness, training_jobs
from runbook.phases.job_control.training_jobs import watch as watch
from runbook.phases.messages import PhaseMessage
from runbook.phases.open_phase import OpenPhase, binder
from runbook.phases.phase_end import finish as finish
from runbook.phases.phase_steps import train_step
from runbook.phases.sealed_forecasts import seal_forecasts
from runbook.phases.training_results import show_account as show_account
from runbook.phases.training_results import show_loss as show_loss
from runbook.plan_file import offline_defaults
from runbook.planning import Check
from runbook.results import gates
from runbook.results.history import Event, events_named, read_events

PHASE = "04-training"
bind = binder(PHASE)


def check_ready(open_phase: OpenPhase) -> CheckTable:
    """Show the smoke test's verdict and the token files; stop if one has failed or is absent."""
    return open_phase.check(readiness.readiness_checks(open_phase))


def launch(open_phase: OpenPhase) -> None:
    """Seal the forecasts of the training, then submit its job, or find the one that runs.

    Nothing runs twice.
    """
    training_jobs.launch(open_phase, before_submit=_seal)


def _seal(open_phase: OpenPhase) -> None:
    """Seal the forecasts. A changed seal does not stop the training, but 05 refuses to score it."""
    try:
        seal_forecasts(open_phase)
    except RecordError as error:
        show_text(f"The forecasts of this training are not sealed anew. {error}")


def rehearse_stop(open_phase: OpenPhase) -> None:
    """Let the job reach `training.rehearse_stop`, ask it to save and stop, and submit it again."""
    at = open_phase.settings.run.training.rehearse_stop
    if not at:
        show_text(PhaseMessage.NO_STOP_REHEARSED.fill())
        return

    if open_phase.settings.job(PHASE).chain > 1:
        show_text(
            "jobs.training.chain queues the next jobs: nobody has to stop one to see it go on."
        )
        return

    is_done = not train_step(open_phase.run, PHASE).why_not_done()
    if is_done or stops(open_phase):
        show_text(PhaseMessage.STOP_REHEARSED_ALREADY.fill())
        return

    status = training_jobs.follow(open_phase, until=at)
    if status.state is JobState.RUNNING:
        status = training_jobs.stop_gently(open_phase)
    if status.state is JobState.DONE:
        show_text(PhaseMessage.FINISHED_BEFORE_THE_STOP.fill(at=at))
        return

    if status.state is not JobState.STOPPED:
        raise JobError(training_jobs.failure_text(open_phase, status))
    planned = Decision(Action.GO_ON, PhaseMessage.PLANNED_STOP.fill(at=at))
    training_jobs.note_job_end(open_phase, status, planned, planned=True)
    folder = training_jobs.resubmit(open_phase)
    stopped = stops(open_phase)
    where = "before the first step"
    if stopped:
        where = f"at iteration {stopped[-1].iteration}, saved"
    show_text(PhaseMessage.STOPPED_AND_RESUMED.fill(where=where, folder_name=folder.path.name))


def show_samples(open_phase: OpenPhase) -> View:
    """Show what the model wrote before the first step and after the last."""
    rows = training_results.sample_rows(
        open_phase.folder, open_phase.phase_plan, open_phase.settings.tokenizer
    )
    if not rows:
        return View(["training.sample_prompt is empty: no sample was asked for."])
    return View([Table(rows, "The same prompt before and after")])


def continue_text(
    open_phase: OpenPhase,
    prompt: str = "",
    *,
    tokens: int = offline_defaults.TOKENS,
    temperature: float = offline_defaults.TEMPERATURE,
) -> View:
    """Let the trained model continue a prompt of yours, in a separate process.

    `runbook sample RUN` does the same.
    """
    is_ours = open_phase.settings.run.training.framework == "runbook"
    if not is_ours or importlib.util.find_spec("torch") is None:
        reason = (
            "No text is made here: it needs a checkpoint of our own trainer, and torch in this "
            "environment."
        )
        return View([reason])

    sampling = open_phase.phase_plan.sampling
    # An empty prompt starts a new document, which requires an end-of-document token before it.
    if not prompt and not sampling.prompt and sampling.end_of_document < 0:
        reason = (
            "There is no prompt to continue: set training.sample_prompt, or give one in this cell."
        )
        return View([reason])

    (sample,) = trained_model.sample_texts(
        open_phase.folder,
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


def judge(open_phase: OpenPhase) -> CheckTable:
    """Judge the finished run by its rules."""
    run = training_results.read_results(open_phase.folder, open_phase.plan, PHASE)
    open_phase.session.add_results(run.results())
    steps = gates.steps_check(run.history, open_phase.phase_plan.duration.iterations)
    checks = [
        steps,
        *gates.resume_check(run.history, run.events),
        *own_checkpoints(open_phase, run.events),
    ]
    # Otherwise the first remaining loss is compared with the last one.
    if steps.verdict == "pass":
        # In a shorter run it is enough that the loss falls.
        smallest_fall = 0.0
        if open_phase.phase_plan.duration.tokens >= 100_000:
            smallest_fall = 0.30
        checks += gates.learning_check(run.history, smallest_fall=smallest_fall)

    return open_phase.check(checks)


def stops(open_phase: OpenPhase) -> list[Event]:
    """Return every point at which this training was stopped after a save."""
    events = read_events(open_phase.folder / open_phase.phase_plan.log.events, PHASE)
    return events_named(events, "stopped")


def own_checkpoints(open_phase: OpenPhase, events: Sequence[Event]) -> list[Check]:
    """Check that each resume continued this training and not another one in its place.

    The list is empty if the training never resumed.
    """
    resumed = events_named(events, "resumed")
    if not resumed:
        return []
    rule = (
        "each job goes on from a checkpoint of this training; if not: "
        f"runbook run {open_phase.settings.run.run} --redo training begins anew"
    )
    foreign = [event.folder for event in resumed if not event.same_fingerprint]
    if foreign:
        value = PhaseMessage.CHECKPOINTS_OF_ANOTHER_TRAINING.fill(foreign=", ".join(foreign))
        return [Check("own checkpoints", "fail", value, rule)]

    return [Check("own checkpoints", "pass", f"{len(resumed)} resumed", rule)]
