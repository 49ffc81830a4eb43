"""Queued jobs for phases that do not train.

The job runs a program on one node, on each node, or as an array.
"""

from dataclasses import dataclass
from pathlib import Path

from runbook.jobs.render.launch_commands import single_command
from runbook.jobs.render.queue_values import queue_values
from runbook.jobs.render.quoting import quote, site_commands
from runbook.jobs.render.templating import fill
from runbook.jobs.render.training_job import RenderedJob
from runbook.jobs.schedulers import get_queue_scripts
from runbook.params import Job, Settings
from runbook.params.schema.run_file import JOB_SECTIONS
from runbook.plan_file.phase_names import DATA, ENVIRONMENT

TASK_PHASES = (ENVIRONMENT, DATA)
"""The phases that can run as a task job."""


@dataclass(frozen=True)
class Task:
    """What a task job runs."""

    what: str
    """A description for the script header."""
    argv: tuple[str, ...]
    on_each_node: bool = False
    """Whether the program runs once on every node in the job, not only on the first one."""
    is_array: bool = False
    """Whether the job is an array of `jobs.<phase>.array` jobs.

    Each job finds its index in RUNBOOK_ELEMENT.

    Each job starts `tasks_per_node` tasks on each of `nodes` nodes. RUNBOOK_TASKS is the number of
    these tasks, and srun or mpiexec gives each task its index.
    """
    in_container: bool = False
    """Whether the job uses the Python, modules and image for training, not the submitter's Python.

    The job needs only one core.
    """
    part: str = ""
    """Suffix added to the job folder name if a phase has more than one job."""

    def folder(self, phase: str) -> str:
        """Return the folder name for the first job that a phase submits to run this task."""
        return f"{phase}-{self.part}" if self.part else phase


def asks_for_queue(settings: Settings, phase: str) -> bool:
    """Return whether a phase that could run on this machine is submitted to the queue instead.

    The phase is submitted if its job requests a partition, a time limit, an array, or more than one
    node or task.
    """
    if settings.site.scheduler == "local" or phase not in TASK_PHASES:
        return False
    job: Job = getattr(settings.run.jobs, JOB_SECTIONS[phase])
    return bool(job.partition or job.walltime or job.array or _tasks(job) > 1)


def _tasks(job: Job) -> int:
    """Return the number of tasks in one job: `nodes` x `tasks_per_node`, which defaults to 1."""
    return job.nodes * max(1, job.tasks_per_node)


def num_shares(job: Job) -> int:
    """Return into how many shares jobs.data splits the text: array x nodes x tasks_per_node."""
    return max(1, job.array) * _tasks(job)


def data_tasks(settings: Settings, python: str) -> list[Task]:
    """Return the jobs that tokenize the text.

    Either each task of a job produces a part and a second job joins the parts, or a single job does
    everything.
    """
    argv = (python, "-m", "runbook.phases.p02_data.tokenize_share", str(settings.project))
    if num_shares(settings.run.jobs.data) < 2:
        return [Task("tokenize", argv)]
    return [
        Task("tokenize a share each", argv, is_array=True),
        Task("join the shares", (*argv, "--join"), part="join"),
    ]


def render_task(
    settings: Settings,
    phase: str,
    task: Task,
    package: Path,
) -> RenderedJob:
    """Return the script for a task job. Its program runs in the run folder."""
    site = settings.site
    planned_job: Job = getattr(settings.run.jobs, JOB_SECTIONS[phase])
    folder = task.folder(phase)
    nodes = planned_job.nodes if task.on_each_node or task.is_array else 1
    tasks_per_node = max(1, planned_job.tasks_per_node) if task.is_array else 1
    if task.is_array and planned_job.array > 1:
        elements = planned_job.array
    else:
        elements = 0

    job = settings.job(phase).model_copy(
        update={
            "nodes": nodes,
            "tasks_per_node": tasks_per_node,
            "array": elements,
            "cpus_per_task": _cores(settings, phase, task, tasks_per_node),
        }
    )
    num_tasks = nodes * tasks_per_node
    if task.on_each_node or num_tasks > 1:
        starter = get_queue_scripts(site).task_starter(job)
    else:
        starter = []

    if task.in_container:
        mounts = [*site.container.mounts, str(package)]
        command = single_command(settings, task.argv, mounts)
    else:
        command = " ".join([*starter, *map(quote, task.argv)])

    script = fill(
        "task.sh.j2",
        **queue_values(settings, folder, job, devices=task.on_each_node),
        phase=phase,
        what=task.what,
        folder=folder,
        elements=elements,
        tasks=num_tasks if task.is_array else 1,
        package=str(package),
        modules=site.modules if task.in_container else [],
        setup=site_commands(site.setup, settings) if task.in_container else [],
        command=command,
    )
    return RenderedJob(script, list(task.argv))


def _cores(
    settings: Settings,
    phase: str,
    task: Task,
    tasks_per_node: int,
) -> int:
    """Return the number of cores to request per task, or 0 to let the queue decide.

    With Slurm, data jobs use the cores granted by their partition, because its nodes may differ
    from the nodes used to train.
    """
    job: Job = getattr(settings.run.jobs, JOB_SECTIONS[phase])
    if job.cpus_per_task:
        return job.cpus_per_task
    if task.in_container:
        return 1
    queue = get_queue_scripts(settings.site)
    if phase == DATA and queue.data_job_takes_cores_of_queue:
        return 0
    return settings.site.hardware.cores_per_node // tasks_per_node
