"""Which ranks are slower than the others, from the time each rank spends on its own forward and backward."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from runbook.analysis.history import History, Step
from runbook.analysis.metrics import measured
from runbook.analysis.table import Table

SLOWER = 0.10
STRAGGLER_RULE = "a rank is a straggler when its median is more than 10 % above the median rank's"


@dataclass(frozen=True)
class RankTime:
    """One rank's own time over the measured steps."""

    rank: int
    seconds: float
    """Median."""
    relative: float
    """Over the median rank's."""
    slowest_share: float
    """Part of the steps in which no rank took longer."""

    @property
    def is_straggler(self) -> bool:
        """By `STRAGGLER_RULE`."""
        return self.relative > 1 + SLOWER


def rank_times(history: History) -> tuple[RankTime, ...]:
    """Every rank's time; empty for one rank, or where the trainer did not tell.

    Steps of the last world size only: after a restart on fewer devices a rank's number means another device.
    """
    steps = [step for step in measured(history) if len(step.rank_seconds) > 1]
    if not steps:
        return ()
    steps = [step for step in steps if len(step.rank_seconds) == len(steps[-1].rank_seconds)]
    medians = [statistics.median(times) for times in zip(*(step.rank_seconds for step in steps), strict=True)]
    middle = statistics.median(medians)
    slowest = _slowest(steps)
    return tuple(
        RankTime(rank, seconds, seconds / middle if middle else 1.0, slowest[rank])
        for rank, seconds in enumerate(medians)
    )


def _slowest(steps: Sequence[Step]) -> list[float]:
    counts = [0] * len(steps[0].rank_seconds)
    for step in steps:
        counts[max(range(len(counts)), key=step.rank_seconds.__getitem__)] += 1
    return [count / len(steps) for count in counts]


def straggler_table(history: History, *, count: int = 8) -> Table:
    """The slowest ranks first; no row where there is nothing to compare, and a note that says why."""
    times = rank_times(history)
    if not times:
        return Table("Ranks", (), _source(history), ("one rank, or no time of each rank in metrics.jsonl",))
    rows = tuple(
        {
            "rank": one.rank,
            "own time (s/iteration)": one.seconds,
            "over the median rank's (%)": 100 * (one.relative - 1),
            "slowest of all (% of steps)": 100 * one.slowest_share,
            "straggler": "yes" if one.is_straggler else "no",
        }
        for one in sorted(times, key=lambda one: -one.seconds)[:count]
    )
    found = sum(one.is_straggler for one in times)
    notes = (STRAGGLER_RULE, f"{found} of {len(times)} ranks are stragglers; the {len(rows)} slowest are shown")
    return Table("Ranks", rows, _source(history), notes)


def _source(history: History) -> str:
    return history.source or "metrics.jsonl"
