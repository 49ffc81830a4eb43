"""What follows a step whose loss or gradient is no number, or whose loss scale collapsed: stop, skip or roll back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from runbook.training.errors import TrainingError
from runbook.training.spec import Spec

POLICIES = ("stop", "skip", "rollback")


@dataclass(frozen=True)
class BadStep:
    """A step that was computed and must not change the weights."""

    iteration: int
    what: str
    value: float
    first_sample: int
    last_sample: int

    def fields(self) -> dict[str, Any]:
        """For events.jsonl: which step, what was wrong with it, and which samples it took."""
        return {
            "iteration": self.iteration,
            "what": self.what,
            "value": str(self.value),
            "first_sample": self.first_sample,
            "last_sample": self.last_sample,
            "samples": list(range(self.first_sample, self.last_sample + 1)),
        }


class BadSteps:
    """Counts bad steps and says what is to be done; alike on all ranks, which all see the same numbers."""

    def __init__(self, spec: Spec) -> None:
        self.policy, self.limit = spec.limits.nan_policy, spec.limits.nan_limit
        self.in_a_row = 0
        self.rollbacks = 0

    def good(self) -> None:
        """A step went well."""
        self.in_a_row = 0

    def action(self, *, has_checkpoint: bool) -> str:
        """One of `POLICIES` for the bad step that was just met."""
        self.in_a_row += 1
        if self.policy == "skip":
            return "skip" if self.in_a_row <= self.limit else "stop"
        if self.policy == "rollback":
            self.rollbacks += 1
            return "rollback" if has_checkpoint and self.rollbacks <= self.limit else "stop"
        return "stop"

    def error(self, bad: BadStep) -> TrainingError:
        """Why the training ends here."""
        remedy = {
            "skip": f"{self.in_a_row} such steps in a row are more than training.nan_limit {self.limit}",
            "rollback": "there is no checkpoint to go back to"
            if self.rollbacks <= self.limit
            else f"{self.rollbacks - 1} rollbacks are all that training.nan_limit {self.limit} allows",
            "stop": "training.nan_policy is stop; skip leaves such a step out, rollback goes back to the last save",
        }[self.policy]
        error = TrainingError(
            f"{bad.what} is {bad.value} at iteration {bad.iteration} (samples {bad.first_sample} to "
            f"{bad.last_sample}); nothing of this step was saved. {remedy}. Lower the learning rate or lengthen the "
            f"warm-up and go on from the last checkpoint with training.resume_changed, or look at these samples"
        )
        error.on_all_ranks = True
        return error
