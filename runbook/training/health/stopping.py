"""Decides when training stops: on signals and at time limits."""

import os
import signal
import time
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
SECONDS_LEFT_VARIABLE = "RUNBOOK_SECONDS_LEFT"
"""Environment variable with the number of seconds the job has left when the ranks start.

The job script sets the variable if it knows the time limit.
"""
SMALLEST_RESERVE_SECONDS = 2.0
LONGEST_GUESS_SECONDS = 600.0


class StopConditions:
    """Decides when training stops: on a signal, or when the time for the job runs out.

    The training loop checks the conditions between two steps. It keeps a reserve before the time
    limit, to let the last save complete before the queue kills the job. The reserve is twice the
    longest save so far plus twice the longest step. Until the first save, a save is assumed to take
    a twentieth of the job time.
    """

    def __init__(self) -> None:
        self._started = time.monotonic()
        # Stop this many seconds after the start; 0 means never
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
        """Record how long a save took. The first save replaces the estimate."""
        if self._measured:
            self._longest_save = max(self._longest_save, seconds)
        else:
            self._longest_save = seconds

        self._measured = True

    def reserve(self) -> float:
        """Return how many seconds are reserved before the time limit."""
        return max(SMALLEST_RESERVE_SECONDS, 2 * self._longest_save + 2 * self._longest_step)

    def stop_request(self) -> int:
        """Return which signal requested a stop.

        Return -1 for a time limit, and 0 if there is no request.
        """
        if self._signal:
            return self._signal
        return -1 if self._clock() else 0

    def reason(self, request: int) -> str:
        """Return the name of a stop request: a signal name, exit_duration or time_limit."""
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
