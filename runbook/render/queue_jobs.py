"""A training phase's job for a queue: Slurm's or PBS's script, and what each rank and node runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runbook.errors import ParamsError
from runbook.params import Job, Settings
from runbook.params.catalogue import ContainerKind, Launcher, SchedulerKind
from runbook.params.schema import Framework
from runbook.render.arguments import training_arguments
from runbook.render.deepspeed_file import OWN_DEEPSPEED, deepspeed_file, deepspeed_name
from runbook.render.directives import pbs_directives, slurm_directives, warn_after
from runbook.render.expanding import commands, environment_groups
from runbook.render.launching import image_on_nodes, node_command, training_command
from runbook.render.templating import fill, quote

GRACE_SECONDS = 240
"""Time to save between being asked to stop and being killed; less than the queue's warning before its limit."""


@dataclass(frozen=True)
class RenderedJob:
    """Everything that is submitted for one job, as text."""

    script: str
    arguments: list[str]
    """What follows the training script or module."""
    files: dict[str, str] = field(default_factory=dict)
    """Other files the job reads, by their path relative to the job's folder."""


def render_queue_job(settings: Settings, spec: Mapping[str, Any], package: Path) -> RenderedJob:
    """The script that is submitted, rank.sh that every process runs, and what else the job reads."""
    job = settings.job(spec["phase"]).model_copy(update={"array": 0})  # a training is one job
    arguments = training_arguments(settings, spec)
    _check_binding(settings, job)
    files = {"rank.sh": _rank_script(settings, job, spec, arguments)}
    if once_a_node := _once_a_node(settings):
        files["node.sh"] = fill("node.sh.j2", {"commands": once_a_node})
    if settings.run.training.framework is Framework.MEGATRON_DEEPSPEED:
        files[_file_name(settings, spec)] = deepspeed_file(settings, spec)
    elif "deepspeed" in spec:  # for people: the trainer has the same from plan.json
        files[OWN_DEEPSPEED] = deepspeed_file(settings, spec)
    return RenderedJob(_job_script(settings, job, spec, package), arguments, files)


def _job_script(settings: Settings, job: Job, spec: Mapping[str, Any], package: Path) -> str:
    site, own = settings.site, settings.run.training.framework is Framework.RUNBOOK
    slurm = site.scheduler is SchedulerKind.SLURM
    groups = environment_groups(settings)
    mounts = [*site.container.mounts, *([str(package)] if own else [])]
    variables = {name for group in groups.values() for name, value in group.items() if value is not None}
    variables |= {
        "MASTER_ADDR",
        "MASTER_PORT",
        "OMP_NUM_THREADS",
        "RUNBOOK_JOB",
        "RUNBOOK_JOB_FOLDER",
        "PYTHONUNBUFFERED",
    }
    variables |= {"PYTHONPATH"} if own else set()
    variables |= {"RUNBOOK_SECONDS_LEFT"} if job.walltime else set()
    threads = job.cpus_per_task * job.tasks_per_node // job.devices_per_node
    copies = []
    if settings.run.training.framework is Framework.MEGATRON_DEEPSPEED:
        copies.append((deepspeed_name(settings, spec), _file_name(settings, spec)))
    return fill(
        "queue.sh.j2",
        {
            "kind": str(site.scheduler),
            "submit": "sbatch" if slurm else "qsub",
            "directives": (slurm_directives if slurm else pbs_directives)(settings, spec["phase"], job),
            "run": settings.name,
            "phase": spec["phase"],
            "site": site.site,
            "nodes": job.nodes,
            "devices": job.devices_per_node,
            "framework": settings.run.training.framework,
            "walltime": job.walltime,
            "warn_after": 0 if slurm else warn_after(job),
            "port_base": site.rendezvous.port_base,
            "port_span": site.rendezvous.port_span,
            "threads": threads,
            "environment": groups,
            "modules": site.modules,
            "setup": commands(site.setup, settings),
            "device_variable": site.binding.device_variable,
            "device_list": _device_list(settings, job),
            "package": str(package) if own else "",
            "folders": _words(_folders(settings, spec)),
            "copies": copies,
            "mounts_run": site.container.kind is not ContainerKind.NONE,
            "node_command": node_command(settings, job).text() if _once_a_node(settings) else "",
            "command": training_command(settings, job, sorted(variables), mounts).text(),
            "grace_seconds": GRACE_SECONDS,
        },
    )


def _once_a_node(settings: Settings) -> list[str]:
    """What every node does before the training: its own copy of the image, and the site's commands."""
    before = []
    if settings.run.jobs.image_copy:
        image, copy = settings.site.container.image, image_on_nodes(settings)
        before = fill("image_copy.sh.j2", {"image": image, "copy": copy}).splitlines()
    return [*before, *commands(settings.site.node_setup, settings)]


def _rank_script(settings: Settings, job: Job, spec: Mapping[str, Any], arguments: list[str]) -> str:
    site, framework = settings.site, settings.run.training.framework
    binding = site.binding
    python = site.python or "python3"
    if framework is Framework.RUNBOOK:
        program = [python, "-m", "runbook.training"]
    else:
        checkout = site.frameworks[framework]
        program = [python, "-u", f"{checkout.folder.rstrip('/')}/{checkout.script}"]
    groups = environment_groups(settings)
    starter_binds = site.launcher in (Launcher.TORCHRUN, Launcher.DEEPSPEED)
    cores = [f"0x{mask}" for mask in binding.cpu_masks] or binding.cpu_lists
    return fill(
        "rank.sh.j2",
        {
            "launcher": str(site.launcher),
            "world_size": spec["parallel"]["world_size"],
            "devices": job.devices_per_node,
            "unset": sorted(name for group in groups.values() for name, value in group.items() if value is None),
            "cpu_masks": _words(cores[: job.devices_per_node]) if starter_binds else "",
            "cpu_lists": not binding.cpu_masks,
            "program": _words(program),
            "argument_lines": [f"  {_words(line)}" for line in lines(arguments)],
        },
    )


def lines(arguments: Sequence[str]) -> list[list[str]]:
    """Arguments with each option's values on its own line.

    >>> lines(["plan.json", "--phase", "04-training", "--fp16"])
    [['plan.json'], ['--phase', '04-training'], ['--fp16']]
    """
    result: list[list[str]] = []
    for word in arguments:
        option = result[-1][0] if result else ""
        if option.startswith("--") and "=" not in option and not word.startswith("--"):
            result[-1].append(word)
        else:
            result.append([word])
    return result


def _words(values: Sequence[str]) -> str:
    return " ".join(quote(value) for value in values)


def _file_name(settings: Settings, spec: Mapping[str, Any]) -> str:
    return deepspeed_name(settings, spec).rpartition("/")[2]


def _folders(settings: Settings, spec: Mapping[str, Any]) -> list[str]:
    """What must be there before the first rank writes."""
    folders = [spec["checkpoint"]["folder"], spec["log"]["tensorboard"], spec["data"]["cache"]]
    if settings.run.training.framework is Framework.MEGATRON_DEEPSPEED:
        folders.append(deepspeed_name(settings, spec).rpartition("/")[0])
    return folders


def _device_list(settings: Settings, job: Job) -> str:
    order = settings.site.binding.device_order
    if not settings.site.binding.device_variable or job.devices_per_node != len(order):
        return ""
    return ",".join(str(device) for device in order)


def _check_binding(settings: Settings, job: Job) -> None:
    binding = settings.site.binding
    for name in ("cpu_masks", "cpu_lists"):
        entries = getattr(binding, name)
        if entries and len(entries) < job.devices_per_node:
            raise ParamsError(
                f"site {settings.site.site}: binding.{name} has {len(entries)} entries, and a node has "
                f"{job.devices_per_node} ranks. Give one for each."
            )
