"""The time budget for a ladder, within which its rungs are trained.

The planned step time on a CPU may be off by a third, and other programs may use the machine. The
remaining rungs are therefore made smaller if they would not end in time, and larger again if the
pace allows.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from runbook.phases.ladder.ladder_plan import Ladder, PlannedRung, notes_of
from runbook.phases.ladder.rungs import (
    COMPUTE_BETWEEN_RUNGS,
    LEAST_BETWEEN_RUNGS,
    Family,
    LadderRung,
    rungs_above,
)

AIM = 0.92
"""Share of the remaining time that smaller rungs are designed to use."""
WORTH_CHANGING = 0.03
"""The rungs are changed only if the factor between them changes by at least this share."""
ROUNDS = 30
"""Bisections to use when searching the factor between rungs, enough for float precision."""


@dataclass(frozen=True)
class Pace:
    """Planned and measured seconds for trained rungs whose time is known."""

    num_rungs: int = 0
    """How many rungs were trained, including those whose time is unknown."""
    planned_seconds: float = 0.0
    measured_seconds: float = 0.0
    newest: float = 0.0
    """Ratio of measured to planned time for the newest of these rungs."""

    def seconds_left(self, rungs: Sequence[PlannedRung]) -> float | None:
        """Return the seconds that these rungs will take at this pace, or None if unknown."""
        times = [rung.seconds for rung in rungs if rung.seconds is not None]
        if not self.planned_seconds or len(times) < len(rungs):
            return None
        planned_left = sum(times) + sum(rung.start_seconds for rung in rungs)
        return planned_left * self.measured_seconds / self.planned_seconds

    @property
    def slowest(self) -> float:
        """Ratio of measured to planned time: for all rungs, or for the newest one if slower."""
        if not self.planned_seconds:
            return 1.0
        return max(self.newest, self.measured_seconds / self.planned_seconds)


def pace_of(trained: Sequence[PlannedRung]) -> Pace:
    """Return the pace of trained rungs. Rungs without a planned or measured time are left out."""
    planned_seconds = 0.0
    measured_seconds = 0.0
    newest = 0.0
    for planned in trained:
        if planned.seconds is None or planned.measured_seconds is None:
            continue
        expected = planned.seconds + planned.start_seconds
        planned_seconds += expected
        measured_seconds += planned.measured_seconds
        newest = planned.measured_seconds / expected
    return Pace(len(trained), planned_seconds, measured_seconds, newest)


@dataclass
class LadderBudget:
    """Wall-time budget for a whole ladder on this machine, and how much has been used."""

    seconds: float | None
    """None if no budget was requested, or if the rungs wait in a queue."""
    spent_before: float = 0.0
    """Seconds that earlier calls used. A call killed during a rung is not included."""
    started: float = field(default_factory=time.monotonic)

    @property
    def spent(self) -> float:
        """Seconds that this call and earlier ones have used."""
        return self.spent_before + time.monotonic() - self.started

    @property
    def left(self) -> float | None:
        """Remaining seconds, or None without a budget."""
        if self.seconds is None:
            return None
        return self.seconds - self.spent


def fit_rungs_left(
    ladder: Ladder,
    family: Family,
    num_trained: int,
    seconds_left: float,
    pace: float,
) -> Ladder:
    """Return the ladder with its untrained rungs resized to finish in time.

    `pace` is the ratio of measured to planned time for the trained rungs. Rungs that were made
    smaller grow again if the pace allows, up to the largest one as first planned. The factor
    between them is never below `LEAST_BETWEEN_RUNGS`. The ladder is not changed if compute does not
    grow from each remaining rung to the next (as with the extra rungs in a ladder of six to eight),
    or if rounding would change a batch too much.
    """
    trained = [planned.rung for planned in ladder.rungs[:num_trained]]
    untrained = ladder.rungs[num_trained:]
    if not trained or not _can_change(trained[-1], untrained):
        return ladder

    last = trained[-1]
    planned_flops = ladder.planned_flops or untrained[-1].rung.flops
    now = _factor_to(last, untrained[-1].rung.flops, len(untrained))
    planned_factor = _factor_to(last, planned_flops, len(untrained))
    highest = max(now, min(planned_factor, COMPUTE_BETWEEN_RUNGS))
    factor = _affordable_factor(untrained, last, highest, seconds_left, pace)
    if abs(factor / now - 1) < WORTH_CHANGING:
        return ladder
    rungs = rungs_above(family, trained, len(untrained), factor)
    if rungs is None:
        return ladder
    pairs = zip(untrained, rungs, strict=True)
    changed = [_with_rung(planned, rung) for planned, rung in pairs]
    return replace(
        ladder,
        rungs=(*ladder.rungs[:num_trained], *changed),
        planned_flops=planned_flops,
        notes=notes_of([*trained, *rungs]),
    )


def _can_change(last: LadderRung, untrained: Sequence[PlannedRung]) -> bool:
    """Return whether all untrained rungs have planned times and increasing compute."""
    if not untrained:
        return False
    has_times = all(planned.seconds is not None for planned in untrained)
    return has_times and _is_line(last, untrained)


def _factor_to(last: LadderRung, flops: float, count: int) -> float:
    """Return the compute factor between rungs that makes `count` more rungs reach `flops`."""
    factor: float = (flops / last.flops) ** (1 / count)
    return factor


def _affordable_factor(
    untrained: Sequence[PlannedRung],
    last: LadderRung,
    highest: float,
    seconds_left: float,
    pace: float,
) -> float:
    """Return `highest` if its rungs end in time, or else the largest factor whose rungs do."""
    if _predicted(untrained, last, highest, pace) <= seconds_left:
        return highest
    return _largest_factor(untrained, last, highest, AIM * seconds_left, pace)


def _is_line(last: LadderRung, untrained: Sequence[PlannedRung]) -> bool:
    """Return whether each rung has clearly more compute than the rung before it.

    Extra rungs with a different shape use as much compute as an earlier rung, so they fail this
    test.
    """
    below = last.flops
    for planned in untrained:
        if planned.rung.flops < below * (1 + LEAST_BETWEEN_RUNGS) / 2:
            return False
        below = planned.rung.flops
    return True


def _largest_factor(
    untrained: Sequence[PlannedRung],
    last: LadderRung,
    highest: float,
    seconds: float,
    pace: float,
) -> float:
    """Return the largest factor between rungs that lets the untrained rungs end within `seconds`."""
    low = min(LEAST_BETWEEN_RUNGS, highest)
    high = highest
    for _ in range(ROUNDS):
        middle = (low + high) / 2
        if _predicted(untrained, last, middle, pace) <= seconds:
            low = middle
        else:
            high = middle
    return low


def _predicted(
    untrained: Sequence[PlannedRung],
    last: LadderRung,
    factor: float,
    pace: float,
) -> float:
    """Return the seconds that the untrained rungs take at this pace, with this factor between them."""
    planned_seconds = 0.0
    for step, planned in enumerate(untrained, start=1):
        ratio = last.flops * factor**step / planned.rung.flops
        planned_seconds += (planned.seconds or 0.0) * ratio + planned.start_seconds
    return planned_seconds * pace


def _with_rung(planned: PlannedRung, rung: LadderRung) -> PlannedRung:
    """Return a planned rung with its compute changed, and its time and cost scaled accordingly."""
    ratio = rung.flops / planned.rung.flops

    def scaled(value: float | None) -> float | None:
        return None if value is None else value * ratio

    return replace(
        planned,
        rung=rung,
        seconds=scaled(planned.seconds),
        device_hours=scaled(planned.device_hours),
        cost=scaled(planned.cost),
    )
