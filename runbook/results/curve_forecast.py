"""Forecasts the last validation loss in a run from the evaluations so far."""

import math
from pathlib import Path

from runbook.core.errors import DataError
from runbook.forecast.curve import FEWEST_POINTS, CurveForecast, forecast_curve
from runbook.forecast.tables import CurvePoint, PartialCurve
from runbook.plan_file.learning_rate import LearningRate
from runbook.plan_file.phase_names import FULL
from runbook.plan_file.schema import PhasePlan, read_plan
from runbook.results.history import ValidationLoss, read_validation
from runbook.results.messages import ResultMessage


def forecast_of_run(folder: Path) -> CurveForecast:
    """Return a forecast for the last validation loss in a training run.

    Raise `DataError` if the run has too few evaluations.
    """
    plan = read_plan(folder / "plan.json", FULL)
    evaluations = read_validation(plan.path(plan.log.validation))
    usable = [evaluation for evaluation in evaluations if math.isfinite(evaluation.loss)]
    if len(usable) < FEWEST_POINTS:
        raise DataError(
            ResultMessage.TOO_FEW_EVALUATIONS,
            folder_name=folder.name,
            number_of_usable=len(usable),
            fewest_points=FEWEST_POINTS,
            interval=plan.evaluation.interval,
            iterations=plan.duration.iterations,
        )

    return forecast_curve(curve_of(plan, usable))


def curve_of(plan: PhasePlan, evaluations: list[ValidationLoss]) -> PartialCurve:
    """Return the partial curve formed by the evaluations so far."""
    points = [CurvePoint(evaluation.iteration, evaluation.loss) for evaluation in evaluations]
    return PartialCurve(
        points=tuple(points),
        total_steps=plan.duration.iterations,
        decay_from=decay_begins(plan.learning_rate, plan.duration.samples),
    )


def decay_begins(learning_rate: LearningRate, samples: int) -> float:
    """Return the share of training after which the learning rate starts to fall.

    Return 1 if the learning rate never falls.
    """
    if learning_rate.schedule == "constant":
        return 1.0
    return min(1.0, learning_rate.falls_from / samples)
