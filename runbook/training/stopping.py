"""Ask a run to save and stop: by a signal, or by its own clock."""

from __future__ import annotations

import signal
import time
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class Stopping:
    """Notes the signals this process gets and the time it has worked; the loop asks between steps."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._limit = 0
        self._signal = 0
        for number in SIGNALS:
            signal.signal(number, self._note)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._signal = number

    def limit(self, seconds: int) -> None:
        """Wish to stop this long after the beginning; 0: never."""
        self._limit = seconds

    def wish(self) -> int:
        """Number of the signal that asked to stop, -1 for the clock, 0 for none."""
        if self._signal:
            return self._signal
        return -1 if self._limit and time.monotonic() - self._begun >= self._limit else 0


def reason(wish: int) -> str:
    """A wish as people say it.

    >>> reason(15), reason(-1)
    ('SIGTERM', 'exit_duration')
    """
    return "exit_duration" if wish < 0 else signal.Signals(wish).name
