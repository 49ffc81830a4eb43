"""How long the ranks wait for one of them before it counts as hung.

The watchdog and the planner share these limits.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

HANG_SHARE = 0.6
"""Share of the process groups' time-out after which a rank is ended, so that its stack is recorded
before the other ranks end.
"""
UNMEASURED_SHARE = 0.9
"""Limit for the first step, evaluation or save of a job, whose duration is not known yet."""
MEASURED_FACTOR = 3.0
"""A step, an evaluation or a save may take this many times the longest measured one of its kind."""
MEASURED = 50
"""Number of the newest durations that are remembered for each kind."""
FIRST_COUNTS_UNTIL = 4
"""The first of a kind compiles and fills caches.

The limit applies only until this many have been measured.
"""


@dataclass
class HangLimits:
    """Computes how long the other ranks may wait for a rank.

    The limit follows from the durations of the rank's own steps, evaluations and saves.
    """

    timeout: float
    """Time-out of the process groups, as planned."""
    _seconds: dict[str, deque[float]] = field(default_factory=dict)
    _first: dict[str, bool] = field(default_factory=dict)

    def measured(self, activity: str, seconds: float) -> None:
        """Record the duration of an activity of this kind."""
        durations = self._seconds.setdefault(activity, deque(maxlen=MEASURED))
        durations.append(seconds)
        if len(durations) == FIRST_COUNTS_UNTIL and self._first.setdefault(activity, True):
            durations.popleft()
            self._first[activity] = False

    def limit(self, activity: str, steps: int = 0) -> float:
        """Return the seconds that the others may wait during an activity.

        `steps`: the number of steps that equal the work of the activity.
        """
        durations = self._seconds.get(activity)
        if durations:
            return max(HANG_SHARE * self.timeout, MEASURED_FACTOR * max(durations))
        longest_step = max(self._seconds.get("step", ()), default=0.0)
        return max(UNMEASURED_SHARE * self.timeout, steps * longest_step)
