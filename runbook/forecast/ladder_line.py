"""Fits a straight line to the rungs of a ladder: log loss against log tokens.

Rungs with the same number of tokens per parameter lie on one line as compute grows. In 16 ladders
on the included corpus, each trained together with its run on a GPU
(benchmarks/forecast/ladders_corpus.csv), the slope from the last rung to the run was within a tenth
of the preceding slope. The slopes between smaller rungs were steeper, because losses there are
still in the initial transient. So the last rungs have the largest weight, and the loss floor is set
instead of fitted.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from runbook.forecast.laws import Array, Runs

FLOORS = (1.0, 1.7, 2.2)
"""Candidates for the loss floor, in nats: no model can go below it.

This floor is 1.69 for web text (Hoffmann et al., arXiv:2203.15556), and 1.0 to 2.2 covers other
texts. Five rungs do not determine the floor, so each of these values has a vote.
"""
WEIGHT_POWERS = (3.0, 4.0, 5.0)
"""A rung is weighted by its compute to the power of one of these.

With 4, a rung with half the compute has a sixteenth of the weight.
"""
FEWEST_ON_LINE = 3
"""Minimum number of rungs. Two define a line, and a third shows whether the line bends."""
SAME_RATIO = 1.3
"""Training runs are on one line if their tokens per parameter differ by less than this factor."""
UNEVEN = 0.04
"""How far the loss at a rung may be from the line between its neighbours, as a share.

In 14 of 15 ladders with stable training, no rung was farther than 3.5 % from the line; in the
ladder with too high a learning rate, a rung was 8.9 % away.
"""


@dataclass(frozen=True)
class LineVotes:
    """The loss predicted for each target, for every choice of floor and weight."""

    losses: Array
    """Losses in nats, with a row for each vote and a column for each target."""

    @property
    def median(self) -> Array:
        """Return the median vote for each target."""
        middle: Array = np.median(self.losses, axis=0)
        return middle


def line_of(runs: Runs) -> Runs:
    """Return the runs with the same tokens per parameter as the largest one, sorted by compute."""
    on_line = runs.take(is_on_line(runs, runs))
    return on_line.take(np.argsort(on_line.flops))


def is_on_line(targets: Runs, runs: Runs) -> NDArray[np.bool_]:
    """Return which targets have as many tokens per parameter as the largest of these runs."""
    ratios = runs.tokens / runs.params
    ratio_of_largest = ratios[np.argmax(runs.flops)]
    distances = np.abs(np.log(targets.tokens / targets.params / ratio_of_largest))
    mask: NDArray[np.bool_] = distances < np.log(SAME_RATIO)
    return mask


def tokens_on_line(targets: Runs, line: Runs) -> Array:
    """Return, for each target, how many tokens a run on the line with the same compute uses."""
    tokens: Array = line.tokens[-1] * np.sqrt(targets.flops / line.flops[-1])
    return tokens


def extend_line(line: Runs, tokens: Array) -> LineVotes:
    """Return the votes for runs on the line with these numbers of tokens."""
    votes = []
    for floor in FLOORS:
        for power in WEIGHT_POWERS:
            votes.append(_extended(line, tokens, floor, power))

    return LineVotes(np.array(votes))


def _extended(
    line: Runs,
    tokens: Array,
    floor: float,
    power: float,
) -> Array:
    """Return floor + A / tokens^a, fitted to the logarithm of the loss above the floor."""
    # Losses in one family may be below the floor for other families. In that case the line has no
    # floor.
    if line.loss.min() <= floor:
        floor = 0.0
    above_floor = np.log(line.loss - floor)
    # numpy multiplies the residuals, not their squares, by the weights.
    weights = (line.flops / line.flops[-1]) ** (power / 2)
    slope, height = np.polyfit(np.log(line.tokens), above_floor, 1, w=weights)
    losses: Array = floor + np.exp(height + slope * np.log(tokens))
    return losses


def line_errors(line: Runs) -> tuple[Array, Array]:
    """Return the errors at the next rung of lines through smaller rungs, and the decades to it."""
    errors = []
    decades = []
    for count in range(FEWEST_ON_LINE, len(line)):
        below = line.take(np.arange(count))
        following = line.take(np.arange(count, count + 1))
        forecast = extend_line(below, following.tokens).median
        errors.append(float(np.log(forecast[0] / following.loss[0])))
        decades.append(float(np.log10(following.flops[0] / below.flops[-1])))

    return np.array(errors), np.array(decades)


def uneven_rungs(line: Runs) -> list[int]:
    """Return the positions of rungs with a loss far from the line between their neighbours."""
    tokens = np.log(line.tokens)
    losses = np.log(line.loss)
    positions = []
    for position in range(1, len(line) - 1):
        around = [position - 1, position + 1]
        between = np.interp(tokens[position], tokens[around], losses[around])
        if abs(losses[position] - between) > UNEVEN:
            positions.append(position)

    return positions
