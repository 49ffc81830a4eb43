"""The preflight job, which checks in stages whether the nodes have what training needs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from runbook.jobs.render.launch_commands import (
    node_command,
    rung_command,
    training_command,
)
from runbook.jobs.render.queue_values import queue_values
from runbook.jobs.render.quoting import quote, site_commands
from runbook.jobs.render.templating import fill
from runbook.jobs.render.training_job import QueuedTraining, RenderedJob
from runbook.params import Job, Settings
from runbook.plan_file.group_limits import STAGE_SECONDS
from runbook.plan_file.phase_names import ENVIRONMENT, FULL
from runbook.plan_file.schema import PhasePlan

PREFLIGHT_PHASE = f"{ENVIRONMENT}-preflight"
"""Prefix for the names of preflight job folders."""
WALLTIME_SECONDS = 600
"""Time limit for the job in seconds, unless jobs.environment sets one.

A short job starts sooner, and the preflight takes a minute or two.
"""
RUNG_SECONDS = 150
"""Time limit for a stage in seconds. A stage starts containers and imports torch."""
NODE_SETUP = "node_setup"
"""Name of the step that runs the commands from the site file on each node."""
NODE_SETUP_SECONDS = 150


@dataclass(frozen=True)
class RungStep:
    """A stage of the preflight, with the command by which the job script starts it."""

    name: str
    what: str
    command: str
    seconds: int = RUNG_SECONDS


@dataclass(frozen=True)
class PreflightQuestions:
    """Settings for the preflight checks."""

    folders: tuple[Path, ...]
    """Folders that all nodes share. The ranks write their answers to the first folder."""
    token: str
    probe_options: tuple[str, ...]
    """Arguments for `python -m runbook.training.probe`."""


class _PreflightJob(QueuedTraining):
    """A job that is started like the training job, but whose programs run checks."""

    def __init__(
        self,
        settings: Settings,
        spec: PhasePlan,
        package: Path,
        questions: PreflightQuestions,
    ) -> None:
        job = preflight_job(settings)
        world_size = job.nodes * job.devices_per_node
        parallel = replace(spec.parallel, world_size=world_size)
        super().__init__(
            _without_copies(settings),
            replace(spec, parallel=parallel),
            package,
        )
        self.job = job
        # The probe is our own program, whichever framework the training uses.
        self.framework = "runbook"
        self.questions = questions

    @property
    def node_counts(self) -> list[int]:
        """Return only the full number of nodes, because the preflight checks all of them."""
        return [self.job.nodes]

    def program(self) -> list[str]:
        """Return the program that each rank runs."""
        return [self.site.python or "python3", "-m", "runbook.training.probe"]

    def render(self) -> RenderedJob:
        """Return the job script, and the scripts that its nodes and ranks run."""
        options = list(self.questions.probe_options)
        files = {"rank.sh": self.rank_script(options), "rung.sh": self._rung_script()}
        node_commands = self._node_commands()
        if node_commands:
            files["node.sh"] = fill("node.sh.j2", commands=node_commands)
        return RenderedJob(self._script(bool(node_commands)), options, files)

    def _rung_script(self) -> str:
        python = quote(self.site.python or "python3")
        parts = [f"{python} -m runbook.node_checks", f"--token {quote(self.questions.token)}"]
        parts += [f"--folder {quote(str(folder))}" for folder in self.questions.folders]
        parts.append(f"--device {quote(self.spec.device)}")
        return fill("rung.sh.j2", unset=self.unset_variables(), program=" ".join(parts))

    def _script(self, has_node_script: bool) -> str:
        job = self.job
        variables = [*self.variables(), "RUNBOOK_NODES"]
        mounts = [*self.site.container.mounts, str(self.package)]
        values = queue_values(self.settings, PREFLIGHT_PHASE, job)
        return fill(
            "preflight.sh.j2",
            **values,
            phase=PREFLIGHT_PHASE,
            threads=job.cpus_per_task * job.tasks_per_node // job.devices_per_node,
            modules=self.site.modules,
            setup=site_commands(self.site.setup, self.settings),
            package=str(self.package),
            node_command=node_command(self.settings, job) if has_node_script else "",
            node_setup=NODE_SETUP,
            node_setup_seconds=NODE_SETUP_SECONDS,
            rungs=self._steps(variables, mounts),
        )

    def _steps(self, variables: Sequence[str], mounts: Sequence[str]) -> list[RungStep]:
        rungs = {
            "hosts": "limits, memory, cores, names, caches and shared folders of each node",
            "torch": "torch and the devices of each node, in a separate process",
            "peers": "TCP between the nodes, small messages and large ones",
        }
        steps = [
            RungStep(
                name,
                purpose,
                rung_command(
                    self.settings,
                    self.job,
                    name,
                    variables,
                    mounts,
                ),
            )
            for name, purpose in rungs.items()
        ]
        command = training_command(self.settings, self.job, variables, mounts)
        purpose = "the ranks connect as the trainer's do, and use each of its process groups"
        return [*steps, RungStep("groups", purpose, command, STAGE_SECONDS)]


def _without_copies(settings: Settings) -> Settings:
    """Return settings that keep no copies on node disks.

    The training job copies its image and its environment to each node. The preflight job uses the
    shared image and environment instead.
    """
    jobs = settings.run.jobs.model_copy(update={"environment_copy": "", "image_copy": ""})
    return replace(settings, run=settings.run.model_copy(update={"jobs": jobs}))


def preflight_job(settings: Settings) -> Job:
    """Return the resources that the job requests from the queue.

    The job uses each node in the same way as the training job, and takes the queue and the number
    of nodes from jobs.environment.

    If jobs.environment requests one node and the training job uses more, the preflight job requests
    two, because one node cannot test the network.
    """
    training = settings.job(FULL)
    environment_job = settings.job(ENVIRONMENT)
    nodes = max(environment_job.nodes, min(2, training.nodes))
    return training.model_copy(
        update={
            "nodes": nodes,
            "walltime": environment_job.walltime or WALLTIME_SECONDS,
            "partition": environment_job.partition or training.partition,
            "account": environment_job.account or training.account,
            "qos": environment_job.qos or training.qos,
            "reservation": environment_job.reservation or training.reservation,
            "memory": environment_job.memory or training.memory,
            "array": 0,
            # The preflight checks every node, so it has no spare nodes.
            "spares": 0,
            "min_nodes": 0,
        }
    )


def render_preflight(
    settings: Settings,
    spec: PhasePlan,
    package: Path,
    questions: PreflightQuestions,
) -> RenderedJob:
    """Return the preflight job for a run whose site has a queue."""
    return _PreflightJob(settings, spec, package, questions).render()
