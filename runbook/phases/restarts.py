"""Whether a job that ended is followed by another: decided from how this one and those before it ended.

The rules, in order: what finished is done; what a person ended stays ended; what saved and stopped, or vanished, goes
on; what will fail again in the same way stops at once; the same failure twice at one step stops, as it is no accident;
everything else is started again, as long as the budget of restarts without a new step lasts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from runbook.analysis.known_failures import find_failures
from runbook.phases.tail import read_lines
from runbook.schedulers.base import JobFolder, JobStatus, State
from runbook.schedulers.files import last_words

LAST_LINES = 400
"""Lines at the end of a job's log in which its failure is looked for."""
REFUSED, SAVED_AND_STOPPED = 2, 75
KILLED = "killed from outside"
HANG = "a rank hung"
WILL_REPEAT = frozenset(
    {
        "device out of memory", "NaN in the loss", "loss scale at its floor", "disk full", "module missing",
        "file missing", "launcher needs ssh", "wrong network interface",
    }
)  # fmt: skip
"""Known failures that a restart meets again: a person has to change something first."""


class Action(StrEnum):
    """What follows a job."""

    DONE = "done"
    GO_ON = "go on"
    STOP = "stop"


@dataclass(frozen=True)
class Attempt:
    """One job of a phase, ended."""

    job: str
    state: State
    exit_code: int | None
    reason: str
    began_at: int | None
    """The step after which it began; None: it did not come so far."""
    reached: int
    """The newest step of the training when it had ended."""
    failure: str = ""
    """What went wrong, in words that are the same when the same goes wrong again; empty: nothing did."""
    evidence: str = ""
    remedy: str = ""

    @property
    def failing_step(self) -> int | None:
        """The step it was in when it ended."""
        return None if self.began_at is None else max(self.began_at, self.reached) + 1


@dataclass(frozen=True)
class Decision:
    """What follows, and why."""

    action: Action
    why: str


def decide(attempts: Sequence[Attempt], budget: int) -> Decision:
    """What follows the last of these jobs; `budget` is how many in a row may end without a new step.

    >>> stopped = Attempt("04-training", State.STOPPED, 75, "saved and stopped", 0, 8)
    >>> decide([stopped], 3).action
    <Action.GO_ON: 'go on'>
    """
    last = attempts[-1]
    if last.state is State.DONE:
        return Decision(Action.DONE, "finished")
    if last.state in (State.CANCELLED, State.UNKNOWN):
        return Decision(Action.STOP, f"it is {last.state}: a person decides")
    if last.state is State.TIMEOUT and last.exit_code != SAVED_AND_STOPPED:
        return Decision(Action.STOP, "it ran into its time limit without having saved; save more often")
    if last.exit_code == REFUSED:
        return Decision(Action.STOP, "what was asked for was refused, and would be again")
    if last.failure in WILL_REPEAT:
        return Decision(Action.STOP, f"{last.failure}: it would happen again")
    twin = next((one for one in attempts[:-1] if _same(one, last)), None)
    if twin:
        return Decision(
            Action.STOP,
            f"the same failure twice at step {last.failing_step} ({twin.job} and {last.job}: {last.failure}): "
            "this is no accident",
        )
    if last.state is State.FAILED and last.failure not in (KILLED, HANG) and not _made_a_step(last):
        return Decision(Action.STOP, "it failed before its first step, and would again")
    idle = _without_progress(attempts)
    if idle > budget:
        return Decision(Action.STOP, f"{idle} jobs in a row made no new step (jobs.training.restarts is {budget})")
    return Decision(Action.GO_ON, last.failure or last.reason)


def attempt_of(folder: JobFolder, status: JobStatus, metrics: Path, events: Path) -> Attempt:
    """How a job ended, from its status, its own words and the run's files."""
    rows = [row for row in read_lines(metrics) if isinstance(row.get("iteration"), int)]
    own = _events_of(read_lines(events), folder.path.name)
    started = next((one for one in reversed(own) if one.get("event") == "started"), None)
    began = int(started.get("from_iteration", 0)) if started else None
    if started:
        rows = [row for row in rows if row.get("segment") == started.get("segment")]
    reached = int(rows[-1]["iteration"]) if rows else began or 0
    failure, evidence, remedy = _failure(folder, status, own)
    return Attempt(
        folder.path.name, status.state, status.exit_code, status.reason, began, reached, failure, evidence, remedy
    )


def _same(one: Attempt, other: Attempt) -> bool:
    """Whether two jobs failed alike at one step. A kill from outside is no sign of that: the budget bounds those."""
    alike = bool(one.failure) and one.failure == other.failure and one.failure != KILLED
    return alike and one.failing_step is not None and one.failing_step == other.failing_step


def _made_a_step(attempt: Attempt) -> bool:
    return attempt.began_at is not None and attempt.reached > attempt.began_at


def _without_progress(attempts: Sequence[Attempt]) -> int:
    """How many of the last jobs in a row brought no step that had not been there before."""
    furthest, idle = 0, 0
    for one in attempts:
        idle = 0 if one.reached > furthest else idle + 1
        furthest = max(furthest, one.reached)
    return idle


def _events_of(events: Sequence[Mapping[str, Any]], job: str) -> list[Mapping[str, Any]]:
    """What happened since this job was submitted."""
    places = [n for n, one in enumerate(events) if one.get("event") == "submitted" and one.get("job") == job]
    return list(events[places[-1] :]) if places else []


def _failure(folder: JobFolder, status: JobStatus, events: Sequence[Mapping[str, Any]]) -> tuple[str, str, str]:
    if status.state in (State.DONE, State.STOPPED, State.CANCELLED):
        return "", "", ""
    hang = next((one for one in events if one.get("event") == "hang"), None)
    if hang:
        where = f"rank {hang.get('rank')} on {hang.get('host')} in {hang.get('where', '')}"
        return HANG, where, f"See {hang.get('stacks')}."
    if "signal 9" in status.reason or status.state is State.LOST:
        return KILLED, status.reason, "If nobody did it, look for memory in the node's log (dmesg)."
    lines = [line for path in (folder.err, folder.out) for line in last_words(path, LAST_LINES)]
    found = find_failures(lines)
    cause = next((one for one in found if one.name not in _CONSEQUENCES), None)
    if cause:
        return cause.name, cause.evidence, cause.remedy
    words = next((line.strip() for line in reversed(lines) if _ERROR.match(line.strip())), "")
    if not words and found:
        return found[0].name, found[0].evidence, found[0].remedy
    words = words or status.reason
    return re.sub(r"\d+", "N", words)[:200], words[:300], ""


_ERROR = re.compile(r"(?:rank \d+: )?[A-Za-z_.]*(?:Error|Exception|Interrupt)\b")
_CONSEQUENCES = frozenset({"network failure", "process killed", "collective timeout"})
"""What the other ranks say when one of them has failed."""
