"""A long job of a phase: launched detached, then watched from its files, resumed where it stopped."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from runbook.display import show_text
from runbook.display.controls import Actions, controls
from runbook.errors import JobError
from runbook.phases import begun, restarts, steps, stopping, watching
from runbook.phases.campaign import VERSIONS, Campaign, phase_fingerprint
from runbook.phases.plan_file import plan_file
from runbook.phases.restarts import Action, Attempt, Decision
from runbook.phases.status import cancel_jobs
from runbook.phases.tail import read_lines
from runbook.render import render_job, write_job
from runbook.schedulers import get_scheduler
from runbook.schedulers.base import ACTIVE, JobFolder, JobStatus, Scheduler, State, latest_job_folder, next_job_folder
from runbook.schedulers.files import last_words

FRESH = "begun"
"""Event before a training's first job: what came before it belongs to another training."""


def step_name(campaign: Campaign) -> str:
    """The name under which a phase's training is marked done."""
    return f"{campaign.phase}--train"


def is_done(campaign: Campaign) -> bool:
    """Whether the phase's training is finished, from these inputs, and its outputs are unchanged."""
    digest = phase_fingerprint(campaign.settings, campaign.plan, campaign.folder, campaign.phase)
    return not steps.what_is_missing(campaign.folder, step_name(campaign), digest)


def launch(campaign: Campaign) -> None:
    """Submit the phase's job, or find the one that runs, or say that it is done; nothing runs twice."""
    digest = phase_fingerprint(campaign.settings, campaign.plan, campaign.folder, campaign.phase)
    missing = steps.what_is_missing(campaign.folder, step_name(campaign), digest)
    if not missing:
        show_text(f"{campaign.phase}: done, verified. Nothing to launch.")
        return
    scheduler = get_scheduler(campaign.settings.site)
    with campaign.hold(f"submitting {campaign.phase}"):
        latest = latest_job_folder(campaign.folder, campaign.phase)
        if latest is not None:
            status = scheduler.state(latest)
            if status.state in ACTIVE and not begun.was_started_from(campaign, digest):
                raise JobError(
                    f"{latest.path} is {status.state} ({status.reason}) with other parameters or data than these. Wait "
                    f"until it has ended, or end it: runbook cancel {campaign.settings.name}. Then launch again."
                )
            if status.state in ACTIVE:
                show_text(
                    f"Job {status.job_id} of {latest.path.name} is {status.state}; it is watched, not started again."
                )
                return
            if status.state is State.DONE and begun.was_started_from(campaign, digest):
                show_text(f"Job {status.job_id} finished while nobody watched; nothing is started again.")
                return
        _go_on_or_begin(campaign, digest)
        folder = _submit(campaign)
    show_text(f"{missing.capitalize()}: submitted jobs/{folder.path.name} as {scheduler.state(folder).job_id}.")


def watch(campaign: Campaign) -> None:
    """Follow the job to its end from its files, resuming it where it stopped; a failure is told in its own words."""
    digest = phase_fingerprint(campaign.settings, campaign.plan, campaign.folder, campaign.phase)
    if not steps.what_is_missing(campaign.folder, step_name(campaign), digest):
        show_text(f"{campaign.phase}: done, verified. Nothing to watch.")
        latest = _latest(campaign)
        if latest is not None:
            _picture(campaign).finish(get_scheduler(campaign.settings.site).state(latest))
        return
    attempts: list[Attempt] = []
    while True:
        status = follow(campaign)
        decision = _judge(campaign, status, attempts)
        if decision.action is Action.DONE:
            break
        if decision.action is Action.STOP or stopping.was_asked(_latest(campaign)):
            raise JobError(failure_text(campaign, status, decision))
        folder = resubmit(campaign)
        show_text(f"The job ended as {status.state} ({status.reason}); it goes on as jobs/{folder.path.name}.")
    version = VERSIONS[campaign.phase]
    steps.write_mark(campaign.folder, step_name(campaign), version, digest, training_outputs(campaign))


def follow(campaign: Campaign, enough: Callable[[list[dict[str, Any]]], bool] | None = None) -> JobStatus:
    """Show the newest job's progress until it ends, or until `enough` of its metrics rows say so."""
    scheduler = get_scheduler(campaign.settings.site)
    folder = latest_job_folder(campaign.folder, campaign.phase)
    if folder is None:
        raise JobError(f"{campaign.phase} has no job: run the cell that launches it first.")
    with controls(_actions(campaign, scheduler)):
        return _picture(campaign).follow(lambda: scheduler.state(folder), enough)


def stop_gently(campaign: Campaign) -> JobStatus:
    """Ask the newest job to save and stop, as a queue does before its time limit, and wait for its end."""
    scheduler = get_scheduler(campaign.settings.site)
    folder = latest_job_folder(campaign.folder, campaign.phase)
    if folder is None:
        raise JobError(f"{campaign.phase} has no job that could be stopped.")
    try:
        scheduler.signal(folder, "SIGTERM")
    except JobError:
        if scheduler.state(folder).state in ACTIVE:
            raise
    return follow(campaign)  # it may have ended by itself meanwhile


def resubmit(campaign: Campaign) -> JobFolder:
    """Submit the phase again, to go on from its newest checkpoint."""
    with campaign.hold(f"resuming {campaign.phase}"):
        return _submit(campaign)


def own_rows(campaign: Campaign, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of the training's rows that the newest job wrote, not one before it that is gone."""
    folder = latest_job_folder(campaign.folder, campaign.phase)
    submitted = json.loads(folder.record.read_text()).get("submitted", 0) if folder and folder.record.exists() else 0
    return [row for row in rows if row.get("time", submitted) >= submitted]


def last_iteration(campaign: Campaign) -> int:
    """The newest step of the training so far; 0 before the first."""
    rows = read_lines(campaign.folder / campaign.spec["log"]["metrics"])
    return int(rows[-1]["iteration"]) if rows else 0


def training_outputs(campaign: Campaign) -> list[Path]:
    """Files whose checksums say that a training is still what it was: metrics and the newest checkpoint."""
    spec = campaign.spec
    named = [spec["log"]["metrics"], spec["log"]["validation"], spec["log"]["samples"]]
    checkpoints = campaign.folder / spec["checkpoint"]["folder"]
    saved = sorted(checkpoints.glob("iter_*/"))
    files = [path for path in saved[-1].rglob("*") if path.is_file()] if saved else []
    return [path for name in named if (path := campaign.folder / name).exists()] + files


def failure_text(campaign: Campaign, status: JobStatus, decision: Decision | None = None) -> str:
    """Why a job failed, in its own last words, where they stand, and why it is not started again."""
    folder = latest_job_folder(campaign.folder, campaign.phase)
    assert folder is not None
    words = [line for path in (folder.err, folder.out) for line in last_words(path)]
    why = f"\nNot started again: {decision.why}." if decision and decision.action is Action.STOP else ""
    return (
        f"{campaign.phase} ended as {status.state} ({status.reason}). Its last words:\n"
        + "\n".join(f"  {line}" for line in words)
        + f"{why}\nThe whole log: {folder.err} and {folder.out}. After mending the cause, launch again: it resumes "
        "from the newest checkpoint."
    )


def append_event(campaign: Campaign, event: str, **facts: Any) -> None:
    """Add a line to the run's history of events; one write, so that lines of several processes do not mix."""
    path = campaign.folder / campaign.spec["log"]["events"]
    line = json.dumps({"time": time.time(), "event": event, "phase": campaign.phase, **facts})
    with path.open("a") as stream:
        stream.write(line + "\n")


def set_aside(folder: Path, phase: str, outputs: list[Path]) -> Path | None:
    """Move earlier outputs of a phase into the run's history, so that nothing is overwritten and nothing is mixed."""
    present = [path for path in outputs if path.exists()]
    if not present:
        return None
    stem, number = f"{phase}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}", 1
    while (history := folder / "history" / (stem if number == 1 else f"{stem}-{number}")).exists():
        number += 1
    history.mkdir(parents=True)
    for path in present:
        shutil.move(path, history / path.relative_to(folder).as_posix().replace("/", "--"))
    return history


def training_paths(folder: Path, spec: dict[str, Any]) -> list[Path]:
    """Everything a training phase writes outside its job folders."""
    log = spec["log"]
    names = [log["metrics"], log["validation"], log["samples"], log["tensorboard"], spec["checkpoint"]["folder"]]
    return [folder / name for name in names]


def _go_on_or_begin(campaign: Campaign, digest: str) -> None:
    """Go on with the training whose outputs lie here, or move them into the history, where another one left them."""
    if begun.was_started_from(campaign, digest):
        begun.note(campaign, digest)  # an older program kept the fingerprint alone
        return
    if why := begun.going_on(campaign):
        show_text(why)
        append_event(campaign, "replanned", why=why)
    else:
        moved = set_aside(campaign.folder, campaign.phase, training_paths(campaign.folder, campaign.spec))
        if moved:
            show_text(f"Outputs made from other inputs were moved to {moved.relative_to(campaign.folder)}.")
        append_event(campaign, FRESH)
    begun.note(campaign, digest)


def _submit(campaign: Campaign) -> JobFolder:
    folder = next_job_folder(campaign.folder, campaign.phase)
    content = plan_file(campaign.settings, campaign.plan)
    rendered = render_job(
        campaign.settings,
        content,
        campaign.phase,
        campaign.folder,
        python=campaign.settings.site.python or sys.executable,
    )
    write_job(folder, rendered)
    job_id = get_scheduler(campaign.settings.site).submit(folder)
    append_event(campaign, "submitted", job=folder.path.name, id=job_id)
    return folder


def _judge(campaign: Campaign, status: JobStatus, attempts: list[Attempt]) -> Decision:
    """What follows the newest job; it is noted among the run's events, and among the attempts so far."""
    log, folder = campaign.spec["log"], _latest(campaign)
    assert folder is not None
    last = restarts.attempt_of(folder, status, campaign.folder / log["metrics"], campaign.folder / log["events"])
    attempts.append(last)
    decision = restarts.decide(attempts, campaign.settings.job(campaign.phase).restarts)
    facts = {key: value for key in ("failure", "evidence", "remedy") if (value := getattr(last, key))}
    append_event(
        campaign,
        "ended",
        job=last.job,
        state=str(last.state),
        exit_code=last.exit_code,
        at=status.ended,
        decision=str(decision.action),
        why=decision.why,
        **facts,
    )
    return decision


def _picture(campaign: Campaign) -> watching.Picture:
    return watching.picture_of(campaign.settings, campaign.spec, campaign.folder)


def _latest(campaign: Campaign) -> JobFolder | None:
    return latest_job_folder(campaign.folder, campaign.phase)


def _actions(campaign: Campaign, scheduler: Scheduler) -> Actions:
    name = campaign.settings.name
    return {
        "Save and stop": (lambda: stopping.stop_gently(campaign.folder, scheduler), f"runbook cancel {name} --gently"),
        "Cancel at once": (lambda: cancel_jobs(str(campaign.folder), None), f"runbook cancel {name}"),
    }
