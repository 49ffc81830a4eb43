"""Facts that a cluster reports: partitions or queues, their limits, and their hardware."""

import re
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from runbook.core import shell
from runbook.core.errors import ProgramError
from runbook.core.units import clock_seconds
from runbook.core.visible_text import visible
from runbook.jobs import pbs
from runbook.jobs.job_request import NodeKind, QueueLimits, whole_number
from runbook.jobs.queue import ANSWER_SECONDS

SINFO = ("sinfo", "--noheader", "--exact", "--format=%P|%a|%l|%s|%D|%c|%m|%G")
"""Format of the answer: partition (the default one with *), up or down, time limit, nodes per job,
nodes, cores, MB of memory, GRES.
"""


@dataclass(frozen=True)
class Cluster:
    """Facts about the cluster that this machine belongs to."""

    scheduler: str
    """slurm or pbs, or empty if neither sbatch nor qsub is on the PATH."""
    source: str = ""
    """The programs that answered."""
    queues: tuple[QueueLimits, ...] = ()
    kinds: tuple[tuple[NodeKind, int], ...] = ()
    """All node types, each with its count. The kind that has the most GPUs in total comes first."""
    silence: str = ""
    """Programs that did not answer, with their errors, and values missing from the answers."""


def ask_cluster() -> Cluster:
    """Query Slurm if sbatch is on the PATH, and PBS if qsub is. Return their answers."""
    if shutil.which("sbatch"):
        return _ask_slurm()
    if shutil.which("qsub"):
        return _ask_pbs()
    return Cluster("")


def _ask_slurm() -> Cluster:
    text, silence = _ask(SINFO)
    queues = parse_sinfo(text)
    source = "sinfo" if queues else ""
    if not queues and not silence:
        silence = "sinfo answered, but named no partition that is up"
    return Cluster(
        "slurm",
        source,
        queues,
        most_devices(queues),
        silence,
    )


def _ask_pbs() -> Cluster:
    queues_text, silence = _ask(pbs.Pbs.limits_question)
    nodes_text, nodes_silence = _ask(("pbsnodes", "-a"))
    queues = pbs.queues_to_submit_to(queues_text)
    kinds = parse_pbsnodes(nodes_text)
    sources = []
    if queues:
        sources.append("qstat -Q")
    if kinds:
        sources.append("pbsnodes")
    return Cluster(
        "pbs",
        " and ".join(sources),
        queues,
        kinds,
        silence or nodes_silence,
    )


def parse_sinfo(text: str) -> tuple[QueueLimits, ...]:
    r"""Parse `SINFO` output for the partitions that are up. Malformed lines are left out.

    >>> queue, = parse_sinfo("gpu*|up|1-00:00:00|1-8|12|64|512000|gpu:a100:4(S:0-3)\n")
    >>> queue.name, queue.default, queue.max_seconds, queue.max_nodes
    ('gpu', True, 86400, 8)
    >>> queue.kinds
    ((NodeKind(devices=4, device='a100', cores=64, memory_bytes=536870912000), 12),)
    """
    queues: dict[str, QueueLimits] = {}
    kinds: dict[str, Counter[NodeKind]] = {}
    for line in text.splitlines():
        fields = [field.strip() for field in line.split("|")]
        if len(fields) != 8 or fields[1] != "up":
            continue
        partition, _, limit, size, count, cores, memory_mib, gres = fields
        name = partition.removesuffix("*")
        min_nodes, _, max_nodes = size.partition("-")
        devices, device = _gpus(gres)
        memory_bytes = whole_number(memory_mib) * 2**20
        kind = NodeKind(devices, device, whole_number(cores), memory_bytes)
        kinds.setdefault(name, Counter())[kind] += whole_number(count)
        queues[name] = QueueLimits(
            name,
            default=partition.endswith("*"),
            max_seconds=clock_seconds(limit),
            max_nodes=whole_number(max_nodes or min_nodes),
            min_nodes=whole_number(min_nodes),
            kinds=tuple(kinds[name].most_common()),
        )

    return tuple(queues.values())


def parse_pbsnodes(text: str) -> tuple[tuple[NodeKind, int], ...]:
    r"""Parse all host types from `pbsnodes -a` output, each with its count.

    The resources of all vnodes on a host are added up.

    >>> parse_pbsnodes("n1\n     resources_available.host = n1\n     resources_available.ncpus = 64\n"
    ...                "     resources_available.ngpus = 4\n     resources_available.mem = 1kb\n")
    ((NodeKind(devices=4, device='', cores=64, memory_bytes=1024), 1),)
    """
    vnodes_of_host: dict[str, list[dict[str, str]]] = {}
    for block in re.split(r"\n(?=\S)", text):
        values = _resources(block)
        if "host" in values:
            vnodes_of_host.setdefault(values["host"], []).append(values)

    kinds = Counter(map(_kind_of_host, vnodes_of_host.values()))
    return _ranked(kinds)


def _resources(block: str) -> dict[str, str]:
    """Read the `NAME = VALUE` lines about a vnode in `pbsnodes`, without the resource prefix."""
    values = {}
    for line in block.splitlines()[1:]:
        name, _, value = line.strip().partition(" = ")
        values[name.removeprefix("resources_available.")] = value

    return values


def _kind_of_host(vnodes: Sequence[dict[str, str]]) -> NodeKind:
    """Add up the resources of all vnodes on a host."""
    models = [values["gpu_model"] for values in vnodes if "gpu_model" in values]
    return NodeKind(
        devices=sum(whole_number(values.get("ngpus", "")) for values in vnodes),
        device=models[0] if models else "",
        cores=sum(whole_number(values.get("ncpus", "")) for values in vnodes),
        memory_bytes=sum(_bytes(values.get("mem", "")) for values in vnodes),
    )


def most_devices(queues: tuple[QueueLimits, ...]) -> tuple[tuple[NodeKind, int], ...]:
    """Return all node types in these partitions, those with the most GPUs in total first.

    A node that belongs to multiple partitions is counted once.
    """
    kinds: Counter[NodeKind] = Counter()
    for queue in queues:
        kinds |= Counter(dict(queue.kinds))
    return _ranked(kinds)


def _ranked(kinds: Counter[NodeKind]) -> tuple[tuple[NodeKind, int], ...]:
    """Sort node types by total number of GPUs, then by number of nodes."""

    def devices_and_nodes(row: tuple[NodeKind, int]) -> tuple[int, int]:
        kind, count = row
        return kind.devices * count, count

    return tuple(sorted(kinds.items(), key=devices_and_nodes, reverse=True))


def _gpus(gres: str) -> tuple[int, str]:
    """Parse how many GPUs a GRES text states, and their name.

    If there is more than one name, return the most frequent one.

    GPU slices (MIG) do not count.

    >>> _gpus("gpu:4"), _gpus("(null)"), _gpus("nvme:1,gpu:a100:2(S:0),gpu:a100_1g.5gb:14")
    ((4, ''), (0, ''), (2, 'a100'))
    """
    entries = re.findall(r"(?:^|,)gpu(?::([^:,()]+))?:(\d+)", gres)
    whole_gpus = []
    for name, count in entries:
        if not re.search(r"\dg\.\d+gb", name):
            whole_gpus.append((int(count), name))

    return max(whole_gpus, default=(0, ""))


def _ask(argv: tuple[str, ...]) -> tuple[str, str]:
    """Return the output from a program, and the error message if it failed.

    If the program failed, the output is empty. If the program succeeded, the error message is
    empty.
    """
    try:
        return shell.run(argv, timeout=ANSWER_SECONDS).out, ""
    except ProgramError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        last_words = visible(lines[-1]) if len(lines) > 1 else ""
        return "", " ".join(filter(None, (lines[0], last_words)))


def _bytes(text: str) -> int:
    """Convert a PBS size such as 512gb to bytes. Return 0 if the text is not a size."""
    match = re.fullmatch(r"(\d+)([kmgt]?)b", text.lower())
    if match is None:
        return 0
    number, unit = match.groups()
    return int(number) * _BYTES_OF_UNIT[unit]


_BYTES_OF_UNIT = {
    "": 1,
    "k": 2**10,
    "m": 2**20,
    "g": 2**30,
    "t": 2**40,
}
