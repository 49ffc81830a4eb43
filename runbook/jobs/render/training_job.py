"""The job of a training phase as text: scripts for this machine, Slurm and PBS."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from runbook.core.errors import JobError, ParamsError
from runbook.core.files import write_text
from runbook.frameworks import training_arguments
from runbook.frameworks.megatron import OWN_DEEPSPEED, deepspeed_file, deepspeed_name
from runbook.jobs.job_folder import JobFolder
from runbook.jobs.render.launch_commands import (
    image_on_nodes,
    node_command,
    queue_values,
    training_command,
    warn_after,
)
from runbook.jobs.render.templating import environment_groups, fill, quote, site_commands
from runbook.params import Settings
from runbook.params.settings import require_values
from runbook.plan_file.schema import PhasePlan
from runbook.planning.plan import Plan

QUEUE_GRACE_SECONDS = 240
"""Time to save between being asked to stop and being killed.

Less than the queue's warning before its limit.
"""


@dataclass(frozen=True)
class RenderedJob:
    """Everything that is submitted for one job, as text."""

    script: str
    arguments: list[str]
    """What follows the training script or module."""
    files: dict[str, str] = field(default_factory=dict)
    """Other files the job reads, by their path relative to the job's folder."""


class _QueueJob:
    """One training as a job of Slurm or PBS.

    What is submitted, what every rank and node runs, what they read.
    """

    def __init__(self, settings: Settings, spec: PhasePlan, package: Path) -> None:
        self.settings = settings
        self.spec = spec
        self.package = package
        self.site, self.framework = settings.site, settings.run.training.framework
        self.job = settings.job(spec.phase).model_copy(update={"array": 0})  # a training is one job
        self.groups = environment_groups(settings)
        if self.framework == "megatron-deepspeed":
            self.deepspeed = deepspeed_name(settings, spec)
        else:
            self.deepspeed = ""
        """The file that Megatron-DeepSpeed reads, from the run's folder."""

    def render(self) -> RenderedJob:
        """The script that is submitted, rank.sh that every process runs, and what else the job reads."""
        arguments = training_arguments(self.settings, self.spec)
        files = {"rank.sh": self._rank_script(arguments)}
        # What every node does before the training: its own copy of the image, and the site's
        # commands.
        once_a_node = site_commands(self.site.node_setup, self.settings)
        if self.settings.run.jobs.image_copy:
            image = self.site.container.image
            copy = image_on_nodes(self.settings)
            once_a_node = [
                *fill("image_copy.sh.j2", image=image, copy=copy).splitlines(),
                *once_a_node,
            ]
        if once_a_node:
            files["node.sh"] = fill("node.sh.j2", commands=once_a_node)
        if self.deepspeed:
            files[PurePosixPath(self.deepspeed).name] = deepspeed_file(self.settings, self.spec)
        elif self.spec.deepspeed:  # for people: the trainer has the same from plan.json
            files[OWN_DEEPSPEED] = deepspeed_file(self.settings, self.spec)
        return RenderedJob(self._job_script(bool(once_a_node)), arguments, files)

    def _job_script(self, has_node_script: bool) -> str:
        settings = self.settings
        site = self.site
        job = self.job
        spec = self.spec
        own = self.framework == "runbook"
        mounts = [*site.container.mounts, *([str(self.package)] if own else [])]
        folders = [spec.checkpoint.folder, spec.log.tensorboard, spec.data.cache]
        deepspeed = PurePosixPath(self.deepspeed)
        variables = {
            name
            for group in self.groups.values()
            for name, value in group.items()
            if value is not None
        }
        variables |= {"MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS", "PYTHONUNBUFFERED"}
        variables |= {"RUNBOOK_JOB", "RUNBOOK_JOB_FOLDER", *(["PYTHONPATH"] if own else [])}
        variables |= {"RUNBOOK_SECONDS_LEFT"} if job.walltime else set()
        return fill(
            "queue.sh.j2",
            **queue_values(settings, spec.phase, job),
            phase=spec.phase,
            framework=self.framework,
            warn_after=0 if site.scheduler == "slurm" else warn_after(job),
            threads=job.cpus_per_task * job.tasks_per_node // job.devices_per_node,
            modules=site.modules,
            setup=site_commands(site.setup, settings),
            package=str(self.package) if own else "",
            folders=_words([*folders, *([str(deepspeed.parent)] if self.deepspeed else [])]),
            copies=[(self.deepspeed, deepspeed.name)] if self.deepspeed else [],
            node_command=node_command(settings, job) if has_node_script else "",
            command=training_command(settings, job, sorted(variables), mounts),
            grace_seconds=QUEUE_GRACE_SECONDS,
        )

    def _rank_script(self, arguments: list[str]) -> str:
        site = self.site
        binding = self.site.binding
        num_ranks = self.job.devices_per_node
        python = site.python or "python3"
        if self.framework == "runbook":
            program = [python, "-m", "runbook.training"]
        else:
            checkout = site.frameworks[self.framework]
            program = [python, "-u", f"{checkout.folder.rstrip('/')}/{checkout.script}"]
        starter_binds = site.launcher in ("torchrun", "deepspeed")
        for name, entries in (("cpu_masks", binding.cpu_masks), ("cpu_lists", binding.cpu_lists)):
            if entries and len(entries) < num_ranks:
                raise ParamsError(
                    f"site {site.site}: binding.{name} has {len(entries)} entries, and a node has "
                    f"{num_ranks} ranks. Give one for each."
                )
        cores = [f"0x{mask}" for mask in binding.cpu_masks] or binding.cpu_lists
        return fill(
            "rank.sh.j2",
            launcher=site.launcher,
            world_size=self.spec.parallel.world_size,
            devices=num_ranks,
            unset=sorted(
                name
                for group in self.groups.values()
                for name, value in group.items()
                if value is None
            ),
            cpu_masks=_words(cores[:num_ranks]) if starter_binds else "",
            cpu_lists=not binding.cpu_masks,
            program=_words(program),
            argument_lines=[f"  {_words(line)}" for line in lines(arguments)],
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


TRAINING_PHASES = ("03-smoke-test", "04-training")
"""The phases whose work is a training job."""

LOCAL_GRACE_SECONDS = 120
"""Time to save between being asked to stop and being killed.

A save on a slow disk takes half a minute and more.
"""

PACKAGE = Path(__file__).parents[3]
"""The folder that holds the package `runbook`: the clone, as jobs in a queue see it."""

PEERS_SECONDS = 3
"""Time for the other ranks to notice by themselves, with their own words, that one has failed.

Where they still wait for each other to come they cannot, and the job's end is known that much
later.
"""

KILLED_PEERS_SECONDS = 1
"""The same where one was killed by a signal.

Who trains with it sees its connection closed at once, who waits never.
"""


def render_job(
    settings: Settings, plan: Plan, phase: str, *, python: str = "python3", package: Path = PACKAGE
) -> RenderedJob:
    """The job of a training phase, for the site's scheduler.

    `plan` is the content of plan.json, which the job reads from the run's folder. `python` is the
    interpreter that has the trainer on a local site; `package` the folder that holds our package,
    which a job in a queue imports the trainer from. The script finds the run's folder from its own
    place, or from where it was submitted: that folder may move.
    """
    if phase not in TRAINING_PHASES:
        raise JobError(
            f"{phase} has no training job; these phases have one: {', '.join(TRAINING_PHASES)}."
        )
    require_values(settings)
    if settings.site.scheduler != "local":
        return _QueueJob(settings, plan.phases[phase], package).render()
    spec = plan.phases[phase]
    arguments = training_arguments(settings, spec)
    script = render_local(settings, spec, [python, "-m", "runbook.training", *arguments])
    return RenderedJob(
        script, arguments, {OWN_DEEPSPEED: deepspeed_file(settings, spec)} if spec.deepspeed else {}
    )


def write_job(folder: JobFolder, rendered: RenderedJob) -> None:
    """Put a job's files into its folder.

    Job.sh is written last, so that a folder with one is complete.
    """
    for name, text in rendered.files.items():
        write_text(folder.path / name, text, error=JobError)
    write_text(
        folder.arguments,
        json.dumps(rendered.arguments, indent=2, ensure_ascii=False) + "\n",
        error=JobError,
    )
    write_text(folder.script, rendered.script, mode=0o777, error=JobError)


def render_local(settings: Settings, spec: PhasePlan, program: Sequence[str]) -> str:
    """The script that starts a program on this machine, once for each rank of a phase."""
    site = settings.site
    job = settings.job(spec.phase)
    if job.nodes != 1:
        raise JobError(
            f"{spec.phase} asks for {job.nodes} nodes, but site {site.site} is this one machine. "
            "Set jobs.<phase>.nodes to 1, or choose a site with a queue."
        )
    world_size = int(spec.parallel.world_size)
    cores = site.hardware.cores_per_node
    return fill(
        "local.sh.j2",
        run=settings.name,
        phase=spec.phase,
        site=site,
        job=job,
        world_size=world_size,
        threads=max(1, cores // world_size) if cores else 0,
        grace_seconds=LOCAL_GRACE_SECONDS,
        peers_seconds=PEERS_SECONDS,
        killed_peers_seconds=KILLED_PEERS_SECONDS,
        stragglers_seconds=int(spec.limits.process_group_timeout_seconds),
        environment={
            group: {
                name: None if value is None else quote(value) for name, value in variables.items()
            }
            for group, variables in site.environment.items()
        },
        modules=site.modules,
        setup=site.setup,
        command=_words(program),
    )


def _words(values: Sequence[str]) -> str:
    return " ".join(quote(value) for value in values)
