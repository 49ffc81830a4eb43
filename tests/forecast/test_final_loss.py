"""Forecasts for final losses: with a known law, and for published training runs that were not in
the fit.
"""

import csv
import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from suite.messages import containing, refuses, says

from runbook.core.errors import DataError
from runbook.forecast.final_loss import (
    FEWEST_FOR_CHOICE,
    USUAL_SCORE,
    forecast_final_losses,
    interval_score,
    voting_choices,
)
from runbook.forecast.interval_rules import FAR_WIDENING, FARTHEST_RATIO
from runbook.forecast.laws import LawChoice, Runs, fit_law
from runbook.forecast.messages import ForecastMessage
from runbook.forecast.series import forecast_table
from runbook.forecast.tables import as_runs, read_finished_trainings, read_planned_trainings

DATA = Path(__file__).parents[2] / "benchmarks" / "forecast"
TABLES = ("forecast_openlm_c4", "forecast_openlm_redpajama", "forecast_steplaw")


def chinchilla(sizes, tokens_per_parameter) -> Runs:
    """Return runs that follow E + A/N^a + B/D^b exactly, with the coefficients of Hoffmann et al."""
    params = np.repeat(np.array(sizes, dtype=float), len(tokens_per_parameter))
    tokens = params * np.tile(tokens_per_parameter, len(sizes))
    loss = 1.69 + 406.4 / params**0.34 + 410.7 / tokens**0.28
    return Runs(params, params, tokens, 6 * params * tokens, loss)


LADDER = chinchilla([1e7, 3e7, 1e8, 3e8], [10, 20, 40])
TARGET = chinchilla([3e9], [20])


def by_part(name: str) -> tuple[Runs, Runs]:
    path = DATA / f"{name}.csv"
    runs = as_runs(read_finished_trainings(path))
    with path.open() as file:
        is_target = np.array([row["part"] == "target" for row in csv.DictReader(file)])
    return runs.take(~is_target), runs.take(is_target)


def test_a_law_that_the_runs_follow_is_found():
    law = fit_law(LADDER, LawChoice(embeddings=True, tied=False, weight_power=0.0))
    predicted = law.predict(TARGET.params, TARGET.tokens)
    assert predicted == pytest.approx(TARGET.loss, rel=5e-3)


def test_the_forecast_of_a_ladder_holds_the_loss_fifty_times_further():
    (forecast,) = forecast_final_losses(LADDER, TARGET)
    assert forecast.decades == pytest.approx(np.log10(50))
    assert forecast.loss == pytest.approx(float(TARGET.loss[0]), rel=0.01)
    assert forecast.low < TARGET.loss[0] < forecast.high
    assert forecast.warnings == ()


def test_published_targets_are_forecast_as_the_page_says():
    """Check the errors that docs/forecast.md states for published runs. A changed constant in
    final_loss.py would change them."""
    errors, inside = [], []
    for name in TABLES:
        fitted, targets = by_part(name)
        forecasts = forecast_final_losses(fitted, targets)
        losses = np.array([forecast.loss for forecast in forecasts])
        errors.append(np.abs(losses / targets.loss - 1))
        for forecast, loss in zip(forecasts, targets.loss, strict=True):
            inside.append(forecast.low <= loss <= forecast.high)
    assert np.median(np.concatenate(errors)) < 0.008
    assert 0.7 <= np.mean(inside) <= 0.95


def test_one_training_that_went_wrong_does_not_bend_the_law():
    losses = LADDER.loss.copy()
    losses[2] *= 1.3
    choice = LawChoice(embeddings=True, tied=False, weight_power=0.0)
    law = fit_law(replace(LADDER, loss=losses), choice)
    assert law.predict(TARGET.params, TARGET.tokens) == pytest.approx(TARGET.loss, rel=0.01)


def test_few_runs_vote_with_one_exponent_and_many_choose_by_a_backtest():
    assert all(choice.tied for choice in voting_choices(LADDER))
    many = chinchilla(np.geomspace(1e7, 1e9, 20), [10, 20, 40])
    assert len(many) == FEWEST_FOR_CHOICE
    assert {choice.tied for choice in voting_choices(many)} == {True, False}


def test_too_few_runs_and_runs_of_one_size_are_refused():
    with refuses(DataError, ForecastMessage.TOO_FEW_FINISHED_RUNS, fewest_runs=5):
        forecast_final_losses(LADDER.take(np.arange(4)), TARGET)
    with refuses(DataError, ForecastMessage.RUNS_OF_ONE_SIZE, quantity="size"):
        forecast_final_losses(chinchilla([1e8], [10, 20, 40, 80, 160]), TARGET)


def test_a_forecast_over_a_thousand_times_the_compute_says_so_and_is_wider():
    near, far = forecast_final_losses(LADDER, chinchilla([5e9, 5e10], [20]))
    assert near.warnings == ()
    values = {"farthest_ratio": FARTHEST_RATIO, "widening": FAR_WIDENING}
    assert says(far.warnings[0], ForecastMessage.FAR_TARGET, **values)
    near_width = np.log(near.high / near.loss) / np.sqrt(near.decades + 0.3)
    far_width = np.log(far.high / far.loss) / np.sqrt(far.decades + 0.3)
    assert far_width == pytest.approx(FAR_WIDENING * near_width)


def test_an_interval_without_backtests_is_the_usual_one():
    assert interval_score([]) == USUAL_SCORE
    assert interval_score([np.full(100, 4 * USUAL_SCORE)]) == pytest.approx(2 * USUAL_SCORE)


def test_each_series_is_forecast_from_its_own_runs(tmp_path):
    fitted = read_finished_trainings(DATA / "forecast_openlm_c4.csv")
    other = [replace(row, series="other", loss=row.loss * 2) for row in fitted]
    fitted = fitted[:12]
    other = other[:12]
    planned = [replace(fitted[-1], series="other"), fitted[-1]]
    doubled, single = forecast_table(fitted + other, planned)
    assert doubled.loss == pytest.approx(2 * single.loss, rel=0.01)
    with refuses(DataError, ForecastMessage.SERIES_WITHOUT_RUNS, series="third"):
        forecast_table(fitted + other, [replace(fitted[-1], series="third")])


def test_a_table_says_which_line_is_wrong(tmp_path):
    table = tmp_path / "fit.csv"
    table.write_text("params,tokens,loss\n1e8,2e9,3.1\n1e8,none,3.0\n")
    with refuses(
        DataError,
        ForecastMessage.NUMBER_NEEDED,
        path=containing("fit.csv"),
        line=3,
        column="tokens",
        text="none",
    ):
        read_finished_trainings(table)
    (first, *_) = read_planned_trainings(DATA / "forecast_steplaw.csv")
    assert np.isnan(first.loss)


def test_the_data_are_those_of_their_readme():
    readme = (DATA / "README.md").read_text()
    for path in DATA.glob("*.csv"):
        assert hashlib.sha256(path.read_bytes()).hexdigest() in readme
    shipped = DATA.parents[1] / "runbook" / "forecast" / "curve_coefficients.json"
    families = json.loads(shipped.read_text())["families"]
    fitted = [family["curves_sha256"] for family in families.values()]
    tables = [DATA / "curves.csv", DATA / "curves_olmo.csv"]
    assert fitted == [hashlib.sha256(table.read_bytes()).hexdigest() for table in tables]
