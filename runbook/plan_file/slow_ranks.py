"""Alarms about ranks that take longer to compute than others in the same pipeline stage.

There are two thresholds for two purposes. During training, an alarm may exclude a node, so a rank
must take `SLOW_RANK_FACTOR` times as long as its stage in `SLOW_WINDOWS` consecutive windows. After
the run, `runbook.results.slow_ranks` lists slow ranks: over thousands of steps, a median that is
`SLOWER_SHARE` above the median of the other ranks is not noise, and the node should be checked.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median

from runbook.plan_file.alarms import Alarm

SLOW_RANK_FACTOR = 1.5
"""A rank is slow if it computes for this many times the median over the stage."""
SLOWER_SHARE = 0.10
"""In a finished run, a rank is marked if its median time exceeds that of the other ranks by this
share.
"""
SLOW_WINDOWS = 3
"""A rank is reported after this many consecutive slow windows."""
WINDOW_STEPS = 5
"""Minimum number of steps in a window; shorter windows would measure noise."""
WINDOW_SECONDS = 2.0
"""Minimum length of a window."""
SMALLEST_DELAY = 0.002
"""A rank only counts as slow if it adds this many seconds per step.

Shorter delays are noise from the clock and the system.
"""


@dataclass(frozen=True)
class ExchangedTimes:
    """The times from each rank for the steps since the last exchange."""

    iteration: int
    steps: int
    # Mean time each rank spent in the forward and backward passes, without communication
    seconds: list[float]


@dataclass
class StragglerDetector:
    """Compares the ranks in each pipeline stage, window by window."""

    stages: int = 1
    _seconds: list[float] = field(default_factory=list)
    _steps: int = 0
    _began: float = 0.0
    _count: dict[int, int] = field(default_factory=dict)

    def look(self, times: ExchangedTimes, moment: float) -> list[Alarm]:
        """Report ranks that were slow in `SLOW_WINDOWS` windows in a row.

        A rank is reported only once until it recovers. The first step is ignored, because it
        compiles and fills caches. Megatron numbers the ranks in a stage consecutively.
        """
        before = self._seconds
        nothing = [0.0] * len(times.seconds)
        if not before:
            self._seconds = nothing
            self._began = moment
            return []

        self._seconds = [
            spent + times.steps * per_step
            for spent, per_step in zip(before, times.seconds, strict=True)
        ]
        self._steps += times.steps
        if moment - self._began < WINDOW_SECONDS or self._steps < WINDOW_STEPS:
            return []
        seconds = [spent / self._steps for spent in self._seconds]
        self._seconds = nothing
        self._steps = 0
        self._began = moment
        size = len(seconds) // self.stages
        alarms: list[Alarm] = []
        for start in range(0, len(seconds), size):
            alarms += self._look_at_stage(seconds[start : start + size], start, times.iteration)
        return alarms

    def _look_at_stage(
        self,
        stage: list[float],
        first_rank: int,
        iteration: int,
    ) -> Iterator[Alarm]:
        """Report the ranks in a stage that were slow in `SLOW_WINDOWS` windows in a row."""
        size = len(stage)
        ordered = sorted(stage)
        # A lower bound for the median of the other ranks, which makes the exact median unnecessary
        # for most ranks
        lower_median = ordered[(size - 2) // 2]
        for rank, seconds in enumerate(stage, first_rank):
            if seconds <= SLOW_RANK_FACTOR * lower_median:
                self._count.pop(rank, None)
                continue

            others = seconds
            if size > 1:
                index = ordered.index(seconds)
                others = median(ordered[:index] + ordered[index + 1 :])

            is_slow = seconds > SLOW_RANK_FACTOR * others and seconds - others > SMALLEST_DELAY
            if not is_slow:
                self._count[rank] = 0
                continue

            self._count[rank] = self._count.get(rank, 0) + 1
            if self._count[rank] == SLOW_WINDOWS:
                evidence = (
                    f"rank {rank} computes {seconds:.3f} s per step, the other ranks of its stage "
                    f"{others:.3f} s"
                )
                yield Alarm(
                    "slow rank",
                    "compute_seconds",
                    iteration,
                    iteration,
                    round(seconds, 4),
                    round(others, 4),
                    evidence,
                    rank,
                )
