"""Ask a run to save and stop: by a signal, by its own clock, or in time before the job's limit."""

from __future__ import annotations

import os
import signal
import time
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
LEFT_VARIABLE = "RUNBOOK_SECONDS_LEFT"
"""Seconds the job still has when its ranks are started; the job's script knows. Absent: no limit is known."""
SMALLEST_RESERVE_SECONDS = 2.0
LONGEST_GUESS_SECONDS = 600.0


class Stopping:
    """Notes the signals this process gets and the time it has worked; the loop asks between steps.

    Before the job's limit it keeps a reserve: twice the longest save seen so far and twice the longest step, so that
    the last save is whole before the queue kills the job. Before the first save a twentieth of the time counts as one.
    """

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._limit = 0
        self._left = _number(os.environ.get(LEFT_VARIABLE, ""))
        self._signal = 0
        self._longest_save = min(self._left / 20, LONGEST_GUESS_SECONDS)
        self._measured = False
        self._longest_step = 0.0
        for number in SIGNALS:
            signal.signal(number, self._note)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._signal = number

    def limit(self, seconds: int) -> None:
        """Wish to stop this long after the beginning; 0: never."""
        self._limit = seconds

    def stepped(self, seconds: float) -> None:
        """A step took so long."""
        self._longest_step = max(self._longest_step, seconds)

    def saved(self, seconds: float) -> None:
        """A save took so long; the first one replaces the guess."""
        self._longest_save = max(self._longest_save, seconds) if self._measured else seconds
        self._measured = True

    def reserve(self) -> float:
        """Seconds kept before the job's limit."""
        return max(SMALLEST_RESERVE_SECONDS, 2 * self._longest_save + 2 * self._longest_step)

    def wish(self) -> int:
        """Number of the signal that asked to stop, -1 for the clock, 0 for none."""
        if self._signal:
            return self._signal
        return -1 if self._clock() else 0

    def reason(self, wish: int) -> str:
        """A wish as people say it: the signal's name, exit_duration or time_limit."""
        return signal.Signals(wish).name if wish > 0 else self._clock() or "exit_duration"

    def _clock(self) -> str:
        worked = time.monotonic() - self._begun
        if self._limit and worked >= self._limit:
            return "exit_duration"
        return "time_limit" if self._left and worked >= self._left - self.reserve() else ""


def _number(text: str) -> float:
    try:
        return max(0.0, float(text))
    except ValueError:
        return 0.0
