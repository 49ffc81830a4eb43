"""Determines how a job ended, using its logs and the run files."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runbook.next_job.decisions import Attempt, error_signature
from runbook.next_job.messages import NextJobMessage
from runbook.plan_file.job_ends import WILL_REPEAT, EndCause, JobEnd, JobState
from runbook.plan_file.node_lists import expand_names
from runbook.results.failures import kinds
from runbook.results.failures.finder import Failure, find_cause, find_failures
from runbook.results.failures.rule import FailureKind, Level, NextStep

JobEvent = Mapping[str, Any]
"""A line in events.jsonl."""
BEGAN = "attempt_began"
"""Event that a job records before it starts the training processes."""
LOG_LINES = 400
"""How many lines at the end of each log to search for a cause."""
_CAUSE_OF = {cause.value: cause for cause in WILL_REPEAT} | {
    kinds.DATA.name: EndCause.FILE_MISSING,
    kinds.ABI.name: EndCause.MODULE_MISSING,
    kinds.BUILD.name: EndCause.MODULE_MISSING,
    kinds.UNREACHED.name: EndCause.NODE_UNREACHED,
    kinds.CREDENTIAL.name: EndCause.NODE_UNREACHED,
}
"""Causes for those known failures that affect restarts, by failure name."""
_EXPLAIN_KILLS = frozenset(
    kind.name for kind in (kinds.HOST_MEMORY, kinds.NODE, kinds.PREEMPTED, kinds.TIME_LIMIT)
)
"""Failures that the scheduler reports after it has killed the ranks."""
_CAN_KILL = frozenset(
    kind.name
    for kind in (
        kinds.DEVICE_MEMORY,
        kinds.HOST_MEMORY,
        kinds.SHARED_MEMORY,
        kinds.LIMITS,
        kinds.DISK,
    )
)
"""Failures that can cause a process to be killed from outside.

A failure outside this set, such as a tracker without a network, cannot have killed the process.
"""
ERROR_LINE = re.compile(r"(?:rank \d+: )?[A-Za-z_.]*(?:Error|Exception|Interrupt)\b")


@dataclass(frozen=True)
class EndedJob:
    """What is recorded about a job, or about one attempt in it."""

    name: str
    end: JobEnd
    """How the job ended, without the cause, which is not known yet."""
    reason: str
    log_lines: Sequence[str]
    """The last lines of err, followed by those of out."""
    nodes: Sequence[str]


def read_attempt(job: EndedJob, events: Sequence[JobEvent], metrics: Path) -> Attempt:
    """Determine how a job ended, using its logs, its events, and the steps of the run."""
    began_at, reached = read_steps(events, metrics)
    attempt = Attempt(
        job=job.name,
        end=job.end,
        began_at=began_at,
        reached=reached,
        reason=job.reason,
    )
    failure = _find_failure(job, events, attempt)
    if failure is None:
        return attempt
    return replace(
        attempt,
        end=replace(job.end, cause=failure.cause),
        failure=failure.signature,
        evidence=failure.evidence,
        remedy=failure.remedy,
        bad_nodes=failure.bad_nodes,
    )


def read_steps(events: Sequence[JobEvent], metrics: Path) -> tuple[int | None, int]:
    """Return the step after which a job began (None if it did not start) and its newest step."""
    started = _newest_event(events, "started")
    began_at = int(started.get("from_iteration", 0)) if started else None
    reached = began_at or 0
    for row in json_lines(metrics):
        is_step = isinstance(row.get("iteration"), int)
        # A job that never started has no segment, so the newest step in any segment is used.
        if is_step and (not started or row.get("segment") == started.get("segment")):
            reached = int(row["iteration"])

    return began_at, reached


def json_lines(path: Path) -> Iterator[JobEvent]:
    """Yield the objects in a JSON-lines file. Lines cut off by a kill are left out."""
    with contextlib.suppress(FileNotFoundError), path.open("rb") as stream:
        for line in stream:
            with contextlib.suppress(ValueError, RecursionError):
                row = json.loads(line) if line.endswith(b"\n") else None
                if isinstance(row, dict):
                    yield row


def events_of_job(events: Sequence[JobEvent], job: str) -> Sequence[JobEvent]:
    """Return the events since the job was last submitted.

    The result is empty if it was never submitted.
    """
    for index in reversed(range(len(events))):
        event = events[index]
        if event.get("event") == "submitted" and event.get("job") == job:
            return events[index:]

    return []


def split_by_attempt(events: Sequence[JobEvent], job: str) -> list[list[JobEvent]]:
    """Split job events by attempt. Events for an attempt end where the next attempt begins.

    >>> began = {"event": "attempt_began", "job": "04-training"}
    >>> [len(part) for part in split_by_attempt([{}, began, {}, began, {}, {}], "04-training")]
    [2, 3]
    """
    slices: list[list[JobEvent]] = []
    for event in events:
        if event.get("event") == BEGAN and event.get("job") == job:
            slices.append([event])
        elif slices:
            slices[-1].append(event)

    return slices


def _newest_event(events: Sequence[JobEvent], name: str) -> JobEvent | None:
    """Return the newest event with this name, or None if there is none."""
    return next((event for event in reversed(events) if event.get("event") == name), None)


@dataclass(frozen=True)
class _JobFailure:
    """Why a job failed, in one form for decisions and another to show."""

    cause: EndCause
    signature: str
    """Text that is the same each time this failure occurs."""
    evidence: str
    remedy: str = ""
    bad_nodes: tuple[str, ...] = ()


def _find_failure(
    job: EndedJob,
    events: Sequence[JobEvent],
    attempt: Attempt,
) -> _JobFailure | None:
    """Return why a job failed, or None if it did not fail."""
    if job.end.state in (JobState.DONE, JobState.STOPPED, JobState.CANCELLED):
        return None
    hang = next((event for event in events if event.get("event") == "hang"), None)
    if hang:
        return _explain_hang(job, hang, attempt)

    if job.end.was_killed:
        return _explain_kill(job, attempt)

    cause = find_cause(find_failures(job.log_lines))
    if cause is not None and _is_decisive(cause):
        return _known_failure(cause, job.nodes)
    error = _last_error(job.log_lines)
    if not error and cause is not None:
        return _known_failure(cause, job.nodes)
    error = error or job.reason
    return _JobFailure(EndCause.OTHER, error_signature(error), error[:300])


def _explain_hang(job: EndedJob, hang: JobEvent, attempt: Attempt) -> _JobFailure:
    """Use an earlier cause in the log, if there is one, to explain why a rank hung.

    A job that completed steps may have survived this cause, so it still counts as hung.
    """
    where = NextJobMessage.RANK_IN_CODE.fill(
        rank=hang.get("rank"), host=hang.get("host"), where=hang.get("where", "")
    )
    stacks = f"See {hang.get('stacks')}."
    cause = _cause_before(kinds.RANK_HUNG, job.log_lines)
    if cause is None:
        return _JobFailure(EndCause.HUNG, EndCause.HUNG, where, stacks)
    known = _known_failure(cause, job.nodes)
    evidence = NextJobMessage.CAUSE_NAMED_BEFORE.fill(
        where=where, cause_name=cause.name, evidence=cause.evidence
    )
    explained = replace(known, evidence=evidence, remedy=f"{cause.remedy} {stacks}")
    if attempt.made_a_step:
        return replace(explained, cause=EndCause.HUNG, signature=EndCause.HUNG)
    return explained


def _explain_kill(job: EndedJob, attempt: Attempt) -> _JobFailure:
    """Use the cause that the log names, if there is one, to explain why a rank was killed.

    The job still counts as killed, unless it completed no step and the cause can kill a process and
    must be fixed before a restart.
    """
    cause = _cause_before(kinds.KILLED, job.log_lines, _EXPLAIN_KILLS)
    if cause is None:
        remedy = "If nobody killed it, search the node's log (dmesg) for an out-of-memory kill."
        return _JobFailure(EndCause.KILLED, EndCause.KILLED, job.reason, remedy)
    known = _known_failure(cause, job.nodes)
    evidence = f"{job.reason}; the log reports {cause.name}: {cause.evidence}"
    explained = replace(known, evidence=evidence)
    was_survived = attempt.made_a_step or cause.name not in _CAN_KILL
    if was_survived or cause.decision is not NextStep.FIX_FIRST:
        return replace(explained, cause=EndCause.KILLED, signature=EndCause.KILLED)
    return explained


def _cause_before(
    end: FailureKind,
    lines: Sequence[str],
    explanations: Collection[str] = (),
) -> Failure | None:
    """Return the cause that a log names before its first `end` failure.

    Failures in `explanations` count anywhere in the log. Return None if the log names no cause.
    """
    failures = find_failures(lines)
    end_lines = [failure.line for failure in failures if failure.name == end.name]
    first_end = min(end_lines, default=len(lines) + 1)
    causes = []
    for failure in failures:
        explains = failure.line < first_end or failure.name in explanations
        if failure.level is Level.CAUSE and explains:
            causes.append(failure)

    return find_cause(causes)


def _last_error(lines: Sequence[str]) -> str:
    """Return the last line that names an exception. The result is empty if no line does."""
    for line in reversed(lines):
        if ERROR_LINE.match(line.strip()):
            return line.strip()

    return ""


def _is_decisive(failure: Failure) -> bool:
    """Return whether a failure explains more than the last error printed by the program."""
    if failure.level is Level.SYMPTOM:
        return failure.decision is NextStep.FIX_FIRST
    return failure.level is Level.CAUSE


def _known_failure(failure: Failure, nodes: Sequence[str]) -> _JobFailure:
    cause = _CAUSE_OF.get(failure.name, EndCause.OTHER)
    bad_nodes = blamed_nodes(failure, nodes)
    # Errors that no rule recognizes may differ, so their text is the signature.
    signature = failure.name if failure.is_specific else error_signature(failure.evidence)
    return _JobFailure(
        cause,
        signature,
        failure.evidence,
        failure.remedy,
        bad_nodes,
    )


def blamed_nodes(failure: Failure, nodes: Sequence[str]) -> tuple[str, ...]:
    """Return the nodes that caused a failure, if it would not occur on other nodes."""
    if failure.decision is not NextStep.RETRY_OTHER_NODE:
        return ()
    return nodes_called(failure.host, nodes)


def nodes_called(host: str, nodes: Sequence[str]) -> tuple[str, ...]:
    """Return the nodes in a job that a host name refers to, with or without its domain.

    srun names several nodes in one list.

    >>> nodes_called("n3.cluster", ["n2", "n3"]), nodes_called("n[1-2]", ["n1", "n2", "n3"])
    (('n3',), ('n1', 'n2'))
    """
    short_names = {name.partition(".")[0] for name in expand_names(host)}
    return tuple(node for node in nodes if node.partition(".")[0] in short_names)
