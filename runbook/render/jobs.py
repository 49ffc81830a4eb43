"""A phase's job: script and arguments from settings and plan, as text; nothing here asks a machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runbook.errors import JobError
from runbook.params import Settings
from runbook.params.catalogue import SchedulerKind
from runbook.params.stage import require
from runbook.render.arguments import training_arguments
from runbook.render.deepspeed_file import OWN_DEEPSPEED, deepspeed_file
from runbook.render.folder import JobFolder, write_whole
from runbook.render.queue_jobs import RenderedJob, render_queue_job
from runbook.render.templating import fill, quote

TRAINING_PHASES = ("03-smoke-test", "04-training")
"""The phases whose work is a training job."""

GRACE_SECONDS = 120
"""Time to save between being asked to stop and being killed; a save on a slow disk takes half a minute and more."""

PACKAGE = Path(__file__).parents[2]
"""The folder that holds the package `runbook`: the clone, as jobs in a queue see it."""

PEERS_SECONDS = 3
"""Time for the other ranks to notice by themselves, with their own words, that one has failed.

Where they still wait for each other to come they cannot, and the job's end is known that much later.
"""

KILLED_PEERS_SECONDS = 1
"""The same where one was killed by a signal: who trains with it sees its connection closed at once, who waits never."""


def render_job(
    settings: Settings,
    plan: Mapping[str, Any],
    phase: str,
    run_folder: Path,
    *,
    python: str = "python3",
    package: Path = PACKAGE,
) -> RenderedJob:
    """The job of a training phase, for the site's scheduler.

    `plan` is the content of plan.json, which the job reads from the run's folder. `python` is the interpreter that has
    the trainer on a local site; `package` the folder that holds our package, which a job in a queue imports the trainer
    from. The script finds the run's folder from its own place, or from where it was submitted: `run_folder` may move.
    """
    if phase not in TRAINING_PHASES:
        raise JobError(f"{phase} has no training job; these phases have one: {', '.join(TRAINING_PHASES)}.")
    require(settings)
    if settings.site.scheduler is not SchedulerKind.LOCAL:
        return render_queue_job(settings, plan["phases"][phase], package)
    return _render_local(settings, plan, phase, python)


def write_job(folder: JobFolder, rendered: RenderedJob) -> None:
    """Put a job's files into its folder; job.sh is written last, so that a folder with one is complete."""
    root = folder.path.absolute()
    for name, text in rendered.files.items():
        path = root / name
        if not path.resolve().is_relative_to(root.resolve()) or path.name == folder.script.name:
            raise JobError(f"{name!r} is not the name of a file inside the job's folder {root}.")
        write_whole(path, text)
    write_whole(folder.arguments, json.dumps(rendered.arguments, indent=2, ensure_ascii=False) + "\n")
    write_whole(folder.script, rendered.script, mode=0o755)


def _render_local(settings: Settings, plan: Mapping[str, Any], phase: str, python: str) -> RenderedJob:
    job = settings.job(phase)
    if job.nodes != 1:
        raise JobError(
            f"{phase} asks for {job.nodes} nodes, but site {settings.site.site} is this one machine. Set "
            "jobs.<phase>.nodes to 1, or choose a site with a queue."
        )
    spec = plan["phases"][phase]
    world_size = int(spec["parallel"]["world_size"])
    cores = settings.site.hardware.cores_per_node
    arguments = training_arguments(settings, {**spec, "phase": phase})
    script = fill(
        "local.sh.j2",
        {
            "run": settings.name,
            "phase": phase,
            "site": settings.site.site,
            "world_size": world_size,
            "threads": max(1, cores // world_size) if cores else 0,
            "walltime": job.walltime,
            "grace_seconds": GRACE_SECONDS,
            "peers_seconds": PEERS_SECONDS,
            "killed_peers_seconds": KILLED_PEERS_SECONDS,
            "stragglers_seconds": int(spec["limits"]["process_group_timeout_seconds"]),
            "environment": _quoted(settings.site.environment),
            "modules": settings.site.modules,
            "setup": settings.site.setup,
            "command": " ".join(quote(word) for word in [python, "-m", "runbook.training", *arguments]),
        },
    )
    files = {OWN_DEEPSPEED: deepspeed_file(settings, spec)} if "deepspeed" in spec else {}
    return RenderedJob(script, arguments, files)


def _quoted(groups: Mapping[str, Mapping[str, str | None]]) -> dict[str, dict[str, str | None]]:
    return {
        group: {name: None if value is None else quote(value) for name, value in variables.items()}
        for group, variables in groups.items()
    }
