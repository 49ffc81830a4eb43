"""What the jobs ask for against what queues and disks give."""

from __future__ import annotations

from runbook.params.catalogue import QueueLimit
from runbook.params.schema import JOB_SECTIONS, Job
from runbook.plan.checks import Check, counted, judge
from runbook.plan.choices import Chosen
from runbook.plan.machine import Machine
from runbook.units import parse_duration, show_bytes


def check_queues(chosen: Chosen) -> list[Check]:
    """Nodes and time limit of each job that names a queue, against that queue's limits."""
    checks = []
    for phase, section in JOB_SECTIONS.items():
        job: Job = getattr(chosen.run.jobs, section)
        if job.partition:
            checks.append(_queue(phase, section, job, chosen))
    return checks


def check_disk(needed: int, machine: Machine | None) -> list[Check]:
    """Whether data and checkpoints fit on the disk, where somebody looked how much is free."""
    if machine is None or not machine.free_disk_bytes:
        return []
    return [
        judge(
            "disk space",
            needed <= machine.free_disk_bytes,
            f"{show_bytes(needed)} for data and checkpoints, {show_bytes(machine.free_disk_bytes)} free",
            "data and checkpoints fit on the disk",
            "Keep fewer checkpoints (training.keep_checkpoints), or put the run elsewhere (--runs).",
        )
    ]


def _queue(phase: str, section: str, job: Job, chosen: Chosen) -> Check:
    name, rule = f"{phase}: queue", "nodes and walltime are within what the queue accepts"
    limit = chosen.site.queues.get(job.partition)
    if limit is None:
        value = f"the limits of {job.partition} on {chosen.site.site} are not known"
        return Check(name, "unknown", value, rule)
    faults = _faults(job, limit)
    value = f"{counted(job.nodes, 'node')} for {_clock(job.walltime)} in {job.partition} ({_limits(limit)})"
    return judge(
        name, not faults, value, rule, f"Change {' and '.join(f'jobs.{section}.{fault}' for fault in faults)}."
    )


def _faults(job: Job, limit: QueueLimit) -> list[str]:
    faults = []
    if job.nodes < limit.min_nodes or (limit.max_nodes and job.nodes > limit.max_nodes):
        faults.append("nodes")
    if limit.max_walltime and job.walltime > parse_duration(limit.max_walltime):
        faults.append("walltime")
    return faults


def _limits(limit: QueueLimit) -> str:
    words = []
    if limit.min_nodes:
        words.append(f"at least {limit.min_nodes}")
    if limit.max_nodes:
        words.append(f"at most {limit.max_nodes} nodes")
    if limit.max_walltime:
        words.append(f"at most {limit.max_walltime}")
    return ", ".join(words) or "no limit known"


def _clock(seconds: int) -> str:
    if not seconds:
        return "the queue's own time"
    return f"{seconds // 3600:02d}:{seconds % 3600 // 60:02d}:{seconds % 60:02d}"
