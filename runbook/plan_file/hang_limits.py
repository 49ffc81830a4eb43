"""Determines how long the other ranks wait for a rank before it counts as hung.

The watchdog and the planner share these limits.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

HANG_SHARE = 0.6
"""Share of the process groups' timeout after which a rank is killed, so that its stack is recorded
before the other ranks end.
"""
UNMEASURED_SHARE = 0.9
"""Limit of a job's first step, evaluation or save, whose duration is unknown, as a share of the
timeout.
"""
MEASURED_FACTOR = 3.0
"""Limit of a step, evaluation or save, as a multiple of the longest measured one."""
MEASURED = 50
"""Number of recent durations to remember for each kind of activity."""
FIRST_COUNTS_UNTIL = 4
"""Number of measured durations after which the first is dropped.

The first activity of each kind also compiles kernels and fills caches.
"""


@dataclass
class HangLimits:
    """Computes how long the other ranks may wait for a rank.

    The limit is computed from the durations of the rank's own steps, evaluations and saves.
    """

    timeout: float
    """Planned timeout of the process groups."""
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
        """Return how many seconds the other ranks may wait during an activity.

        `steps` is the number of steps with the same amount of work.
        """
        durations = self._seconds.get(activity)
        if durations:
            return max(HANG_SHARE * self.timeout, MEASURED_FACTOR * max(durations))
        longest_step = max(self._seconds.get("step", ()), default=0.0)
        return max(UNMEASURED_SHARE * self.timeout, steps * longest_step)
