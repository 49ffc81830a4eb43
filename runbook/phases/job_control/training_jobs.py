"""Jobs of a phase: submitted or found, watched to their end, and resumed where they stopped."""

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from runbook.core.errors import JobError
from runbook.core.files import make_dated_folder, read_lines
from runbook.core.units import show_duration
from runbook.display import show_text
from runbook.display.jupyter.widgets import Actions, controls
from runbook.jobs import get_scheduler, job_folder
from runbook.jobs.job_folder import ACTIVE, JobFolder, JobState, JobStatus, Scheduler
from runbook.jobs.render.training_job import ENVIRONMENT_FILE, render_job, write_job
from runbook.jobs.watcher_wait import begin_wait
from runbook.next_job.decisions import reason_of_budget
from runbook.phases.job_control import job_rules, live_view, rehearsal_gate
from runbook.phases.job_control.job_rules import Action, Attempt, Decision
from runbook.phases.job_control.task_jobs import end_text
from runbook.phases.messages import PhaseMessage
from runbook.phases.open_phase import OpenPhase
from runbook.phases.phase_steps import train_step
from runbook.plan_file.checkpoint_folder import newest_checkpoint
from runbook.plan_file.schema import PhasePlan
from runbook.planning import FULL
from runbook.records.logbook import add_note
from runbook.records.manifest import move_files
from runbook.results.forecast_scores import FORECASTS_FILE
from runbook.runs.bad_nodes import FoundBy, report_bad_nodes, without_bad_nodes
from runbook.runs.packed_environments import ensure_packed, uses_copy
from runbook.runs.status import cancel_jobs, stop_jobs
from runbook.runs.step import PhaseStep, StepState, StepStatus, outputs_status


def require_unchanged(open_phase: OpenPhase, step: PhaseStep) -> StepStatus:
    """Return the state of the training.

    Raise `ChangedOutputError` if a file of a finished one was changed. A finished training is never
    marked done again over other files, because that would make the change part of the record.
    """
    status = step.status()
    if status.state is StepState.INPUTS_CHANGED and not _was_submitted_since(open_phase, step):
        # The training was prolonged or its layout changed: compare also what it continues from.
        marker = step.marker()
        if marker and job_rules.why_continued(open_phase):
            step.refuse(outputs_status(step.run_folder, marker))

    step.refuse(status)
    return status


def _was_submitted_since(open_phase: OpenPhase, step: PhaseStep) -> bool:
    """Whether a job was submitted after the training was marked done: it may have written since."""
    mark = step.marker()
    latest = _latest(open_phase)
    if mark is None or latest is None:
        return False
    record = job_folder.read_record(latest)
    return record is None or record.submitted > mark.finished  # None if it was submitted by hand


def launch(open_phase: OpenPhase, before_submit: Callable[[OpenPhase], None] | None = None) -> None:
    """Submit the phase's job, find the one that runs, or report that it is done.

    Nothing runs twice. A job is submitted only if the smoke test and the token files pass now,
    whatever an earlier cell has shown. `before_submit` is called once it is known that a job will
    be submitted.
    """
    step = train_step(open_phase.run, open_phase.phase)
    missing = require_unchanged(open_phase, step).as_text()
    if not missing:
        show_text(f"{open_phase.phase}: done, verified. Nothing to launch.")
        return

    scheduler = get_scheduler(open_phase.settings.site)
    if _is_submitted(open_phase, scheduler, step.fingerprint):
        return
    # This takes minutes, and the run need not be locked for others meanwhile.
    rehearsal_gate.require(open_phase)
    with open_phase.hold(f"submitting {open_phase.phase}"):
        if _is_submitted(open_phase, scheduler, step.fingerprint):
            return
        job_rules.require_ready(open_phase)
        _go_on_or_begin(open_phase, step.fingerprint)
        if before_submit is not None:
            before_submit(open_phase)
        folder = _submit(open_phase)

    show_text(
        f"{missing.capitalize()}: submitted jobs/{folder.path.name} as "
        f"{scheduler.state(folder).job_id}."
    )


def _is_submitted(open_phase: OpenPhase, scheduler: Scheduler, digest: str) -> bool:
    """Whether the newest job is doing this work or has done it; if so, print that.

    An active job with other inputs is refused.
    """
    latest = _latest(open_phase)
    if not latest:
        return False
    status = scheduler.state(latest)
    is_ours = job_rules.was_started_from(open_phase, digest)
    if status.state in ACTIVE and not is_ours:
        raise JobError(
            PhaseMessage.JOB_WITH_OTHER_PARAMETERS,
            latest=latest.path,
            state=status.state,
            reason=status.reason,
            settings_name=open_phase.settings.name,
        )

    if status.state in ACTIVE:
        show_text(
            f"Job {status.job_id} of {latest.path.name} is {status.state}; it is watched, not "
            f"started again."
        )
        return True

    if status.state is JobState.DONE and is_ours:
        show_text(f"Job {status.job_id} finished while nobody watched; nothing is started again.")
        return True

    return False


def watch(open_phase: OpenPhase) -> None:
    """Follow the job to its end from its files, and resume it where it stopped.

    A failure is shown in its own words.
    """
    step = train_step(open_phase.run, open_phase.phase)
    if require_unchanged(open_phase, step).state is StepState.DONE:
        show_text(f"{open_phase.phase}: done, verified. Nothing to watch.")
        latest = _latest(open_phase)
        if latest:
            live_view.LiveView(open_phase).finish(
                get_scheduler(open_phase.settings.site).state(latest)
            )

        return

    attempts: list[Attempt] = []
    while True:
        status = follow(open_phase)
        decision = _judge(open_phase, status, attempts)
        if decision.action is Action.DONE:
            break
        if decision.action is Action.STOP or _require_latest(open_phase).stop_requested.exists():
            raise JobError(failure_text(open_phase, status, decision))
        _wait_for_recovery(_require_latest(open_phase), decision)
        if _require_latest(open_phase).stop_requested.exists():
            stop = Decision(Action.STOP, "a person asked for the end during the wait")
            raise JobError(failure_text(open_phase, status, stop))

        folder = resubmit(open_phase)
        show_text(
            f"The job ended as {status.state} ({status.reason}); it goes on as "
            f"jobs/{folder.path.name}."
        )

    step.mark_done(training_outputs(open_phase))


LOOK_SECONDS = 1.0
"""Interval at which a wait checks whether a person asked to end it."""


def _wait_for_recovery(job: JobFolder, decision: Decision) -> None:
    """Wait for as long as the decision states, and explain why nothing happens.

    `runbook cancel` ends the wait: a file in the ended job's folder tells it that a watcher waits.
    """
    if not decision.wait_seconds:
        return
    wait = show_duration(decision.wait_seconds)
    show_text(f"The job met this: {decision.why}. The next one is submitted in {wait}.")
    begin_wait(job, decision.wait_seconds)
    try:
        end = time.monotonic() + decision.wait_seconds
        while time.monotonic() < end and not job.stop_requested.exists():
            time.sleep(LOOK_SECONDS)
    finally:
        job.watcher_waits.unlink(missing_ok=True)


def follow(open_phase: OpenPhase, until: int = 0) -> JobStatus:
    """Show the newest job's progress until it ends.

    With `until`, stop once the job itself has reached that iteration.
    """
    scheduler = get_scheduler(open_phase.settings.site)
    folder = _require_latest(open_phase)
    name = open_phase.settings.name
    actions: Actions = {
        "Save and stop": (
            lambda: stop_jobs(open_phase.folder, scheduler),
            f"runbook cancel {name} --gently",
        ),
        "Cancel at once": (
            lambda: cancel_jobs(open_phase.folder, scheduler),
            f"runbook cancel {name}",
        ),
        "Note": (partial(add_note, open_phase.folder), f'runbook note {name} "..."'),
    }
    submitted = record.submitted if (record := job_folder.read_record(folder)) else 0

    def enough(rows: list[dict[str, Any]]) -> bool:  # not the files of an earlier job that is gone
        return (
            bool(rows)
            and rows[-1].get("time", submitted) >= submitted
            and rows[-1]["iteration"] >= until
        )

    with controls(actions):
        return live_view.LiveView(open_phase).follow(
            lambda: scheduler.state(folder), enough if until else None
        )


def stop_gently(open_phase: OpenPhase) -> JobStatus:
    """Ask the newest job to save and stop, and wait for its end.

    A queue does the same before its time limit.
    """
    scheduler = get_scheduler(open_phase.settings.site)
    folder = _require_latest(open_phase)
    try:
        scheduler.request_stop(folder)
    except JobError:
        if scheduler.state(folder).state in ACTIVE:
            raise

    # The job may have ended by itself in the meantime.
    return follow(open_phase)


def resubmit(open_phase: OpenPhase) -> JobFolder:
    """Submit the phase again, to continue from its newest checkpoint."""
    with open_phase.hold(f"resuming {open_phase.phase}"):
        job_rules.require_ready(open_phase)
        return _submit(open_phase)


def training_outputs(open_phase: OpenPhase) -> list[Path]:
    """Return the files whose checksums prove that a training is unchanged.

    These are the metrics and the newest checkpoint.
    """
    folder = open_phase.folder
    phase_plan = open_phase.phase_plan
    newest = newest_checkpoint(folder / phase_plan.checkpoint.folder)
    weights = newest.rglob("*") if newest else ()
    written = [*training_paths(folder, phase_plan), *weights]
    return [path for path in written if path.is_file()]


def failure_text(open_phase: OpenPhase, status: JobStatus, decision: Decision | None = None) -> str:
    """Return why a job failed, in its own last words, and where to find them.

    The text also explains why the job is not restarted.
    """
    folder = _require_latest(open_phase)
    if decision and decision.action is Action.STOP:
        why = f"\nNot started again: {decision.why}."
    else:
        why = ""

    return (
        f"{end_text(open_phase.phase, status, [folder])}{why}\nThe whole log: {folder.err} and "
        f"{folder.out}. After "
        "fixing the cause, launch again: it resumes from the newest checkpoint."
    )


def move_to_history(folder: Path, phase: str, outputs: list[Path]) -> Path | None:
    """Move earlier outputs of a phase into the run's history.

    Thus nothing is overwritten or mixed.
    """
    present = [path for path in outputs if path.exists()]
    if not present:
        return None
    history = make_dated_folder(folder / "history", phase)
    move_files(
        folder,
        {
            path: history / path.relative_to(folder).as_posix().replace("/", "--")
            for path in present
        },
    )
    return history


def training_paths(folder: Path, phase_plan: PhasePlan) -> list[Path]:
    """Return everything that a training phase writes outside its job folders."""
    log = phase_plan.log
    names = (
        log.metrics,
        log.rank_times,
        log.validation,
        log.samples,
        log.tensorboard,
        phase_plan.checkpoint.folder,
    )
    return [folder / name for name in names]


def sealed_paths(folder: Path, phase: str) -> list[Path]:
    """Return the paths of the forecasts that were sealed for a phase's training."""
    if phase == FULL:
        return [folder / FORECASTS_FILE]
    return []


def _go_on_or_begin(open_phase: OpenPhase, digest: str) -> None:
    """Continue the training whose outputs are in the folder, or begin a new one.

    Outputs of another training move into the history.
    """
    if job_rules.was_started_from(open_phase, digest):
        # Record it again below: an older version kept only the fingerprint.
        pass
    elif why := job_rules.why_continued(open_phase):
        show_text(why)
        open_phase.append_event("replanned", why=why)
    else:
        paths = training_paths(open_phase.folder, open_phase.phase_plan)
        paths += sealed_paths(open_phase.folder, open_phase.phase)
        moved = move_to_history(open_phase.folder, open_phase.phase, paths)
        if moved:
            show_text(
                f"Outputs made from other inputs were moved to "
                f"{moved.relative_to(open_phase.folder)}."
            )

        # Everything before it belongs to another training.
        open_phase.append_event("begun")

    job_rules.note_start(open_phase, digest)


def note_job_end(
    open_phase: OpenPhase,
    status: JobStatus,
    decision: Decision,
    **facts: Any,
) -> None:
    """Add an event that states how the newest job ended and what follows.

    The account of the wall time reads it.
    """
    job = _require_latest(open_phase).path.name
    state = str(status.state)
    code = status.exit_code
    end_facts = {"decision": str(decision.action), "why": decision.why, **facts}
    # For a lost job, only its last sign of life is known.
    at = None if code is None else status.ended
    open_phase.append_event(
        "ended",
        job=job,
        state=state,
        exit_code=code,
        at=at,
        **end_facts,
    )


def _submit(open_phase: OpenPhase) -> JobFolder:
    phase = open_phase.phase
    job = open_phase.settings.job(phase)
    nodes_wanted = job.nodes + job.spares
    settings, exclusion = without_bad_nodes(open_phase.settings, nodes_wanted)
    if exclusion.as_text():
        show_text(exclusion.as_text())
    folder = job_folder.next_job_folder(open_phase.folder, phase)
    python = settings.site.python or sys.executable
    rendered = render_job(settings, open_phase.plan, phase, python=python)
    if uses_copy(settings):
        manifest, _ = ensure_packed(settings, show_text)
        files = {**rendered.files, ENVIRONMENT_FILE: manifest.as_text()}
        rendered = replace(rendered, files=files)

    write_job(folder, rendered)
    scheduler = get_scheduler(settings.site)
    job_id = scheduler.submit(folder)
    open_phase.append_event("submitted", job=folder.path.name, id=job_id)
    _queue_followers(open_phase, scheduler, folder)
    return folder


def _queue_followers(open_phase: OpenPhase, scheduler: Scheduler, folder: JobFolder) -> None:
    """Queue the other jobs of a chain.

    If the queue refuses one, the submitted job trains without the rest.
    """
    count = open_phase.settings.job(open_phase.phase).chain - 1
    if count < 1:
        return
    try:
        followers = scheduler.queue_followers(folder, count)
    except JobError as error:
        show_text(f"The chain is shorter than jobs.training.chain={count + 1}: {error}")
        return

    show_text(
        f"A chain: {', '.join(followers)} begin one after another in jobs/{folder.path.name}, "
        f"each where the one before "
        "left off. Nobody has to stay logged in."
    )


def _judge(open_phase: OpenPhase, status: JobStatus, attempts: list[Attempt]) -> Decision:
    """Decide what follows the newest job.

    The decision joins the run's events and the list of attempts.
    """
    log = open_phase.phase_plan.log
    run = open_phase.folder
    last = job_rules.read_attempt(
        _require_latest(open_phase), status, run / log.metrics, run / log.events
    )
    attempts.append(last)
    _report_bad_nodes(open_phase, last)
    decided = job_rules.decision_of_job(_require_latest(open_phase))
    budget = open_phase.settings.job(open_phase.phase).restarts
    # The job itself has added this event already.
    if decided is not None:
        # The job knows only the attempts in its own folder.
        reason = reason_of_budget(attempts, budget)
        if reason and decided.action is Action.GO_ON:
            return Decision(Action.STOP, reason)
        return decided

    decision = job_rules.decide_restart(attempts, budget)
    facts = {}
    for key in ("failure", "evidence", "remedy"):
        if value := getattr(last, key):
            facts[key] = value

    note_job_end(open_phase, status, decision, **facts)
    return decision


def _report_bad_nodes(open_phase: OpenPhase, attempt: Attempt) -> None:
    """Remember the nodes that the newest job's failure or its alarms name, for later jobs."""
    settings = open_phase.settings
    report_bad_nodes(
        settings,
        attempt.bad_nodes,
        FoundBy.FAILURE,
        attempt.evidence,
        attempt.job,
    )
    events = read_lines(open_phase.folder / open_phase.phase_plan.log.events)
    nodes = job_rules.nodes_of_job(_require_latest(open_phase))
    ranks_per_node = settings.job(open_phase.phase).devices_per_node
    alarms = job_rules.nodes_with_alarms(events, attempt.job, nodes, ranks_per_node)
    for node, (found_by, evidence) in alarms.items():
        report_bad_nodes(
            settings,
            [node],
            found_by,
            evidence,
            attempt.job,
        )


def _latest(open_phase: OpenPhase) -> JobFolder | None:
    return job_folder.latest_job_folder(open_phase.folder, open_phase.phase)


def _require_latest(open_phase: OpenPhase) -> JobFolder:
    folder = _latest(open_phase)
    if folder:
        return folder
    raise JobError(PhaseMessage.NO_JOB_YET, phase=open_phase.phase)
