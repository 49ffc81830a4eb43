"""Which rank hangs and which is slow, judged from the ranks' signs of life alone; no process is touched here."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from runbook.training.pulse import Beat

HANG_SHARE = 0.6
"""A rank is ended after this share of the process groups' time-out, so that its stack is seen before the others end."""
SLOW = 1.5
"""A rank that computes this many times longer than the middle one of its stage is slow."""
WINDOW_STEPS = 5
WINDOW_SECONDS = 2.0
"""A window is at least as many steps and as long: shorter ones measure the machine's noise."""
SLOW_WINDOWS = 3
"""In so many windows in a row, before it is told."""


@dataclass(frozen=True)
class Hang:
    """A rank that keeps the others waiting."""

    beat: Beat
    seconds: float
    why: str


@dataclass(frozen=True)
class Slow:
    """A rank whose steps take longer than those of its like."""

    rank: int
    host: str
    seconds_per_step: float
    others_seconds_per_step: float
    windows: int


class Progress:
    """Remembers since when each rank has been where it is."""

    def __init__(self) -> None:
        self._since: dict[int, tuple[int, str, float]] = {}

    def stuck_for(self, beat: Beat, now: float) -> float:
        """Seconds in which this rank has made no step; 0 outside of steps and in the first, which takes what it takes.

        Saving, evaluating and starting are left to the process groups' time-out.
        """
        step, activity, since = self._since.get(beat.rank, (-1, "", now))
        if (step, activity) != (beat.step, beat.activity):
            self._since[beat.rank] = (beat.step, beat.activity, now)
            return 0.0
        return now - since if beat.activity == "step" and beat.steps > 0 else 0.0


def find_hangs(beats: Sequence[Beat], progress: Progress, now: float, limit: float) -> list[Hang]:
    """The ranks of one machine that keep the others waiting.

    One that shows no sign of life is stopped, swapped out or holds Python's lock. Where all are alive and none makes a
    step, it is the one that does not wait for others while another does. Where all wait, the cause is elsewhere: on
    another machine or in the network, and the process groups' time-out ends the job.
    """
    silent = [Hang(one, one.age, "no sign of life") for one in beats if one.age > limit]
    if silent:
        return silent
    stuck = [(one, progress.stuck_for(one, now)) for one in beats]
    if not stuck or any(seconds <= limit for _, seconds in stuck):
        return []
    busy = [Hang(one, seconds, f"in {one.where}") for one, seconds in stuck if not one.waiting]
    return busy if len(busy) < len(beats) or len(beats) == 1 else []


@dataclass
class Stragglers:
    """Compares the ranks of each stage window by window."""

    _before: dict[int, Beat] = field(default_factory=dict)
    _count: dict[int, int] = field(default_factory=dict)
    _began: float = 0.0

    def look(self, beats: Iterable[Beat], now: float) -> list[Slow]:
        """The ranks that were slow in `SLOW_WINDOWS` windows in a row, told once in so many windows."""
        current = {one.rank: one for one in beats}
        if set(current) != set(self._before) or any(current[n].pid != self._before[n].pid for n in current):
            self._before, self._count, self._began = current, {}, now
            return []
        steps = {rank: one.steps - self._before[rank].steps for rank, one in current.items()}
        if now - self._began < WINDOW_SECONDS or min(steps.values(), default=0) < WINDOW_STEPS:
            return []
        found = []
        seconds = {rank: (one.computed - self._before[rank].computed) / steps[rank] for rank, one in current.items()}
        for rank, one in current.items():
            others = [seconds[other] for other, two in current.items() if other != rank and two.stage == one.stage]
            if not others:
                continue
            middle = statistics.median(others)
            slow = seconds[rank] > SLOW * middle and seconds[rank] - middle > 0.002
            self._count[rank] = self._count.get(rank, 0) + 1 if slow else 0
            if slow and self._count[rank] % SLOW_WINDOWS == 0:
                found.append(Slow(rank, one.host, round(seconds[rank], 4), round(middle, 4), self._count[rank]))
        self._before, self._began = current, now
        return found
