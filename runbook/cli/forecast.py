"""`runbook forecast`: predict the final loss from small runs, or from the start of a curve."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from runbook.cli.messages import CliMessage
from runbook.cli.options import RUNS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runbook.forecast.curve import CurveForecast

_TABLE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.argument("run_name", metavar="[RUN]", default="")
@click.option(
    "--fit",
    "fit_table",
    type=_TABLE,
    metavar="FIT.csv",
    help="Finished training runs: series, params, params_no_embed, tokens, flops, loss.",
)
@click.option(
    "--predict",
    "target_table",
    type=_TABLE,
    metavar="TARGET.csv",
    help="Training runs to forecast, with the same columns; their loss is ignored.",
)
@click.option(
    "--curve",
    "curve_table",
    type=_TABLE,
    metavar="CURVE.csv",
    help="The first part of a curve: step, val_loss, total_steps, decay_from.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@RUNS
def forecast(
    run_name: str,
    fit_table: Path | None,
    target_table: Path | None,
    curve_table: Path | None,
    as_json: bool,
    runs: Path | None,
) -> None:
    """Forecast a final loss with an 80% interval.

    With --fit and --predict: from finished smaller training runs of the same family. With --curve:
    from the first part of the training run's own validation curve. With RUN: the same, from the
    run's evaluations so far. docs/forecast.md shows how accurate the forecasts are.
    """
    tables = (fit_table is not None, target_table is not None, curve_table is not None)
    if run_name and not any(tables):
        _print_run_forecast(run_name, runs, as_json=as_json)
    elif not run_name and curve_table is not None and tables == (False, False, True):
        _print_curve_table_forecast(curve_table, as_json=as_json)
    elif not run_name and fit_table and target_table and tables == (True, True, False):
        _print_loss_forecasts(fit_table, target_table, as_json=as_json)
    else:
        raise click.UsageError(
            "Give --fit FIT.csv with --predict TARGET.csv, or --curve CURVE.csv, or the name of a "
            "run."
        )


def _print_run_forecast(run_name: str, runs: Path | None, *, as_json: bool) -> None:
    from runbook.results.curve_forecast import forecast_of_run
    from runbook.runs.status import run_folder

    _print_curve_forecast(forecast_of_run(run_folder(run_name, runs)), as_json=as_json)


def _print_curve_table_forecast(curve_table: Path, *, as_json: bool) -> None:
    from runbook.forecast.curve import forecast_curve
    from runbook.forecast.tables import read_curve

    _print_curve_forecast(forecast_curve(read_curve(curve_table)), as_json=as_json)


def _print_loss_forecasts(fit_table: Path, target_table: Path, *, as_json: bool) -> None:
    from runbook.forecast.interval_rules import INTERVAL
    from runbook.forecast.series import forecast_table
    from runbook.forecast.tables import read_finished_trainings, read_planned_trainings

    finished = read_finished_trainings(fit_table)
    planned = read_planned_trainings(target_table)
    forecasts = forecast_table(finished, planned)
    if as_json:
        click.echo(json.dumps([asdict(forecast) for forecast in forecasts], indent=1))
        return

    click.echo(f"{'parameters':>14} {'tokens':>18} {'loss':>8}   {INTERVAL}")
    for row, forecast in zip(planned, forecasts, strict=True):
        interval = f"{forecast.low:.4f} to {forecast.high:.4f}"
        click.echo(f"{row.params:14,.0f} {row.tokens:18,.0f} {forecast.loss:8.4f}   {interval}")

    _print_warnings([warning for forecast in forecasts for warning in forecast.warnings])


def _print_curve_forecast(curve_forecast: CurveForecast, *, as_json: bool) -> None:
    from runbook.forecast.interval_rules import SHARE_IN_INTERVAL

    if as_json:
        click.echo(json.dumps(asdict(curve_forecast), indent=1))
        return

    click.echo(
        CliMessage.FORECAST_OF_CURVE.fill(
            share=curve_forecast.share,
            loss=curve_forecast.loss,
            low=curve_forecast.low,
            high=curve_forecast.high,
            share_in_interval=SHARE_IN_INTERVAL,
        )
    )
    _print_warnings(curve_forecast.warnings)


def _print_warnings(warnings: Sequence[str]) -> None:
    for warning in dict.fromkeys(warnings):
        click.echo(f"Note: {warning}.")
