"""Times of the ranks, as they exchange them, and the ranks that are slow."""

import statistics
from dataclasses import dataclass, field

SLOW_FACTOR = 1.5  # a rank that computes this many times longer than the median of its stage is slow
WINDOW_STEPS = 5
WINDOW_SECONDS = 2.0  # a window has at least so many steps and seconds: shorter ones measure the machine's noise
SLOW_WINDOWS = 3  # slow windows in a row before a rank is reported


@dataclass(frozen=True)
class ExchangedTimes:
    """What each rank took in the steps since the last exchange."""

    iteration: int
    steps: int
    seconds: list[float]  # forward and backward of each rank without communication, mean of these steps


@dataclass(frozen=True)
class Straggler:
    """A rank whose steps take longer than those of the others in its stage."""

    rank: int
    seconds_per_step: float
    others_seconds_per_step: float
    windows: int


@dataclass
class StragglerDetector:
    """Compares the ranks of each pipeline stage window by window."""

    stages: int = 1
    _seconds: list[float] = field(default_factory=list)
    _steps: int = 0
    _began: float = 0.0
    _count: dict[int, int] = field(default_factory=dict)

    def look(self, times: ExchangedTimes, now: float) -> list[Straggler]:
        """The ranks that were slow in `SLOW_WINDOWS` windows in a row, reported once in so many windows.

        The first times are left out: a first step compiles and fills caches. Megatron numbers the ranks of one stage
        in a row.
        """
        before, nothing = self._seconds, [0.0] * len(times.seconds)
        if not before:
            self._seconds, self._began = nothing, now
            return []
        self._seconds = [spent + times.steps * own for spent, own in zip(before, times.seconds, strict=True)]
        self._steps += times.steps
        if now - self._began < WINDOW_SECONDS or self._steps < WINDOW_STEPS:
            return []
        seconds = [spent / self._steps for spent in self._seconds]
        self._seconds, self._steps, self._began = nothing, 0, now
        size, stragglers = len(seconds) // self.stages, []
        for start in range(0, len(seconds), size):
            stage = seconds[start : start + size]
            ordered = sorted(stage)
            for rank, own in enumerate(stage, start):
                if own <= SLOW_FACTOR * ordered[(size - 2) // 2]:  # at most the median of the others
                    self._count.pop(rank, None)
                    continue
                place = ordered.index(own)
                median = statistics.median(ordered[:place] + ordered[place + 1 :]) if size > 1 else own
                slow = own > SLOW_FACTOR * median and own - median > 0.002
                self._count[rank] = self._count.get(rank, 0) + 1 if slow else 0
                if slow and self._count[rank] % SLOW_WINDOWS == 0:
                    stragglers.append(Straggler(rank, round(own, 4), round(median, 4), self._count[rank]))
        return stragglers
