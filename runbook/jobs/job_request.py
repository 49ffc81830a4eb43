"""What jobs request from a queue, including array jobs, and the queue limits."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from runbook.core.units import show_duration
from runbook.jobs import job_folder
from runbook.jobs.job_folder import WORST_FIRST, JobFolder, JobState, JobStatus
from runbook.jobs.messages import JobMessage
from runbook.jobs.request_names import REQUESTS, RequestKind, walltime_seconds
from runbook.jobs.script_directives import directives_of


@dataclass(frozen=True)
class JobRequest:
    """What a job requests from its queue, as far as queues set limits on it.

    A value is 0 or empty if the script does not set it.
    """

    partition: str = ""
    account: str = ""
    nodes: int = 0
    seconds: int = 0
    array: str = ""
    """The element indices, if the job is an array."""


@dataclass(frozen=True)
class NodeKind:
    """A node type in a queue. A value is 0 or empty if the queue does not state it."""

    devices: int = 0
    device: str = ""
    """The GPU name that the scheduler uses (a100, nvidia_a100-sxm4-40gb)."""
    cores: int = 0
    memory_bytes: int = 0


@dataclass(frozen=True)
class UnusableNodes:
    """Nodes that do not accept jobs, and the reason."""

    count: int
    names: str
    """Node names as the queue abbreviates them, such as node[1-2,7]."""
    state: str
    """Node state as Slurm calls it: drained, draining, down, fail, maint ..."""
    reason: str

    def __str__(self) -> str:
        return f"{self.names} {self.state}: {self.reason}"


@dataclass(frozen=True)
class NodeCores:
    """The cores of a node, as its queue counts them."""

    cores: int
    threads: int = 1
    """Hyper-threads per core. A job may request each of them as a CPU."""


WHOLE_NODE_FLAGS = frozenset({"MAINT", "ALL_NODES"})
"""With these flags, Slurm 22.05 starts no other job on a node of which some cores are reserved
("Reserved for maintenance").
"""


@dataclass(frozen=True)
class Reservation:
    """Nodes reserved for certain users, or for maintenance, for a period of time."""

    name: str
    start: float
    """Unix time, in seconds."""
    end: float
    nodes: tuple[str, ...]
    flags: frozenset[str] = frozenset()
    """Such as MAINT, FLEX or MAGNETIC."""
    users: tuple[str, ...] = ()
    """The users who may use it; empty if any user may. A name after `-` may not."""
    accounts: tuple[str, ...] = ()
    """The accounts that may use it, written like the users."""
    num_cores: int = 0
    """Number of reserved cores on all nodes together; 0 if the queue does not state it."""
    cores_of: Mapping[str, int] = field(default_factory=dict)
    """Number of reserved cores on each node, if the queue lists them."""

    @property
    def is_flexible(self) -> bool:
        """Whether its jobs may also use other nodes, and may start earlier."""
        return "FLEX" in self.flags

    def attracts(self, user: str, account: str) -> bool:
        """Whether a job of this user may run there without naming the reservation."""
        is_admitted = _admits(self.users, user) and _admits(self.accounts, account)
        return "MAGNETIC" in self.flags and is_admitted and bool(self.users or self.accounts)

    def cores_on(self, node: str, cores: int) -> int:
        """Return the most cores that it may take from a node with so many cores."""
        if node not in self.nodes:
            return 0
        if self.flags & WHOLE_NODE_FLAGS:
            return cores
        if self.cores_of:
            return self.cores_of.get(node, 0)
        return min(cores, self.num_cores or cores)


def _admits(names: Sequence[str], name: str) -> bool:
    """Return whether a list of names, or of excluded names, admits a name.

    >>> _admits(["me"], "me"), _admits(["-you"], "me"), _admits(["you"], "me"), _admits([], "me")
    (True, True, False, True)
    """
    if f"-{name}" in names:
        return False
    allowed = [each for each in names if not each.startswith("-")]
    return not allowed or name in allowed


@dataclass(frozen=True)
class QueueLimits:
    """Limits on jobs in a partition or queue. 0 or empty means no limit."""

    name: str
    state: str = "UP"
    """Queue state as Slurm calls it.

    A DOWN queue accepts jobs but starts none, a DRAIN queue only starts the jobs that it already
    has, and an INACTIVE queue does neither.
    """
    default: bool = False
    max_seconds: int = 0
    max_nodes: int = 0
    min_nodes: int = 0
    total_nodes: int = 0
    accounts: tuple[str, ...] = ()
    """The only accounts that are allowed; empty means all."""
    denied_accounts: tuple[str, ...] = ()
    jobs_per_core: int = 1
    """How many jobs may share a core at the same time."""
    default_node_memory: int = 0
    """MiB on each node for a job that requests no memory; 0 if the partition states no default."""
    default_core_memory: int = 0
    """MiB for each core of such a job."""
    gives_whole_nodes: bool = False
    """Whether each job gets its nodes alone."""
    words: str = ""
    """The line about this partition, as the queue printed it."""
    kinds: tuple[tuple[NodeKind, int], ...] = ()
    """Node types in the queue, each with the number of such nodes.

    Empty if the nodes were not queried, or if the scheduler does not report their kinds.
    """


def parse_job_request(script: str) -> JobRequest:
    r"""Return the resources requested by the directives in a script.

    >>> parse_job_request("#!/bin/bash\n#SBATCH --time=01:00:00\n").seconds
    3600
    >>> parse_job_request("#PBS -q prod\n#PBS -l select=8:system=polaris\n").nodes
    8
    >>> parse_job_request("#BSUB -q batch\n#BSUB -nnodes 4\n#BSUB -W 2:00\n").seconds
    7200
    """
    # Queues read only the directives above the first command.
    head = itertools.takewhile(lambda line: line[:1] in ("", "#"), script.splitlines())
    texts: dict[tuple[str, RequestKind], str] = {}
    for entry in directives_of("\n".join(head)):
        request = REQUESTS[entry.queue].get(entry.name)
        if request is not None:
            texts[entry.queue, request] = entry.value

    def first(request: RequestKind) -> tuple[str, str]:
        """Return the queue whose directives contain this request, and the requested value."""
        for queue in REQUESTS:
            if text := texts.get((queue, request)):
                return queue, text
        return "", ""

    _, nodes_text = first(RequestKind.NODES)
    num_nodes = nodes_text.partition(":")[0]
    return JobRequest(
        partition=first(RequestKind.PARTITION)[1],
        account=first(RequestKind.ACCOUNT)[1],
        nodes=int(num_nodes) if num_nodes.isdigit() else 0,
        seconds=walltime_seconds(*first(RequestKind.WALLTIME)),
        array=first(RequestKind.ARRAY)[1],
    )


def read_job_request(folder: JobFolder) -> JobRequest:
    """Parse what the script in a job folder requests: nothing if there is no script."""
    return parse_job_request(job_folder.read_text(folder.script))


def whole_number(text: str) -> int:
    """Parse a count, which schedulers may end with + for "or more". Return 0 for UNLIMITED or N/A.

    >>> [whole_number(text) for text in ("64", "64+", "UNLIMITED", "")]
    [64, 64, 0, 0]
    """
    digits = text.removesuffix("+")
    return int(digits) if digits.isdigit() else 0


def request_problems(
    request: JobRequest,
    queues: Sequence[QueueLimits],
    queue_word: str = "partition",
) -> list[str]:
    """Return the reasons why a queue would refuse a job or never start it.

    Each reason states what the job requests and the queue limit.

    `queue_word` is the scheduler's term for a partition. Text from the queue is quoted unchanged.
    If a job names several partitions, one of them must accept it.
    """
    by_name = {queue.name: queue for queue in queues}
    names = [name for name in request.partition.split(",") if name]
    unknown = [name for name in names if name not in by_name]
    if unknown:
        existing = ", ".join(by_name) or "none"
        return [f"there is no {queue_word} {', '.join(unknown)}; there are {existing}"]

    if names:
        chosen = [by_name[name] for name in names]
    else:
        chosen = [queue for queue in queues if queue.default]

    problems_by_queue = [_problems_with(request, queue, queue_word) for queue in chosen]
    if not all(problems_by_queue):
        return []
    return list(itertools.chain(*problems_by_queue))


def _problems_with(request: JobRequest, queue: QueueLimits, queue_word: str) -> list[str]:
    partition = f"{queue_word} {queue.name}"
    problems = []
    if queue.state in ("INACTIVE", "DRAIN"):
        problems.append(f"{partition} is {queue.state} and accepts no jobs")
    if queue.max_seconds and request.seconds > queue.max_seconds:
        limit = f"the limit of {partition}, {show_duration(queue.max_seconds)}"
        problems.append(f"a walltime of {show_duration(request.seconds)} is over {limit}")

    problems += _node_problems(request, queue, partition)
    problems += _account_problems(request, queue, partition)
    if not queue.words:
        return problems
    return [JobMessage.QUEUE_SAYS.fill(problem=problem, words=queue.words) for problem in problems]


def _node_problems(request: JobRequest, queue: QueueLimits, partition: str) -> list[str]:
    problems = []
    if queue.max_nodes and request.nodes > queue.max_nodes:
        problems.append(
            JobMessage.MORE_NODES_THAN_ALLOWED.fill(
                nodes=request.nodes, partition=partition, max_nodes=queue.max_nodes
            )
        )
    elif queue.total_nodes and request.nodes > queue.total_nodes:
        problems.append(
            JobMessage.MORE_NODES_THAN_THERE.fill(
                nodes=request.nodes, partition=partition, total_nodes=queue.total_nodes
            )
        )

    if queue.min_nodes and 0 < request.nodes < queue.min_nodes:
        problems.append(
            f"too few nodes ({request.nodes}): {partition} requires at least {queue.min_nodes}"
        )

    return problems


def _account_problems(request: JobRequest, queue: QueueLimits, partition: str) -> list[str]:
    problems = []
    if queue.accounts and request.account not in queue.accounts:
        allowed = ", ".join(queue.accounts)
        if request.account:
            problem = f"account {request.account} is not allowed; {partition} allows {allowed}"
        else:
            problem = f"no account is given, but {partition} allows only {allowed}"
        problems.append(problem)
    if request.account and request.account in queue.denied_accounts:
        problems.append(
            JobMessage.ACCOUNT_DENIED.fill(account=request.account, partition=partition)
        )
    return problems


def element_folders(folder: JobFolder) -> list[JobFolder]:
    """Return the folders for the elements of an array job, or none if the job is not an array."""
    indices = array_indices(read_job_request(folder).array)
    return [JobFolder(folder.path / f"element-{index}") for index in indices]


def array_indices(text: str) -> list[int]:
    """Return the indices specified by an array directive.

    >>> array_indices("0-3"), array_indices("1,4-6%2"), array_indices("")
    ([0, 1, 2, 3], [1, 4, 5, 6], [])
    """
    numbers: list[int] = []
    for part in text.partition("%")[0].split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and (last or first).isdigit():
            numbers += range(int(first), int(last or first) + 1)

    return numbers


def array_end(folder: JobFolder, job_id: str) -> JobStatus | None:
    """Return the status for an array once every element has written its exit code.

    Until then, return None.
    """
    parts = element_folders(folder)
    if not parts:
        return job_folder.read_end(folder, job_id)
    ends: list[tuple[JobFolder, JobStatus]] = []
    for part in parts:
        end = job_folder.read_end(part, job_id)
        if end is None:
            return None
        ends.append((part, end))

    worst_part, worst = min(ends, key=lambda part_end: WORST_FIRST.index(part_end[1].state))
    if worst.state is JobState.DONE:
        return worst
    starts = [end.started for _, end in ends if end.started is not None]
    end_times = [end.ended for _, end in ends if end.ended is not None]
    return replace(
        worst,
        state=JobState.CANCELLED if folder.cancelled.exists() else worst.state,
        reason=f"{worst_part.path.name}: {worst.reason}",
        started=min(starts, default=None),
        ended=max(end_times, default=None),
    )
