"""Forecasts the final loss in a larger training run, with an interval, from finished smaller runs.

Several laws are fitted (`laws.py`) and corrected by their residuals near the target. With few runs,
the laws have equal votes: the forecast is the median of their predictions. With sixty runs or more,
a rolling backtest chooses a single law. The interval is conformal: it is as wide as the errors the
same method made in backtests, and grows with the square root of the decades of compute over which
the method extrapolates.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from runbook.core.errors import DataError
from runbook.forecast.interval_rules import (
    COVERAGE,
    DECADES_AT_ZERO,
    FAR_WIDENING,
    FARTHEST_RATIO,
)
from runbook.forecast.laws import Array, LawChoice, Runs, fit_law, law_choices
from runbook.forecast.messages import ForecastMessage

FEWEST_RUNS = 5
"""Laws are fitted only to at least this many runs.

A law has five parameters, so it would fit fewer runs exactly, whatever their losses.
"""
FEWEST_FOR_CHOICE = 60
"""Smallest number of runs needed for a backtest to choose a single law."""
BACKTEST_SHARES = (0.5, 0.65, 0.8)
"""Each backtest fits the runs below one of these quantiles of compute, and forecasts the others."""

CORRECTION_LENGTH = 1.0
"""Length scale over which residuals count as similar, in e-folds of size or tokens."""
CORRECTION_NOISE = 1.0
"""The part of a residual that is specific to one row (seed, learning rate), relative to the part
shared with neighbouring rows.
"""

USUAL_SCORE = 0.025
"""Relative error, divided by the square root of the decades, assumed for a family without
backtests.
"""
USUAL_SCORE_ROWS = 15
"""Weight given to the usual score, expressed as a number of errors from backtests on the family
itself."""
MOST_OWN_WEIGHT = 0.5
"""Upper limit for the weight given to backtests on the family itself. Errors within a backtest are
not independent, because they all stem from one law.
"""


@dataclass(frozen=True)
class LossForecast:
    """Forecast for a final loss, in nats."""

    loss: float
    low: float
    high: float
    """In `COVERAGE` of forecasts, the loss is between `low` and `high`."""
    decades: float
    """Decades of compute between the largest run and the target."""
    warnings: tuple[str, ...] = field(default=())


def forecast_final_losses(runs: Runs, targets: Runs) -> list[LossForecast]:
    """Return a forecast for each target.

    Raise `DataError` if there are too few runs.
    """
    check_runs(runs)
    choices = voting_choices(runs)
    backtests = _backtests(runs, choices)
    if len(runs) >= FEWEST_FOR_CHOICE:
        choices = [_best_choice(backtests, choices)]
    losses = _vote(law_votes(runs, targets, choices))
    score = interval_score([backtest.scores(choices) for backtest in backtests])
    return [
        with_interval(runs, targets, position, float(losses[position]), score)
        for position in range(len(targets))
    ]


def voting_choices(runs: Runs) -> list[LawChoice]:
    """Return the forms of the law to fit to these runs.

    With few runs, two exponents cannot be distinguished, and it is unclear which parameters to
    count. A single exponent and counting all parameters gave the smallest errors in tests on
    held-out series (docs/forecast.md). With sixty runs or more, a backtest decides.
    """
    choices = law_choices(runs)
    if len(runs) >= FEWEST_FOR_CHOICE:
        return choices
    return [choice for choice in choices if choice.tied and choice.embeddings]


def check_runs(runs: Runs) -> None:
    """Raise `DataError` if no law can be fitted to the runs."""
    if len(runs) < FEWEST_RUNS:
        raise DataError(
            ForecastMessage.TOO_FEW_FINISHED_RUNS, fewest_runs=FEWEST_RUNS, number_of_runs=len(runs)
        )

    for name, values in (("sizes", runs.params), ("token counts", runs.tokens)):
        if len(np.unique(np.round(np.log(values), 2))) < 2:
            raise DataError(
                ForecastMessage.RUNS_OF_ONE_SIZE,
                number_of_runs=len(runs),
                quantity=name.removesuffix("s"),
                quantities=name,
            )


@dataclass(frozen=True)
class _Backtest:
    """What each law forecasts for the larger runs after a fit to the smaller ones."""

    predictions: dict[LawChoice, Array]
    losses: Array
    decades: Array

    def errors(self, choices: Sequence[LawChoice]) -> Array:
        """Return the relative errors in the forecast these laws vote on."""
        voted = np.median([self.predictions[choice] for choice in choices], axis=0)
        errors: Array = np.log(voted / self.losses)
        return errors

    def scores(self, choices: Sequence[LawChoice]) -> Array:
        """Return the relative errors, divided by the square root of the extrapolated decades."""
        scores: Array = np.abs(self.errors(choices)) / np.sqrt(self.decades + DECADES_AT_ZERO)
        return scores


def _backtests(runs: Runs, choices: Sequence[LawChoice]) -> list[_Backtest]:
    """Return a backtest for each share with enough runs for both the fit and the forecast."""
    backtests = []
    for share in BACKTEST_SHARES:
        limit = np.quantile(runs.flops, share)
        small = runs.take(runs.flops <= limit)
        large = runs.take(runs.flops > limit * 1.001)
        if len(small) <= FEWEST_RUNS or len(large) == 0:
            continue
        decades = np.log10(large.flops / small.largest_flops)
        predictions = law_votes(small, large, choices)
        backtests.append(_Backtest(predictions, large.loss, np.asarray(decades, np.float64)))

    return backtests


def _best_choice(backtests: Sequence[_Backtest], choices: Sequence[LawChoice]) -> LawChoice:
    """Return the law with the smallest error over the backtests."""

    def mean_error(choice: LawChoice) -> float:
        roots = [np.sqrt(np.mean(backtest.errors([choice]) ** 2)) for backtest in backtests]
        return float(np.mean(roots))

    return min(choices, key=mean_error)


def law_votes(
    runs: Runs,
    targets: Runs,
    choices: Sequence[LawChoice],
) -> dict[LawChoice, Array]:
    """Return the predictions from each law for the targets, corrected by residuals near them."""
    weights = _correction_weights(runs, targets)
    predictions = {}
    for choice in choices:
        law = fit_law(runs, choice)
        fitted = law.predict(runs.sizes(embeddings=choice.embeddings), runs.tokens)
        predicted = law.predict(targets.sizes(embeddings=choice.embeddings), targets.tokens)
        residuals = np.log(runs.loss / fitted)
        corrected = predicted * np.exp(weights @ residuals)
        predictions[choice] = np.asarray(corrected, dtype=np.float64)

    return predictions


def _vote(predictions: dict[LawChoice, Array]) -> Array:
    voted: Array = np.median(list(predictions.values()), axis=0)
    return voted


def _correction_weights(runs: Runs, targets: Runs) -> Array:
    """Return the weight each residual has in each correction (Gaussian-kernel kriging)."""
    among_runs = _similarity(runs, runs) + CORRECTION_NOISE * np.eye(len(runs))
    weights = np.linalg.solve(among_runs, _similarity(runs, targets)).T
    return np.asarray(weights, dtype=np.float64)


def _similarity(first: Runs, second: Runs) -> Array:
    by_size = np.log(first.params)[:, None] - np.log(second.params)[None, :]
    by_tokens = np.log(first.tokens)[:, None] - np.log(second.tokens)[None, :]
    squared_distance = (by_size**2 + by_tokens**2) / CORRECTION_LENGTH**2
    similarity: Array = np.exp(-squared_distance / 2)
    return similarity


def interval_score(scores: Sequence[Array]) -> float:
    """Return the relative half-width of the interval, divided by the square root of the decades.

    It is a weighted mean of the usual score in other families and the score in backtests on this
    family, because the 80th percentile over only a dozen errors is off by a third.
    """
    pooled = np.concatenate(scores) if scores else np.array([])
    if not len(pooled):
        return USUAL_SCORE
    own_score = max(float(np.quantile(pooled, COVERAGE)), 1e-4)
    own_weight = min(MOST_OWN_WEIGHT, len(pooled) / (len(pooled) + USUAL_SCORE_ROWS))
    return float(USUAL_SCORE ** (1 - own_weight) * own_score**own_weight)


def with_interval(
    runs: Runs,
    targets: Runs,
    position: int,
    loss: float,
    score: float,
) -> LossForecast:
    """Return a forecast with an interval that grows with the decades beyond the largest run."""
    ratio = float(targets.flops[position]) / runs.largest_flops
    decades = max(0.0, float(np.log10(ratio)))
    half_width = score * np.sqrt(decades + DECADES_AT_ZERO)
    warnings = []
    if ratio > FARTHEST_RATIO:
        half_width *= FAR_WIDENING
        warnings.append(
            ForecastMessage.FAR_TARGET.fill(
                ratio=ratio, farthest_ratio=FARTHEST_RATIO, widening=FAR_WIDENING
            )
        )

    return LossForecast(
        loss=loss,
        low=loss * float(np.exp(-half_width)),
        high=loss * float(np.exp(half_width)),
        decades=decades,
        warnings=tuple(warnings),
    )
