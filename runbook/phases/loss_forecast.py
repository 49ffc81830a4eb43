"""Forecasts the final loss of a run.

The forecast uses the ladder for the run if there is one, or else the published law.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from runbook.core.errors import DataError
from runbook.display import View
from runbook.forecast import published_law
from runbook.params import Settings
from runbook.phases.ladder.forecast_record import (
    SIZE_RATIOS,
    RunForecast,
    SizeForecast,
    sizes_table,
)
from runbook.phases.messages import PhaseMessage
from runbook.plan_file.phase_names import FULL
from runbook.plan_file.schema import PhasePlan
from runbook.planning import Plan
from runbook.runs.run_folder import runs_folder

SHOWN_DECADES = 0.05
"""A smaller extrapolation is not reported, because its number of decades would be rounded to 0."""


@dataclass(frozen=True)
class PlannedLoss:
    """A forecast for a run, or the reason why there is none."""

    forecast: RunForecast | None
    reason: str = ""


def planned_loss(settings: Settings, plan: Plan) -> PlannedLoss:
    """Return the forecast for the current plan."""
    pattern = f"{settings.run.run}--*ladder/ladder.json"
    trained_ladders = list(runs_folder(settings.project).glob(pattern))
    if trained_ladders:
        try:
            # Import here, because numpy and scipy are needed only if a ladder was trained.
            from runbook.phases.ladder.service import forecast_of_plan

            forecast = forecast_of_plan(settings, plan)
        except ModuleNotFoundError as error:
            # A login node plans without the packages in the extras.
            reason = PhaseMessage.LADDER_NEEDS_PACKAGE.fill(package=error.name)
            return PlannedLoss(None, reason)
        except DataError as error:
            return PlannedLoss(None, f"its ladder gives no forecast: {error}")

        if forecast is not None:
            return PlannedLoss(forecast)

    return by_published_law(plan.phases[FULL])


def by_published_law(phase: PhasePlan) -> PlannedLoss:
    """Return the loss forecast by the published law, or the reason why the law does not apply."""
    parameters = phase.model.parameters
    tokens = phase.duration.tokens
    if phase.data.mock:
        return PlannedLoss(None, "random tokens have no loss to forecast")
    reason = published_law.why_not(parameters, tokens)
    if reason:
        return PlannedLoss(None, f"{published_law.SOURCE}: {reason}")
    law = published_law.published_loss(parameters, tokens)
    sizes = [_size(parameters * ratio, tokens / ratio) for ratio in SIZE_RATIOS]
    forecast = RunForecast(
        loss=law.loss,
        low=law.low,
        high=law.high,
        rungs=0,
        source=published_law.SOURCE,
        same_compute=tuple(sizes),
        best=_size(*published_law.best_size(parameters, tokens)),
        warnings=tuple(_law_warnings(parameters, tokens, law)),
    )
    return PlannedLoss(forecast)


def _law_warnings(
    parameters: float, tokens: float, law: published_law.LawForecast
) -> Iterator[str]:
    yield (
        "no ladder was trained, so the forecast uses a law from other text and another tokenizer, "
        "with a wide interval"
    )
    decades = published_law.decades_beyond(parameters, tokens)
    if decades >= SHOWN_DECADES:
        yield (PhaseMessage.LAW_FAR_FROM_RUN.fill(decades=decades, widening=law.widening))


def _size(parameters: float, tokens: float) -> SizeForecast:
    law = published_law.published_loss(parameters, tokens)
    return SizeForecast(
        parameters,
        tokens,
        law.loss,
        law.low,
        law.high,
    )


def show_planned_loss(settings: Settings, plan: Plan) -> View:
    """Return a view with the forecast and other sizes at the same compute.

    The view also explains how a ladder would improve the forecast.
    """
    planned = planned_loss(settings, plan)
    advice = PhaseMessage.LADDER_WOULD_COST.fill(run=settings.run.run)
    forecast = planned.forecast
    if forecast is None:
        return View([f"No loss is forecast: {planned.reason}. {advice}"])
    view = View([f"{forecast.as_text()}."])
    if forecast.same_compute:
        view.append(sizes_table(forecast))
    view += [f"Note: {warning}." for warning in forecast.warnings]
    if not forecast.rungs:
        view.append(advice)
    return view
