"""Decides whether to skip, roll back or stop after a step with a bad loss or bad gradients.

A loss is bad if it is not finite or has jumped, and a gradient norm is bad if it is not finite.
"""

from dataclasses import dataclass

from runbook.plan_file.diagnostics import Statement
from runbook.plan_file.errors import TrainingError
from runbook.plan_file.schema import Limits, PhasePlan
from runbook.training.messages import TrainingMessage


@dataclass(frozen=True)
class BadStep:
    """A step whose weight update must be discarded."""

    iteration: int
    # Name of the value that is not finite or that has jumped
    fault: str
    value: float
    first_sample: int
    last_sample: int
    key: str = "nan_policy"
    """Key in the run file's `training` section that sets the policy."""

    def as_event(self) -> dict[str, object]:
        """Return the fields for events.jsonl: the step, what was wrong with it, and its samples."""
        samples = list(range(self.first_sample, self.last_sample + 1))
        facts = {
            **vars(self),
            "what": self.fault,
            "value": str(self.value),
            "samples": samples,
        }
        del facts["fault"]
        return facts


def withholds_jumps(limits: Limits) -> bool:
    """Return whether a step whose loss jumped must not update the weights."""
    return limits.spike_policy == "skip"


def answers_spikes(limits: Limits) -> bool:
    """Return whether the policy acts on a spike that later steps have confirmed.

    The policy `note` only records a spike, and the policy `skip` has already acted on it.
    """
    return limits.spike_policy not in ("note", "skip")


def may_roll_back(limits: Limits) -> bool:
    """Return whether a policy may return to a checkpoint and skip samples."""
    return "rollback" in (limits.nan_policy, limits.spike_policy)


class BadStepPolicy:
    """Counts bad steps and decides what to do about them.

    All ranks see the same values, so they all make the same decision.
    """

    def __init__(self, spec: PhasePlan) -> None:
        self._limits, self.limit = spec.limits, spec.limits.nan_limit
        self.in_a_row = 0
        self.rollbacks = 0

    def policy(self, bad: BadStep) -> str:
        """Return the planned policy for this step: a `NanPolicy` or a `SpikePolicy`."""
        return str(getattr(self._limits, bad.key))

    def needs_checkpoint(self, bad: BadStep) -> bool:
        """Return whether the action depends on whether there is a checkpoint."""
        return self.policy(bad) == "rollback"

    def action(self, bad: BadStep, *, has_checkpoint: bool) -> str:
        """Decide what to do about a bad step."""
        self.in_a_row += 1
        policy = self.policy(bad)
        if policy == "skip":
            if self.in_a_row <= self.limit:
                return "skip"
            return "stop"

        if policy == "rollback" and bad.key == "spike_policy" and not has_checkpoint:
            return "note"
        if policy == "rollback":
            self.rollbacks += 1
            if has_checkpoint and self.rollbacks <= self.limit:
                return "rollback"
            return "stop"

        return "stop"

    def error(self, bad: BadStep) -> TrainingError:
        """Return the error explaining why the training ends at this step."""
        reason = self._why_stopped(bad)
        error = TrainingError(
            TrainingMessage.BAD_VALUE,
            fault=bad.fault,
            bad=bad.value,
            iteration=bad.iteration,
            first_sample=bad.first_sample,
            last_sample=bad.last_sample,
            reason=reason,
        )
        error.on_all_ranks = True
        return error

    def _why_stopped(self, bad: BadStep) -> Statement:
        """Return why the policy ends the training.

        An unknown policy also ends the training; its name is then the reason.
        """
        policy = self.policy(bad)
        if policy == "skip":
            return TrainingMessage.TOO_MANY_BAD_STEPS.of(in_a_row=self.in_a_row, limit=self.limit)

        if policy == "rollback" and self.rollbacks <= self.limit:
            return TrainingMessage.NOTHING_TO_GO_BACK_TO.of()
        if policy == "rollback":
            return TrainingMessage.NO_MORE_ROLLBACKS.of(
                rollbacks=self.rollbacks - 1, limit=self.limit
            )

        return TrainingMessage.POLICY_STOPS.of(key=bad.key, policy=policy)
