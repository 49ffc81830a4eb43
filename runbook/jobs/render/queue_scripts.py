"""The parts of job scripts that depend on the queue: requests, starters, shell expressions.

This module also decides how long before the time limit a job is warned (`warn_after`).

A new scheduler is a subclass in its own module, which is named in `runbook/jobs/schedulers.py`.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from runbook.core.errors import ParamsError
from runbook.jobs.messages import JobMessage
from runbook.jobs.render.quoting import quote
from runbook.params import Job, Settings

WARNING_SECONDS = 300
"""Seconds between the warning, after which a job saves, and its time limit.

Saving a 2.4 TB checkpoint takes minutes.
"""


def warn_after(job: Job) -> int:
    """Return the seconds after which a job asks itself to stop, because its queue may not warn it.

    The result is 0 if the time limit is too short for a warning.
    """
    if job.walltime > 2 * WARNING_SECONDS:
        return job.walltime - WARNING_SECONDS
    return 0


def plain(name: str, value: object) -> str:
    """Return `value` as text, to be used as a directive name or value.

    Raise `ParamsError` if it contains a character that is not allowed.
    """
    text = str(value)
    if not re.fullmatch(r"[A-Za-z0-9_.,:/@%+=*\[\]-]+", text):
        raise ParamsError(JobMessage.NOT_A_DIRECTIVE_WORD, name=name, text=text)

    return text


def array_range(job: Job) -> str:
    """Return the element numbers for an array, or an empty string if the job is not an array."""
    return f"0-{job.array - 1}" if job.array > 1 else ""


@dataclass(frozen=True)
class NodeCount:
    """How many nodes a command uses: a number, or a shell variable if it may vary."""

    nodes: int
    varies: bool = False

    def times(self, tasks: int) -> str:
        """Return the total number of tasks as a bash expression, given the tasks per node."""
        if not self.varies:
            return str(self.nodes * tasks)
        if tasks == 1:
            return '"$num_nodes"'
        return f'"$((num_nodes * {tasks}))"'


def mpiexec_words(
    settings: Settings,
    job: Job,
    tasks: int,
    count: NodeCount | None = None,
) -> list[str]:
    """Return the mpiexec command to start `tasks` tasks on each host in the job's host list."""
    site = settings.site
    count = count or NodeCount(job.nodes)
    argv = ["mpiexec", f"-n {count.times(tasks)}", f"--ppn {tasks}", '--hostfile "$job/hostfile"']
    lists = site.binding.cpu_lists[: job.devices_per_node]
    if lists and tasks == job.devices_per_node:
        argv.append(f"--cpu-bind {quote('list:' + ':'.join(lists))}")
    return [*argv, *(quote(option) for option in site.step_options)]


class QueueScripts(ABC):
    """The parts of job scripts that depend on the queue."""

    announces_end: bool
    """Whether the queue sends a signal before it ends a job at the time limit."""
    can_leave_out_nodes: bool
    """Whether a job can exclude nodes by name."""
    has_container_option: bool
    """Whether the process starter can open a container (pyxis)."""
    data_job_takes_cores_of_queue: bool
    """Whether a data job without a request for cores uses the cores granted by the queue."""
    submit: str
    """Program used to submit a script."""
    cancel: str
    """Program used to end jobs."""
    submit_folder: str
    """The folder from which a job was submitted, as a shell expression."""
    job_number: str
    """The job number without the array index, as a shell expression."""
    passes_variables: str
    """Line that lets the starter pass script variables to tasks; empty if none is needed."""
    array_index: str
    """The array index, as a shell expression."""
    hosts: str
    """The command used to print the hosts in a job, one per line."""
    time_left: str
    """The time left in the job, as a shell expression; empty if the queue does not report it."""
    tasks_need_hosts: bool
    """Whether the starter needs a host list and a rendezvous address to run a task job."""
    failed_step_line: str
    """Regular expression for the line that the starter writes as it starts to end a failed step.

    Empty if the starter writes no line about it.
    """

    @abstractmethod
    def directives(
        self,
        settings: Settings,
        phase: str,
        job: Job,
        *,
        devices: bool = True,
    ) -> list[str]:
        """Return the script lines used to request job resources from the queue.

        `phase` names the job in the queue.
        """

    @abstractmethod
    def on_nodes(
        self,
        settings: Settings,
        job: Job,
        tasks: int,
        count: NodeCount | None = None,
    ) -> list[str]:
        """Return the command words used to start this many tasks on each node of a job."""

    @abstractmethod
    def on_each_node(self, settings: Settings, job: Job) -> list[str]:
        """Return the command words used to start a task on each node.

        A failed task does not end the others.
        """

    @abstractmethod
    def on_each_node_to_answer(
        self,
        settings: Settings,
        job: Job,
        container: Sequence[str],
    ) -> list[str]:
        """Return the command words used to start a preflight check on each node."""

    @abstractmethod
    def on_trusted_nodes(self, settings: Settings, job: Job, program: str) -> list[str]:
        """Return the command words used to start a program on the nodes in `trusted`."""

    @abstractmethod
    def on_one_node(self, seconds: int) -> str:
        """Return the command words used to start a process on `$node`, with a time limit."""

    @abstractmethod
    def training_starter(
        self,
        settings: Settings,
        job: Job,
        count: NodeCount,
        *,
        chooses_nodes: bool,
    ) -> list[str]:
        """Return the command words used to start the launcher or the ranks in a training run.

        A job that `chooses_nodes` lists its nodes in `$step_nodes`.
        """

    @abstractmethod
    def task_starter(self, job: Job) -> list[str]:
        """Return the command words used to start a program in each task of a task job."""


TRUSTED_NAMES = '"$(IFS=,; echo "${trusted[*]}")"'
"""Names of the nodes that still respond, separated by commas, as a shell expression."""
TRUSTED_COUNT = '"${#trusted[@]}"'
"""Number of nodes that still respond, as a shell expression."""
