"""A clock for tests that advances only when a test says so, so that a busy machine changes nothing."""

from __future__ import annotations


class HandClock:
    """Stands in for the module `time`: sleeping takes no time, and advances the clock."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds
