"""Time that steps lose through warm-up, saves, slow steps, restarts, data and stragglers."""

import re
import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from runbook.log_readers.record import ParsedLog
from runbook.tools.speed.facts import Facts
from runbook.tools.speed.parts import GapPart

_REMEDIES = {
    "restarts": "find out why the jobs ended (runbook logs LOG), and save more often",
    "warm-up": "leave the first steps out of the measurement",
    "saves": "save less often, or in the background",
    "growing steps": (
        "look for something that fills up: memory, the page cache, a log, a loader that reads "
        "further each time; or clock rates that drop as devices heat up"
    ),
    "slow steps": "look for what these steps had in common: a slow rank, other users, a cold cache",
    "stragglers": "look at the node of the slowest rank",
    "communication": "overlap the reduction of gradients with the backward pass; measure an all-reduce",
    "data wait": "move the tokens to a faster disk; use as many workers as each rank has cores",
}
"""Remedies for the time that steps lose, by cause."""
_SLOW = 1.3
"""A step counts as slow if it takes more than this many times the median."""
_GROWN = 1.1
"""Step times count as growing if the last third is this many times as slow as the first.

Step times in the middle third must lie between those in the first and the last.
"""
_LEAST_TO_GROW = 12
"""Minimum number of steps needed to judge growth."""
_LEAST_SHARE = 0.002
"""Causes that take less than this share of all steps are left out."""
_LEAST_ASCENDING = 4
"""Number of steps that show growth in an excerpt, if each takes longer than the last."""
_STRONG_GROWTH = 1.5
"""With this growth, three steps are enough if each takes longer than the last."""
_LONG_WAIT = 0.1
"""A printed wait of at least this many seconds is named even if no step time is known."""
_LEAST_PRINTED = 5
"""Minimum number of lines with a step time in a text that is not the log of a known program.
"""
_PRINTED_TIME = re.compile(
    r"(?im)^(?:"
    r".*?(?<!forward[ _-])(?<!backward[ _-])(?<!optimizer[ _-])(?<!data[ _-])"
    r"\b(step|iteration|iter|batch)[ _-]?(?:duration|time|took)"
    r"|[ \t]*time"
    r"|[^a-z\n]*(?:step|iteration|iter|batch)[ :=#\[]*\d.*?(?<![a-z][ _-])\btime"
    r"|.*?(?<![a-z][ _-])\btime(?=[ :=]+[\d.]+ \([\d.]+\))"
    r")(?:\(s\))?[ :=]+(\d+\.\d+)( ?ms)?\b"
)
"""Step time in a line from a training loop: "Iteration duration: 0.0079", "Time 0.470 (1.206)".

The second form comes from PyTorch's ImageNet example, which many loops copied. The bare word "time"
counts as a step time only at the start of a line or in a line about a step, because any timer may
be called so.
"""
_DATA_TIME = re.compile(
    r"(?i)\bdata[-_ ]?(?:load(?:ing|er)?)?[-_ ]?time\b(?: (?:per|of a|a) (?:batch|step|iteration))?"
    r"(?: is| was)?[ :=]*(\d+\.\d+)(?: ?(ms)\b)?"
)
"""Time that a step waits for data: "data_time: 0.21", "data load time 12.5 ms"."""
_TIMERS = ("step", "iteration", "iter", "batch", "")
"""Names of step timers, most certain first. "" means a timer that is only called "time".
"""
_LONGEST_STEP = 1e5
"""A larger printed number is a date, not a number of seconds."""
_WARM_UP_STEPS = 10
"""Largest number of warm-up steps, in a log that is at least ten times as long."""


def measured_parts(text: str, log: ParsedLog, facts: Facts) -> tuple[float, list[GapPart]]:
    """Return the seconds that a steady step takes, and the additional time that the log shows.

    The parts are in seconds per step, where repeated steps count once. Without timed steps, the
    seconds are 0 and there are no parts.
    """
    steps = _timed_steps(text, log)
    if not steps:
        return 0.0, _printed_waits(text)
    warm_up = min(_WARM_UP_STEPS, len(steps) // 10)
    after_warm_up = [step.seconds for step in steps[warm_up:]]
    median = statistics.median(after_warm_up)
    step_count = len({step.iteration for step in steps})
    lost = dict.fromkeys(_REMEDIES, 0.0)
    lost["restarts"] = (len(steps) - step_count) * median
    before_growth = _seconds_before_growth(after_warm_up)
    if before_growth:
        lost["growing steps"] = _grown_seconds(after_warm_up, before_growth, _SLOW * median)
    save_interval = float(facts.get("save_interval") or 0)
    for index, step in enumerate(steps):
        if step.seconds > _SLOW * median:
            cause = _slow_step_cause(index < warm_up, step.iteration, save_interval)
            lost[cause] += step.seconds - median

    steady = before_growth or median
    # The median includes the time that every step waits, so this time is subtracted from it.
    for cause, seconds in _waits(text, facts).items():
        waited = min(seconds, steady / 2)
        lost[cause] = waited * step_count
        steady -= waited

    return steady, _parts_of(lost, steady, step_count)


class _Step(NamedTuple):
    """A timed step in a log."""

    iteration: int
    seconds: float


def _timed_steps(text: str, log: ParsedLog) -> list[_Step]:
    """Return the timed steps in a log.

    If there are none, return the steps in lines of an unknown training loop.
    """
    steps = []
    for record in log.records:
        if record.seconds:
            steps.append(_Step(record.iteration, record.seconds))

    if log.records:
        return steps
    seconds_of_timers: dict[str, list[float]] = {timer: [] for timer in _TIMERS}
    for timer, figure, milliseconds in _PRINTED_TIME.findall(text):
        seconds = float(figure) / 1000 if milliseconds else float(figure)
        if seconds <= _LONGEST_STEP:
            seconds_of_timers[timer.lower()].append(seconds)

    for timed in seconds_of_timers.values():
        if len(timed) >= _LEAST_PRINTED:
            return [_Step(number, seconds) for number, seconds in enumerate(timed)]

    return []


def _grown_seconds(seconds: Sequence[float], before_growth: float, slow: float) -> float:
    """Return the additional time of growing steps compared with the first steps.

    Steps slower than `slow` are ignored, because they have different causes.
    """
    grown = [second - before_growth for second in seconds if second < slow]
    return max(0.0, sum(grown))


def _waits(text: str, facts: Facts) -> dict[str, float]:
    """Return the seconds that each step waits, by cause, as printed by timers."""
    samples = {
        "data wait": _data_waits(text),
        "communication": _reductions(text),
        "stragglers": _straggler_lags(text, facts),
    }
    return {cause: statistics.median(seconds or [0.0]) for cause, seconds in samples.items()}


def _parts_of(lost: Mapping[str, float], steady: float, step_count: int) -> list[GapPart]:
    """Return a part for each cause that costs enough time."""
    least_seconds = _LEAST_SHARE * steady * step_count
    parts = []
    for cause, seconds in lost.items():
        if seconds > least_seconds:
            evidence = f"{seconds:.3g} s in {step_count} steps"
            parts.append(GapPart(cause, seconds / step_count, evidence, _REMEDIES[cause]))

    return parts


def _printed_waits(text: str) -> list[GapPart]:
    """Return the waiting times that timers show in a text without timed steps."""
    waits = {"data wait": _data_waits(text), "communication": _reductions(text)}
    parts = []
    for cause, samples in waits.items():
        seconds = statistics.median(samples or [0.0])
        if seconds:
            evidence = f"{seconds:.3g} s per step, according to its timers"
            is_long = seconds >= _LONG_WAIT
            parts.append(GapPart(cause, seconds, evidence, _REMEDIES[cause], is_printed=is_long))

    return parts


def _seconds_before_growth(seconds: list[float]) -> float:
    """Return the step time before steps began to grow, or 0 if they do not grow.

    >>> _seconds_before_growth([1.0] * 6 + [1.2] * 6 + [1.4] * 6), _seconds_before_growth([1.0] * 30)
    (1.0, 0.0)
    >>> _seconds_before_growth([0.5, 0.6, 0.8, 0.9]), _seconds_before_growth([0.5, 0.6, 0.5, 0.9])
    (0.5, 0.0)
    """
    if len(seconds) < _LEAST_TO_GROW:
        is_ascending = all(later > earlier for earlier, later in pairwise(seconds))
        growth = seconds[-1] / seconds[0]
        is_shown = len(seconds) >= _LEAST_ASCENDING and growth > _GROWN
        is_strong = len(seconds) == _LEAST_ASCENDING - 1 and growth > _STRONG_GROWTH
        return seconds[0] if is_ascending and (is_shown or is_strong) else 0.0
    third = len(seconds) // 3
    first = statistics.median(seconds[:third])
    middle = statistics.median(seconds[third:-third])
    last = statistics.median(seconds[-third:])
    has_grown = first < middle < last and last > _GROWN * first
    return first if has_grown else 0.0


def _slow_step_cause(is_warm_up: bool, iteration: int, save_interval: float) -> str:
    """Return what made a step slow.

    A save may lengthen its own step or the next one.
    """
    if is_warm_up:
        return "warm-up"
    if save_interval and iteration % save_interval <= 1:
        return "saves"
    return "slow steps"


def _data_waits(text: str) -> list[float]:
    """Return the seconds that steps waited for data.

    Megatron-LM, GPT-NeoX, PyTorch's ImageNet example and our trainer print these times.
    """
    milliseconds = re.findall(
        r"batch[-_ ](?:generator|input)[ .]*:\s*\(?(?:[\d.]+, )?([\d.]+)", text
    )
    if milliseconds:
        return [float(figure) / 1000 for figure in milliseconds]
    seconds = re.findall(r'"data_wait_seconds": *([\d.e+-]+)', text)
    seconds += re.findall(r"(?i)\btime\s+[\d.]+ \([\d.]+\)\s+data\s+([\d.]+) \(", text)
    waits = [float(figure) for figure in seconds]
    for figure, unit in re.findall(_DATA_TIME, text):
        waits.append(float(figure) / (1000 if unit else 1))
    return waits


def _reductions(text: str) -> list[float]:
    """Return from Megatron-LM timers the seconds that steps waited for gradients to be reduced."""
    name = r"(?:backward-params-all-reduce|grads?-all-reduce|all-grads-sync|grads-reduce-scatter)"
    milliseconds = re.findall(rf"{name}[ .]*:\s*\(?(?:[\d.]+, )?([\d.]+)", text)
    return [float(figure) / 1000 for figure in milliseconds]


def _straggler_lags(text: str, facts: Facts) -> list[float]:
    """Return the seconds between the fastest and the slowest rank's forward pass in each step.

    With pipeline stages, ranks have different work, so nothing is returned.
    """
    if facts.get("pp", "1") != "1":
        return []
    milliseconds = re.findall(r"forward-compute[ .]*: \(([\d.]+), ([\d.]+)\)", text)
    return [(float(slowest) - float(fastest)) / 1000 for fastest, slowest in milliseconds]
