"""What a cluster says of itself: partitions or queues with their limits, and what their nodes have."""

import re
import shutil
from collections import Counter
from dataclasses import dataclass

from runbook.core import shell
from runbook.core.errors import ProgramError
from runbook.core.units import clock_seconds
from runbook.jobs import pbs
from runbook.jobs.job_request import NodeKind, QueueLimits, whole_number
from runbook.jobs.queue import ANSWER_SECONDS

SINFO = ("sinfo", "--noheader", "--exact", "--format=%P|%a|%l|%s|%D|%c|%m|%G")
"""Partition (* after the default), up or down, time limit, nodes of a job, nodes, cores, MB of memory, GRES."""


@dataclass(frozen=True)
class Cluster:
    """What was found on the machine at hand."""

    scheduler: str
    """slurm, pbs, or empty: neither sbatch nor qsub is on the PATH."""
    source: str = ""
    """The programs that answered."""
    queues: tuple[QueueLimits, ...] = ()
    kinds: tuple[tuple[NodeKind, int], ...] = ()
    """Every kind of node and how many, those with most GPUs in all first."""
    silence: str = ""
    """What a program said that did not answer."""


def ask_cluster() -> Cluster:
    """Slurm where sbatch is on the PATH, PBS where qsub is; their answers where they give any."""
    if shutil.which("sbatch"):
        text, silence = _ask(SINFO)
        queues = parse_sinfo(text)
        return Cluster("slurm", "sinfo" if queues else "", queues, most_devices(queues), silence)
    if shutil.which("qsub"):
        text, silence = _ask(pbs.Pbs.limits_question)
        nodes, silent_nodes = _ask(("pbsnodes", "-a"))
        kinds = parse_pbsnodes(nodes)
        queues = tuple(one for one in pbs.Pbs().parse_limits(text) if one.state == "UP")
        source = " and ".join(
            name for name, answer in (("qstat -Q", queues), ("pbsnodes", kinds)) if answer
        )
        return Cluster("pbs", source, queues, kinds, silence or silent_nodes)
    return Cluster("")


def parse_sinfo(text: str) -> tuple[QueueLimits, ...]:
    r"""The partitions that are up, of `SINFO`; lines of another shape are left out.

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
        partition, _, limit, size, count, cores, memory, gres = fields
        name = partition.removesuffix("*")
        least, _, most = size.partition("-")
        devices, device = _gpus(gres)
        kind = NodeKind(devices, device, whole_number(cores), whole_number(memory) * 2**20)
        kinds.setdefault(name, Counter())[kind] += whole_number(count)
        queues[name] = QueueLimits(
            name,
            default=partition.endswith("*"),
            max_seconds=clock_seconds(limit),
            max_nodes=whole_number(most or least),
            min_nodes=whole_number(least),
            kinds=tuple(kinds[name].most_common()),
        )
    return tuple(queues.values())


def parse_pbsnodes(text: str) -> tuple[tuple[NodeKind, int], ...]:
    r"""Every kind of host of `pbsnodes -a`, and how many; the vnodes of one host are added up.

    >>> parse_pbsnodes("n1\n     resources_available.host = n1\n     resources_available.ncpus = 64\n"
    ...                "     resources_available.ngpus = 4\n     resources_available.mem = 1kb\n")
    ((NodeKind(devices=4, device='', cores=64, memory_bytes=1024), 1),)
    """
    hosts: dict[str, list[dict[str, str]]] = {}
    for block in re.split(r"\n(?=\S)", text):
        pairs = (line.strip().partition(" = ")[::2] for line in block.splitlines()[1:])
        values = {name.removeprefix("resources_available."): value for name, value in pairs}
        if "host" in values:
            hosts.setdefault(values["host"], []).append(values)
    kinds: Counter[NodeKind] = Counter()
    for vnodes in hosts.values():
        device = next((values["gpu_model"] for values in vnodes if "gpu_model" in values), "")
        sums = [
            sum(whole_number(values.get(name, "")) for values in vnodes)
            for name in ("ngpus", "ncpus")
        ]
        kinds[
            NodeKind(
                sums[0], device, sums[1], sum(_bytes(values.get("mem", "")) for values in vnodes)
            )
        ] += 1
    return _ranked(kinds)


def most_devices(queues: tuple[QueueLimits, ...]) -> tuple[tuple[NodeKind, int], ...]:
    """Every kind of node of some partitions, a node of several counted once, those with most GPUs in all first."""
    kinds: Counter[NodeKind] = Counter()
    for queue in queues:
        kinds |= Counter(dict(queue.kinds))
    return _ranked(kinds)


def _ranked(kinds: Counter[NodeKind]) -> tuple[tuple[NodeKind, int], ...]:
    return tuple(
        sorted(kinds.items(), key=lambda pair: (pair[0].devices * pair[1], pair[1]), reverse=True)
    )


def _gpus(gres: str) -> tuple[int, str]:
    """Number and name of the GPUs in a node's GRES; of several names the one there is most of.

    >>> _gpus("gpu:4"), _gpus("(null)"), _gpus("nvme:1,gpu:a100:2(S:0),gpu:a100_1g.5gb:14")
    ((4, ''), (0, ''), (2, 'a100'))
    """
    gpus = re.findall(r"(?:^|,)gpu(?::([^:,()]+))?:(\d+)", gres)
    return max(
        ((int(count), name) for name, count in gpus if not re.search(r"\dg\.\d+gb", name)),
        default=(0, ""),
    )


def _ask(argv: tuple[str, ...]) -> tuple[str, str]:
    try:
        return shell.run(argv, timeout=ANSWER_SECONDS).out, ""
    except ProgramError as error:
        return "", str(error).splitlines()[0]


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+)([kmgt]?)b", text.lower())
    return int(match[1]) * 1024 ** " kmgt".index(match[2] or " ") if match else 0
