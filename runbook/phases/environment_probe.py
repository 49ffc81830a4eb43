"""Starts the probe as the trainer is started, here or on the job's nodes, and reads what its ranks found."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from runbook.errors import JobError, ProgramError
from runbook.params import Settings
from runbook.params.catalogue import SchedulerKind
from runbook.params.stage import missing
from runbook.phases import offload
from runbook.phases.campaign import Campaign, holding, runs_folder
from runbook.phases.plan_file import plan_file, write_plan_file
from runbook.plan import Plan
from runbook.render import PACKAGE, JobFolder, RenderedJob, Task, asks_for_queue, render_job, render_task, write_job
from runbook.schedulers import get_scheduler
from runbook.schedulers.base import next_job_folder
from runbook.schedulers.files import last_words

Facts = dict[str, Any]
LIMIT_SECONDS = 600
PHASE = "01-environment"


def probe(campaign: Campaign) -> list[Facts]:
    """What each rank found, by rank; empty where nothing may be started from here.

    On a queue the ranks are one a node of jobs.environment, where that names a partition or a time limit.
    """
    if campaign.settings.site.scheduler is SchedulerKind.LOCAL:
        with campaign.hold("checking the machine"):
            return _probe_here(campaign.settings, campaign.plan, campaign.folder)
    out, task = _node_task(campaign.settings, campaign.plan, campaign.folder)
    if offload.wanted(campaign):
        offload.run_tasks(campaign, [task])
    return read_facts(out)


def _node_task(settings: Settings, plan: Plan, folder: Path) -> tuple[Path, Task]:
    out, words = _place(plan, folder)
    argv = (settings.site.python or sys.executable, "-m", "runbook.training.probe", *words)
    return out, Task("the checks of each node", argv, on_each_node=True, part="nodes")


def _probe_nodes(settings: Settings, plan: Plan) -> list[Facts]:
    folder = runs_folder(settings.project) / settings.name
    out, task = _node_task(settings, plan, folder)
    with holding(folder, "checking the nodes"):
        place = next_job_folder(folder, f"{PHASE}-{task.part}")
        write_job(place, render_task(settings, PHASE, task, PACKAGE))
        scheduler = get_scheduler(settings.site)
        try:
            scheduler.submit(place)
            _wait(scheduler, place)
        except (JobError, ProgramError):
            return read_facts(out)  # what the nodes said before it failed; the scheduler's own check tells why
    return read_facts(out)


def probe_run(settings: Settings, plan: Plan) -> list[Facts]:
    """The probe without a record: here in a folder that is removed again, or as a short job in the run's own folder.

    A job that the queue does not start in time is cancelled; then nobody was asked.
    """
    if settings.site.scheduler is not SchedulerKind.LOCAL:
        return _probe_nodes(settings, plan) if asks_for_queue(settings, PHASE) and not missing(settings) else []
    with tempfile.TemporaryDirectory(prefix="runbook-doctor-") as place:
        folder = Path(place) / settings.name
        write_plan_file(settings, plan, folder)
        return _probe_here(settings, plan, folder)


def checkpoint_folder(plan: Plan, folder: Path) -> Path:
    """Where the training saves, or the nearest folder above it that is there."""
    path = folder / str(plan.as_dict()["phases"]["04-training"]["checkpoint"]["folder"])
    return next(one for one in (path, *path.parents) if one.is_dir())


def read_facts(out: Path) -> list[Facts]:
    """The files of all ranks, in their order."""
    facts = [json.loads(path.read_text(encoding="utf-8")) for path in out.glob("probe-*.json")]
    return sorted(facts, key=lambda one: int(one["rank"]))


def _place(plan: Plan, folder: Path) -> tuple[Path, list[str]]:
    """An empty place for the ranks' files, and the probe's arguments."""
    out = folder / "environment" / "probe"
    shutil.rmtree(out, ignore_errors=True)
    return out, ["--out", str(out), "--write-folder", str(checkpoint_folder(plan, folder))]


def _probe_here(settings: Settings, plan: Plan, folder: Path) -> list[Facts]:
    """By the local scheduler, in the place of the smoke test's trainer: the same launcher, ranks and environment."""
    out, words = _place(plan, folder)
    phase = "03-smoke-test"
    job = render_job(settings, plan_file(settings, plan), phase, folder, python=sys.executable)
    place = JobFolder(folder / "environment" / "job")  # not under jobs/: it is a question, not a part of the run
    shutil.rmtree(place.path, ignore_errors=True)
    write_job(place, _in_place_of_the_trainer(job, phase, words))
    scheduler = get_scheduler(settings.site)
    scheduler.submit(place)
    _wait(scheduler, place)
    return read_facts(out)


def _in_place_of_the_trainer(job: RenderedJob, phase: str, words: list[str]) -> RenderedJob:
    from runbook.render.templating import quote

    trainer = " ".join(["-m runbook.training", *(quote(word) for word in job.arguments)])
    own = " ".join(["-m runbook.training.probe", *(quote(word) for word in words)])
    assert trainer in job.script, "the local script starts the trainer"
    return RenderedJob(job.script.replace(trainer, own).replace(phase, PHASE), words, job.files)


def _wait(scheduler: Any, folder: JobFolder) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not (status := scheduler.state(folder)).final:
        if time.monotonic() > deadline:
            scheduler.cancel(folder)
            raise ProgramError(f"the ranks of {folder.path} did not answer within {LIMIT_SECONDS} s")
        time.sleep(0.2)
    if str(status.state) != "done":
        said = [line for log in (folder.err, folder.out) for line in last_words(log, 6)]
        raise JobError("\n".join([f"{folder.path} ended as {status.state} ({status.reason}). Its last words:", *said]))
