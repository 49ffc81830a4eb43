"""Forecasts a table of planned runs from a table of finished runs, each series separately."""

from collections import defaultdict

from runbook.core.errors import DataError
from runbook.forecast.final_loss import LossForecast, forecast_final_losses
from runbook.forecast.messages import ForecastMessage
from runbook.forecast.tables import TrainingRow, as_runs


def forecast_table(finished: list[TrainingRow], planned: list[TrainingRow]) -> list[LossForecast]:
    """Return a forecast for each planned run, in the same order.

    Losses on different data are not comparable, so a planned run is forecast from the finished runs
    in the same series. If all finished runs belong to a single series, they are used for all
    planned runs.
    """
    finished_by_series = _by_series(finished)
    forecasts: dict[int, LossForecast] = {}
    for series, positions in _positions_by_series(planned).items():
        rows = _rows_for(series, finished_by_series)
        targets = as_runs([planned[position] for position in positions])
        series_forecasts = forecast_final_losses(as_runs(rows), targets)
        forecasts.update(zip(positions, series_forecasts, strict=True))

    return [forecasts[position] for position in range(len(planned))]


def _by_series(rows: list[TrainingRow]) -> dict[str, list[TrainingRow]]:
    by_series = defaultdict(list)
    for row in rows:
        by_series[row.series].append(row)
    return by_series


def _positions_by_series(rows: list[TrainingRow]) -> dict[str, list[int]]:
    positions = defaultdict(list)
    for position, row in enumerate(rows):
        positions[row.series].append(position)
    return positions


def _rows_for(series: str, finished: dict[str, list[TrainingRow]]) -> list[TrainingRow]:
    if series in finished:
        return finished[series]
    if len(finished) == 1:
        return next(iter(finished.values()))
    raise DataError(
        ForecastMessage.SERIES_WITHOUT_RUNS, series=series, finished=", ".join(sorted(finished))
    )
