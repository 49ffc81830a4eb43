"""Alarms on a stream of metrics: spike, divergence, plateau, NaN.

    watch = MetricWatch()
    for step in steps:                  of metrics.jsonl, of the trainer, or records of any log
        for alarm in watch.look(step):  nothing where all is well

No level is fixed: each record is compared with the median of those before it, in units of their spread (1.48 median
deviations, the standard deviation of normal noise). The trainer looks at each step with it, `runbook logs` and
05-analysis at finished logs. docs/logbook.md says on which healthy and diverging curves the numbers below were tried.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf, isfinite, nan
from statistics import median
from typing import Any

WINDOW = 40
ENOUGH = 10  # records that tell how noisy a curve is
UNKNOWN_NOISE = 0.40  # with fewer, a jump is at least this share of the loss
JUMP_SPREADS, JUMP_SHARE = 10.0, 0.05
CONFIRMING, CONFIRMED = 3, 0.5  # a spike: so many records in a row, all at least this part of a jump above the curve
UNEXPLAINED = 2.2  # times the usual loss: no odd text costs as much, and no other record is waited for
BACK_SHARE = 0.02
BLOCK = 20  # records whose median is the level of a metric
RISE_SHARE = 0.04
FLAT_SHARE, FLAT_RECORDS = 0.25, 200


@dataclass(frozen=True)
class Alarm:
    """Something that goes wrong, with the numbers that say so."""

    kind: str
    metric: str
    iteration: int
    since: int
    """The first iteration that was out of the ordinary."""
    value: float
    usual: float
    """Median of the records before."""
    evidence: str


def spread_of(values: Sequence[float]) -> float:
    """Standard deviation of normal noise with the same median deviation; outliers do not move it."""
    middle = median(values)
    return 1.4826 * median(abs(value - middle) for value in values)


def _make(
    kind: str, metric: str, iteration: int, value: float, before: Sequence[float], what: str, since: int = 0
) -> Alarm:
    usual, name = median(before), metric.replace("_", " ")
    against = f"the {len(before)} before have the median {usual:.4g} and the spread {spread_of(before):.2g}"
    return Alarm(kind, metric, iteration, since or iteration, value, usual, f"{name} {value:.4g}: {what}; {against}")


class LossWatch:
    """Spikes, divergence and plateaus of one loss curve.

    Healthy trainings have single batches of odd text with up to twice the usual loss, and sometimes two in a row. So a
    spike is three records, or one that no text explains.
    """

    def __init__(self) -> None:
        self._recent = deque[float](maxlen=WINDOW)  # outside jumps
        self._inside: list[float] = []  # of the jump that goes on
        self._since, self._is_spike = 0, False  # that jump: its first iteration, and whether it was reported
        self._block, self._lowest = list[float](), list[float]()  # the lowest: by its median
        self._all, self._next_look = list[float](), FLAT_RECORDS

    def excess(self, loss: float) -> float:
        """How far a loss is above the curve so far, in units of a jump."""
        usual = median(self._recent) if self._recent else inf
        if loss <= usual:
            return 0.0
        if len(self._recent) < ENOUGH:
            return (loss - usual) / max(UNKNOWN_NOISE * abs(usual), 1e-9)
        least = JUMP_SHARE * abs(usual)
        if loss <= usual + least * CONFIRMED:
            return 0.0
        return (loss - usual) / max(JUMP_SPREADS * spread_of(self._recent), least, 1e-9)

    def look(self, iteration: int, loss: float) -> Iterator[Alarm]:
        """What is wrong with the curve now that this loss is known."""
        if self.excess(loss) <= (CONFIRMED if self._inside else 1.0):
            self._inside, self._is_spike = [], False
            self._recent.append(loss)
            yield from self._look_at_level(iteration, loss)
            return
        self._since = self._since if self._inside else iteration
        self._inside.append(loss)
        before, count = [*self._recent], len(self._inside)
        is_sure = count >= min(CONFIRMING, 1 + len(before) // 5) or loss > UNEXPLAINED * abs(median(before))
        if is_sure and not self._is_spike:
            self._is_spike = True
            yield _make("spike", "loss", iteration, max(self._inside), before, "it jumped", self._since)
        elif count >= 2 * ENOUGH and count % ENOUGH == 0:
            later, earlier = median(self._inside[-ENOUGH:]), median(self._inside[-2 * ENOUGH : -ENOUGH])
            if later < (1 - BACK_SHARE) * earlier:  # it comes back, if slowly
                return
            what = f"{count} records after a spike it is not back"
            yield _make("divergence", "loss", iteration, later, before, what, self._since)
            self._recent = deque(self._inside, WINDOW)
            self._inside, self._is_spike, self._block, self._lowest = [], False, [], []

    def _look_at_level(self, iteration: int, loss: float) -> Iterator[Alarm]:
        self._block.append(loss)
        self._all.append(loss)
        if len(self._block) == BLOCK:
            block, self._block = self._block, []
            level, lowest = median(block), median(self._lowest or block)
            noise = spread_of(block) + spread_of(self._lowest or block)
            if level <= lowest:
                self._lowest = block
            elif level > lowest + max(RISE_SHARE * abs(lowest), 2 * noise):
                what = f"the median of {BLOCK} rose by {level / lowest - 1:.1%}"
                yield _make("divergence", "loss", iteration, level, self._lowest, what)
                self._lowest = block
        if len(self._all) >= self._next_look:
            self._next_look = int(1.1 * self._next_look) + 1
            yield from self._look_at_fall(iteration)

    def _look_at_fall(self, iteration: int) -> Iterator[Alarm]:
        """A plateau: in the newer half the loss fell far less than in the quarter before, and no noise hides it.

        A healthy loss falls by about as much in each doubling of the steps, and more while the learning rate decays.
        """
        count, width = len(self._all), len(self._all) // 10
        windows = [self._all[end - width : end] for end in (count // 4, count // 2, count)]
        first, middle, last = map(median, windows)
        if middle - last + 4 * spread_of(windows[2]) / width**0.5 < FLAT_SHARE * (first - middle):
            what = (
                f"it fell by {middle - last:.3g} over {count // 2} records, by {first - middle:.3g} over {count // 4}"
            )
            yield _make("plateau", "loss", iteration, last, windows[1], f"{what} before these")
            self._next_look = 2 * count


class MetricWatch:
    """The metrics of one training; a new start gives a new curve."""

    def __init__(self) -> None:
        self.loss = LossWatch()
        self._first, self._is_finite = inf, True

    def look(self, step: Any) -> Iterator[Alarm]:
        """What is wrong now that a step is known; it may lack any of the numbers."""
        iteration, loss = step.iteration, step.loss
        if iteration < self._first:
            self._first, self.loss = iteration, LossWatch()
        was_finite = self._is_finite
        self._is_finite = not getattr(step, "nan", 0) and "nan_loss" not in getattr(step, "states", ())
        if was_finite and not self._is_finite:
            yield Alarm("NaN", "loss", iteration, iteration, nan, nan, "the loss is no finite number")
        if loss is not None and isfinite(loss):
            yield from self.loss.look(iteration, loss)
