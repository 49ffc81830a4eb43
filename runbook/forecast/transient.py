"""Which trainings of a ladder are too short to follow a law of size and tokens.

A training first learns which tokens there are, then which follow which; only then does its loss
fall as a power law. On a power law the loss falls less from each training to the next larger one,
at equal factors of compute. Where it falls faster first, the trainings before the steepest fall are
still in the transient, and would bend the law.
"""

import numpy as np
from numpy.typing import NDArray

from runbook.forecast.laws import Array, Runs

STEEPER = 1.25
"""A fall so many times the first one is no scatter: two seeds of a small training differ by about
0.5 % of the loss, and the falls between trainings of twice the compute are ten times that.
"""
FEWEST_ON_LAW = 4
"""Trainings that a floor, a term and an exponent need, with one to spare."""
SAME_RATIO = 1.3
"""Trainings whose tokens per parameter differ by less lie on one line, on which falls compare."""


def on_the_law(runs: Runs) -> NDArray[np.bool_]:
    """Return which trainings to fit: those from where the steepest fall begins."""
    ratios = runs.tokens / runs.params
    ratio_of_largest = ratios[np.argmax(runs.flops)]
    is_on_line = np.abs(np.log(ratios / ratio_of_largest)) < np.log(SAME_RATIO)
    line = runs.take(is_on_line)
    line = line.take(np.argsort(line.flops))
    first = _begin_of_steepest_fall(line)
    mask: NDArray[np.bool_] = runs.flops >= line.flops[first] * 0.999
    return mask


def _begin_of_steepest_fall(line: Runs) -> int:
    """Return where the loss begins to fall fastest with the logarithm of compute."""
    last_possible = len(line) - FEWEST_ON_LAW
    if last_possible < 1:
        return 0
    falls: Array = -np.diff(line.loss) / np.diff(np.log(line.flops))
    steepest = int(np.argmax(falls))
    if falls[steepest] < STEEPER * falls[0]:
        return 0
    return min(steepest, last_possible)
