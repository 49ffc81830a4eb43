"""Rules for Slurm settings, which need no job: reservations, limits, and how steps end."""

import os
import re
import time
from collections.abc import Mapping, Sequence, Set
from pathlib import Path

from runbook.core.checks import Check, judge
from runbook.core.units import GIB, show_bytes, show_duration
from runbook.jobs.job_request import QueueLimits, Reservation
from runbook.params import Job, Settings
from runbook.phases.messages import PhaseMessage
from runbook.phases.p01_environment.preflight import thresholds
from runbook.phases.p01_environment.preflight.thresholds import MIB

MEMORY_DIRECTIVES = ("mem", "mem-per-cpu", "mem-per-gpu")
"""Names of sbatch options used to request memory."""
WAIT_OPTION = re.compile(r"--wait(?:=|$)|-W")
"""The srun option for the wait time. `--wait-for-children` is a different option, so it must not match."""
EPILOG = re.compile(r"Epilog(\[\d+\])?")
"""Name of the setting with the script that slurmd runs on a node after each job."""
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
    """Warn if an epilog that can be read here ends processes of other jobs.

    The example that comes with Slurm first asks `squeue` whether the user has other jobs on the
    node.
    """
    checks = []
    for name, path in configuration.items():
        is_readable = Path(path).is_file() and os.access(path, os.R_OK)
        if not EPILOG.fullmatch(name) or not is_readable:
            continue
        lines = Path(path).read_text(errors="replace").splitlines()
        commands = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
        is_safe = not KILLS.search(commands) or bool(ASKS_FOR_JOBS.search(commands))
        check = judge(
            "epilog of Slurm",
            is_safe,
            PhaseMessage.EPILOG_READ.fill(path=path)
            if is_safe
            else PhaseMessage.EPILOG_KILLS.fill(path=path),
            "an epilog that ends processes first asks Slurm for the user's other jobs on the node "
            "(deepops issue 992)",
            "Ask the operators whether it ends only the processes of its own job. Until then, run "
            "no other job on the training's nodes.",
            otherwise="warn",
        )
        checks.append(check)

    return checks


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


def reservation_check(
    reservations: Sequence[Reservation],
    node_names: Set[str],
    job: Job,
    section: str,
    now: float,
) -> Check:
    """Check that enough nodes have no other reservations until the time limit for the job."""
    blocking = []
    for reservation in reservations:
        overlaps = reservation.start < now + job.walltime and reservation.end > now
        if overlaps and reservation.name != job.reservation and node_names & {*reservation.nodes}:
            blocking.append(reservation)

    reserved = {node for reservation in blocking for node in reservation.nodes}
    free = node_names - reserved
    texts = []
    for reservation in blocking:
        texts.append(
            PhaseMessage.RESERVED.fill(
                name=reservation.name,
                start=_clock(reservation.start),
                end=_clock(reservation.end),
            )
        )

    value = PhaseMessage.NODES_NOT_RESERVED.fill(
        free=len(free), total=len(node_names), time_limit=show_duration(job.walltime)
    )
    if texts:
        value += f"; {'; '.join(texts)}"
    longest = min((reservation.start for reservation in blocking), default=now) - now
    return judge(
        PhaseMessage.RESERVATIONS_OF_JOB.fill(section=section),
        len(free) >= job.nodes,
        value,
        "the job can end before nodes that it needs are reserved, for example for maintenance",
        PhaseMessage.AVOID_RESERVATION.fill(section=section, seconds=show_duration(longest))
        if longest > 0
        else PhaseMessage.NAME_RESERVATION.fill(section=section),
    )


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
