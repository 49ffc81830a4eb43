"""Forecasts the last validation loss in a training run from the first part of the curve.

A Gaussian process forecasts how much further the loss will fall. The inputs are differences between
losses at fixed fractions of the curve so far (so shifting a curve up or down changes nothing), the
share of steps after which the learning rate falls, and logarithms of step numbers. Each family of
published curves has its own process, because a common process would blur their different scales.
The families are short training runs that compete for speed, and pre-training runs with a cosine or
WSD schedule. The family with the nearest curves has the largest weight.
`benchmarks/fit_curve_forecast.py` fits the processes and writes `curve_coefficients.json`.
"""

import json
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from runbook.core.errors import DataError
from runbook.forecast.interval_rules import (
    EARLIEST_SHARE,
    FAR_FROM_FITTED,
    UNLIKE_CURVE_WIDENING,
)
from runbook.forecast.laws import Array
from runbook.forecast.messages import ForecastMessage
from runbook.forecast.tables import PartialCurve

PARTS_OF_STEPS_DONE = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Where the curve is read, as fractions of the steps done so far."""
USUAL_DECAY_FROM = 0.5
"""Input value used if it is unknown when the learning rate starts to decay.

A separate input tells the Gaussian process that this value was assumed.
"""
FEWEST_POINTS = 3
SHARES_MEASURED = (0.35, 0.5, 0.65, 0.85)
"""Where in training the interval width was measured, as shares of the steps."""
LENGTH = 2.0
"""Length scale within which curves count as similar, in input standard deviations."""
NOISE = 0.05
LINEAR = 0.05
"""Noise and linear variance, relative to the variance of the Gaussian part."""
COEFFICIENTS = Path(__file__).with_name("curve_coefficients.json")


@dataclass(frozen=True)
class CurveForecast:
    """Forecast of the validation loss at the last step, in nats."""

    loss: float
    low: float
    high: float
    share: float
    """How much of the training the curve covers, as a share of the steps."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class CurveModel:
    """A Gaussian process fitted to one family of curves."""

    means: Array
    deviations: Array
    """Mean and standard deviation for each input over the fitted curves."""
    inputs: Array
    """Standardised inputs, one row for each part of a fitted curve."""
    weights: Array
    inverse: Array
    """Inverse kernel matrix, used to compute the variance of a forecast."""
    mean_change: float
    """Mean change in the loss until the last step, in nats."""
    half_widths: Array
    """Half-width of the interval, relative to the standard deviation, at each of `SHARES_MEASURED`.

    The interval contains the true loss for `COVERAGE` of the held-out curves.
    """


def forecast_curve(curve: PartialCurve) -> CurveForecast:
    """Return a forecast for the last validation loss.

    Raise `DataError` if the curve is too short.
    """
    steps, losses = _checked(curve)
    share = float(steps[-1] / curve.total_steps)
    if share >= 1:
        last = float(losses[-1])
        return CurveForecast(
            last,
            last,
            last,
            1.0,
            ("the curve is complete",),
        )

    inputs = curve_inputs(steps, losses, curve.total_steps, curve.decay_from)
    fall = forecast_change(load_coefficients(), inputs, share)
    loss = float(losses[-1]) + fall.change
    return CurveForecast(
        loss,
        loss - fall.half_width,
        loss + fall.half_width,
        share,
        _warnings(curve, share, fall.distance),
    )


@dataclass(frozen=True)
class ChangeForecast:
    """The change in the loss over the remaining steps, in nats."""

    change: float
    half_width: float
    """Half-width of the interval that is right for `COVERAGE` of curves with other recipes and
    sizes."""
    distance: float
    """Distance to the nearest fitted curve, in input standard deviations over its family."""


NEARNESS_POWER = 4.0
"""A family is weighted by the distance to its nearest curve, to the power of -4.

With these weights, forecasts for 80 curves from other recipes were as accurate as with the process
fitted to their own family.
"""
LEAST_DISTANCE = 1e-6


def forecast_change(
    models: tuple[CurveModel, ...],
    inputs: Array,
    share: float,
) -> ChangeForecast:
    """Return the forecast combined over all families. The nearest family has the largest weight."""
    changes = []
    half_widths = []
    distances = []
    for model in models:
        change, deviation, distance = predict_change(model, inputs)
        factor = float(np.interp(share, SHARES_MEASURED, model.half_widths))
        changes.append(change)
        half_widths.append(factor * deviation)
        distances.append(max(distance, LEAST_DISTANCE))

    # Distances are relative to the nearest family, to keep the power from overflowing or vanishing.
    nearness = (np.array(distances) / min(distances)) ** -NEARNESS_POWER
    return ChangeForecast(
        change=float(np.average(changes, weights=nearness)),
        half_width=widening(min(distances)) * float(np.average(half_widths, weights=nearness)),
        distance=min(distances),
    )


def widening(distance: float) -> float:
    """Return the factor by which the interval widens at this distance from the nearest curve.

    If the width grows with the square of the distance, intervals are right for 75 to 96% of the
    curves in a track that was held out of the fit, and for 69 to 100% of those with a held-out
    schedule.
    """
    return min(max(distance**2, 1.0), UNLIKE_CURVE_WIDENING)


def _warnings(curve: PartialCurve, share: float, distance: float) -> tuple[str, ...]:
    warnings = []
    if math.isnan(curve.decay_from):
        warnings.append("decay_from is unknown: set the share of steps after which the rate falls")
    if share < EARLIEST_SHARE:
        warnings.append(
            f"only {share:.0%} of the steps are done; fitted curves contain at least 30%"
        )
    if distance > FAR_FROM_FITTED:
        warnings.append(
            ForecastMessage.CURVE_UNLIKE_FITTED_ONES.fill(widening=UNLIKE_CURVE_WIDENING)
        )

    return tuple(warnings)


def _checked(curve: PartialCurve) -> tuple[Array, Array]:
    """Return the steps and losses, leaving out the loss before the first step."""
    points = [point for point in curve.points if point.step > 0]
    if len(points) < FEWEST_POINTS:
        raise DataError(
            ForecastMessage.CURVE_TOO_SHORT,
            number_of_points=len(points),
            fewest_points=FEWEST_POINTS,
        )

    steps = np.array([point.step for point in points])
    losses = np.array([point.val_loss for point in points])
    if steps[-1] > curve.total_steps:
        raise DataError(
            ForecastMessage.CURVE_BEYOND_ITS_END, steps=steps[-1], total_steps=curve.total_steps
        )

    return steps, losses


def curve_inputs(
    steps: Array,
    losses: Array,
    total_steps: float,
    decay_from: float,
) -> Array:
    """Return the inputs to the Gaussian process for the first part of a curve."""
    done = float(steps[-1])
    share = done / total_steps
    positions = np.log(done * np.array(PARTS_OF_STEPS_DONE))
    differences = np.interp(positions, np.log(steps), losses) - losses[-1]
    unknown = math.isnan(decay_from)
    begins = USUAL_DECAY_FROM if unknown else decay_from
    decay_done = max(0.0, (share - begins) / max(1 - begins, 1e-6))
    others = [begins, float(unknown), math.log(total_steps), -math.log(share), decay_done]
    inputs: Array = np.concatenate([differences, others])
    return inputs


def kernel(first: Array, second: Array) -> Array:
    """Return the covariance between standardised inputs, in units of the Gaussian part."""
    squared_distances = _squared_distances(first, second)
    covariance: Array = np.exp(-squared_distances / (2 * LENGTH**2)) + LINEAR * (first @ second.T)
    return covariance


def _squared_distances(first: Array, second: Array) -> Array:
    differences = first[:, None, :] - second[None, :, :]
    squared: Array = (differences**2).sum(axis=-1)
    return squared


def fit_coefficients(inputs: Array, changes: Array, weights: Array) -> CurveModel:
    """Fit the Gaussian process.

    Parts of curves with smaller weights are treated as noisier.
    """
    means = inputs.mean(axis=0)
    deviations = inputs.std(axis=0) + 1e-6
    standardised = (inputs - means) / deviations
    covariance = kernel(standardised, standardised) + NOISE * np.diag(1 / weights)
    inverse = np.asarray(np.linalg.inv(covariance), dtype=np.float64)
    mean_change = float(np.average(changes, weights=weights))
    return CurveModel(
        means=means,
        deviations=deviations,
        inputs=standardised,
        weights=inverse @ (changes - mean_change),
        inverse=inverse,
        mean_change=mean_change,
        half_widths=np.ones(len(SHARES_MEASURED)),
    )


def predict_change(coefficients: CurveModel, inputs: Array) -> tuple[float, float, float]:
    """Return the change in the loss until the last step, its standard deviation, and the distance to the nearest fit.

    The standard deviation is in units of the Gaussian part; `CurveModel.half_widths` is used to
    convert it to nats.
    """
    standardised = ((inputs - coefficients.means) / coefficients.deviations)[None, :]
    to_fitted = kernel(standardised, coefficients.inputs)[0]
    change = coefficients.mean_change + float(to_fitted @ coefficients.weights)
    explained = float(to_fitted @ coefficients.inverse @ to_fitted)
    variance = float(kernel(standardised, standardised)[0, 0]) + NOISE - explained
    nearest = float(_squared_distances(standardised, coefficients.inputs).min())
    return change, math.sqrt(max(variance, NOISE / 10)), math.sqrt(nearest)


@cache
def load_coefficients() -> tuple[CurveModel, ...]:
    """Load the coefficients the package ships, one model for each family.

    The inverse is computed here, since it would make up most of the file.
    """
    content = json.loads(COEFFICIENTS.read_text(encoding="utf-8"))
    models = []
    for family in content["families"].values():
        inputs = np.array(family["inputs"])
        noise = NOISE / np.array(family["row_weights"])
        inverse = np.linalg.inv(kernel(inputs, inputs) + np.diag(noise))
        model = CurveModel(
            means=np.array(family["means"]),
            deviations=np.array(family["deviations"]),
            inputs=inputs,
            weights=np.array(family["weights"]),
            inverse=np.asarray(inverse, np.float64),
            mean_change=float(family["mean_change"]),
            half_widths=np.array(family["half_widths"]),
        )
        models.append(model)

    return tuple(models)
