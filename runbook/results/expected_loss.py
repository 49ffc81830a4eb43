"""Compares the final loss forecast from the curve with the forecast sealed before training."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from runbook.core.errors import DataError, RecordError
from runbook.forecast.interval_rules import EARLIEST_SHARE
from runbook.plan_file.schema import PhasePlan
from runbook.results.forecast_seal import Forecast, read_sealed
from runbook.results.history import ValidationLoss, read_validation
from runbook.results.messages import ResultMessage

FEWEST_EVALUATIONS = 3
"""Minimum number of evaluations needed for `forecast.curve`.

With fewer, numpy and scipy are not even imported.
"""
LEFT_EVENT = "forecast_left"


@dataclass(frozen=True)
class ExpectedLoss:
    """The final loss in nats, as forecast from the curve up to an evaluation."""

    iteration: int
    loss: float
    low: float
    high: float
    share: float
    """Share of the training steps completed so far."""
    sealed: Forecast | None
    """Loss forecast made before the first step; None if no forecast was sealed."""

    @property
    def has_left(self) -> bool:
        """Return whether the interval lies entirely outside that of the sealed forecast."""
        if self.sealed is None:
            return False
        return self.low > self.sealed.high or self.high < self.sealed.low

    def as_text(self) -> str:
        """Return both forecasts as a line of text."""
        text = ResultMessage.LOSS_BY_CURVE.fill(
            loss=self.loss, low=self.low, high=self.high, share=self.share
        )
        if self.sealed is not None:
            text += ResultMessage.SEALED_INTERVAL.fill(low=self.sealed.low, high=self.sealed.high)
        if self.has_left:
            text += ": outside"
        return text


def expected_losses(folder: Path, plan: PhasePlan, after: int = 0) -> Iterator[ExpectedLoss]:
    """Yield the forecast made at each evaluation after iteration `after`, oldest first."""
    evaluations = read_validation(folder / plan.log.validation)
    usable = [evaluation for evaluation in evaluations if math.isfinite(evaluation.loss)]
    sealed = sealed_loss(folder)
    for count, evaluation in enumerate(usable, start=1):
        is_early = evaluation.iteration < EARLIEST_SHARE * plan.duration.iterations
        if count < FEWEST_EVALUATIONS or is_early or evaluation.iteration <= after:
            continue
        expected = _expected(plan, usable[:count], sealed)
        if expected is not None:
            yield expected


def newest_expected_loss(folder: Path, plan: PhasePlan) -> ExpectedLoss | None:
    """Return the forecast from the curve up to now, or None while the curve is too short."""
    evaluations = read_validation(folder / plan.log.validation)
    before_newest = evaluations[-2].iteration if len(evaluations) > 1 else 0
    newest = None
    for expected in expected_losses(folder, plan, before_newest):
        newest = expected
    return newest


def sealed_loss(folder: Path) -> Forecast | None:
    """Return the sealed loss forecast.

    Return None if no forecast was sealed, or if the forecast was sealed late or has changed since.
    """
    try:
        sealed = read_sealed(folder)
    except RecordError:
        return None

    if sealed is None or sealed.late:
        return None
    losses = [forecast for forecast in sealed.forecasts if forecast.quantity == "loss"]
    return losses[0] if losses else None


def _expected(
    plan: PhasePlan, evaluations: Sequence[ValidationLoss], sealed: Forecast | None
) -> ExpectedLoss | None:
    # Import here, since only this function needs numpy and scipy.
    from runbook.forecast.curve import forecast_curve
    from runbook.results.curve_forecast import curve_of

    try:
        forecast = forecast_curve(curve_of(plan, list(evaluations)))
    except DataError:
        # For example, the plan was shortened, and the curve is now longer than the plan.
        return None

    return ExpectedLoss(
        iteration=evaluations[-1].iteration,
        loss=forecast.loss,
        low=forecast.low,
        high=forecast.high,
        share=forecast.share,
        sealed=sealed,
    )
