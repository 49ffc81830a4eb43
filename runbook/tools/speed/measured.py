"""Time that the steps of a log lose: warm-up, saves, slow steps, restarts, data, stragglers."""

import re
import statistics

from runbook.log_readers.record import ParsedLog
from runbook.tools.speed.facts import Facts
from runbook.tools.speed.parts import GapPart

_REMEDIES = {
    "restarts": "find what ended the jobs (runbook logs LOG), and save more often",
    "warm-up": "leave the first steps out of the figure",
    "saves": "save less often, or in the background",
    "growing steps": "look for what fills up: memory, the page cache, a log, a loader that reads further each time; "
    "clocks that fall as devices grow hot",
    "slow steps": "look at what these steps met: a slow rank, other users, a cold cache",
    "stragglers": "look at the node of the slowest rank",
    "communication": "let gradients be reduced behind the backward pass; measure an all-reduce",
    "data wait": "put the tokens on a faster disk; use more workers",
}
"""What to do about the time that steps lose, by its cause."""
_SLOW = 1.3
"""A slow step takes longer than this many times the median."""
_GROWN = 1.1
"""Steps grow where the last third takes this many times the first third, and the middle lies between."""
_LEAST_TO_GROW = 12
"""Steps without which nothing is said about growth."""
_LEAST_SHARE = 0.002
"""Causes that lose a smaller share of all steps are left out."""
_WARM_UP_STEPS = 10
"""Steps that count as warm-up at most, in a log that is ten times as long."""


def measured_parts(text: str, log: ParsedLog, facts: Facts) -> tuple[float, list[GapPart]]:
    """Return the seconds of a steady step, and what the log shows on top of it.

    The parts are seconds of each step that counts. Without timed steps the result is 0 and no part.
    """
    steps = [(record.iteration, record.seconds) for record in log.records if record.seconds]
    if not steps:
        return 0.0, _printed_waits(text)
    warm_up = min(_WARM_UP_STEPS, len(steps) // 10)
    steady = statistics.median(seconds for _, seconds in steps[warm_up:])
    step_count = len({iteration for iteration, _ in steps})
    lost = dict.fromkeys(_REMEDIES, 0.0)
    lost["restarts"] = (len(steps) - step_count) * steady
    save_interval = float(facts.get("save_interval") or 0)
    begun = _seconds_before_growth([seconds for _, seconds in steps[warm_up:]])
    if begun:
        later = [seconds - begun for _, seconds in steps[warm_up:] if seconds < _SLOW * steady]
        lost["growing steps"] = max(0.0, sum(later))
    for index, (iteration, seconds) in enumerate(steps):
        if seconds > _SLOW * steady:
            cause = _slow_step_cause(index < warm_up, iteration, save_interval)
            lost[cause] += seconds - steady
    steady = begun or steady
    # What every step waits for is part of the median, so it is taken out of the steady time.
    waits = {
        "data wait": _data_waits(text),
        "communication": _reductions(text),
        "stragglers": _straggler_lags(text, facts),
    }
    for cause, samples in waits.items():
        seconds = min(statistics.median(samples or [0.0]), steady / 2)
        lost[cause] = seconds * step_count
        steady -= seconds
    least_seconds = _LEAST_SHARE * steady * step_count
    parts = []
    for cause, seconds in lost.items():
        if seconds > least_seconds:
            evidence = f"{seconds:.3g} s in {step_count} steps"
            parts.append(GapPart(cause, seconds / step_count, evidence, _REMEDIES[cause]))
    return steady, parts


def _printed_waits(text: str) -> list[GapPart]:
    """Return what timers show of waits in a text without timed steps."""
    waits = {"data wait": _data_waits(text), "communication": _reductions(text)}
    parts = []
    for cause, samples in waits.items():
        seconds = statistics.median(samples or [0.0])
        if seconds:
            evidence = f"{seconds:.3g} s of a step, by its timers"
            parts.append(GapPart(cause, seconds, evidence, _REMEDIES[cause]))
    return parts


def _seconds_before_growth(seconds: list[float]) -> float:
    """Return the time of a step before steps began to take longer and longer; 0 if they do not.

    >>> _seconds_before_growth([1.0] * 6 + [1.2] * 6 + [1.4] * 6), _seconds_before_growth([1.0] * 30)
    (1.0, 0.0)
    """
    if len(seconds) < _LEAST_TO_GROW:
        return 0.0
    third = len(seconds) // 3
    first = statistics.median(seconds[:third])
    middle = statistics.median(seconds[third:-third])
    last = statistics.median(seconds[-third:])
    has_grown = first < middle < last and last > _GROWN * first
    return first if has_grown else 0.0


def _slow_step_cause(is_warm_up: bool, iteration: int, save_interval: float) -> str:
    """Return the cause of a slow step. A save may show in its own step or in the next one."""
    if is_warm_up:
        return "warm-up"
    if save_interval and iteration % save_interval <= 1:
        return "saves"
    return "slow steps"


def _data_waits(text: str) -> list[float]:
    """Return the seconds that steps waited for data, as Megatron-LM or our trainer print them."""
    milliseconds = re.findall(r"batch[- ]generator[ .]*:\s*\(?(?:[\d.]+, )?([\d.]+)", text)
    if milliseconds:
        return [float(figure) / 1000 for figure in milliseconds]
    seconds = re.findall(r'"data_wait_seconds": *([\d.e+-]+)', text)
    return [float(figure) for figure in seconds]


def _reductions(text: str) -> list[float]:
    """Return the seconds that steps waited for the reduction of gradients, as Megatron-LM prints them."""
    name = r"(?:backward-params-all-reduce|grads?-all-reduce|all-grads-sync|grads-reduce-scatter)"
    milliseconds = re.findall(rf"{name}[ .]*:\s*\(?(?:[\d.]+, )?([\d.]+)", text)
    return [float(figure) / 1000 for figure in milliseconds]


def _straggler_lags(text: str, facts: Facts) -> list[float]:
    """Return the seconds between the fastest and the slowest rank's forward pass of each step.

    With pipeline stages the ranks have different work, so nothing is returned.
    """
    if facts.get("pp", "1") != "1":
        return []
    milliseconds = re.findall(r"forward-compute[ .]*: \(([\d.]+), ([\d.]+)\)", text)
    return [(float(slowest) - float(fastest)) / 1000 for fastest, slowest in milliseconds]
