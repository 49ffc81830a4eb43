"""Determines how a job ended, and which nodes are to blame.

`runbook.next_job` decides about the next job.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from runbook.core.files import read_lines
from runbook.jobs import job_folder
from runbook.jobs.job_end import job_end
from runbook.jobs.job_folder import JobFolder, JobStatus, log_tail
from runbook.next_job import attempts
from runbook.next_job.attempts import LOG_LINES, EndedJob, JobEvent
from runbook.next_job.decisions import Attempt, Decision
from runbook.plan_file.bad_node_lifetimes import FoundBy
from runbook.plan_file.job_ends import Action


def read_attempt(
    folder: JobFolder,
    status: JobStatus,
    metrics: Path,
    events: Path,
) -> Attempt:
    """Return how a job ended, using its status and logs, the metrics and the events."""
    job = EndedJob(
        name=folder.path.name,
        end=job_end(status),
        reason=status.reason,
        log_lines=[*log_tail(folder.err, LOG_LINES), *log_tail(folder.out, LOG_LINES)],
        nodes=nodes_of_job(folder),
    )
    lines = read_lines(events)
    slices = attempts.split_by_attempt(lines, folder.path.name)
    job_events = slices[-1] if slices else attempts.events_of_job(lines, folder.path.name)
    return attempts.read_attempt(job, job_events, metrics)


def decision_of_job(folder: JobFolder) -> Decision | None:
    """Return the decision that a job made when it ended.

    Return None if the job has neither successors nor spare nodes.
    """
    lines = job_folder.read_text(folder.decision).splitlines()
    if not folder.exit_code.exists() or len(lines) < 4 or lines[0] not in set(Action):
        return None
    # A decision that an earlier version wrote has four lines.
    wait_seconds = float(lines[4]) if len(lines) > 4 else 0.0
    return Decision(Action(lines[0]), lines[3], wait_seconds)


def nodes_of_job(folder: JobFolder) -> list[str]:
    """Return the nodes recorded by a job; the list is empty if it recorded none."""
    return job_folder.read_text(folder.hostfile).split()


ALARMS_OF_NODES = (FoundBy.SLOW_RANK, FoundBy.BIT_FLIP, FoundBy.CORRUPTION)
"""Alarms from the trainer that point to the node on which a rank runs.

If a node has several, the one that comes last in this list applies.
"""


def nodes_with_alarms(
    events: Sequence[JobEvent],
    job: str,
    nodes: Sequence[str],
    ranks_per_node: int,
) -> dict[str, tuple[FoundBy, str]]:
    """Return the nodes with ranks that a job reported as slow or wrong, and the evidence."""
    reported: dict[str, tuple[FoundBy, str]] = {}
    of_job = attempts.events_of_job(events, job)
    # Use only alarms from the last attempt, because an earlier attempt may have run on other nodes.
    of_attempts = attempts.split_by_attempt(of_job, job)
    newest = of_attempts[-1] if of_attempts else of_job
    alarms = [event for event in newest if event.get("event") == "alarm"]
    for found_by in ALARMS_OF_NODES:
        for alarm in alarms:
            rank = alarm.get("rank")
            if alarm.get("kind") != found_by or not isinstance(rank, int):
                continue
            if rank // ranks_per_node < len(nodes):
                evidence = str(alarm.get("evidence", ""))
                reported[nodes[rank // ranks_per_node]] = (found_by, evidence)

    return reported
