"""Scores sealed forecasts once training has ended, and derives interval widths from the scores."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from runbook.core.files import read_lines
from runbook.core.table import Row, Table
from runbook.core.units import show_bytes, show_duration
from runbook.forecast.interval_rules import COVERAGE, INTERVAL
from runbook.plan_file.json_records import append_line
from runbook.results.forecast_seal import Forecast, SealedForecasts
from runbook.results.messages import ResultMessage

SCORES_FILE = "forecasts.jsonl"
"""File next to the run folders, with a line for each scored forecast of any run."""
FEWEST_OWN_SCORES = 5
"""With at least this many earlier scores, the errors in them determine how wide an interval is."""


@dataclass(frozen=True)
class ForecastScore:
    """A forecast and its outcome."""

    run: str
    checksum: str
    """Checksum of the sealed forecasts, used to count each forecast only once."""
    quantity: str
    unit: str
    value: float
    low: float
    high: float
    actual: float
    hit: bool
    pinball: float
    """Mean pinball loss over both ends of the interval, divided by the forecast value."""
    late: bool
    source: str


def score(sealed: SealedForecasts, actual: dict[str, float]) -> list[ForecastScore]:
    """Return a score for each forecast with a known outcome."""
    scores = []
    for forecast in sealed.forecasts:
        if forecast.quantity not in actual:
            continue

        came_true = actual[forecast.quantity]
        new_score = ForecastScore(
            run=sealed.run,
            checksum=sealed.checksum,
            quantity=forecast.quantity,
            unit=forecast.unit,
            value=forecast.value,
            low=forecast.low,
            high=forecast.high,
            actual=came_true,
            hit=forecast.low <= came_true <= forecast.high,
            pinball=pinball(forecast, came_true),
            late=sealed.late,
            source=forecast.source,
        )
        scores.append(new_score)

    return scores


def pinball(forecast: Forecast, actual: float) -> float:
    """Return the mean pinball loss over both ends of an interval, divided by the forecast value.

    >>> narrow = Forecast("loss", "nats", 5.0, 4.9, 5.1, "")
    >>> wide = Forecast("loss", "nats", 5.0, 4.0, 6.0, "")
    >>> [round(pinball(forecast, actual), 4) for forecast in (narrow, wide) for actual in (5.0, 5.5)]
    [0.002, 0.042, 0.02, 0.02]
    """
    tail = (1 - COVERAGE) / 2
    losses = [
        _quantile_loss(actual, forecast.low, tail),
        _quantile_loss(actual, forecast.high, 1 - tail),
    ]
    return sum(losses) / len(losses) / abs(forecast.value)


def _quantile_loss(actual: float, quantile: float, share: float) -> float:
    difference = actual - quantile
    return max(share * difference, (share - 1) * difference)


def append_scores(scores: Iterable[ForecastScore], runs: Path) -> None:
    """Append the scores not yet in the file."""
    path = runs / SCORES_FILE
    scored = {(line.get("checksum"), line.get("quantity")) for line in read_lines(path)}
    for score in scores:
        if (score.checksum, score.quantity) not in scored:
            append_line(path, asdict(score))


def read_scores_of_all(runs: Path) -> list[ForecastScore]:
    """Return all scores in a project.

    Lines a different version wrote are skipped.
    """
    scores = []
    for line in read_lines(runs / SCORES_FILE):
        values: dict[str, Any] = line
        try:
            scores.append(ForecastScore(**values))
        except TypeError:
            continue

    return scores


def own_half_width(scores: Sequence[ForecastScore], quantity: str) -> float | None:
    """Return half the interval width: the 80th percentile of logarithmic errors in earlier runs.

    Return None if there are too few runs.
    """
    errors = []
    for score in scores:
        # Skip forecasts made after the first step, since these already contain part of the outcome.
        if score.quantity != quantity or score.late:
            continue
        if score.actual > 0 and score.value > 0:
            errors.append(abs(math.log(score.actual / score.value)))

    errors.sort()
    if len(errors) < FEWEST_OWN_SCORES:
        return None
    rank = math.ceil(COVERAGE * (len(errors) + 1))
    return errors[min(rank, len(errors)) - 1]


def scores_table(scores: Sequence[ForecastScore], title: str) -> Table:
    """Return a table of forecasts and their outcomes, with misses first."""
    ordered = sorted(scores, key=lambda score: (score.hit, score.run, score.quantity))
    rows = []
    for score in ordered:
        low = shown_in_unit(score.low, score.unit)
        high = shown_in_unit(score.high, score.unit)
        row: Row = {
            "run": score.run,
            "quantity": score.quantity,
            "forecast": shown_in_unit(score.value, score.unit),
            INTERVAL: f"{low} to {high}",
            "came true": shown_in_unit(score.actual, score.unit),
            "verdict": _verdict(score),
            "pinball": f"{score.pinball:.3g}",
        }
        rows.append(row)

    return Table(rows, title, [calibration_text(scores)], source=SCORES_FILE)


def shown_in_unit(value: float, unit: str) -> str:
    """Return a forecast quantity as text, with bytes and durations in suitable units."""
    if unit == "B":
        return show_bytes(value)
    if unit == "s":
        return show_duration(value)
    return f"{value:.4g} {unit}"


def _verdict(score: ForecastScore) -> str:
    verdict = "inside" if score.hit else "missed"
    return ResultMessage.MADE_LATE.fill(verdict=verdict) if score.late else verdict


def calibration_text(scores: Sequence[ForecastScore]) -> str:
    """Return a sentence about how many intervals contained the outcome.

    Late forecasts are not counted.
    """
    counted = [score for score in scores if not score.late]
    late = len(scores) - len(counted)
    hits = sum(score.hit for score in counted)
    text = ResultMessage.FORECASTS_HELD.fill(hits=hits, counted=len(counted), interval=INTERVAL)
    if late:
        text += ResultMessage.LATE_NOT_COUNTED.fill(late=late)
    return text
