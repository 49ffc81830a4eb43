"""Rules for Slurm settings, which need no job: reservations, limits, and how steps end."""

import os
import re
import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from runbook.core.checks import Check, judge
from runbook.core.processes import user_name
from runbook.core.units import GIB, show_bytes, show_duration
from runbook.jobs.job_request import NodeCores, QueueLimits, Reservation
from runbook.params import Job, Settings
from runbook.phases.messages import PhaseMessage
from runbook.phases.p01_environment.preflight import thresholds
from runbook.phases.p01_environment.preflight.thresholds import MIB

MEMORY_DIRECTIVES = ("mem", "mem-per-cpu", "mem-per-gpu")
"""Names of sbatch options used to request memory."""
WAIT_OPTION = re.compile(r"--wait(?:=|$)|-W")
"""The srun option for the wait time. `--wait-for-children` is a different option, so it must not match."""
NODE_SCRIPT = re.compile(r"(?P<kind>Epilog|Prolog)(\[\d+\])?")
"""Names of the settings with the scripts that slurmd runs on a node before and after each job."""
MAX_SCRIPTS = 50
"""At most this many scripts are read for a setting."""
KILLS = re.compile(r"\b(kill|pkill|killall|skill)\b")
ASKS_FOR_JOBS = re.compile(r"\b(squeue|scontrol|sacct)\b")
OVER_MEMORY = "OverMemoryKill"
"""The word in JobAcctGatherParams that lets Slurm end a step whose programs use too much memory."""


def with_directives_of_site(job: Job, settings: Settings) -> Job:
    """Return a job with the memory and reservation requested by directives in the site file.

    The job's own values take precedence, as in the rendered script.
    """
    directives = settings.site.directives
    memory = next((directives[name] for name in MEMORY_DIRECTIVES if name in directives), "")
    reservation = directives.get("reservation", "")
    return job.model_copy(
        update={
            "memory": job.memory or memory,
            "reservation": job.reservation or reservation,
        }
    )


def wait_time_check(configuration: Mapping[str, str], settings: Settings) -> list[Check]:
    """Check how long srun waits for the other tasks after the first one has ended.

    The check is left out if the site's `step_options` set the time.
    """
    if any(WAIT_OPTION.match(option) for option in settings.site.step_options):
        return []
    match = re.match(r"\d+", configuration.get("WaitTime", ""))
    if not match:
        return []
    seconds = int(match[0])
    limit = show_duration(thresholds.WAIT_TIME.value)
    return [
        judge(
            "end of the first task",
            not 0 < seconds < thresholds.WAIT_TIME.value,
            PhaseMessage.WAIT_TIME.fill(seconds=seconds) if seconds else "srun waits for all tasks",
            f"srun waits for the other tasks at least {limit} after the first one has ended "
            f"(WaitTime in slurm.conf; 0 is forever): {thresholds.WAIT_TIME.source}",
            PhaseMessage.SET_WAIT_TIME.fill(),
        )
    ]


def epilog_checks(configuration: Mapping[str, str]) -> list[Check]:
    """Warn if a prolog or epilog that can be read here ends processes of other jobs.

    The example that comes with Slurm first asks `squeue` whether the user has other jobs on the
    node. Slurm runs each file that a pattern such as `epilog.d/*` matches.
    """
    checks = []
    for name, pattern in configuration.items():
        match = NODE_SCRIPT.fullmatch(name)
        scripts = _readable_scripts(pattern) if match else []
        if match is None or not scripts:
            continue
        killing = [script for script in scripts if _ends_processes(script)]
        path = ", ".join(map(str, killing or scripts))
        kind = match["kind"].lower()
        check = judge(
            f"{kind} of Slurm",
            not killing,
            PhaseMessage.EPILOG_KILLS.fill(path=path)
            if killing
            else PhaseMessage.EPILOG_READ.fill(path=path),
            "a script that ends processes first asks Slurm for the user's other jobs on the node "
            "(deepops issue 992)",
            "Ask the operators whether it ends only the processes of its own job. Until then, run "
            "no other job on the training's nodes.",
            otherwise="warn",
        )
        checks.append(check)

    return checks


def _readable_scripts(pattern: str) -> list[Path]:
    """Return the files that a setting such as Epilog names: a file, a pattern, or a folder."""
    if not pattern.startswith("/"):
        return []
    path = Path(pattern)
    matches = path.glob("*") if path.is_dir() else Path("/").glob(pattern.lstrip("/"))
    files = [each for each in sorted(matches) if each.is_file() and os.access(each, os.R_OK)]
    return files[:MAX_SCRIPTS]


def _ends_processes(script: Path) -> bool:
    """Return whether a script has a command that ends processes, and none that asks Slurm."""
    lines = script.read_text(errors="replace").splitlines()
    commands = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
    return bool(KILLS.search(commands)) and not ASKS_FOR_JOBS.search(commands)


def default_memory_check(
    configuration: Mapping[str, str],
    partition: QueueLimits | None,
    job: Job,
    section: str,
) -> list[Check]:
    """Check the memory that Slurm gives to a job that requests none, if Slurm itself enforces it.

    A limit that the kernel enforces is read on the nodes, from their control groups.
    """
    is_enforced = OVER_MEMORY in configuration.get("JobAcctGatherParams", "")
    if job.memory or not is_enforced:
        return []
    granted = _default_bytes(configuration, partition, job.cpus_per_task * job.tasks_per_node)
    if not granted:
        return []
    needed = max(1, job.devices_per_node) * GIB
    return [
        judge(
            PhaseMessage.MEMORY_OF_JOB.fill(section=section),
            granted >= needed,
            PhaseMessage.DEFAULT_MEMORY.fill(granted=show_bytes(granted)),
            "a job that requests no memory gets 1 GiB for each of its processes (DefMemPerNode, "
            "DefMemPerCPU)",
            PhaseMessage.REQUEST_MEMORY.fill(section=section),
        )
    ]


def _default_bytes(
    configuration: Mapping[str, str], partition: QueueLimits | None, cores: int
) -> int:
    """Return the default memory for a job on each node, or 0 if it is unlimited or unknown.

    A default for a partition replaces the one in slurm.conf. With a default for each core, it is
    unknown if the job does not state its cores.
    """
    if partition is not None and partition.default_node_memory:
        return partition.default_node_memory * MIB
    if partition is not None and partition.default_core_memory:
        return partition.default_core_memory * cores * MIB
    for_node = configuration.get("DefMemPerNode", "")
    for_core = configuration.get("DefMemPerCPU", "")
    if for_node.isdecimal():
        return int(for_node) * MIB
    if for_core.isdecimal():
        return int(for_core) * cores * MIB
    return 0


@dataclass(frozen=True)
class NodeDemand:
    """What a job needs from the nodes, and who submits it."""

    nodes: int
    cores: int
    """CPUs, as the scheduler counts them, on each node; 0: the whole node."""
    seconds: float
    reservation: str
    account: str
    user: str


def demand_of(job: Job, settings: Settings, partition: QueueLimits | None) -> NodeDemand:
    """Return what a job needs from the nodes.

    A job that states no cores gets one for each task.
    """
    takes_all = "exclusive" in settings.site.directives
    if partition is not None and partition.gives_whole_nodes:
        takes_all = True
    cores = max(1, job.cpus_per_task) * max(1, job.tasks_per_node)
    return NodeDemand(
        nodes=job.nodes,
        cores=0 if takes_all else cores,
        seconds=job.walltime,
        reservation=job.reservation,
        account=job.account,
        user=user_name(),
    )


def reservation_check(
    reservations: Sequence[Reservation],
    node_cores: Mapping[str, NodeCores],
    demand: NodeDemand,
    section: str,
    now: float,
) -> Check:
    """Check that enough nodes have no other reservations until the time limit for the job.

    Tried with Slurm 22.05: a reservation of some cores leaves the others to jobs that do not take
    whole nodes. One for a partition also keeps the jobs of other partitions from its nodes. A job
    in its own reservation uses only that, unless the reservation is flexible. A magnetic one
    takes a job that fits into it as a whole.
    """
    usable = set(node_cores)
    blocking = []
    for reservation in reservations:
        overlaps = reservation.start < now + demand.seconds and reservation.end > now
        if not overlaps:
            continue
        if reservation.name == demand.reservation:
            if not reservation.is_flexible:
                usable &= {*reservation.nodes}
        elif not _takes(reservation, node_cores, demand, now):
            blocking.append(reservation)

    free = _nodes_left(usable, blocking, node_cores, demand)
    counted = [each for each in blocking if usable & {*each.nodes}]
    texts = []
    for reservation in counted:
        texts.append(
            PhaseMessage.RESERVED.fill(
                name=reservation.name,
                start=_clock(reservation.start),
                end=_clock(reservation.end),
            )
        )

    value = PhaseMessage.NODES_NOT_RESERVED.fill(
        free=len(free), total=len(node_cores), time_limit=show_duration(demand.seconds)
    )
    if texts:
        value += f"; {'; '.join(texts)}"
    longest = min((reservation.start for reservation in counted), default=now) - now
    return judge(
        PhaseMessage.RESERVATIONS_OF_JOB.fill(section=section),
        len(free) >= demand.nodes,
        value,
        "the job can end before nodes that it needs are reserved, for example for maintenance",
        PhaseMessage.AVOID_RESERVATION.fill(section=section, seconds=show_duration(longest))
        if longest > 0
        else PhaseMessage.NAME_RESERVATION.fill(section=section),
    )


def _takes(
    reservation: Reservation,
    node_cores: Mapping[str, NodeCores],
    demand: NodeDemand,
    now: float,
) -> bool:
    """Return whether a magnetic reservation takes the job, which then runs on its nodes only."""
    has_begun = reservation.start <= now
    num_nodes = len({*reservation.nodes} & set(node_cores))
    is_attracted = reservation.attracts(demand.user, demand.account)
    return has_begun and is_attracted and num_nodes >= demand.nodes


def _nodes_left(
    usable: Set[str],
    blocking: Sequence[Reservation],
    node_cores: Mapping[str, NodeCores],
    demand: NodeDemand,
) -> set[str]:
    """Return the nodes on which enough cores are not reserved."""
    left = set()
    for node in usable:
        reservations = [each for each in blocking if node in each.nodes]
        cores = node_cores[node]
        reserved = sum(each.cores_on(node, cores.cores) for each in reservations)
        num_left = (cores.cores - reserved) * cores.threads
        if not reserved or (demand.cores and num_left >= demand.cores):
            left.add(node)

    return left


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
