"""Errors in predicted speeds once a few speeds on the same system have been measured.

    python -m benchmarks.predict_after_measurement [--fit]

Each row is predicted from a few random other rows with the same source, accelerator, number format
and program, which stand in for measurements by a user. All rows are predicted by coefficients that
were fitted without their source, or are the first prediction of a blind test, as for a user whose
system is in no table. The plain ratio multiplies all steps by the median ratio of measured to
predicted step time.

With --fit, the spreads in `runbook.planning.cost.measured_steps` are fitted again, by the
likelihood of the error in each row given the error in one other row. They are also fitted with each
sixth of the sources left out in turn, and the errors for these sources are printed, too.
"""

import argparse
import math
import random
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields

import numpy

from benchmarks import predict_cross_validation as table
from runbook.params.project import project_root
from runbook.planning.cost import flops
from runbook.planning.cost.calibration import LIKE
from runbook.planning.cost.measured_steps import (
    CAUSES,
    DEFAULT,
    MeasuredStep,
    Spreads,
    correction,
    profile,
)
from runbook.tools.speed.intervals import NODE_COUNTS, half_width

LEAST_ROWS = 7
"""Smaller systems are left out, so that the same rows are judged with each number of measurements.
"""
COUNTS = (0, 1, 3, 5)
"""How many measurements to predict from."""
DRAWS = 4
"""How often to choose random measurements for each row."""
SIXTHS = 6
CHOSEN = ("nodes",)
"""The spreads that are not fitted."""
GROSS = 0.02
"""Share of errors that follow no distribution, because a row or its reading is wrong."""


@dataclass(frozen=True)
class KnownStep:
    """A row with the error of its prediction."""

    row: table.Known
    is_blind: bool
    step: MeasuredStep
    operations: float
    half_width: float

    @property
    def devices(self) -> int:
        """Number of devices in this row."""
        assert self.row.setup is not None
        return self.row.setup.layout.world_size

    @property
    def system(self) -> tuple[str, ...]:
        """What the row has in common with measurements on the same system."""
        assert self.row.setup is not None
        device = self.row.setup.device.name
        return self.row.source, device, self.row.setup.precision, self.row.software


@dataclass(frozen=True)
class Judged:
    """The prediction for a row after measurements."""

    known: KnownStep
    plain: float
    """Error of the speed with the plain ratio."""
    corrected: float
    """Error of the corrected speed."""
    is_inside: bool
    """Whether the measured speed lies in the interval."""
    half_width: float


def main() -> None:
    """Print the errors."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fit", action="store_true")
    given = parser.parse_args()
    steps = known_steps()
    spreads = DEFAULT
    if given.fit:
        spreads = fit(steps)
        print(spreads)
    for count in COUNTS:
        for name, judged in by_kind(judge(steps, count, spreads)).items():
            show(f"{count} measured, {name}", judged)
    for scale, judged in judge_scales(steps, spreads).items():
        show(f"1 measured on {scale}, all", judged)
    if not given.fit:
        return
    sources = sorted({one.row.source for one in steps})
    random.Random(1).shuffle(sources)
    left_out: dict[int, list[Judged]] = {count: [] for count in COUNTS if count}
    for sixth in range(SIXTHS):
        out = set(sources[sixth::SIXTHS])
        fitted = fit([one for one in steps if one.row.source not in out])
        for count, judged in left_out.items():
            judged += judge([one for one in steps if one.row.source in out], count, fitted)
    for count, judged in left_out.items():
        for name, chosen in by_kind(judged).items():
            show(f"{count} measured, spreads fitted without the source, {name}", chosen)


def known_steps() -> list[KnownStep]:
    """Return all measured rows, predicted by fits that did not use their source."""
    root = project_root()
    rows = [row for path in table.TABLES for row in table.read(root / path)]
    left_out = [
        one
        for one in table.read_left_out(rows)
        if one.by == "source" and one.row.setup and not one.row.is_simulated
    ]
    usable = [one for one in left_out if not one.row.is_power_limited]
    return [_known_step(one, is_blind=False) for one in usable] + [
        _known_step(one, is_blind=True) for one in table.read_blind_errors()
    ]


def _known_step(one: table.LeftOut, *, is_blind: bool) -> KnownStep:
    setup = one.row.setup
    assert setup is not None
    return KnownStep(
        one.row,
        is_blind,
        MeasuredStep(profile(setup), math.log1p(one.error)),
        flops.flops(setup.shape, setup.global_batch),
        half_width(setup),
    )


def others_of(one: KnownStep, system: Sequence[KnownStep]) -> list[KnownStep]:
    """Return the rows that may be measurements for a row from the same system."""
    return [
        other
        for other in system
        if other is not one and 1 / LIKE <= one.operations / other.operations <= LIKE
    ]


def systems_of(steps: Sequence[KnownStep]) -> list[list[KnownStep]]:
    """Return the rows of each system."""
    systems: dict[tuple[str, ...], list[KnownStep]] = {}
    for one in steps:
        systems.setdefault(one.system, []).append(one)
    return list(systems.values())


def judge(
    steps: Sequence[KnownStep],
    count: int,
    spreads: Spreads = DEFAULT,
    draws: int = DRAWS,
) -> list[Judged]:
    """Predict each row for each larger system from this many measurements, some times."""
    judged: list[Judged] = []
    for system in systems_of(steps):
        for one in system:
            others = others_of(one, system)
            if len(system) < LEAST_ROWS or len(others) < max(COUNTS):
                continue
            chance = random.Random(f"{one.row.name} {count}")
            for _ in range(draws):
                judged.append(_judged(one, chance.sample(others, count), spreads))

    return judged


def judge_scales(
    steps: Sequence[KnownStep], spreads: Spreads = DEFAULT, draws: int = DRAWS
) -> dict[str, list[Judged]]:
    """Predict rows from one measurement with fewer devices, as in a smoke test."""
    found: dict[str, list[Judged]] = {name: [] for name in SMALLER}
    for system in systems_of(steps):
        for one in system:
            others = others_of(one, system)
            for name, is_smaller in SMALLER.items():
                smaller = [other for other in others if is_smaller(other, one)]
                chance = random.Random(one.row.name)
                for _ in range(draws if smaller else 0):
                    found[name].append(_judged(one, [chance.choice(smaller)], spreads))

    return found


def has_half_the_devices(other: KnownStep, one: KnownStep) -> bool:
    """Return whether a measurement has at most half the devices of a row."""
    return 2 * other.devices <= one.devices


def is_on_one_node(other: KnownStep, one: KnownStep) -> bool:
    """Return whether a measurement is on one node, and a row on several."""
    one_node, many_nodes = NODE_COUNTS
    return (other.row.nodes, one.row.nodes) == (one_node, many_nodes)


SMALLER = {"half the devices or fewer": has_half_the_devices, "one node": is_on_one_node}
"""What a measurement with fewer devices than a row may be."""


def _judged(one: KnownStep, measured: Sequence[KnownStep], spreads: Spreads) -> Judged:
    slower = one.step.slower
    if not measured:
        error = math.expm1(slower)
        width = math.log1p(one.half_width)
        return Judged(one, error, error, abs(slower) <= width, one.half_width)
    steps = [other.step for other in measured]
    found = correction(one.step.profile, steps, spreads)
    ratio = statistics.median(step.slower for step in steps)
    is_inside = math.log(found.low) <= slower <= math.log(found.high)
    half = math.sqrt(found.high / found.low) - 1
    corrected = math.expm1(slower - math.log(found.factor))
    return Judged(one, math.expm1(slower - ratio), corrected, is_inside, half)


def by_kind(judged: Sequence[Judged]) -> dict[str, list[Judged]]:
    """Return all rows, those from tables used in the fit, and those from blind tests."""
    return {
        "all": list(judged),
        "source left out of the fit": [one for one in judged if not one.known.is_blind],
        "blind tests": [one for one in judged if one.known.is_blind],
    }


def figures(judged: Sequence[Judged]) -> tuple[float, ...]:
    """Return median and 90th percentile of both errors, the coverage and the median half-width."""
    return (
        *table.spread([one.plain for one in judged]),
        *table.spread([one.corrected for one in judged]),
        statistics.fmean(one.is_inside for one in judged),
        statistics.median(one.half_width for one in judged),
    )


def show(title: str, judged: Sequence[Judged]) -> None:
    """Print one line with errors."""
    rows = len({one.known.row.name for one in judged})
    cells = " | ".join(f"{figure:6.1%}" for figure in figures(judged))
    print(f"{title:60s} | {rows:4d} | {cells} |", flush=True)


def fit(steps: Sequence[KnownStep], rounds: int = 40) -> Spreads:
    """Fit the logarithms of the spreads one at a time, by likelihood over pairs.

    A source with n rows counts as the square root of n.
    """
    chance = random.Random(3)
    pairs = []
    for system in systems_of(steps):
        for one in system:
            others = others_of(one, system)
            chosen = chance.sample(others, min(4, len(others)))
            # A smoke test has fewer devices than the training.
            smaller = [other for other in others if has_half_the_devices(other, one)]
            chosen += chance.sample(smaller, min(4, len(smaller)))
            pairs += [(one, other, 1 / len(chosen)) for other in chosen]
    rows = Counter[str]()
    for one, _, share in pairs:
        rows[one.row.source] += share
    weights = numpy.array([share * rows[one.row.source] ** -0.5 for one, _, share in pairs])
    likelihood = _PairLikelihood([(one, other) for one, other, _ in pairs], weights)
    best = DEFAULT
    value = likelihood.of(best)
    pace = 0.2
    for _ in range(rounds):
        before = value
        for field in fields(Spreads):
            if field.name in CHOSEN:
                continue
            for sign in (1, -1):
                tried = _moved(best, field.name, sign * pace)
                found = likelihood.of(tried)
                if found > value:
                    best = tried
                    value = found
        if value - before < 1e-6:
            pace /= 2
        if pace < 0.01:
            break
    return best


def _moved(spreads: Spreads, name: str, step: float) -> Spreads:
    values = {field.name: getattr(spreads, field.name) for field in fields(Spreads)}
    values[name] *= math.exp(step)
    values["unlike_share"] = min(0.95, values["unlike_share"])
    values["unlike"] = max(1.0, values["unlike"])
    return Spreads(**values)


class _PairLikelihood:
    """Mean log-likelihood of the error in each row, given the error in one other row."""

    def __init__(
        self, pairs: Sequence[tuple[KnownStep, KnownStep]], weights: numpy.ndarray
    ) -> None:
        first = [one.step for one, _ in pairs]
        second = [other.step for _, other in pairs]
        self.shares = numpy.array([step.profile.shares for step in first])
        self.other_shares = numpy.array([step.profile.shares for step in second])
        self.errors = numpy.array([step.slower for step in first])
        self.other_errors = numpy.array([step.slower for step in second])
        self.distances = numpy.array(
            [one.profile.distance(other.profile) for one, other in zip(first, second, strict=True)]
        )
        self.weights = weights / weights.sum()
        self.start = numpy.log(astuple(START))

    def of(self, spreads: Spreads) -> float:
        """Return the mean log-likelihood, with a weak pull to the start."""
        variances = numpy.array([getattr(spreads, part) ** 2 for part in CAUSES])
        alike = spreads.common**2 + spreads.near**2
        own = alike + spreads.noise**2
        nearness = numpy.exp(-self.distances / spreads.distance)
        shared = (self.shares * self.other_shares) @ variances
        shared += spreads.common**2 + spreads.near**2 * nearness
        variance = self.shares**2 @ variances + own
        other = self.other_shares**2 @ variances + own
        mean = shared / other * self.other_errors
        left = variance - shared**2 / other
        usual = (1 - spreads.unlike_share) * _density(self.other_errors, other)
        unlike = spreads.unlike_share * _density(self.other_errors, other * spreads.unlike**2)
        deviations = self.errors - mean
        given = usual * _density(deviations, left)
        given += unlike * _density(deviations, left * spreads.unlike**2)
        density = (1 - GROSS) * given / (usual + unlike) + GROSS * _density(deviations, 1.0)
        pull = numpy.log(astuple(spreads)) - self.start
        return float(self.weights @ numpy.log(density) - PULL * (pull**2).sum())


START = Spreads(0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.02, 0.08, 0.05, 4.0, 0.03, 3.0, 0.5)
"""The spreads to which the fit is weakly pulled."""
PULL = 0.0125
"""The pull to the start, relative to the mean log-likelihood."""


def _density(errors: numpy.ndarray, variances: numpy.ndarray | float) -> numpy.ndarray:
    return numpy.exp(-(errors**2) / variances / 2) / numpy.sqrt(2 * math.pi * variances)


if __name__ == "__main__":
    main()
