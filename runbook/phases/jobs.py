"""A long job of a phase: launched detached, then watched from its files, resumed where it stopped."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runbook.display import Progress, show_text, sparkline
from runbook.errors import JobError
from runbook.phases import steps
from runbook.phases.campaign import VERSIONS, Campaign, phase_fingerprint
from runbook.phases.plan_file import plan_file
from runbook.phases.tail import Tail, read_lines
from runbook.records.files import write_text
from runbook.render import render_job, write_job
from runbook.schedulers import get_scheduler
from runbook.schedulers.base import ACTIVE, JobFolder, JobStatus, State, latest_job_folder, next_job_folder
from runbook.schedulers.files import last_words
from runbook.units import show_duration

IDLE_RESUMES = 3
"""How often in a row a job that stopped or vanished is resumed without a new step before a person is asked."""
POLL_SECONDS = 1.0
FRESH = "begun"
"""Event before a training's first job: what came before it belongs to another training."""

SAVED_AND_STOPPED = 75


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
            if status.state in ACTIVE and not was_started_from(campaign, digest):
                raise JobError(
                    f"{latest.path} is {status.state} ({status.reason}) with other parameters or data than these. Wait "
                    f"until it has ended, or end it: runbook cancel {campaign.settings.name}. Then launch again."
                )
            if status.state in ACTIVE:
                show_text(
                    f"Job {status.job_id} of {latest.path.name} is {status.state}; it is watched, not started again."
                )
                return
            if status.state is State.DONE and was_started_from(campaign, digest):
                show_text(f"Job {status.job_id} finished while nobody watched; nothing is started again.")
                return
        _start_fresh_where_needed(campaign, digest)
        folder = _submit(campaign)
    show_text(f"{missing.capitalize()}: submitted jobs/{folder.path.name} as {scheduler.state(folder).job_id}.")


def watch(campaign: Campaign) -> None:
    """Follow the job to its end from its files, resuming it where it stopped; a failure is told in its own words."""
    digest = phase_fingerprint(campaign.settings, campaign.plan, campaign.folder, campaign.phase)
    if not steps.what_is_missing(campaign.folder, step_name(campaign), digest):
        show_text(f"{campaign.phase}: done, verified. Nothing to watch.")
        return
    idle, reached = 0, last_iteration(campaign)
    status = follow(campaign)
    while goes_on(status) and idle < IDLE_RESUMES:
        idle, reached = (0 if last_iteration(campaign) > reached else idle + 1), last_iteration(campaign)
        folder = resubmit(campaign)
        show_text(f"The job ended as {status.state} ({status.reason}); it goes on as jobs/{folder.path.name}.")
        status = follow(campaign)
    if status.state is not State.DONE:
        raise JobError(failure_text(campaign, status))
    version = VERSIONS[campaign.phase]
    steps.write_mark(campaign.folder, step_name(campaign), version, digest, training_outputs(campaign))


def follow(campaign: Campaign, enough: Callable[[list[dict[str, Any]]], bool] | None = None) -> JobStatus:
    """Show the newest job's progress until it ends, or until `enough` of its metrics rows say so."""
    scheduler = get_scheduler(campaign.settings.site)
    folder = latest_job_folder(campaign.folder, campaign.phase)
    if folder is None:
        raise JobError(f"{campaign.phase} has no job: run the cell that launches it first.")
    spec = campaign.spec
    tail = Tail(campaign.folder / spec["log"]["metrics"])
    progress = Progress(campaign.phase, total=spec["duration"]["iterations"], unit="iterations")
    while True:
        status = scheduler.state(folder)
        rows = tail.read()
        progress.update(**_progress_facts(rows, status, spec))
        if status.state not in ACTIVE or (enough is not None and enough(rows)):
            progress.finish(**_progress_facts(tail.read(), status, spec))
            return status
        time.sleep(POLL_SECONDS)


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


def goes_on(status: JobStatus) -> bool:
    """Whether a new job continues this one: it saved and stopped, or vanished without a word."""
    return status.state in (State.STOPPED, State.LOST) or (
        status.state is State.TIMEOUT and status.exit_code == SAVED_AND_STOPPED
    )


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


def failure_text(campaign: Campaign, status: JobStatus) -> str:
    """Why a job failed, in its own last words, and where they stand."""
    folder = latest_job_folder(campaign.folder, campaign.phase)
    assert folder is not None
    words = [line for path in (folder.err, folder.out) for line in last_words(path)]
    return (
        f"{campaign.phase} ended as {status.state} ({status.reason}). Its last words:\n"
        + "\n".join(f"  {line}" for line in words)
        + f"\nThe whole log: {folder.err} and {folder.out}. After mending the cause, launch again: it resumes from the "
        "newest checkpoint."
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


def started_path(folder: Path, phase: str) -> Path:
    """Where the fingerprint of the training whose outputs lie in the folder is kept."""
    return folder / "steps" / f"{phase}--train.started"


def training_paths(folder: Path, spec: dict[str, Any]) -> list[Path]:
    """Everything a training phase writes outside its job folders."""
    log = spec["log"]
    names = [log["metrics"], log["validation"], log["samples"], log["tensorboard"], spec["checkpoint"]["folder"]]
    return [folder / name for name in names]


def was_started_from(campaign: Campaign, digest: str) -> bool:
    """Whether the outputs in the run's folder come from these inputs."""
    started = started_path(campaign.folder, campaign.phase)
    return started.exists() and started.read_text() == digest


def _start_fresh_where_needed(campaign: Campaign, digest: str) -> None:
    started = started_path(campaign.folder, campaign.phase)
    if not was_started_from(campaign, digest):
        moved = set_aside(campaign.folder, campaign.phase, training_paths(campaign.folder, campaign.spec))
        if moved:
            show_text(f"Outputs made from other inputs were moved to {moved.relative_to(campaign.folder)}.")
        append_event(campaign, FRESH)
        write_text(started, digest)


def _submit(campaign: Campaign) -> JobFolder:
    folder = next_job_folder(campaign.folder, campaign.phase)
    content = plan_file(campaign.settings, campaign.plan)
    rendered = render_job(campaign.settings, content, campaign.phase, campaign.folder, python=sys.executable)
    write_job(folder, rendered)
    job_id = get_scheduler(campaign.settings.site).submit(folder)
    append_event(campaign, "submitted", job=folder.path.name, id=job_id)
    return folder


def _progress_facts(rows: list[dict[str, Any]], status: JobStatus, spec: dict[str, Any]) -> dict[str, Any]:
    facts: dict[str, Any] = {"job": status.job_id, "state": str(status.state)}
    if rows:
        last = rows[-1]
        seconds = sorted(row["seconds"] for row in rows[-20:])[len(rows[-20:]) // 2]
        facts |= {
            "done": last["iteration"],
            "loss": last["loss"],
            "losses": sparkline([row["loss"] for row in rows]),
            "tokens/s": round(last["tokens_per_second"]),
            "left": show_duration((spec["duration"]["iterations"] - last["iteration"]) * seconds),
        }
    return facts
