"""Seals forecasts for training before the first step, and scores them after the last step."""

import math
from collections.abc import Sequence
from pathlib import Path

from runbook.core import quantities
from runbook.core.files import iterate_lines, utc_now
from runbook.core.table import Table
from runbook.display import View
from runbook.params import Settings
from runbook.phases.finished_training import why_not_finished
from runbook.phases.loss_forecast import planned_loss
from runbook.phases.messages import PhaseMessage
from runbook.phases.phase_steps import phase_step
from runbook.phases.training_outputs import move_to_history, sealed_paths
from runbook.phases.training_results import TrainingResults, device_rates, read_results
from runbook.plan_file.phase_names import FULL
from runbook.planning import Plan
from runbook.planning.useful_time import useful_time
from runbook.records.manifest import note_files
from runbook.records.session import Session
from runbook.results import wall_time
from runbook.results.forecast_scores import (
    ForecastScore,
    append_scores,
    calibration_text,
    own_half_width,
    read_scores_of_all,
    score,
    scores_table,
)
from runbook.results.forecast_seal import (
    FORECASTS_FILE,
    Forecast,
    SealedForecasts,
    read_sealed,
    seal,
)
from runbook.results.plan_versus_actual import planned_numbers
from runbook.results.wall_time import Rates
from runbook.runs.planned_run import PlannedRun

CALIBRATED_WIDTH = math.log(1.3)
"""Half-width for step time and total time if a smoke test on this machine corrected the plan."""
PLAIN_WIDTH = math.log(2.0)
"""Half-width for step time and total time if no smoke test corrected the plan.

Uncorrected step times in the plan are within a factor of 2 of published times (docs/plan.md).
"""
MEMORY_WIDTH = math.log(1.25)
"""Half-width for memory.

The plan covers only the steps, but the peak in a process includes saves and evaluations.
"""

COST = "cost"
MONEY = "cost in money"
USEFUL_TIME = "useful time"
START_SECONDS = 120.0
"""Time to start the trainer twice and save each time; the second start follows a planned stop.

Each start takes 20 s on two idle cores.
"""


def seal_forecasts(run: PlannedRun) -> None:
    """Write the forecasts for training once, with the time and a checksum.

    A training run that starts again with different values gets a new seal, and the old seal moves
    to the history. Raise `RecordError` if a sealed forecast has changed.
    """
    folder = run.folder
    log = run.plan.phases[FULL].log
    fingerprint = phase_step(run, FULL).fingerprint
    sealed = read_sealed(folder)
    if sealed is not None and sealed.fingerprint == fingerprint:
        return
    if sealed is not None:
        move_to_history(folder, FULL, sealed_paths(folder, FULL))
    forecasts = SealedForecasts(
        run=run.settings.name,
        fingerprint=fingerprint,
        sealed=utc_now(),
        late=has_steps(folder / log.metrics),
        forecasts=tuple(make_forecasts(run)),
    )
    written = seal(forecasts, folder)
    note_files(folder, [folder / FORECASTS_FILE])
    run.training(FULL).append_event(
        "forecasts_sealed", checksum=written.checksum, late=written.late
    )


def has_steps(metrics: Path) -> bool:
    """Return whether a training run has completed a step."""
    return any("iteration" in line for line in iterate_lines(metrics))


def make_forecasts(run: PlannedRun) -> list[Forecast]:
    """Return the forecasts for training.

    They predict the loss, step time, memory, total time and cost, if the plan contains these.
    """
    plan = run.plan
    forecasts = []
    loss = planned_loss(run.settings, plan).forecast
    if loss is not None:
        forecasts.append(
            Forecast(
                "loss",
                "nats",
                loss.loss,
                loss.low,
                loss.high,
                loss.source,
            )
        )

    scores = read_scores_of_all(run.folder.parent)
    rates = device_rates(run.settings)
    for quantity, unit, value in _planned_numbers(plan, rates):
        width, source = _width(plan, quantity, scores)
        factor = math.exp(width)
        high = value * factor + _start_allowance(plan, quantity, rates)
        forecasts.append(
            Forecast(
                quantity,
                unit,
                value,
                value / factor,
                high,
                source,
            )
        )

    forecasts += _useful_time_forecast(plan)
    return forecasts


def _useful_time_forecast(plan: Plan) -> list[Forecast]:
    """Return the forecast for the share of useful time, which 05-analysis measures.

    Return an empty list if no failure rate is known.
    """
    expectation = useful_time(plan)
    if expectation is None or not expectation.median:
        return []
    # 05-analysis counts only time on nodes that train. Spare nodes are only part of the
    # cost.
    percent = 100 * expectation.of_training_nodes / expectation.median
    value = percent * expectation.median
    low = percent * expectation.low
    high = percent * expectation.high
    source = "simulated failures, eight of ten campaigns"
    return [
        Forecast(
            USEFUL_TIME,
            "%",
            value,
            low,
            high,
            source,
        )
    ]


def _planned_numbers(plan: Plan, rates: Rates) -> list[tuple[str, str, float]]:
    """Return quantity, unit and value for everything predicted by the plan for training."""
    time = plan.time[FULL]
    memory = planned_numbers(plan, FULL)[quantities.PROCESS_MEMORY]
    hours = time.device_hours * rates.held_devices if time.device_hours else None
    price = rates.price_per_device_hour
    numbers = [
        ("step time", "s", time.seconds_per_iteration),
        ("memory", "B", memory),
        ("total time", "s", time.seconds),
        (COST, "device-hours", hours),
        (MONEY, rates.currency, hours * price if hours and price else None),
    ]
    planned: list[tuple[str, str, float]] = []
    for quantity, unit, value in numbers:
        if value:
            planned.append((quantity, unit, float(value)))

    return planned


def _start_allowance(plan: Plan, quantity: str, rates: Rates) -> float:
    """Return the allowance for start-ups and saves, in the unit of the quantity.

    The plan does not include them.
    """
    if quantity == "total time":
        return START_SECONDS
    devices = plan.phases[FULL].parallel.world_size * rates.held_devices
    hours = START_SECONDS * devices / 3600
    if quantity == COST:
        return hours
    if quantity == MONEY:
        return hours * (rates.price_per_device_hour or 0.0)
    return 0.0


def _width(plan: Plan, quantity: str, scores: Sequence[ForecastScore]) -> tuple[float, str]:
    """Return the half-width of an interval, as a logarithm, and where the forecast comes from."""
    earlier_width = own_half_width(scores, quantity)
    if earlier_width is not None:
        return earlier_width, (
            "the plan; the interval is as wide as the plan's errors in earlier runs of this project"
        )
    if quantity == "memory":
        return MEMORY_WIDTH, "the plan"
    if plan.calibration.get(FULL) is not None:
        return CALIBRATED_WIDTH, "the plan, corrected by a smoke test"
    return PLAIN_WIDTH, "the plan"


def score_forecasts(run: PlannedRun, session: Session) -> View:
    """Score the sealed forecasts and show them, misses first.

    Add the scores to the project's scores, and show the calibration over all its runs. Nothing is
    scored before the training is finished: half of a run would always come out cheaper and
    shorter than forecast, and the project's later intervals depend on these scores.
    """
    sealed = read_sealed(run.folder)
    if sealed is None:
        return View(["This run has no forecasts from before its first step, so nothing is scored."])

    missing = why_not_finished(run, FULL)
    if missing:
        return View([PhaseMessage.FORECASTS_NOT_SCORED.fill(phase=FULL, missing=missing)])

    results = read_results(run.folder, run.plan, FULL)
    scores = score(sealed, actual_numbers(run.settings, results))
    runs = run.folder.parent
    append_scores(scores, runs)
    hits = {f"forecast of {score.quantity} held": score.hit for score in scores}
    session.add_results(hits)
    table = scores_table(scores, f"Forecasts sealed on {sealed.sealed[:16].replace('T', ' ')} UTC")
    others = read_scores_of_all(runs)
    return View([table, f"All runs of this project: {calibration_text(others)}"])


def actual_numbers(settings: Settings, results: TrainingResults) -> dict[str, float]:
    """Return the actual value for each quantity, in the unit of its forecast."""
    summary = results.summary
    numbers: dict[str, float | None] = {"step time": summary.seconds_per_iteration}
    if results.validation and results.validation[-1].iteration == summary.last_iteration:
        numbers["loss"] = results.validation[-1].loss
    account = results.account
    if account is not None:
        occupied_seconds = account.wall_seconds - account.waiting_seconds
        rates = device_rates(settings)
        first_row, *_ = wall_time.cost_table(summary, account, rates)
        hours = float(first_row["value"])
        numbers["total time"] = occupied_seconds
        numbers[COST] = hours
        if rates.price_per_device_hour:
            numbers[MONEY] = hours * rates.price_per_device_hour
        if occupied_seconds:
            numbers[USEFUL_TIME] = 100 * account.parts["productive"] / occupied_seconds

    numbers["memory"] = summary.memory_bytes or None
    actual: dict[str, float] = {}
    for quantity, value in numbers.items():
        if value is not None:
            actual[quantity] = value

    return actual


def all_scores_table(runs: Path) -> Table | None:
    """Return the scores from all runs, misses first, or None if there are no scores."""
    scores = read_scores_of_all(runs)
    if not scores:
        return None
    return scores_table(scores, "Forecasts of all runs")
