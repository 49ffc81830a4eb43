"""Renders the job for a training phase, with scripts for this machine, Slurm or PBS."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from runbook.core.errors import JobError, ParamsError
from runbook.core.files import write_text
from runbook.frameworks import training_arguments
from runbook.frameworks.megatron import OWN_DEEPSPEED, deepspeed_file, deepspeed_name
from runbook.jobs.job_folder import JobFolder
from runbook.jobs.messages import JobMessage
from runbook.jobs.render.environment_variables import environment_groups, local_environment_groups
from runbook.jobs.render.launch_commands import (
    COPIED_PYTHON,
    copy_command,
    image_on_nodes,
    near_removal_command,
    node_command,
    one_process_command,
    removal_where_nodes_answer,
    training_command,
)
from runbook.jobs.render.queue_scripts import warn_after
from runbook.jobs.render.queue_values import queue_values
from runbook.jobs.render.quoting import quote, site_commands
from runbook.jobs.render.templating import fill
from runbook.jobs.schedulers import get_queue_scripts
from runbook.params import Job, Settings
from runbook.params.settings import require_values
from runbook.plan_file.checkpoint_folder import TRACKER
from runbook.plan_file.fewer_replicas import allowed_nodes
from runbook.plan_file.phase_names import TRAINING_PHASES
from runbook.plan_file.schema import PhasePlan
from runbook.planning.make_plan import Plan

TRACKERS = {"megatron-lm": TRACKER, "megatron-deepspeed": "latest"}
"""For each program from the documents, the file in which it records its newest checkpoint."""

SPARES_OPTION = ' --spares "$((${#trusted[@]} - ${#training_nodes[@]}))"'
"""Option that passes how many nodes did not train in an attempt."""

QUEUE_GRACE_SECONDS = 240
"""Seconds that a job has for a save between the request to stop and the kill.

This must be less than the time between the queue warning and the time limit.
"""
PROBE_SECONDS = 30
"""Seconds within which a node must start a process, or a spare node replaces it.

Slurm waits 10 s for a node that is switched off.
"""
UNENDED_SECONDS = 30
"""Seconds that a job waits for a failed step to end on all nodes.

Slurm itself gives up after UnkillableStepTimeout, which is 60 s or more. The mpiexec from MPICH
waits forever for ranks on a lost node.
"""


@dataclass(frozen=True)
class RenderedJob:
    """All files submitted for one job, as text."""

    script: str
    arguments: list[str]
    """Arguments for the training script or module."""
    files: dict[str, str] = field(default_factory=dict)
    """Other files read by the job, by path relative to the job folder."""


class QueuedTraining:
    """A training run as a Slurm or PBS job.

    The job consists of the submitted script, the scripts run by ranks and nodes, and the files they
    read.
    """

    def __init__(
        self,
        settings: Settings,
        spec: PhasePlan,
        package: Path,
    ) -> None:
        self.settings = settings
        self.spec = spec
        self.package = package
        self.site = settings.site
        self.framework = settings.run.training.framework
        self.job = settings.job(spec.phase).model_copy(
            update={"array": 0}
        )  # a training phase is one job
        self.groups = environment_groups(settings)
        self.deepspeed = ""
        """Path in the run folder to the file for Megatron-DeepSpeed; empty for other frameworks."""
        if self.framework == "megatron-deepspeed":
            self.deepspeed = deepspeed_name(settings, spec)

    def render(self) -> RenderedJob:
        """Return the submitted script, the rank.sh run by every process, and the other files."""
        arguments = training_arguments(self.settings, self.spec)
        files = {"rank.sh": self.rank_script(arguments)}
        node_commands = self._node_commands()
        if self.settings.run.jobs.environment_copy:
            files[PYTHON_SCRIPT] = python_script(
                self.settings, self.site.python or "python3", self.package
            )

        if node_commands:
            files["node.sh"] = fill("node.sh.j2", commands=node_commands)
        if self.deepspeed:
            files[PurePosixPath(self.deepspeed).name] = deepspeed_file(self.settings, self.spec)
        elif self.spec.deepspeed:
            # This file is for readers; the trainer reads the same values from plan.json.
            files[OWN_DEEPSPEED] = deepspeed_file(self.settings, self.spec)

        return RenderedJob(self._job_script(bool(node_commands)), arguments, files)

    def _node_commands(self) -> list[str]:
        """Return the commands to run on every node before training.

        The commands copy the image and then run the commands from the site file.
        """
        commands = site_commands(self.site.node_setup, self.settings)
        if not self.settings.run.jobs.image_copy:
            return commands
        image = self.site.container.image
        copy = image_on_nodes(self.settings)
        copy_lines = fill("image_copy.sh.j2", image=image, copy=copy).splitlines()
        return [*copy_lines, *commands]

    def _job_script(self, has_node_script: bool) -> str:
        settings = self.settings
        site = self.site
        job = self.job
        spec = self.spec
        # Upstream trainers are in the container, while ours is imported from the clone.
        package = str(self.package) if self.framework == "runbook" else ""
        mounts = [*site.container.mounts]
        if package:
            mounts.append(package)
        folders = [spec.checkpoint.folder, spec.log.tensorboard, spec.data.cache]
        copies = []
        if self.deepspeed:
            deepspeed = PurePosixPath(self.deepspeed)
            folders.append(str(deepspeed.parent))
            copies.append((self.deepspeed, deepspeed.name))

        queue_scripts = get_queue_scripts(site)
        with_spares = job.model_copy(update={"nodes": job.nodes + job.spares})
        return fill(
            "queue.sh.j2",
            **queue_values(settings, spec.phase, with_spares),
            nodes=job.nodes,
            chain=job.chain,
            node_counts=self.node_counts,
            restarts_here=self.restarts_here,
            attempts=self.goes_on_by_itself,
            events=quote(spec.log.events),
            decide_command=self._decide_command(mounts) if self.goes_on_by_itself else "",
            spares_option=SPARES_OPTION if self.restarts_here else "",
            near_removal_command=self._near_removal_command(mounts),
            probe_command=f"{queue_scripts.on_one_node(PROBE_SECONDS)} true",
            probe_seconds=PROBE_SECONDS,
            phase=spec.phase,
            framework=self.framework,
            warn_after=0 if queue_scripts.announces_end else warn_after(job),
            threads=job.cpus_per_task * job.tasks_per_node // job.devices_per_node,
            modules=site.modules,
            setup=site_commands(site.setup, settings),
            package=package,
            folders=_words(folders),
            checkpoints=_words([spec.checkpoint.folder]),
            tracker=TRACKERS.get(self.framework, ""),
            copies=copies,
            **copy_values(settings, with_spares, may_lose_nodes=self.restarts_here),
            node_command=node_command(settings, with_spares) if has_node_script else "",
            command=training_command(
                settings,
                job,
                self.variables(),
                mounts,
                with_fewer_nodes=self.may_have_fewer_nodes,
            ),
            grace_seconds=QUEUE_GRACE_SECONDS,
            unended_seconds=UNENDED_SECONDS,
        )

    @property
    def node_counts(self) -> list[int]:
        """Return the possible numbers of training nodes, in descending order."""
        if self.framework != "runbook":
            return [self.job.nodes]
        return allowed_nodes(self.spec, self.job.devices_per_node)

    @property
    def may_have_fewer_nodes(self) -> bool:
        """Return whether the number of training nodes is decided again in each attempt."""
        return len(self.node_counts) > 1

    @property
    def restarts_here(self) -> bool:
        """Return whether another attempt may follow in the same allocation, on different nodes."""
        return self.job.spares > 0 or self.may_have_fewer_nodes

    @property
    def goes_on_by_itself(self) -> bool:
        """Return whether the job itself decides what to do after an attempt.

        It does so if it is in a chain, or if it can use different nodes.
        """
        return self.job.chain > 1 or self.restarts_here

    def _near_removal_command(self, mounts: Sequence[str]) -> str:
        """Return the command to remove copies held in node memory.

        Return an empty string if no copies are kept.
        """
        if not self.goes_on_by_itself or not self.spec.checkpoint.near_interval:
            return ""
        arguments = training_arguments(self.settings, self.spec)
        python = self.site.python or "python3"
        argv = [python, "-m", "runbook.training.near.removal", *arguments]
        return near_removal_command(self.settings, argv, mounts)

    def _decide_command(self, mounts: Sequence[str]) -> str:
        """Return the command to decide what to do after an attempt."""
        options = [
            f"--run={self.settings.name}",
            f"--phase={self.spec.phase}",
            f"--restarts={self.job.restarts}",
            f"--events={self.spec.log.events}",
            f"--metrics={self.spec.log.metrics}",
        ]
        if self.restarts_here and self.spec.parallel.pipeline > 1:
            options.append(f"--stages={self.spec.parallel.pipeline}")
        program = ["-m", "runbook.next_job", *options]
        if self.framework == "runbook":
            argv = [self.site.python or "python3", *program]
            return one_process_command(self.settings, argv, mounts)

        if self.framework not in TRACKERS:
            raise JobError(
                JobMessage.PROGRESS_UNKNOWN,
                chain=self.job.chain,
                spares=self.job.spares,
                framework=self.framework,
            )

        # Upstream images lack our package, so the Python on the first node reads the logs.
        tracker = f"{self.spec.checkpoint.folder}/{TRACKERS[self.framework]}"
        package = quote(f"PYTHONPATH={self.package}")
        arguments = ["python3", *program, f"--tracker={tracker}"]
        return " ".join(["env", package, *map(quote, arguments)])

    def variables(self) -> list[str]:
        """Return the sorted names of environment variables set by the job for its ranks."""
        names = {
            "MASTER_ADDR",
            "MASTER_PORT",
            "OMP_NUM_THREADS",
            "PYTHONUNBUFFERED",
            "RUNBOOK_JOB",
            "RUNBOOK_JOB_FOLDER",
        }
        if self.framework == "runbook":
            names.add("PYTHONPATH")
        if self.job.walltime:
            names.add("RUNBOOK_SECONDS_LEFT")
        if self.may_have_fewer_nodes:
            names.add("RUNBOOK_NUM_NODES")
        for group in self.groups.values():
            names.update(name for name, value in group.items() if value is not None)
        return sorted(names)

    def unset_variables(self) -> list[str]:
        """Return the sorted names of variables unset by the site."""
        names: list[str] = []
        for group in self.groups.values():
            names += [name for name, value in group.items() if value is None]
        return sorted(names)

    def rank_script(self, arguments: list[str]) -> str:
        """Return rank.sh, which starts `program` with these arguments."""
        site = self.site
        binding = site.binding
        num_ranks = self.job.devices_per_node
        self._check_binding("cpu_masks", binding.cpu_masks)
        self._check_binding("cpu_lists", binding.cpu_lists)
        cores = [f"0x{mask}" for mask in binding.cpu_masks] or binding.cpu_lists
        # srun and mpiexec bind ranks to cores themselves; the other launchers start one process per
        # node.
        rank_binds_itself = site.launcher in ("torchrun", "deepspeed")
        return fill(
            "rank.sh.j2",
            launcher=site.launcher,
            world_size=self._world_size(),
            devices=num_ranks,
            unset=self.unset_variables(),
            cpu_masks=_words(cores[:num_ranks]) if rank_binds_itself else "",
            cpu_lists=not binding.cpu_masks,
            program=self._program_command(),
            argument_lines=[f"  {_words(line)}" for line in lines(arguments)],
        )

    def _world_size(self) -> str:
        """Return the number of ranks as a bash expression."""
        if self.may_have_fewer_nodes:
            return f"$((RUNBOOK_NUM_NODES * {self.job.devices_per_node}))"
        return str(self.spec.parallel.world_size)

    def program(self) -> list[str]:
        """Return the program run by each rank."""
        python = self.site.python or "python3"
        if self.framework == "runbook":
            return [python, "-m", "runbook.training"]
        checkout = self.site.frameworks[self.framework]
        return [python, "-u", f"{checkout.folder.rstrip('/')}/{checkout.script}"]

    def _program_command(self) -> str:
        """Return the program as shell words, using the copy of Python on the node if requested."""
        python, *arguments = self.program()
        if self.settings.run.jobs.environment_copy:
            return f"{COPIED_PYTHON} {_words(arguments)}"
        return _words([python, *arguments])

    def _check_binding(self, name: str, entries: Sequence[str]) -> None:
        num_ranks = self.job.devices_per_node
        if entries and len(entries) < num_ranks:
            raise ParamsError(
                JobMessage.BINDING_LENGTH,
                site=self.site.site,
                name=name,
                number_of_entries=len(entries),
                num_ranks=num_ranks,
            )


def lines(arguments: Sequence[str]) -> list[list[str]]:
    """Group arguments into lines, each with one option and its values.

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


LOCAL_GRACE_SECONDS = 120
"""Seconds that a job has for a save between the request to stop and the kill.

A save to a slow disk takes half a minute or more.
"""

PACKAGE = Path(__file__).parents[3]
"""The folder that contains the package `runbook`. For queued jobs, this is the clone."""

PEERS_SECONDS = 3
"""Seconds for the other ranks to notice and report that a rank has failed.

Ranks still waiting for each other to start cannot notice the failure, so it takes this
much longer to learn that the job has ended.
"""

KILLED_PEERS_SECONDS = 1
"""Seconds for the other ranks to notice and report that a signal has killed a rank.

Ranks that are training notice the closed connection immediately. Ranks that wait for the lost rank
to start never notice it.
"""


def render_job(
    settings: Settings,
    plan: Plan,
    phase: str,
    *,
    python: str = "python3",
    package: Path = PACKAGE,
) -> RenderedJob:
    """Render the job for a training phase, as the site scheduler expects it.

    `plan` is what plan.json contains, which the job reads from the run folder. `python` is the
    interpreter that has the trainer on a local site. `package` is the folder from which a queued
    job imports our trainer. The script finds the run folder relative to itself, or to the folder
    from which it was submitted, because the run folder may move.
    """
    if phase not in TRAINING_PHASES:
        raise JobError(
            JobMessage.NO_TRAINING_JOB, phase=phase, training_phases=", ".join(TRAINING_PHASES)
        )

    require_values(settings)
    spec = plan.phases[phase]
    if settings.site.scheduler != "local":
        return QueuedTraining(settings, spec, package).render()
    arguments = training_arguments(settings, spec)
    program = ["-m", "runbook.training", *arguments]
    files = {OWN_DEEPSPEED: deepspeed_file(settings, spec)} if spec.deepspeed else {}
    if settings.run.jobs.environment_copy:
        files[PYTHON_SCRIPT] = python_script(settings, python, package)
        command = f"{COPIED_PYTHON} {_words(program)}"
        script = _render_local(settings, spec, command, copy_values(settings, settings.job(phase)))
        return RenderedJob(script, arguments, files)

    script = render_local(settings, spec, [python, *program])
    return RenderedJob(script, arguments, files)


PYTHON_SCRIPT = "python.sh"
"""Script in a job folder, used to start Python from the copy on each node."""
ENVIRONMENT_FILE = "environment.json"
"""Manifest for the packed environment, in the job folder."""
NO_COPY = {
    "unpack_command": "",
    "first_remove_command": "",
    "remove_command": "",
    "folder": "",
}


def copy_values(settings: Settings, job: Job, *, may_lose_nodes: bool = False) -> dict[str, str]:
    """Return the values that a job script needs to manage the environment copy on each node."""
    jobs = settings.run.jobs
    if not jobs.environment_copy:
        return NO_COPY
    removal = "" if jobs.environment_keep else copy_command(settings, job, "--remove")
    last_removal = removal
    if removal and may_lose_nodes:
        last_removal = removal_where_nodes_answer(settings, job)
    return {
        "unpack_command": copy_command(settings, job, "--unpack"),
        "first_remove_command": removal,
        "remove_command": last_removal,
        "folder": jobs.environment_copy,
    }


def python_script(settings: Settings, python: str, package: Path) -> str:
    """Return python.sh, which starts Python from the copy on the node."""
    folder = settings.run.jobs.environment_copy
    in_shell = re.sub(r"\$([A-Za-z_][A-Za-z0-9_]*)", r"${\1:-}", folder)
    return fill(
        "python.sh.j2",
        python=python,
        folder=folder,
        folder_in_shell=f'"{in_shell}"' if "$" in folder else quote(folder),
        package=str(package),
        own_trainer=settings.run.training.framework == "runbook",
    )


def write_job(folder: JobFolder, rendered: RenderedJob) -> None:
    """Write all files for a job. job.sh is last, so a folder that has it is complete."""
    for name, text in rendered.files.items():
        write_text(folder.path / name, text, error=JobError)
    write_text(
        folder.arguments,
        json.dumps(rendered.arguments, indent=2, ensure_ascii=False) + "\n",
        error=JobError,
    )
    write_text(folder.script, rendered.script, mode=0o777, error=JobError)


def render_local(settings: Settings, spec: PhasePlan, program: Sequence[str]) -> str:
    """Return the script to start a program on this machine, once for each rank of a phase."""
    return _render_local(settings, spec, _words(program), NO_COPY)


def _render_local(
    settings: Settings,
    spec: PhasePlan,
    command: str,
    copy: Mapping[str, str],
) -> str:
    site = settings.site
    job = settings.job(spec.phase)
    if job.nodes != 1:
        raise JobError(
            JobMessage.SITE_IS_ONE_MACHINE, phase=spec.phase, nodes=job.nodes, site=site.site
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
        environment=local_environment_groups(settings),
        modules=site.modules,
        setup=site.setup,
        events=quote(spec.log.events) if copy["unpack_command"] else "",
        command=command,
        **copy,
    )


def _words(values: Sequence[str]) -> str:
    return " ".join(quote(value) for value in values)
