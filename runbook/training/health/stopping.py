"""When a training stops: on signals, time limits, and losses or gradients that are not finite."""

import os
import signal
import time
from dataclasses import dataclass
from types import FrameType

from runbook.plan_file.errors import TrainingError
from runbook.plan_file.schema import PhasePlan
from runbook.training.messages import TrainingMessage

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
SECONDS_LEFT_VARIABLE = "RUNBOOK_SECONDS_LEFT"
"""Seconds the job still has when its ranks are started; the job's script knows. Absent: no limit is
known.
"""
SMALLEST_RESERVE_SECONDS = 2.0
LONGEST_GUESS_SECONDS = 600.0


class StopConditions:
    """Records signals and elapsed time. The training loop asks it between two steps.

    Before the job's limit it keeps a reserve: twice the longest save seen so far and twice the
    longest step, so that the last save is whole before the queue kills the job. Before the first
    save a twentieth of the time counts as one.
    """

    def __init__(self) -> None:
        self._started = time.monotonic()
        # Stop this many seconds after the start; 0: never
        self.limit_seconds = 0
        self._left = max(0.0, float(os.environ.get(SECONDS_LEFT_VARIABLE) or 0))
        self._signal = 0
        self._longest_save = min(self._left / 20, LONGEST_GUESS_SECONDS)
        self._measured = False
        self._longest_step = 0.0
        for number in SIGNALS:
            signal.signal(number, self._note)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._signal = number

    def stepped(self, seconds: float) -> None:
        """Record how long a step took."""
        self._longest_step = max(self._longest_step, seconds)

    def saved(self, seconds: float) -> None:
        """Record how long a save took. The first one replaces the estimate."""
        if self._measured:
            self._longest_save = max(self._longest_save, seconds)
        else:
            self._longest_save = seconds

        self._measured = True

    def reserve(self) -> float:
        """Seconds reserved before the job's limit."""
        return max(SMALLEST_RESERVE_SECONDS, 2 * self._longest_save + 2 * self._longest_step)

    def stop_request(self) -> int:
        """The number of the signal that asked to stop, -1 for a time limit, 0 for neither."""
        if self._signal:
            return self._signal
        return -1 if self._clock() else 0

    def reason(self, request: int) -> str:
        """Return the name of a stop request: the signal's name, exit_duration or time_limit."""
        if request > 0:
            return signal.Signals(request).name
        return self._clock() or "exit_duration"

    def _clock(self) -> str:
        worked = time.monotonic() - self._started
        if 0 < self.limit_seconds <= worked:
            return "exit_duration"
        if self._left and worked >= self._left - self.reserve():
            return "time_limit"
        return ""


@dataclass(frozen=True)
class BadStep:
    """A step whose update of the weights must not be kept."""

    iteration: int
    # The number that is not finite, or that jumped
    fault: str
    value: float
    first_sample: int
    last_sample: int
    key: str = "nan_policy"
    """Of `training` in the run file: what says what is done about it."""

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


class BadStepPolicy:
    """Counts bad steps and decides what to do about them.

    Alike on all ranks, which all see the same numbers.
    """

    def __init__(self, spec: PhasePlan) -> None:
        self._limits, self.limit = spec.limits, spec.limits.nan_limit
        self.in_a_row = 0
        self.rollbacks = 0

    def policy(self, bad: BadStep) -> str:
        """The policy of the plan: a `NanPolicy` or a `SpikePolicy`."""
        return str(getattr(self._limits, bad.key))

    def action(self, bad: BadStep, *, has_checkpoint: bool) -> str:
        """Decide what to do about the bad step that just occurred."""
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
        """Return why the training ends here."""
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

    def _why_stopped(self, bad: BadStep) -> str:
        """Return why the policy ends the training here.

        A policy that is not known here ends it too, by its name.
        """
        policy = self.policy(bad)
        if policy == "skip":
            return (
                f"{self.in_a_row} such steps in a row are more than training.nan_limit {self.limit}"
            )

        if policy == "rollback" and self.rollbacks <= self.limit:
            return "there is no checkpoint to go back to"
        if policy == "rollback":
            return (
                f"{self.rollbacks - 1} rollbacks are all that training.nan_limit "
                f"{self.limit} allows"
            )

        options = "skip leaves such a step out, rollback goes back to the last save"
        return f"training.{bad.key} is {policy}; {options}"
