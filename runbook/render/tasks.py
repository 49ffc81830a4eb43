"""The job of a phase that trains nothing, for a queue: one program on a node, on each node, or as an array."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from runbook.params import Job, Settings
from runbook.params.catalogue import SchedulerKind
from runbook.params.schema import JOB_SECTIONS
from runbook.render.directives import pbs_directives, slurm_directives
from runbook.render.expanding import environment_groups
from runbook.render.queue_jobs import RenderedJob
from runbook.render.templating import fill, quote

TASK_PHASES = ("01-environment", "02-data")
"""The phases whose work may be such a job."""


@dataclass(frozen=True)
class Task:
    """What a job runs."""

    what: str
    """In words, for the script's head."""
    argv: tuple[str, ...]
    on_each_node: bool = False
    """Once on each of the job's nodes, not only on the first."""
    is_array: bool = False
    """As many jobs as `jobs.<phase>.array` says; each finds its number in RUNBOOK_ELEMENT."""
    part: str = ""
    """Ends the job folder's name, where a phase has several jobs."""

    def folder(self, phase: str) -> str:
        """The name of its first job's folder."""
        return f"{phase}-{self.part}" if self.part else phase


def asks_for_queue(settings: Settings, phase: str) -> bool:
    """Whether a phase that could run here is to go through the queue: its job names a partition, a time or an array."""
    if settings.site.scheduler is SchedulerKind.LOCAL or phase not in TASK_PHASES:
        return False
    job: Job = getattr(settings.run.jobs, JOB_SECTIONS[phase])
    return bool(job.partition or job.walltime or job.array)


def data_tasks(settings: Settings, python: str) -> list[Task]:
    """The jobs that tokenize: an array with a share of the shards each, then one that joins; or one job for all."""
    argv = (python, "-m", "runbook.phases.share", str(settings.project))
    if settings.job("02-data").array < 2:
        return [Task("tokenize", argv)]
    return [Task("tokenize a share each", argv, is_array=True), Task("join the shares", (*argv, "--join"), part="join")]


def render_task(settings: Settings, phase: str, task: Task, package: Path) -> RenderedJob:
    """The script of such a job; its program works in the run's folder."""
    site, job = settings.site, settings.job(phase)
    slurm = site.scheduler is SchedulerKind.SLURM
    elements = job.array if task.is_array and job.array > 1 else 0
    nodes = job.nodes if task.on_each_node else 1
    cores = site.hardware.cores_per_node
    job = job.model_copy(
        update={
            "nodes": nodes,
            "tasks_per_node": 1,
            "array": elements,
            # All cores of a node, where the partition is not another kind of node than the site's.
            "cpus_per_task": getattr(settings.run.jobs, JOB_SECTIONS[phase]).cpus_per_task
            or (cores if phase == "01-environment" else 0),
        }
    )
    folder = task.folder(phase)
    return RenderedJob(
        fill(
            "task.sh.j2",
            {
                "kind": str(site.scheduler),
                "submit": "sbatch" if slurm else "qsub",
                "directives": (slurm_directives if slurm else pbs_directives)(
                    settings, folder, job, devices=task.on_each_node
                ),
                "run": settings.name,
                "phase": phase,
                "site": site.site,
                "what": task.what,
                "folder": folder,
                "elements": elements,
                "package": str(package),
                "environment": environment_groups(settings),
                "modules": [],  # the program is runbook's own, with the Python that submits it
                "setup": [],
                "command": _command(slurm, nodes, task),
            },
        ),
        list(task.argv),
    )


def _command(slurm: bool, nodes: int, task: Task) -> str:
    words = " ".join(quote(word) for word in task.argv)
    if not task.on_each_node:
        return words
    if slurm:
        starter = f"srun --nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 --kill-on-bad-exit=0"
    else:
        starter = f'mpiexec -n {nodes} --ppn 1 --hostfile "$job/hostfile"'
    return f"{starter} {words}"
