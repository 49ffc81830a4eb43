"""Finds slow ranks in a finished run.

During the training, `runbook.plan_file.slow_ranks` finds slow ranks.
"""

import statistics
from collections import Counter
from collections.abc import Sequence

from runbook.core import quantities
from runbook.core.table import Table
from runbook.plan_file.slow_ranks import SLOWER_SHARE
from runbook.results.history import History, RankTimes
from runbook.results.messages import ResultMessage
from runbook.results.metrics import measured

STRAGGLER_RULE = (
    f"a rank is a straggler when its median is more than {100 * SLOWER_SHARE:.0f} % above "
    "the median rank's"
)


def slow_ranks_table(history: History, *, count: int = 8) -> Table:
    """Return a table with the ranks, slowest first.

    If there are no times to compare, the table has no rows, only a note with the reason. Only steps
    with the most recent world size are used, because after a restart on fewer devices, a rank
    number may stand for a different device.
    """
    times = _comparable_rank_times(history)
    if not times:
        note = ResultMessage.NO_RANK_TIMES.fill()
        return Table((), "Ranks", (note,), source=history.source)

    seconds_by_rank = zip(*(rank_times.seconds for rank_times in times), strict=True)
    rank_medians = [statistics.median(seconds) for seconds in seconds_by_rank]
    usual_seconds = statistics.median(rank_medians)
    times_slowest = _count_slowest(times)
    num_steps = times_slowest.total()
    slowest_first = sorted(enumerate(rank_medians), key=lambda item: -item[1])
    rows = []
    for rank, seconds in slowest_first:
        relative = seconds / usual_seconds if usual_seconds else 1.0
        rows.append(
            {
                "rank": rank,
                "own time (s/iteration)": seconds,
                quantities.OVER_MEDIAN_RANK: 100 * (relative - 1),
                quantities.TIMES_SLOWEST: 100 * times_slowest[rank] / num_steps,
                "straggler": "yes" if relative > 1 + SLOWER_SHARE else "no",
            }
        )

    num_stragglers = sum(row["straggler"] == "yes" for row in rows)
    slowest_rows = rows[:count]
    notes = (
        STRAGGLER_RULE,
        f"{num_stragglers} of {len(rows)} ranks are stragglers; "
        f"the {len(slowest_rows)} slowest are shown",
    )
    return Table(slowest_rows, "Ranks", notes, source=history.source)


def _comparable_rank_times(history: History) -> list[RankTimes]:
    """Return the rank times for measured steps with the most recent world size."""
    measured_keys = {(step.segment, step.iteration) for step in measured(history)}
    times = []
    for rank_times in history.rank_times:
        if (
            len(rank_times.seconds) > 1
            and (rank_times.segment, rank_times.iteration) in measured_keys
        ):
            times.append(rank_times)

    if not times:
        return []
    world_size = len(times[-1].seconds)
    return [rank_times for rank_times in times if len(rank_times.seconds) == world_size]


def _count_slowest(times: Sequence[RankTimes]) -> Counter[int]:
    """Return how often each rank was the slowest in a step."""
    times_slowest = Counter[int]()
    for rank_times in times:
        slowest_rank = rank_times.seconds.index(max(rank_times.seconds))
        times_slowest[slowest_rank] += rank_times.steps

    return times_slowest
