"""Alarms on a stream of metrics: spike, divergence, plateau, NaN, drift, slow file system; and slow ranks.

    watch = MetricWatch()
    for step in steps:                  of metrics.jsonl, of the trainer, or records of any log
        for alarm in watch.look(step):  nothing where all is well

No level is fixed: each record is compared with the median of those before it, in units of their spread (1.48 median
deviations, the standard deviation of normal noise). The trainer looks at each step with it, `runbook logs` and
05-analysis at finished logs. docs/logbook.md says on which healthy and diverging curves the numbers below were tried.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import inf, isfinite, log10, nan
from statistics import median
from typing import Any

Show = Callable[[float], str]
WINDOW = 40
ENOUGH = 10  # records that tell how noisy a curve is
UNKNOWN_NOISE = 0.40  # with fewer, a jump is at least this share of the loss
JUMP_SPREADS = 10.0
JUMP_SHARE = 0.05
CONFIRMING, CONFIRMED = (
    3,
    0.5,
)  # a spike: so many records in a row, all at least this part of a jump above the curve
UNEXPLAINED = (
    2.2  # times the usual loss: no odd text costs as much, and no other record is waited for
)
SUDDEN_SHARE = 0.10
"""A loss so far above each of the `CONFIRMING` before it is a spike where its gradient is large as well."""
LARGE_NORM_FACTOR = 10.0
"""Times the usual gradient norm. Early in a training the loss falls by so much that a jump of a fifth is still below
the median of the curve; only its gradient tells it from a batch of odd text (7.90 to 9.59 with a norm of 24)."""
USUAL_NORMS = 5
"""Gradient norms that tell what is usual."""
BACK_SHARE = 0.02
BLOCK = 20  # records whose median is the level of a metric
RISE_SHARE = 0.04
FLAT_SHARE = 0.25
FLAT_RECORDS = 200
LEVELS = 40  # medians of a block each: enough for a slope
RISING_PAIRS, STEADY_SHARE, RISE_SPREADS = (
    0.9,
    0.75,
    6.0,
)  # pairs of levels that rise; newer slope against older; rise
DRIFT_SHARES = {"grad_norm": 1.0, "seconds_per_sequence": 0.25}
WAIT_SECONDS, WAIT_SHARE, SLOW_FACTOR = (
    5.0,
    0.2,
    5.0,
)  # least window, part of a step, times the usual
SLOW_RANK_FACTOR = (
    1.5  # a rank that computes this many times longer than the median of its stage is slow
)
WINDOW_STEPS = 5
WINDOW_SECONDS = (
    2.0  # a window has at least so many steps and seconds: shorter ones measure the machine's noise
)
SLOW_WINDOWS = 3  # slow windows in a row before a rank is reported


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
    """Median of the records before; of the other ranks, where it is about one."""
    evidence: str
    rank: int | None = None
    """The rank it is about; None: the training."""


def spread_of(values: Sequence[float]) -> float:
    """Standard deviation of normal noise with the same median deviation; outliers do not move it."""
    middle = median(values)
    return 1.4826 * median(abs(value - middle) for value in values)


def in_bytes(count: float) -> str:
    """Bytes in a unit of their size.

    >>> in_bytes(512), in_bytes(3.2e9), in_bytes(4.5e15)
    ('512 B', '3.2 GB', '4500 TB')
    """
    power = min(4, int(log10(max(1.0, abs(count)))) // 3)
    return f"{count / 1000**power:.4g} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"


def _make(
    kind: str,
    metric: str,
    iteration: int,
    value: float,
    before: Sequence[float],
    what: str,
    since: int = 0,
) -> Alarm:
    usual = median(before)
    name = metric.replace("_", " ")
    against = f"the {len(before)} before have the median {usual:.4g} and the spread {spread_of(before):.2g}"
    return Alarm(
        kind,
        metric,
        iteration,
        since or iteration,
        value,
        usual,
        f"{name} {value:.4g}: {what}; {against}",
    )


class LossWatch:
    """Spikes, divergence and plateaus of one loss curve.

    Healthy trainings have single batches of odd text with up to twice the usual loss, and sometimes two in a row. So a
    spike is three records, or one that no text explains, or one with a gradient norm many times the usual.
    """

    def __init__(self) -> None:
        self._recent = deque[float](maxlen=WINDOW)  # outside jumps
        self._last = deque[float](maxlen=CONFIRMING)
        self._norms = deque[float](maxlen=WINDOW)
        self._above = inf  # a sudden jump was reported, and the loss is above this
        self._inside: list[float] = []  # of the jump that goes on
        self._since, self._is_spike = (
            0,
            False,
        )  # that jump: its first iteration, and whether it was reported
        self._block, self._lowest = list[float](), list[float]()  # the lowest: by its median
        self._all = list[float]()
        self._next_look = FLAT_RECORDS

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

    def look(self, iteration: int, loss: float, grad_norm: float = nan) -> Iterator[Alarm]:
        """What is wrong with the curve now that this loss is known; `grad_norm` is NaN where nobody knows it."""
        sudden = self._find_sudden(iteration, loss, grad_norm)
        was_spike = self._is_spike
        yield from self._look_at_curve(iteration, loss)
        is_new = self._is_spike and not was_spike
        if sudden and not is_new:
            yield sudden

    def _find_sudden(self, iteration: int, loss: float, grad_norm: float) -> Alarm | None:
        """A jump above the last losses with a gradient norm many times the usual, reported once until it is over."""
        last = [*self._last]
        norms = [*self._norms]
        self._last.append(loss)
        if loss < self._above:
            self._above = inf
        if not isfinite(grad_norm):
            return None
        is_known = len(last) == CONFIRMING and len(norms) >= USUAL_NORMS
        is_large = is_known and grad_norm > LARGE_NORM_FACTOR * median(norms)
        if not is_large:
            self._norms.append(grad_norm)
            return None
        limit = (1 + SUDDEN_SHARE) * max(last)
        if loss <= limit or self._is_spike or self._above < inf:
            return None
        self._above = limit
        what = f"it jumped, and its gradient norm {grad_norm:.4g} is {grad_norm / median(norms):.3g} times the usual"
        return _make("spike", "loss", iteration, loss, last, what)

    def _look_at_curve(self, iteration: int, loss: float) -> Iterator[Alarm]:
        if self.excess(loss) <= (CONFIRMED if self._inside else 1.0):
            self._inside = []
            self._is_spike = False
            self._recent.append(loss)
            yield from self._look_at_level(iteration, loss)
            return
        self._since = self._since if self._inside else iteration
        self._inside.append(loss)
        before = [*self._recent]
        count = len(self._inside)
        is_sure = count >= min(CONFIRMING, 1 + len(before) // 5) or loss > UNEXPLAINED * abs(
            median(before)
        )
        if is_sure and not self._is_spike:
            self._is_spike = True
            yield _make(
                "spike", "loss", iteration, max(self._inside), before, "it jumped", self._since
            )
        elif count >= 2 * ENOUGH and count % ENOUGH == 0:
            later = median(self._inside[-ENOUGH:])
            earlier = median(self._inside[-2 * ENOUGH : -ENOUGH])
            if later < (1 - BACK_SHARE) * earlier:  # it comes back, if slowly
                return
            what = f"{count} records after a spike it is not back"
            yield _make("divergence", "loss", iteration, later, before, what, self._since)
            self._recent = deque(self._inside, WINDOW)
            self._inside = []
            self._is_spike = False
            self._block = []
            self._lowest = []

    def _look_at_level(self, iteration: int, loss: float) -> Iterator[Alarm]:
        self._block.append(loss)
        self._all.append(loss)
        if len(self._block) == BLOCK:
            block = self._block
            self._block = []
            level = median(block)
            lowest = median(self._lowest or block)
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
        count = len(self._all)
        width = len(self._all) // 10
        windows = [self._all[end - width : end] for end in (count // 4, count // 2, count)]
        first, middle, last = map(median, windows)
        if middle - last + 4 * spread_of(windows[2]) / width**0.5 < FLAT_SHARE * (first - middle):
            what = f"it fell by {middle - last:.3g} over {count // 2} records, by {first - middle:.3g} over {count // 4}"
            yield _make("plateau", "loss", iteration, last, windows[1], f"{what} before these")
            self._next_look = 2 * count


class GrowthWatch:
    """Finds steady growth of a number over `LEVELS` levels, each the median of so many records.

    What fills up or warms up grows ever more slowly, and noise wanders back: neither is steady. `widens`: to levels of
    twice as many records each time, so that the whole training is looked at; else the newest ones are.
    """

    def __init__(
        self, metric: str, block: int = BLOCK, *, widens: bool = False, show: Show = "{:.4g}".format
    ) -> None:
        self._metric = metric
        self._block = block
        self._widens = widens
        self._show = show
        self._records, self._levels = list[float](), list[tuple[int, float]]()

    def look(self, iteration: int, value: float) -> Alarm | None:
        """The growth as a drift, once it is known: from the usual value to the value, between the two iterations."""
        if (
            self._levels and iteration <= self._levels[-1][0]
        ):  # after a rollback or a restart: a curve of its own
            self._records = []
            self._levels = []
        self._records.append(value)
        if len(self._records) < self._block:
            return None
        self._levels.append((iteration, median(self._records)))
        self._records = []
        if len(self._levels) < LEVELS:
            return None
        levels = self._levels
        self._levels = self._levels[LEVELS // 2 :]
        if self._widens:
            self._block = 2 * self._block
            self._levels = levels[1::2]
        return self._judge(levels)

    def _judge(self, levels: Sequence[tuple[int, float]]) -> Alarm | None:
        half = LEVELS // 2
        slopes = _slopes(levels)
        slope = median(slopes)
        older = median(_slopes(levels[:half]))
        newer = median(_slopes(levels[half:]))
        if (
            sum(one > 0 for one in slopes) < RISING_PAIRS * len(slopes)
            or newer < STEADY_SHARE * older
        ):
            return None
        since = levels[0][0]
        iteration = levels[-1][0]
        starts = [level - slope * (at - since) for at, level in levels]
        first = median(starts)
        rise = slope * (iteration - since)
        spread = spread_of(starts)
        show = self._show
        if rise < RISE_SPREADS * spread:
            return None
        name = self._metric.replace("_", " ")
        steps = iteration - since
        evidence = (
            f"{name} grew from {show(first)} to {show(first + rise)} over {steps} iterations, {show(slope)} each, "
            f"steadily: the spread around that line is {show(spread)}"
        )
        return Alarm("drift", self._metric, iteration, since, first + rise, first, evidence)


def _slopes(levels: Sequence[tuple[int, float]]) -> list[float]:
    """Between all pairs of levels; their median is Theil and Sen's slope, which outliers do not move."""
    return [(b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(levels, 2)]


class WaitWatch:
    """Waiting for data, window by window; a file system that is slow makes it many times what it usually is."""

    def __init__(self) -> None:
        self._window, self._waits, self._num_slow = (
            list[tuple[float, float]](),
            deque[float](maxlen=WINDOW),
            0,
        )

    def look(self, iteration: int, seconds: float, waited: float) -> Iterator[Alarm]:
        """Whether the file system has become slow, now that the waiting of this step is known."""
        self._window.append((seconds, waited))
        count = len(self._window)
        whole = sum(one for one, _ in self._window)
        if count < ENOUGH or whole < WAIT_SECONDS:
            return
        wait = sum(one for _, one in self._window) / count
        self._window = []
        if len(self._waits) < ENOUGH or wait < max(
            WAIT_SHARE * whole / count, SLOW_FACTOR * median(self._waits)
        ):
            self._waits.append(wait)
            self._num_slow = 0
            return
        self._num_slow += 1
        if self._num_slow == CONFIRMING:
            what = f"each of {count} steps waits so long, {wait * count / whole:.0%} of its time"
            yield _make("slow file system", "data_wait_seconds", iteration, wait, self._waits, what)


class MetricWatch:
    """The metrics of one training; a new start gives a new curve."""

    def __init__(self) -> None:
        self._first = inf
        self._is_finite = True
        self._is_above_zero = True
        self._saves = deque[float](maxlen=WINDOW)
        self._begin()

    def _begin(self) -> None:
        self.loss, self._waits = LossWatch(), WaitWatch()
        self._drifts = {name: GrowthWatch(name, widens=True) for name in DRIFT_SHARES}

    def look(self, step: Any) -> Iterator[Alarm]:
        """What is wrong now that a step is known; it may lack any of the numbers."""
        iteration = step.iteration
        loss = step.loss
        if iteration < self._first:
            self._first = iteration
            self._begin()
        was_finite = self._is_finite
        self._is_finite = not getattr(step, "nan", 0) and "nan_loss" not in getattr(
            step, "states", ()
        )
        if was_finite and not self._is_finite:
            yield Alarm(
                "NaN", "loss", iteration, iteration, nan, nan, "the loss is no finite number"
            )
        was_above_zero = self._is_above_zero
        self._is_above_zero = loss != 0.0
        if was_above_zero and not self._is_above_zero:
            evidence = "the loss is exactly 0: the same sample again and again, or no token counts"
            yield Alarm("zero loss", "loss", iteration, iteration, 0.0, nan, evidence)
        if loss is not None and isfinite(loss):
            norm = getattr(step, "grad_norm", None)
            yield from self.loss.look(iteration, loss, nan if norm is None else norm)
        yield from self._look_at_times(step)

    def _look_at_times(self, step: Any) -> Iterator[Alarm]:
        """Drift of the gradient norm and of the time of a step (of a sequence, while the batch ramps up); waiting."""
        seconds = getattr(step, "seconds", None) or nan
        iteration = step.iteration
        per_sequence = seconds / (getattr(step, "global_batch", 0) or 1)
        norm = getattr(step, "grad_norm", None) or nan
        for (name, share), value in zip(DRIFT_SHARES.items(), (norm, per_sequence), strict=True):
            drift = self._drifts[name].look(iteration, value) if isfinite(value) else None
            if drift and drift.value > (1 + share) * drift.usual:
                yield drift
        if isfinite(seconds):
            yield from self._waits.look(iteration, seconds, getattr(step, "data_wait_seconds", 0.0))

    def look_at_save(self, iteration: int, seconds: float) -> Iterator[Alarm]:
        """Whether a save took many times as long as those before it."""
        if (
            len(self._saves) >= CONFIRMING
            and seconds > SLOW_FACTOR * median(self._saves) + WAIT_SECONDS
        ):
            yield _make(
                "slow file system",
                "save_seconds",
                iteration,
                seconds,
                self._saves,
                "so long a save took",
            )
        else:
            self._saves.append(seconds)


@dataclass(frozen=True)
class ExchangedTimes:
    """What each rank took in the steps since the last exchange."""

    iteration: int
    steps: int
    seconds: list[
        float
    ]  # forward and backward of each rank without communication, mean of these steps


@dataclass
class StragglerDetector:
    """Compares the ranks of each pipeline stage window by window."""

    stages: int = 1
    _seconds: list[float] = field(default_factory=list)
    _steps: int = 0
    _began: float = 0.0
    _count: dict[int, int] = field(default_factory=dict)

    def look(self, times: ExchangedTimes, now: float) -> list[Alarm]:
        """The ranks that were slow in `SLOW_WINDOWS` windows in a row, reported once until they recover.

        The first times are left out: a first step compiles and fills caches. Megatron numbers the ranks of one stage
        in a row.
        """
        before = self._seconds
        nothing = [0.0] * len(times.seconds)
        if not before:
            self._seconds = nothing
            self._began = now
            return []
        self._seconds = [
            spent + times.steps * own for spent, own in zip(before, times.seconds, strict=True)
        ]
        self._steps += times.steps
        if now - self._began < WINDOW_SECONDS or self._steps < WINDOW_STEPS:
            return []
        seconds = [spent / self._steps for spent in self._seconds]
        self._seconds = nothing
        self._steps = 0
        self._began = now
        size = len(seconds) // self.stages
        alarms = list[Alarm]()
        for start in range(0, len(seconds), size):
            stage = seconds[start : start + size]
            ordered = sorted(stage)
            for rank, own in enumerate(stage, start):
                if (
                    own <= SLOW_RANK_FACTOR * ordered[(size - 2) // 2]
                ):  # at most the median of the others
                    self._count.pop(rank, None)
                    continue
                place = ordered.index(own)
                others = median(ordered[:place] + ordered[place + 1 :]) if size > 1 else own
                slow = own > SLOW_RANK_FACTOR * others and own - others > 0.002
                self._count[rank] = self._count.get(rank, 0) + 1 if slow else 0
                if slow and self._count[rank] == SLOW_WINDOWS:
                    evidence = f"rank {rank} computes {own:.3f} s a step, the others of its stage {others:.3f} s"
                    at = times.iteration
                    alarms.append(
                        Alarm(
                            "slow rank",
                            "compute_seconds",
                            at,
                            at,
                            round(own, 4),
                            round(others, 4),
                            evidence,
                            rank,
                        )
                    )
        return alarms
