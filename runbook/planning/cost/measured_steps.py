"""Corrects planned step times with steps that were measured on the same system.

The logarithm of measured to planned step time is modeled as a sum of errors: one for each part of a
step, weighted by the share of the part; one for each doubling of the node count; one common to all
steps on a system; one common to steps with nearly the same layout; and one that only the step
itself has. All are normal, with the spreads below. A measurement then says much about steps that
spend their time in the same way, and little about others. On systems unlike those in the fit,
errors are several times as large (`Spreads.unlike`), and the measurements also tell how likely that
is.

`python -m benchmarks.predict_after_measurement --fit` fits the spreads again.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

from runbook.planning.cost.iteration import StepSetup, iteration

PARTS = {
    "products": ("matrices", "recompute"),
    "attention": ("attention",),
    "memory": ("elementwise", "output", "optimizer"),
    "launching": ("launching",),
    "tensor": ("tensor",),
    "pipeline": ("pipeline", "bubble"),
    "data": ("data",),
    "waiting": ("waiting",),
}
"""Groups of fields in `StepTime` that have one error in common."""
CAUSES = (*PARTS, "nodes")
"""Everything that has an error of its own: the parts, and each doubling of the node count."""
PLACES = 9
"""Number of coordinates in `StepProfile.place`."""
_RECOMPUTED = {"none": 0.0, "operators": 1.0, "selective": 1.0, "full": 2.0}
"""Position of each kind of recomputation, on a scale where a step of 1 counts like one doubling."""
COVERAGE = 0.8
"""Share of steps that an interval should contain."""
MOST = 24
"""Maximum number of measurements to use: those most like the step."""


@dataclass(frozen=True)
class Spreads:
    """Standard deviations of the logarithmic errors, fitted to published results."""

    products: float = 0.063
    attention: float = 0.121
    memory: float = 0.0955
    launching: float = 0.106
    tensor: float = 0.1416
    pipeline: float = 0.1063
    data: float = 0.1844
    waiting: float = 0.099
    nodes: float = 0.016
    """The error for each doubling of the node count, due to slow nodes and busy networks.

    This spread is chosen, not fitted, so that intervals also hold for rows on many nodes after a
    measurement on one node. The likelihood alone finds 0.010, whose intervals hold fewer of them.
    """
    common: float = 0.042
    """The error common to all steps on a system."""
    near: float = 0.0469
    """The error common to steps with nearly the same layout."""
    distance: float = 4.49
    """Number of doublings (in size, batch or degree of parallelism) after which this correlation is
    1/e."""
    noise: float = 0.0191
    """The error that no other step has."""
    unlike: float = 3.45
    """Factor for all of these on systems unlike those in the fit."""
    unlike_share: float = 0.476
    """The share of such systems."""


DEFAULT = Spreads()


@dataclass(frozen=True)
class StepProfile:
    """How a planned step spends its time, and where it lies among all layouts."""

    shares: tuple[float, ...]
    """Shares of the step time, and doublings of the node count, in the same order as `CAUSES`."""
    place: tuple[float, ...]
    """Sizes, batches and degrees of parallelism, in doublings."""

    def distance(self, other: "StepProfile") -> float:
        """Return by how many doublings the two steps' layouts differ."""
        return sum(abs(mine - its) for mine, its in zip(self.place, other.place, strict=True))


def profile(setup: StepSetup) -> StepProfile:
    """Return the profile of a step."""
    step = iteration(setup)
    shares = [sum(getattr(step, field) for field in fields) for fields in PARTS.values()]
    layout = setup.layout
    shape = setup.shape
    numbers = (
        math.sqrt(shape.layers) * shape.hidden,
        shape.sequence_length,
        setup.micro_batch,
        layout.tensor,
        layout.pipeline,
        layout.context,
        layout.data,
    )
    place = (*map(math.log2, numbers), _RECOMPUTED[setup.recompute], float(layout.zero_stage))
    nodes = layout.world_size / setup.device.devices_per_node
    causes = [share / step.seconds for share in shares]
    return StepProfile((*causes, math.log2(max(1.0, nodes))), place)


@dataclass(frozen=True)
class MeasuredStep:
    """A step that was measured, and planned without any measurement."""

    profile: StepProfile
    slower: float
    """The logarithm of measured to planned step time."""


@dataclass(frozen=True)
class Correction:
    """Factors from a planned step time to the time that measurements suggest."""

    factor: float
    low: float
    high: float
    """`COVERAGE` of all steps take between `low` and `high` times the planned time."""
    measurements: int
    """Number of measurements used."""


def correction(
    step: StepProfile, measured: Sequence[MeasuredStep], spreads: Spreads = DEFAULT
) -> Correction:
    """Return how to correct a planned step time using steps measured on the same system."""
    return _Errors(spreads).correction(step, measured)


@dataclass(frozen=True)
class _Errors:
    """Errors in planned step times, as a normal distribution over the steps on a system."""

    spreads: Spreads

    @cached_property
    def _variances(self) -> tuple[float, ...]:
        return tuple(getattr(self.spreads, part) ** 2 for part in CAUSES)

    def covariance(self, first: StepProfile, second: StepProfile) -> float:
        """Return the covariance between the errors in two different steps."""
        by_part = sum(
            variance * mine * its
            for variance, mine, its in zip(
                self._variances, first.shares, second.shares, strict=True
            )
        )
        nearness = math.exp(-first.distance(second) / self.spreads.distance)
        return by_part + self.spreads.common**2 + self.spreads.near**2 * nearness

    def correction(self, step: StepProfile, measured: Sequence[MeasuredStep]) -> Correction:
        """Return the correction for a step, given the errors in measured ones."""
        used = sorted(measured, key=lambda one: -self.covariance(step, one.profile))[:MOST]
        noise = self.spreads.noise**2
        matrix = [[self.covariance(one.profile, other.profile) for other in used] for one in used]
        for index in range(len(used)):
            matrix[index][index] += noise

        errors = [one.slower for one in used]
        to_step = [self.covariance(step, one.profile) for one in used]
        weights = solved(matrix, errors)
        mean = _product(to_step, weights)
        variance = self.covariance(step, step) + noise
        variance -= _product(to_step, solved(matrix, to_step))
        deviation = math.sqrt(variance)
        unlike = self._unlike_probability(_product(errors, weights), len(used))
        usual = NormalDist(mean, deviation)
        larger = NormalDist(mean, deviation * self.spreads.unlike)

        def below(logarithm: float) -> float:
            return (1 - unlike) * usual.cdf(logarithm) + unlike * larger.cdf(logarithm)

        width = 10 * larger.stdev
        low = _where(below, (1 - COVERAGE) / 2, mean - width, mean + width)
        high = _where(below, (1 + COVERAGE) / 2, mean - width, mean + width)
        return Correction(math.exp(mean), math.exp(low), math.exp(high), len(used))

    def _unlike_probability(self, squares: float, count: int) -> float:
        """Return the probability that the system is unlike those in the fit.

        `squares` is the sum of the squared measured errors, each relative to its deviation on a
        usual system.
        """
        factor = self.spreads.unlike
        # How much likelier these errors are in an unlike system than in a usual one.
        ratio = math.exp(min(700.0, squares / 2 * (1 - factor**-2))) * factor**-count
        odds = ratio * self.spreads.unlike_share / (1 - self.spreads.unlike_share)
        return odds / (1 + odds)


def solved(matrix: Sequence[Sequence[float]], right: Sequence[float]) -> list[float]:
    """Solve a system of linear equations whose matrix is symmetric and positive definite.

    >>> solved([[2.0, 0.0], [0.0, 4.0]], [1.0, 1.0])
    [0.5, 0.25]
    """
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for index, pivot in enumerate(rows):
        for row in rows[index + 1 :]:
            share = row[index] / pivot[index]
            for column in range(index, len(row)):
                row[column] -= share * pivot[column]

    found = [0.0] * len(rows)
    for index in reversed(range(len(rows))):
        row = rows[index]
        known = sum(row[column] * found[column] for column in range(index + 1, len(rows)))
        found[index] = (row[-1] - known) / row[index]

    return found


def _product(first: Sequence[float], second: Sequence[float]) -> float:
    return sum(mine * its for mine, its in zip(first, second, strict=True))


def _where(
    rising: Callable[[float], float],
    value: float,
    low: float,
    high: float,
) -> float:
    """Return where a rising function has this value, between `low` and `high`."""
    for _ in range(60):
        middle = (low + high) / 2
        if rising(middle) < value:
            low = middle
        else:
            high = middle

    return (low + high) / 2
