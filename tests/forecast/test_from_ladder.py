"""A ladder's forecast for its run, tested with ladders that were trained together with their runs."""

from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from runbook.forecast.from_ladder import forecast_from_ladder
from runbook.forecast.ladder_line import extend_line, line_errors, line_of, uneven_rungs
from runbook.forecast.laws import Runs
from runbook.forecast.tables import as_runs, read_finished_trainings

TABLES = Path(__file__).parents[2] / "benchmarks" / "forecast"


@pytest.fixture(scope="module")
def ladders() -> dict[str, tuple[Runs, Runs]]:
    """Return the ladders on which the line was chosen."""
    return read_ladders("ladders_corpus.csv")


@pytest.fixture(scope="module")
def blind_ladders() -> dict[str, tuple[Runs, Runs]]:
    """Return ladders that were trained after the line had been chosen."""
    return read_ladders("ladders_blind.csv")


def read_ladders(table: str) -> dict[str, tuple[Runs, Runs]]:
    """Return the rungs and the run of each ladder. The run is the largest training run."""
    series = defaultdict(list)
    for row in read_finished_trainings(TABLES / table):
        series[row.series].append(row)

    ladders = {}
    for name, rows in series.items():
        rows.sort(key=lambda row: row.flops)
        ladders[name] = (as_runs(rows[:-1]), as_runs(rows[-1:]))
    return ladders


def rungs(losses: list[float]) -> Runs:
    """Return rungs with 20 tokens per parameter, each with twice as much compute as the previous
    one.
    """
    params = 1e6 * np.sqrt(2.0) ** np.arange(len(losses))
    tokens = 20 * params
    return Runs(params, params, tokens, 6 * params * tokens, np.array(losses))


def power_law(floor: float, exponent: float) -> Runs:
    """Return five rungs that follow a law with this floor and exponent."""
    runs = rungs([0.0] * 5)
    return replace(runs, loss=floor + 3.0 * (runs.tokens / 2e7) ** -exponent)


def run_of(line: Runs, factor: float) -> Runs:
    """Return the training run on the line with `factor` times the compute of the largest rung."""
    largest = line.take(np.array([len(line) - 1]))
    grown = np.sqrt(factor)
    return Runs(
        largest.params * grown,
        largest.params * grown,
        largest.tokens * grown,
        largest.flops * factor,
        np.array([np.nan]),
    )


def test_the_forecasts_of_trained_ladders_are_near_and_their_intervals_hold(ladders):
    misses = {}
    inside = {}
    for name, (rungs_of_ladder, run) in ladders.items():
        (forecast,) = forecast_from_ladder(rungs_of_ladder, run)
        reached = float(run.loss[0])
        misses[name] = forecast.loss / reached - 1
        inside[name] = forecast.low <= reached <= forecast.high

    assert len(misses) == 16
    sizes = np.abs(list(misses.values()))
    assert np.median(sizes) < 0.0125
    assert np.median(list(misses.values())) == pytest.approx(0, abs=0.003)
    assert sum(inside.values()) == 13


def test_blind_ladders_with_the_rate_of_the_run_are_near_and_their_intervals_hold(blind_ladders):
    misses = {}
    inside = {}
    for name, (line, run) in blind_ladders.items():
        has_small_batch = not name.startswith("500x32")
        if name.endswith("run rate") == has_small_batch:
            (forecast,) = forecast_from_ladder(line, run)
            reached = float(run.loss[0])
            misses[name] = abs(forecast.loss / reached - 1)
            inside[name] = forecast.low <= reached <= forecast.high

    assert len(misses) == 23
    assert np.median(list(misses.values())) < 0.0105
    assert sum(miss <= 0.02 for miss in misses.values()) == 17
    assert sum(inside.values()) == 20


def test_a_scaled_rate_with_the_batch_of_the_run_can_miss_by_far(blind_ladders):
    line, run = blind_ladders["1600x2-6x256-seed102 scaled rate"]
    (forecast,) = forecast_from_ladder(line, run)
    assert forecast.loss / run.loss[0] - 1 > 0.39
    line, run = blind_ladders["1600x2-6x256-seed102 run rate"]
    (forecast,) = forecast_from_ladder(line, run)
    assert forecast.loss == pytest.approx(run.loss[0], rel=0.021)


def test_only_the_ladder_of_an_unstable_learning_rate_is_uneven(ladders):
    uneven = {name for name, (line, _) in ladders.items() if uneven_rungs(line_of(line))}
    assert uneven == {"1600x2-6x256-seed29-rate3e-3"}


def test_a_law_with_a_floor_among_the_votes_is_met():
    line = power_law(1.7, 0.15)
    run = run_of(line, 4.0)
    reached = 1.7 + 3.0 * (run.tokens[0] / 2e7) ** -0.15
    (forecast,) = forecast_from_ladder(line, run)
    assert forecast.loss == pytest.approx(reached, rel=1e-3)
    assert forecast.low < reached < forecast.high


def test_rungs_in_the_transient_hardly_count():
    """Move the smallest rung far above the line: the forecast changes by less than a thousandth."""
    line = power_law(1.7, 0.15)
    run = run_of(line, 4.0)
    (straight,) = forecast_from_ladder(line, run)
    above = line.loss.copy()
    above[0] *= 1.03
    (bent,) = forecast_from_ladder(replace(line, loss=above), run)
    assert bent.loss == pytest.approx(straight.loss, rel=1e-3)


def test_a_family_below_the_usual_floors_is_forecast():
    """Forecast losses below one nat, as for a text with only a few distinct words."""
    line = power_law(0.0, 0.1)
    low = replace(line, loss=line.loss / 4)
    run = run_of(low, 4.0)
    (forecast,) = forecast_from_ladder(low, run)
    assert forecast.loss == pytest.approx(0.75 * (run.tokens[0] / 2e7) ** -0.1, rel=0.02)


def test_a_line_that_misses_its_own_larger_rungs_has_a_wider_interval():
    line = power_law(1.7, 0.15)
    run = run_of(line, 4.0)
    zigzag = replace(line, loss=line.loss * np.array([1.0, 0.98, 1.02, 0.98, 1.02]))
    (straight,) = forecast_from_ladder(line, run)
    (uneven,) = forecast_from_ladder(zigzag, run)
    assert np.log(uneven.high / uneven.low) > 1.3 * np.log(straight.high / straight.low)


def test_the_line_of_smaller_rungs_is_compared_with_each_larger_one():
    errors, decades = line_errors(power_law(1.7, 0.15))
    assert len(errors) == 2
    assert errors == pytest.approx(np.zeros(2), abs=1e-3)
    assert decades == pytest.approx(np.full(2, np.log10(2)))


def test_every_floor_and_weight_votes():
    line = power_law(1.3, 0.15)
    votes = extend_line(line, run_of(line, 4.0).tokens)
    assert votes.losses.shape == (9, 1)
    assert len(np.unique(np.round(votes.losses, 6))) == 9


def test_a_size_beside_the_line_gets_what_the_laws_say_of_it():
    """Forecast a run, and a model a quarter of its size with the same compute, from seven rungs."""
    params = np.array([1.0, 1.4, 2.0, 2.8, 4.0, 4.0, 1.0]) * 1e6
    tokens = np.array([1.0, 1.4, 2.0, 2.8, 4.0, 1.0, 4.0]) * 2e7

    def law(sizes, trained):
        return 1.7 + 1.2 * (sizes / 1e6) ** -0.3 + 1.5 * (trained / 2e7) ** -0.3

    ladder = Runs(params, params, tokens, 6 * params * tokens, law(params, tokens))
    sizes = np.array([8e6, 2e6])
    trained = np.array([1.6e8, 6.4e8])
    targets = Runs(sizes, sizes, trained, 6 * sizes * trained, np.full(2, np.nan))
    run, smaller = forecast_from_ladder(ladder, targets)
    assert run.loss == pytest.approx(law(8e6, 1.6e8), rel=0.005)
    assert smaller.loss == pytest.approx(law(2e6, 6.4e8), rel=0.01)
