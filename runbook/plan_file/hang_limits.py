"""How long the ranks wait for one of them before it counts as hung.

For the watchdog, and for who plans with it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

HANG_SHARE = 0.6
"""A rank is ended after this share of the process groups' time-out, so that its stack is seen
before the others end.
"""
UNMEASURED_SHARE = 0.9
"""The same for the first step, evaluation or save of a job: nothing is known yet of how long it
takes.
"""
MEASURED_FACTOR = 3.0
"""A step, an evaluation or a save may take so many times the longest one of its kind that was
measured.
"""
MEASURED = 50
"""So many of each kind are remembered, the newest."""
FIRST_COUNTS_UNTIL = 4
"""The first of a kind compiles and fills caches: it counts until there are so many."""


@dataclass
class HangLimits:
    """Return how long the others may wait for a rank.

    It is computed from what the rank's own steps, evaluations and saves take.
    """

    timeout: float
    """Of the process groups, as planned."""
    _seconds: dict[str, deque[float]] = field(default_factory=dict)
    _first: dict[str, bool] = field(default_factory=dict)

    def measured(self, activity: str, seconds: float) -> None:
        """Note that something of this kind took so long."""
        durations = self._seconds.setdefault(activity, deque(maxlen=MEASURED))
        durations.append(seconds)
        if len(durations) == FIRST_COUNTS_UNTIL and self._first.setdefault(activity, True):
            durations.popleft()
            self._first[activity] = False

    def limit(self, activity: str, steps: int = 0) -> float:
        """Return the seconds that the others may wait during an activity.

        `steps`: the activity is as much work as so many steps.
        """
        durations = self._seconds.get(activity)
        if durations:
            return max(HANG_SHARE * self.timeout, MEASURED_FACTOR * max(durations))
        longest_step = max(self._seconds.get("step", ()), default=0.0)
        return max(UNMEASURED_SHARE * self.timeout, steps * longest_step)
