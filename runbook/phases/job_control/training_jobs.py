"""Submits or finds the jobs for a training run, watches them, and resumes training."""

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from runbook.core.errors import JobError
from runbook.core.files import read_lines
from runbook.core.units import show_duration
from runbook.display import show_text
from runbook.display.jupyter.widgets import Actions, controls
from runbook.jobs import get_scheduler, job_folder
from runbook.jobs.job_folder import ACTIVE, JobFolder, JobStatus
from runbook.jobs.render.training_job import ENVIRONMENT_FILE, RenderedJob, render_job
from runbook.jobs.watcher_wait import begin_wait
from runbook.next_job.decisions import (
    Attempt,
    Decision,
    decide_restart,
    reason_of_budget,
)
from runbook.phases.job_control import (
    continuation,
    ended_jobs,
    job_step,
    live_view,
    readiness,
    rehearsal_gate,
)
from runbook.phases.job_control.job_step import JobStep
from runbook.phases.job_control.task_jobs import end_text
from runbook.phases.messages import PhaseMessage
from runbook.phases.phase_steps import train_step
from runbook.plan_file.bad_node_lifetimes import FoundBy
from runbook.plan_file.diagnostics import Statement
from runbook.plan_file.job_ends import Action
from runbook.records.logbook import add_note
from runbook.records.session import Session
from runbook.runs.bad_nodes import report_bad_nodes, without_bad_nodes
from runbook.runs.packed_environments import ensure_packed, uses_copy
from runbook.runs.planned_run import PlannedTraining
from runbook.runs.status import cancel_jobs, stop_jobs
from runbook.runs.step import StepState

BeforeSubmit = Callable[[], None]


def training_step(
    training: PlannedTraining,
    session: Session,
    before_submit: BeforeSubmit | None = None,
    python: str = "",
) -> JobStep:
    """Return the training run in a phase as a step that jobs carry out.

    `before_submit` is called once it is certain that a job will be submitted. `python` is used to
    start the ranks; if it is empty, Python from the site is used.
    """
    step = train_step(training.run, training.phase)

    def prepare_folder() -> None:
        continuation.continue_or_begin(training, step)
        if before_submit is not None:
            before_submit()

    return JobStep(
        run_name=training.settings.name,
        phase=training.phase,
        step=step,
        scheduler=get_scheduler(training.settings.site),
        slow_gate=partial(rehearsal_gate.require, training, session),
        gate=partial(readiness.require_ready, training, session),
        why_continued=partial(continuation.why_continued, training, step),
        prepare_folder=prepare_folder,
        render=partial(render_training, training, python),
        record_event=training.append_event,
        chain=training.job.chain,
    )


def render_training(training: PlannedTraining, python: str = "") -> RenderedJob:
    """Return the files for the next job in a phase. The job avoids nodes known to be bad.

    `python` is used to start the ranks on a local site; if it is empty, Python from the site is
    used.
    """
    job = training.job
    nodes_wanted = job.nodes + job.spares
    settings, exclusion = without_bad_nodes(training.settings, nodes_wanted)
    if exclusion.as_text():
        show_text(exclusion.as_text())
    program = python or settings.site.python or sys.executable
    rendered = render_job(settings, training.run.plan, training.phase, python=program)
    if not uses_copy(settings):
        return rendered
    manifest, _ = ensure_packed(settings, show_text)
    files = {**rendered.files, ENVIRONMENT_FILE: manifest.as_text()}
    return replace(rendered, files=files)


def watch(training: PlannedTraining, training_job: JobStep) -> None:
    """Follow the job through its files until it ends, and resume the training if the job stopped.

    A failure is shown with the last lines printed by the job.
    """
    if job_step.require_unchanged(training_job).state is StepState.DONE:
        show_text(PhaseMessage.NOTHING_TO_WATCH.fill(phase=training.phase))
        latest = training_job.latest()
        if latest:
            live_view.LiveView(training).finish(training_job.scheduler.state(latest))
        return

    attempts: list[Attempt] = []
    while True:
        status = follow(training)
        decision = _judge(training, status, attempts)
        if decision.action is Action.DONE:
            break
        if decision.action is Action.STOP or newest_job(training).stop_requested.exists():
            raise JobError(failure_text(training, status, decision))
        _wait_for_recovery(newest_job(training), decision)
        if newest_job(training).stop_requested.exists():
            stop = Decision(Action.STOP, PhaseMessage.END_ASKED_DURING_WAIT.fill())
            raise JobError(failure_text(training, status, stop))

        folder = job_step.resubmit(training_job)
        show_text(
            PhaseMessage.JOB_GOES_ON.fill(
                state=status.state, reason=status.reason, folder_name=folder.path.name
            )
        )

    training_job.step.mark_done()


LOOK_SECONDS = 1.0
"""Interval at which a wait checks whether the user has asked to end it."""


def _wait_for_recovery(job: JobFolder, decision: Decision) -> None:
    """Wait as long as the decision requires, and explain the wait.

    `runbook cancel` ends the wait. A file in the folder of the ended job tells that command that a
    watcher is waiting.
    """
    if not decision.wait_seconds:
        return
    wait = show_duration(decision.wait_seconds)
    show_text(PhaseMessage.JOB_WAITS_TO_GO_ON.fill(why=decision.why, wait=wait))
    begin_wait(job, decision.wait_seconds)
    try:
        end = time.monotonic() + decision.wait_seconds
        while time.monotonic() < end and not job.stop_requested.exists():
            time.sleep(LOOK_SECONDS)
    finally:
        job.watcher_waits.unlink(missing_ok=True)


def follow(training: PlannedTraining, until: int = 0) -> JobStatus:
    """Show progress in the newest job until it ends.

    With `until`, stop once the job has reached that iteration.
    """
    scheduler = get_scheduler(training.settings.site)
    folder = newest_job(training)
    name = training.settings.name
    actions: Actions = {
        "Save and stop": (
            lambda: stop_jobs(training.folder, scheduler),
            f"runbook cancel {name} --gently",
        ),
        "Cancel at once": (
            lambda: cancel_jobs(training.folder, scheduler),
            f"runbook cancel {name}",
        ),
        "Note": (partial(add_note, training.folder), f'runbook note {name} "..."'),
    }
    submitted = record.submitted if (record := job_folder.read_record(folder)) else 0

    def enough(rows: list[dict[str, Any]]) -> bool:  # Rows from an old, removed job do not count
        return (
            bool(rows)
            and rows[-1].get("time", submitted) >= submitted
            and rows[-1]["iteration"] >= until
        )

    with controls(actions):
        return live_view.LiveView(training).follow(
            lambda: scheduler.state(folder), enough if until else None
        )


def stop_gently(training: PlannedTraining) -> JobStatus:
    """Ask the newest job to save and stop, and wait until it has ended.

    A queue sends the same request shortly before the time limit.
    """
    scheduler = get_scheduler(training.settings.site)
    folder = newest_job(training)
    try:
        scheduler.request_stop(folder)
    except JobError:
        if scheduler.state(folder).state in ACTIVE:
            raise

    # The job may already have ended.
    return follow(training)


def failure_text(
    training: PlannedTraining, status: JobStatus, decision: Decision | None = None
) -> Statement:
    """Return why a job failed, the last lines that it printed, and the path to its output.

    The text also explains why the job is not restarted.
    """
    folder = newest_job(training)
    if decision and decision.action is Action.STOP:
        why = PhaseMessage.NOT_STARTED_AGAIN.fill(why=decision.why)
    else:
        why = ""

    return PhaseMessage.JOB_FAILED.of(
        ended=end_text(training.phase, status, [folder]), why=why, err=folder.err, out=folder.out
    )


def note_job_end(
    training: PlannedTraining,
    status: JobStatus,
    decision: Decision,
    **facts: Any,
) -> None:
    """Add an event that records how the newest job ended and what follows.

    The wall-time account reads this event.
    """
    job = newest_job(training).path.name
    state = str(status.state)
    code = status.exit_code
    end_facts = {"decision": str(decision.action), "why": decision.why, **facts}
    # A lost job counts as ended when it last wrote something, because nothing else shows when it
    # ended.
    at = None if code is None else status.ended
    training.append_event(
        "ended",
        job=job,
        state=state,
        exit_code=code,
        at=at,
        **end_facts,
    )


def _judge(training: PlannedTraining, status: JobStatus, attempts: list[Attempt]) -> Decision:
    """Decide what to do after the newest job.

    The decision is added to the events and to the list of attempts.
    """
    log = training.phase_plan.log
    run = training.folder
    last = ended_jobs.read_attempt(
        newest_job(training), status, run / log.metrics, run / log.events
    )
    attempts.append(last)
    _report_bad_nodes(training, last)
    decided = ended_jobs.decision_of_job(newest_job(training))
    budget = training.job.restarts
    # The job itself has already added this event.
    if decided is not None:
        # The job itself sees only the attempts in its own folder.
        reason = reason_of_budget(attempts, budget)
        if reason and decided.action is Action.GO_ON:
            return Decision(Action.STOP, reason)
        return decided

    decision = decide_restart(attempts, budget)
    facts = {}
    if last.end.cause is not None:
        facts["cause"] = str(last.end.cause)
    for key in ("failure", "evidence", "remedy"):
        if value := getattr(last, key):
            facts[key] = value

    note_job_end(training, status, decision, **facts)
    return decision


def _report_bad_nodes(training: PlannedTraining, attempt: Attempt) -> None:
    """Record the nodes that a failure or alarms in the newest job point to, for later jobs."""
    settings = training.settings
    report_bad_nodes(
        settings,
        attempt.bad_nodes,
        FoundBy.FAILURE,
        attempt.evidence,
        attempt.job,
    )
    events = read_lines(training.events_path)
    nodes = ended_jobs.nodes_of_job(newest_job(training))
    ranks_per_node = training.job.devices_per_node
    alarms = ended_jobs.nodes_with_alarms(events, attempt.job, nodes, ranks_per_node)
    for node, (found_by, evidence) in alarms.items():
        report_bad_nodes(
            settings,
            [node],
            found_by,
            evidence,
            attempt.job,
        )


def newest_job(training: PlannedTraining) -> JobFolder:
    """Return the folder for the newest job in a phase; raise `JobError` if there is no job."""
    folder = job_folder.latest_job_folder(training.folder, training.phase)
    if folder is None:
        raise JobError(PhaseMessage.NO_JOB_YET, phase=training.phase)
    return folder
