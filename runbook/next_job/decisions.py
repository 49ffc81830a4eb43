"""Rules for what to do after a job. They are applied in the following order.

A finished job is done. A job that a person ended stays ended. A job that saved and stopped, or that
vanished, is continued. A failure that would repeat stops training immediately, and so does a
failure repeated at the same step. In all other cases, the job is restarted, within the budget for
restarts without a new step.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from runbook.next_job.messages import NextJobMessage
from runbook.plan_file.errors import REFUSED, STOPPED
from runbook.plan_file.job_ends import (
    FROM_OUTSIDE,
    MAY_PASS,
    WILL_REPEAT,
    Action,
    EndCause,
    JobEnd,
    JobState,
)

DECIDED_BY_JOB = "the job itself"
"""Recorded as the decider in job events if no process watched the job."""
RECOVERY_SECONDS = 120.0
"""Seconds to wait after a node could not be reached.

Without the wait, the next job would get the same node.

Slurm takes the node out of service after SlurmdTimeout, which is 300 s by default. The default
three restarts together wait longer.
"""
MOST_STARTS_WITHOUT_A_STEP = 2
"""How many attempts may end without a step before their allocation is given up."""


def error_signature(error: str) -> str:
    """Return an error with its numbers masked, so that the text is the same at every step.

    Two unknown errors count as the same failure if their signatures are equal.

    >>> error_signature("KeyError: 17 at step 4")
    'KeyError: N at step N'
    """
    return re.sub(r"\d+", "N", error)[:200]


@dataclass(frozen=True)
class Attempt:
    """A finished job for a phase."""

    job: str
    end: JobEnd
    began_at: int | None
    """The step after which the job began, or None if it never started training."""
    reached: int
    """The newest step in the training run when the job ended."""
    reason: str = ""
    """How the job itself described its end, for people.

    No decision depends on it.
    """
    failure: str = ""
    """Signature of the failure. It is the same each time the failure happens.

    The signature is empty if nothing failed.
    """
    evidence: str = ""
    remedy: str = ""
    bad_nodes: tuple[str, ...] = ()
    """Nodes to blame for the failure, if it would not occur on other nodes."""

    @property
    def failing_step(self) -> int | None:
        """Return the step during which the job ended."""
        if self.began_at is None:
            return None
        return max(self.began_at, self.reached) + 1

    @property
    def made_a_step(self) -> bool:
        """Return whether the job completed at least one new step."""
        return self.began_at is not None and self.reached > self.began_at

    def failed_like(self, earlier: Attempt) -> bool:
        """Return whether both jobs failed in the same way at the same step.

        If the cause is external, a repeated failure proves nothing, so only the budget limits the
        restarts.
        """
        if self.end.cause is None or self.end.cause in FROM_OUTSIDE or self.failing_step is None:
            return False
        alike = self.end.cause is earlier.end.cause and self.failure == earlier.failure
        return alike and self.failing_step == earlier.failing_step


@dataclass(frozen=True)
class Decision:
    """The next action, and the reason for it."""

    action: Action
    why: str
    wait_seconds: float = 0.0
    """Seconds before the next job, during which the cluster can recover."""


def decide_restart(attempts: Sequence[Attempt], budget: int) -> Decision:
    """Decide what to do after the last of these jobs.

    `budget` is how many jobs in a row may end without a new step.

    >>> stopped = Attempt("04-training", JobEnd(JobState.STOPPED, 75), began_at=0, reached=8)
    >>> decide_restart([stopped], 3).action
    <Action.GO_ON: 'go on'>
    """
    last = attempts[-1]
    if last.end.state is JobState.DONE:
        return Decision(Action.DONE, "finished")
    reason = _reason_to_stop(attempts) or reason_of_budget(attempts, budget)
    if reason:
        return Decision(Action.STOP, reason)
    is_unreached = last.end.cause is EndCause.NODE_UNREACHED
    wait_seconds = RECOVERY_SECONDS if is_unreached else 0.0
    return Decision(Action.GO_ON, last.failure or last.reason, wait_seconds)


def _reason_to_stop(attempts: Sequence[Attempt]) -> str:
    """Return why no job may follow the last one, whatever the budget is.

    The text is empty if a job may follow.
    """
    last = attempts[-1]
    end = last.end
    if end.state in (JobState.CANCELLED, JobState.UNKNOWN):
        return f"it is {end.state}: a person must decide"
    if end.state is JobState.TIMEOUT and end.exit_code != STOPPED:
        return "it reached its time limit before it could save; save more often"
    if end.exit_code == REFUSED:
        return "the request was refused, and would be refused again"
    if end.cause in WILL_REPEAT:
        return NextJobMessage.WOULD_HAPPEN_AGAIN.fill(cause=end.cause)
    for earlier in attempts[:-1]:
        if earlier.failed_like(last):
            both = NextJobMessage.BOTH_JOBS.fill(
                earlier=earlier.job, last=last.job, failure=last.failure
            )
            return NextJobMessage.SAME_FAILURE_TWICE.fill(failing_step=last.failing_step, both=both)

    # If a failure names a node, the next job can avoid the failure by leaving that node out.
    may_pass = end.cause in MAY_PASS or bool(last.bad_nodes)
    if end.state is JobState.FAILED and not may_pass and not last.made_a_step:
        return "it failed before its first step, and would fail again"
    return ""


def reason_of_budget(attempts: Sequence[Attempt], budget: int) -> str:
    """Return the reason to stop if the budget for jobs without a new step is used up.

    The text is empty if the budget is not used up.
    """
    furthest_step = 0
    jobs_without_progress = 0
    for attempt in attempts:
        if attempt.reached > furthest_step:
            jobs_without_progress = 0
        else:
            jobs_without_progress += 1

        furthest_step = max(furthest_step, attempt.reached)

    if jobs_without_progress <= budget:
        return ""
    return NextJobMessage.NO_NEW_STEP.fill(
        jobs_without_progress=jobs_without_progress, budget=budget
    )


def may_start_again_here(attempts: Sequence[Attempt]) -> bool:
    """Return whether another attempt may follow in the same allocation."""
    if attempts[-1].end.state is not JobState.FAILED:
        return False
    newest = attempts[-MOST_STARTS_WITHOUT_A_STEP:]
    if len(newest) < MOST_STARTS_WITHOUT_A_STEP:
        return True
    return any(attempt.made_a_step for attempt in newest)
