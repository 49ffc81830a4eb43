"""The job of a phase that trains nothing, for a queue: one program on a node, on each node, or as an array."""

from dataclasses import dataclass
from pathlib import Path

from runbook.jobs.render.launch_commands import queue_values, single_command
from runbook.jobs.render.templating import fill, quote, site_commands
from runbook.jobs.render.training_job import RenderedJob
from runbook.params import Job, Settings
from runbook.params.schema.run_file import JOB_SECTIONS

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
    in_container: bool = False
    """With the trainer's own Python, modules and image instead of the Python that submits; one core is enough."""
    part: str = ""
    """Ends the job folder's name, where a phase has several jobs."""

    def folder(self, phase: str) -> str:
        """The name of its first job's folder."""
        return f"{phase}-{self.part}" if self.part else phase


def asks_for_queue(settings: Settings, phase: str) -> bool:
    """Whether a phase that could run here is to go through the queue: its job names a partition, a time or an array."""
    if settings.site.scheduler == "local" or phase not in TASK_PHASES:
        return False
    job: Job = getattr(settings.run.jobs, JOB_SECTIONS[phase])
    return bool(job.partition or job.walltime or job.array)


def data_tasks(settings: Settings, python: str) -> list[Task]:
    """The jobs that tokenize: an array with a share of the shards each, then one that joins; or one job for all."""
    argv = (python, "-m", "runbook.workflow.prerequisites.tokenize_share", str(settings.project))
    if settings.job("02-data").array < 2:
        return [Task("tokenize", argv)]
    return [
        Task("tokenize a share each", argv, is_array=True),
        Task("join the shares", (*argv, "--join"), part="join"),
    ]


def render_task(settings: Settings, phase: str, task: Task, package: Path) -> RenderedJob:
    """The script of such a job; its program works in the run's folder."""
    site = settings.site
    job = settings.job(phase)
    folder = task.folder(phase)
    slurm = site.scheduler == "slurm"
    nodes = job.nodes if task.on_each_node else 1
    elements = job.array if task.is_array and job.array > 1 else 0
    # All cores of a node. Slurm's data jobs take what their partition gives: its nodes may be of another kind.
    cores = site.hardware.cores_per_node if phase == "01-environment" or not slurm else 0
    cpus = getattr(settings.run.jobs, JOB_SECTIONS[phase]).cpus_per_task or (
        1 if task.in_container else cores
    )
    job = job.model_copy(
        update={"nodes": nodes, "tasks_per_node": 1, "array": elements, "cpus_per_task": cpus}
    )
    starter = []
    if task.on_each_node and slurm:
        starter = [
            "srun",
            f"--nodes={nodes}",
            f"--ntasks={nodes}",
            "--ntasks-per-node=1",
            "--kill-on-bad-exit=0",
        ]
    elif task.on_each_node:
        starter = ["mpiexec", f"-n {nodes}", "--ppn 1", '--hostfile "$job/hostfile"']
    script = fill(
        "task.sh.j2",
        **queue_values(settings, folder, job, devices=task.on_each_node),
        phase=phase,
        what=task.what,
        folder=folder,
        elements=elements,
        package=str(package),
        modules=site.modules if task.in_container else [],
        setup=site_commands(site.setup, settings) if task.in_container else [],
        command=single_command(settings, task.argv, [*site.container.mounts, str(package)])
        if task.in_container
        else " ".join([*starter, *map(quote, task.argv)]),
    )
    return RenderedJob(script, list(task.argv))
