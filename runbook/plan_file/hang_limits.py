"""Determines how long the other ranks wait for a rank before it counts as hung.

The watchdog and the planner share these limits.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

HANG_SHARE = 0.6
"""A rank is killed after this share of the process group timeout, to record its stack before the
other ranks end.
"""
UNMEASURED_SHARE = 0.9
"""Limit for the first step, evaluation or save in a job, as a share of the timeout.

It is used until one of the same kind has been measured.
"""
MEASURED_FACTOR = 3.0
"""Limit for a step, evaluation or save, as a multiple of the longest measured one."""
MEASURED = 50
"""How many recent durations are kept for each kind of activity."""
FIRST_COUNTS_UNTIL = 4
"""The first duration is dropped once this many have been measured.

The first activity of each kind also compiles kernels and fills caches.
"""


@dataclass
class HangLimits:
    """Computes how long other ranks may wait for this rank.

    The limit is based on how long steps, evaluations and saves took on this rank.
    """

    timeout: float
    """Planned timeout for the process groups."""
    _seconds: dict[str, deque[float]] = field(default_factory=dict)
    _first: dict[str, bool] = field(default_factory=dict)

    def measured(self, activity: str, seconds: float) -> None:
        """Record how long an activity of this kind took."""
        durations = self._seconds.setdefault(activity, deque(maxlen=MEASURED))
        durations.append(seconds)
        if len(durations) == FIRST_COUNTS_UNTIL and self._first.setdefault(activity, True):
            durations.popleft()
            self._first[activity] = False

    def limit(self, activity: str, steps: int = 0) -> float:
        """Return how many seconds the other ranks may wait during an activity.

        `steps` is how many steps would be as much work.
        """
        durations = self._seconds.get(activity)
        if durations:
            return max(HANG_SHARE * self.timeout, MEASURED_FACTOR * max(durations))
        longest_step = max(self._seconds.get("step", ()), default=0.0)
        return max(UNMEASURED_SHARE * self.timeout, steps * longest_step)
