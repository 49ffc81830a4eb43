"""Raises alarms from a stream of metrics: spike, divergence, plateau, NaN, drift, slow file system.

Alarms about slow ranks are in `slow_ranks`. Alarms about memory and disks, which can only be raised
on the training machine, are in `runbook/training/health/memory_and_disk.py`.

        watch = MetricWatch()
        for step in steps:                  steps of metrics.jsonl, of the trainer, or of any log
            for alarm in watch.look(step):  no alarm if all is well

No threshold is an absolute value: each record is compared with the median of earlier records, in
units of the spread (1.48 median deviations, the standard deviation of normal noise). The trainer
checks each step with `MetricWatch`; `runbook logs` and 05-analysis check finished logs.
docs/logbook.md lists the healthy and diverging curves the thresholds below were tested on.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import exp, expm1, inf, isfinite, log, log10, nan
from statistics import median
from typing import Any

from runbook.plan_file.json_records import OMIT_DEFAULT
from runbook.plan_file.messages import AlarmMessage
from runbook.plan_file.recent_steps import RecentStep

SLOW_FILE_SYSTEM = "slow file system"
"""Kind used for alarms about slow reads and saves."""
Show = Callable[[float], str]
WINDOW = 40
# Records needed to estimate the noise in a curve
ENOUGH = 10
# With fewer records than `ENOUGH`, a jump must be at least this share of the loss
UNKNOWN_NOISE = 0.40
JUMP_SPREADS = 10.0
JUMP_SHARE = 0.05
# A spike consists of this many consecutive records, each at least this fraction of a jump above the
# curve
CONFIRMING, CONFIRMED = (
    3,
    0.5,
)
UNEXPLAINED_BY_ONE = 1.7
"""If there is only one earlier loss, a single loss this many times as high is a spike.

In a healthy training run, one two-sequence batch had 1.58 times as high a loss as another; the
first spike in BigScience's 104B run was 1.77 times the previous loss.
"""
FEW_BEFORE = 5
"""With fewer earlier records than this, a single high record counts as a spike.

With at least this many, a second record is required.
"""
# At this multiple of the usual loss, a single record counts as a spike: unusual text alone never
# has a loss this high
UNEXPLAINED = 2.2
SUDDEN_SHARE = 0.10
"""If the gradient norm is large too, a loss is a spike once it exceeds each of the last
`CONFIRMING` losses by this share.
"""
LARGE_NORM_FACTOR = 10.0
"""A gradient norm this many times the usual norm counts as large.

Early in training the loss falls so fast that even after a jump by a fifth it is below the median.
Only the gradient norm distinguishes this jump from a batch with unusual text (7.90 to 9.59 with a
norm of 24).
"""
USUAL_NORMS = 5
"""The usual norm is the median of this many recent gradient norms."""
BACK_SHARE = 0.02
# A metric's level is the median of this many records
BLOCK = 20
RISE_SHARE = 0.04
FLAT_SHARE = 0.25
FLAT_RECORDS = 200
# Number of levels (medians of a block), enough to estimate a slope
LEVELS = 40
# Share of level pairs that rise; ratio of newer to older slope; total rise
RISING_PAIRS, STEADY_SHARE, RISE_SPREADS = (
    0.9,
    0.75,
    6.0,
)
DRIFT_SHARES = {"grad_norm": 1.0, "seconds_per_sequence": 0.25}
COMPOUND_FACTOR = 4.0
"""An exponentially growing gradient norm counts as drift once it has grown by this factor."""
COMPOUND_BLOCK = 5
COMPOUND_LEVELS = 20
"""Number of levels used to detect exponential growth.

This growth takes few steps: at 1 % per step, a norm is four times as large after 139 steps.
Therefore only a few short levels are compared.
"""
LOST_NORMS = 50
"""An alarm is raised after this many consecutive skipped steps with a non-finite gradient norm.

A healthy loss scale needs 33 skipped steps to fall from 2^32 to 1.
"""
# Shortest window in seconds, also the slack for a save; least wait as a share of the step; least
# wait as a multiple of the usual wait
WAIT_SECONDS, WAIT_SHARE, SLOW_FACTOR = (
    5.0,
    0.2,
    5.0,
)


@dataclass(frozen=True)
class AlarmSettings:
    """What the user chose for alarms in the run file; plan.json lists these values under `log`.

    The trainer and every table or figure about a finished run use the same settings.
    """

    alarms_after: int = field(default=0, metadata=OMIT_DEFAULT)
    """Losses and gradient norms are not checked up to and including this iteration."""

    def looks_at(self, iteration: int | None) -> bool:
        """Return whether to check the loss and gradient norm at an iteration."""
        return iteration is None or iteration > self.alarms_after


NO_SETTINGS = AlarmSettings()
"""Settings used for a log if the run file is not known."""


@dataclass(frozen=True)
class Alarm:
    """A suspected fault, with the numbers that show it."""

    kind: str
    metric: str
    iteration: int
    since: int
    """The first abnormal iteration."""
    value: float
    usual: float
    """Median over earlier records, or over the other ranks if the alarm concerns a rank."""
    evidence: str
    rank: int | None = None
    """The rank the alarm is about; None if it is about the whole training run."""


def spread_of(values: Sequence[float]) -> float:
    """Return the standard deviation that normal noise with the same median deviation has.

    Outliers do not affect this estimate.
    """
    middle = median(values)
    return 1.4826 * median(abs(value - middle) for value in values)


def in_bytes(count: float) -> str:
    """Format a number of bytes in a suitable unit.

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
    finding: str,
    since: int = 0,
) -> Alarm:
    usual = median(before)
    evidence = AlarmMessage.AFTER_RECORDS.fill(
        metric=metric.replace("_", " "),
        value=value,
        finding=finding,
        num_before=len(before),
        usual=usual,
        spread=spread_of(before),
    )
    return Alarm(
        kind,
        metric,
        iteration,
        since or iteration,
        value,
        usual,
        evidence,
    )


@dataclass(frozen=True)
class Rise:
    """Limits for a rise in the loss over many records; a smaller rise counts as noise."""

    records: int
    share: float
    """Median over the last third of the records, minus the median over the first third."""
    rising_pairs: float
    """Share of record pairs in which the later record is higher."""


RISES = (Rise(12, 0.25, 0.9), Rise(20, 0.15, 0.9), Rise(30, 0.10, 0.8))
RISE_NOISES = 4.0
"""Minimum rise, as a multiple of the spread within a third."""


def _confirming_records(num_before: int) -> int:
    """Return how many consecutive records are needed for a spike after this many normal ones.

    A log with few records, such as one for every thousandth step, is smooth. A single earlier
    record is not enough: the curve begins again after a resume, and with two-sequence batches one
    loss may be 60 % above another.
    """
    if num_before == 1:
        return CONFIRMING
    return min(CONFIRMING, 1 + num_before // FEW_BEFORE)


class RiseWatch:
    """Detects a loss that rises record by record.

    As no single record jumps, the median rises along with the loss, and no spike is detected.
    """

    def __init__(self, metric: str) -> None:
        self._metric = metric
        self._recent = deque[tuple[int, float]](maxlen=max(rise.records for rise in RISES))
        self._limit = inf
        """A reported rise is over once the loss has fallen below this value."""

    @property
    def is_reported(self) -> bool:
        """Whether a rise was reported and the loss has not recovered."""
        return self._limit < inf

    def begin_again(self) -> None:
        """Start over, and drop the records that have been reported."""
        self._recent.clear()

    def look(self, iteration: int, loss: float) -> Alarm | None:
        """Return a divergence alarm if the loss rises.

        The alarm is not repeated until the loss has recovered.
        """
        self._recent.append((iteration, loss))
        if loss < self._limit:
            self._limit = inf
        if self.is_reported:
            return None
        for rise in RISES:
            if len(self._recent) < rise.records:
                return None
            oldest = self._recent[-rise.records][1]
            # For most records, this check avoids comparing all pairs.
            if loss > oldest + rise.share * abs(oldest):
                records = [*self._recent][-rise.records :]
                alarm = self._judge(records, rise)
                if alarm:
                    return alarm

        return None

    def _judge(self, records: Sequence[tuple[int, float]], rise: Rise) -> Alarm | None:
        losses = [loss for _, loss in records]
        third = len(losses) // 3
        first = losses[:third]
        middle = losses[third:-third]
        last = losses[-third:]
        start = median(first)
        end = median(last)
        is_ordered = start < median(middle) < end
        noise = max(_spread_around_line(first), _spread_around_line(last))
        if not is_ordered or end - start < max(rise.share * abs(start), RISE_NOISES * noise):
            return None
        is_rising = [later > earlier for earlier, later in combinations(losses, 2)]
        if sum(is_rising) < rise.rising_pairs * len(is_rising):
            return None
        self._limit = start
        evidence = AlarmMessage.RISES.fill(
            metric=self._metric.replace("_", " "),
            value=end,
            first=losses[0],
            last=losses[-1],
            num_records=len(losses),
            rising_pairs=sum(is_rising) / len(is_rising),
        )
        since = records[0][0]
        iteration = records[-1][0]
        return Alarm(
            "divergence",
            self._metric,
            iteration,
            since,
            end,
            start,
            evidence,
        )


def _spread_around_line(values: Sequence[float]) -> float:
    """Return how much values are spread around a line, so that a slope does not count as noise."""
    points = [*enumerate(values)]
    slope = median(_slopes(points))
    return spread_of([value - slope * position for position, value in points])


class LossWatch:
    """Detects spikes, divergence and plateaus in a loss curve.

    In healthy training runs, single batches with unusual text have up to twice the usual loss,
    sometimes two in a row. Therefore a spike requires three records, or a single record with a loss
    that unusual text cannot explain or with a gradient norm many times the usual one.
    """

    def __init__(self, metric: str = "loss") -> None:
        self._metric = metric
        self._rise = RiseWatch(metric)
        self._recent = deque[float](maxlen=WINDOW)  # Records outside jumps
        self._last = deque[float](maxlen=CONFIRMING)
        self._norms = deque[float](maxlen=WINDOW)
        # Set when a sudden jump has been reported; the jump is over once the loss is below this
        # value
        self._above = inf
        self._inside: list[float] = []  # Records in the current jump
        # The first iteration in the current jump, and whether the jump was reported
        self._since, self._is_spike = (
            0,
            False,
        )
        self._block, self._lowest = list[float](), list[float]()  # the block with the lowest median
        self._all = list[float]()
        self._next_look = FLAT_RECORDS

    def excess(self, loss: float) -> float:
        """Return how far a loss is above the curve, as a multiple of what counts as a jump."""
        usual = median(self._recent) if self._recent else inf
        if loss <= usual:
            return 0.0
        if len(self._recent) < ENOUGH:
            return (loss - usual) / max(UNKNOWN_NOISE * abs(usual), 1e-9)
        smallest_jump = JUMP_SHARE * abs(usual)
        if loss <= usual + smallest_jump * CONFIRMED:
            return 0.0
        return (loss - usual) / max(JUMP_SPREADS * spread_of(self._recent), smallest_jump, 1e-9)

    def look(
        self,
        iteration: int,
        loss: float,
        grad_norm: float = nan,
    ) -> Iterator[Alarm]:
        """Yield the alarms that this loss raises. `grad_norm` is NaN if it is unknown."""
        sudden = self._find_sudden(iteration, loss, grad_norm)
        was_spike = self._is_spike
        was_reported = self._rise.is_reported
        rise = self._rise.look(iteration, loss)
        of_curve = [*self._look_at_curve(iteration, loss)]
        is_diverging = any(alarm.kind == "divergence" for alarm in of_curve)
        if is_diverging:
            self._rise.begin_again()
        for alarm in of_curve:
            if alarm.kind != "divergence" or not was_reported:
                yield alarm

        is_new = self._is_spike and not was_spike
        if sudden and not is_new:
            yield sudden
        if rise and not is_diverging:
            yield rise

    def _find_sudden(
        self,
        iteration: int,
        loss: float,
        grad_norm: float,
    ) -> Alarm | None:
        """Report a loss well above the previous ones if the gradient norm is unusually large too.

        Each jump is reported only once.
        """
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
        finding = AlarmMessage.JUMPED_WITH_GRADIENT.fill(
            grad_norm=grad_norm,
            factor=grad_norm / median(norms),
        )
        return _make(
            "spike",
            self._metric,
            iteration,
            loss,
            last,
            finding,
        )

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
        factor = UNEXPLAINED if len(before) > 1 else UNEXPLAINED_BY_ONE
        is_unexplained = loss > factor * abs(median(before))
        is_sure = count >= _confirming_records(len(before)) or is_unexplained
        if is_sure and not self._is_spike:
            self._is_spike = True
            yield _make(
                "spike",
                self._metric,
                iteration,
                max(self._inside),
                before,
                AlarmMessage.JUMPED.fill(),
                self._since,
            )
        elif count >= 2 * ENOUGH and count % ENOUGH == 0:
            later = median(self._inside[-ENOUGH:])
            earlier = median(self._inside[-2 * ENOUGH : -ENOUGH])
            if later < (1 - BACK_SHARE) * earlier:  # The loss is recovering, if slowly.
                return
            finding = AlarmMessage.NOT_BACK.fill(num_records=count)
            yield _make(
                "divergence",
                self._metric,
                iteration,
                later,
                before,
                finding,
                self._since,
            )
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
                finding = AlarmMessage.MEDIAN_ROSE.fill(
                    num_records=BLOCK,
                    share=level / lowest - 1,
                )
                yield _make(
                    "divergence",
                    self._metric,
                    iteration,
                    level,
                    self._lowest,
                    finding,
                )
                self._lowest = block

        if len(self._all) >= self._next_look:
            self._next_look = int(1.1 * self._next_look) + 1
            yield from self._look_at_fall(iteration)

    def _look_at_fall(self, iteration: int) -> Iterator[Alarm]:
        """Report a plateau: the loss fell far less in the newer half than in the quarter before.

        Noise cannot hide a falling loss. Whenever the number of steps doubles, a healthy loss falls
        by a similar amount, and by more while the learning rate decays.
        """
        count = len(self._all)
        width = len(self._all) // 10
        windows = [self._all[end - width : end] for end in (count // 4, count // 2, count)]
        first, middle, last = map(median, windows)
        noise = max(spread_of(windows[1]), spread_of(windows[2])) / width**0.5
        if middle - last + 4 * noise < FLAT_SHARE * (first - middle):
            finding = AlarmMessage.FELL_LITTLE.fill(
                last_fall=middle - last,
                last_records=count // 2,
                first_fall=first - middle,
                first_records=count // 4,
            )
            yield _make(
                "plateau",
                self._metric,
                iteration,
                last,
                windows[1],
                finding,
            )
            self._next_look = 2 * count


class GrowthWatch:
    """Detects steady growth over `levels` levels, each the median of many records.

    What a filling cache or a warming machine adds grows more and more slowly, and noise returns to
    the mean, so neither is steady growth. With `widens`, the number of records per level doubles
    each time, so that the levels cover the whole training run; otherwise they cover the newest
    records.
    """

    def __init__(
        self,
        metric: str,
        block: int = BLOCK,
        *,
        levels: int = LEVELS,
        widens: bool = False,
        show: Show = "{:.4g}".format,
    ) -> None:
        self._metric = metric
        self._num_levels = levels
        self._block = block
        self._widens = widens
        self._show = show
        self._records, self._levels = list[float](), list[tuple[int, float]]()

    def look(self, iteration: int, value: float) -> Alarm | None:
        """Return a drift alarm once the growth is certain.

        The alarm contains the usual and the current value, with an iteration for each.
        """
        # After a rollback or a restart a new curve begins.
        if self._levels and iteration <= self._levels[-1][0]:
            self._records = []
            self._levels = []

        self._records.append(value)
        if len(self._records) < self._block:
            return None
        self._levels.append((iteration, median(self._records)))
        self._records = []
        if len(self._levels) < self._num_levels:
            return None
        levels = self._levels
        self._levels = self._levels[self._num_levels // 2 :]
        if self._widens:
            self._block = 2 * self._block
            self._levels = levels[1::2]

        return self._judge(levels)

    def _judge(self, levels: Sequence[tuple[int, float]]) -> Alarm | None:
        half = self._num_levels // 2
        slopes = _slopes(levels)
        slope = median(slopes)
        older = median(_slopes(levels[:half]))
        newer = median(_slopes(levels[half:]))
        num_rising = sum(pair_slope > 0 for pair_slope in slopes)
        if num_rising < RISING_PAIRS * len(slopes) or newer < STEADY_SHARE * older:
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
        evidence = AlarmMessage.GREW.fill(
            metric=self._metric.replace("_", " "),
            first=show(first),
            last=show(first + rise),
            iterations=iteration - since,
            slope=show(slope),
            spread=show(spread),
        )
        return Alarm(
            "drift",
            self._metric,
            iteration,
            since,
            first + rise,
            first,
            evidence,
        )


class CompoundGrowthWatch:
    """Detects exponential growth.

    The logarithm then grows steadily.
    """

    def __init__(self, metric: str) -> None:
        self._metric = metric
        self._logarithm = GrowthWatch(metric, COMPOUND_BLOCK, levels=COMPOUND_LEVELS, widens=True)

    def look(self, iteration: int, value: float) -> Alarm | None:
        """Return a drift alarm once the growth is certain and at least `COMPOUND_FACTOR`."""
        if value <= 0:
            return None
        growth = self._logarithm.look(iteration, log(value))
        if growth is None or growth.value - growth.usual < log(COMPOUND_FACTOR):
            return None
        steps = growth.iteration - growth.since
        share = expm1((growth.value - growth.usual) / steps)
        first = exp(growth.usual)
        last = exp(growth.value)
        evidence = AlarmMessage.GREW_BY_SHARE.fill(
            metric=self._metric.replace("_", " "),
            first=first,
            last=last,
            iterations=steps,
            share=share,
        )
        return Alarm(
            "drift",
            self._metric,
            iteration,
            growth.since,
            last,
            first,
            evidence,
        )


def _slopes(levels: Sequence[tuple[int, float]]) -> list[float]:
    """Return the slopes between all pairs of levels.

    The median over them is the Theil-Sen estimate of the slope, which is robust to outliers.
    """
    return [(b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(levels, 2)]


class WaitWatch:
    """Watches the time spent waiting for data, window by window.

    A slow file system makes the wait many times as long as usual.
    """

    def __init__(self) -> None:
        self._window: list[tuple[float, float]] = []
        self._waits = deque[float](maxlen=WINDOW)
        self._num_slow = 0

    def look(
        self,
        iteration: int,
        seconds: float,
        waited: float,
    ) -> Iterator[Alarm]:
        """Return an alarm if the waiting time shows that the file system is slow."""
        self._window.append((seconds, waited))
        count = len(self._window)
        window_seconds = sum(step_seconds for step_seconds, _ in self._window)
        if count < ENOUGH or window_seconds < WAIT_SECONDS:
            return
        wait = sum(wait_seconds for _, wait_seconds in self._window) / count
        self._window = []
        if self._is_usual(wait, window_seconds / count):
            self._waits.append(wait)
            self._num_slow = 0
            return

        self._num_slow += 1
        if self._num_slow == CONFIRMING:
            share = wait * count / window_seconds
            finding = AlarmMessage.WAITS.fill(num_steps=count, share=share)
            yield _make(
                SLOW_FILE_SYSTEM,
                "data_wait_seconds",
                iteration,
                wait,
                self._waits,
                finding,
            )

    def _is_usual(self, wait: float, seconds_per_step: float) -> bool:
        """Return whether a wait is a small share of a step, or close to the usual wait."""
        if len(self._waits) < ENOUGH:
            return True
        return wait < max(WAIT_SHARE * seconds_per_step, SLOW_FACTOR * median(self._waits))


class NormWatch:
    """Detects gradient norms that are not finite although the loss looks normal."""

    def __init__(self) -> None:
        self._num_lost = 0
        self._num_unexplained = 0
        self._since = 0
        self._is_reported = False
        self._loss_scale = 0.0

    def look(self, step: Any) -> Alarm | None:
        """Return an alarm at the third step in a row with a gradient norm that is not finite.

        If all of these steps were skipped, the alarm is raised only after `LOST_NORMS` of them. An
        overflow in fp16 is normal: the step is skipped and the loss scale is halved.
        """
        norm = getattr(step, "grad_norm", None)
        states = getattr(step, "states", ())
        was_skipped = self._was_skipped(step)
        is_lost = "nan_grad_norm" in states or "infinite_grad_norm" in states
        if norm is None and not is_lost:
            return None
        if norm is not None and isfinite(norm):
            self._num_lost = 0
            self._num_unexplained = 0
            self._is_reported = False
            return None

        if self._num_lost == 0:
            self._since = step.iteration
        self._num_lost += 1
        if not was_skipped:
            self._num_unexplained += 1
        is_sure = self._num_unexplained >= CONFIRMING or self._num_lost >= LOST_NORMS
        if self._is_reported or not is_sure:
            return None
        self._is_reported = True
        evidence = AlarmMessage.NORMS_LOST.fill(num_steps=self._num_lost)
        return Alarm(
            "NaN",
            "grad_norm",
            step.iteration,
            self._since,
            nan,
            nan,
            evidence,
        )

    def _was_skipped(self, step: Any) -> bool:
        """Return whether the step was skipped; in some logs only the loss scale shows this."""
        loss_scale = getattr(step, "loss_scale", None) or 0.0
        was_halved = loss_scale < self._loss_scale
        self._loss_scale = loss_scale
        states = getattr(step, "states", ())
        return bool(getattr(step, "skipped", 0)) or "all_skipped" in states or was_halved


class EvaluationWatch:
    """Watches the losses on one set of evaluation texts as a separate curve."""

    def __init__(self, name: str) -> None:
        self._metric = f"{name}_loss"
        self._curve = LossWatch(self._metric)
        self._last = 0
        self._is_known = False
        self._is_finite = True

    def look(self, iteration: int | None, loss: float) -> Iterator[Alarm]:
        """Yield the alarms that this loss raises.

        A NaN before the first number means that the log has no loss yet.
        """
        at = self._last + 1 if iteration is None else iteration
        if at < self._last:  # a restart
            self._curve = LossWatch(self._metric)
        self._last = at
        was_finite = self._is_finite
        self._is_finite = isfinite(loss) or not self._is_known
        if was_finite and not self._is_finite:
            evidence = "the loss of an evaluation is not a finite number"
            yield Alarm(
                "NaN",
                self._metric,
                at,
                at,
                nan,
                nan,
                evidence,
            )

        if isfinite(loss):
            self._is_known = True
            yield from self._curve.look(at, loss)


class MetricWatch:
    """Watches the metrics of a training run. After a restart the curves begin again."""

    def __init__(self, settings: AlarmSettings = NO_SETTINGS) -> None:
        self._settings = settings
        self._first = inf
        self._is_finite = True
        self._is_above_zero = True
        self._saves = deque[float](maxlen=WINDOW)
        self._evaluations = dict[str, EvaluationWatch]()
        self._begin()

    def remember(self, steps: Iterable[RecentStep]) -> None:
        """Use losses and gradient norms from earlier jobs as the usual values.

        Alarms about these steps were already reported by the earlier jobs. Times are not used,
        since the nodes may have changed.
        """
        for step in steps:
            for _ in self.look(step):
                pass

    def _begin(self) -> None:
        self.loss = LossWatch()
        self._waits = WaitWatch()
        self._norms = NormWatch()
        self._drifts = {name: GrowthWatch(name, widens=True) for name in DRIFT_SHARES}
        self._compound = CompoundGrowthWatch("grad_norm")

    def look(self, step: Any) -> Iterator[Alarm]:
        """Yield the alarms this step raises. Any value in the step may be missing."""
        iteration = step.iteration
        loss = step.loss
        if iteration < self._first:
            self._first = iteration
            self._begin()

        yield from self._look_whether_finite(step)
        yield from self._look_whether_zero(step)
        norm = getattr(step, "grad_norm", None)
        if norm is None:
            norm = nan
        is_on_curve = self._settings.looks_at(iteration)
        if is_on_curve and loss is not None and isfinite(loss):
            yield from self.loss.look(iteration, loss, norm)
        if self._is_finite:
            lost_norm = self._norms.look(step)
            if lost_norm:
                yield lost_norm

        if is_on_curve:
            yield from self._look_at_norm(iteration, norm)
        yield from self._look_at_times(step)

    def _look_whether_finite(self, step: Any) -> Iterator[Alarm]:
        """Report a step with a loss that is not finite, unless the step before it had one too."""
        was_finite = self._is_finite
        states = getattr(step, "states", ())
        is_lost = "nan_loss" in states or "infinite_loss" in states
        self._is_finite = not getattr(step, "nan", 0) and not is_lost
        if was_finite and not self._is_finite:
            yield Alarm(
                "NaN",
                "loss",
                step.iteration,
                step.iteration,
                nan,
                nan,
                "the loss is not a finite number",
            )

    def _look_whether_zero(self, step: Any) -> Iterator[Alarm]:
        """Report a step with a loss of exactly 0, unless the step before it had one too."""
        was_above_zero = self._is_above_zero
        self._is_above_zero = step.loss != 0.0
        if was_above_zero and not self._is_above_zero:
            evidence = "the loss is exactly 0: one sample is repeated, or every token is masked"
            yield Alarm(
                "zero loss",
                "loss",
                step.iteration,
                step.iteration,
                0.0,
                nan,
                evidence,
            )

    def _look_at_norm(self, iteration: int, norm: float) -> Iterator[Alarm]:
        """Report linear or exponential drift in the gradient norm."""
        if not isfinite(norm):
            return
        drift = self._find_drift("grad_norm", iteration, norm)
        if drift:
            yield drift
        growth = self._compound.look(iteration, norm)
        if growth:
            yield growth

    def _find_drift(
        self,
        name: str,
        iteration: int,
        value: float,
    ) -> Alarm | None:
        """Return an alarm if a metric has grown steadily, and by more than is normal for it."""
        drift = self._drifts[name].look(iteration, value)
        if drift and drift.value > (1 + DRIFT_SHARES[name]) * drift.usual:
            return drift
        return None

    def _look_at_times(self, step: Any) -> Iterator[Alarm]:
        """Report drift in the step time, and long waits for data.

        While the batch ramps up, the time per sequence replaces the step time.
        """
        seconds = getattr(step, "seconds", None) or nan
        if not isfinite(seconds):
            return
        iteration = step.iteration
        per_sequence = seconds / (getattr(step, "global_batch", 0) or 1)
        drift = self._find_drift("seconds_per_sequence", iteration, per_sequence)
        if drift:
            yield drift
        yield from self._waits.look(iteration, seconds, getattr(step, "data_wait_seconds", 0.0))

    def look_at_evaluation(
        self,
        iteration: int | None,
        loss: float,
        name: str = "validation",
    ) -> Iterator[Alarm]:
        """Yield the alarms about one evaluation set.

        `iteration` is None if the log has no iteration numbers.
        """
        if isfinite(loss) and not self._settings.looks_at(iteration):
            return
        if name not in self._evaluations:
            self._evaluations[name] = EvaluationWatch(name)
        yield from self._evaluations[name].look(iteration, loss)

    def look_at_save(self, iteration: int, seconds: float) -> Iterator[Alarm]:
        """Yield an alarm if a save took many times as long as the earlier ones."""
        if (
            len(self._saves) >= CONFIRMING
            and seconds > SLOW_FACTOR * median(self._saves) + WAIT_SECONDS
        ):
            yield _make(
                SLOW_FILE_SYSTEM,
                "save_seconds",
                iteration,
                seconds,
                self._saves,
                AlarmMessage.LONG_SAVE.fill(),
            )
        else:
            self._saves.append(seconds)
