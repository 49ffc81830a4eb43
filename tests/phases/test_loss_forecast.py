"""The plan shows the forecast final loss, from the ladder if one was trained, and otherwise from
the published law with its source.
"""

import csv
import math
from pathlib import Path

import numpy as np
import pytest
from suite.messages import containing, says

from runbook.core.units import show_count
from runbook.forecast import published_law
from runbook.forecast.messages import ForecastMessage
from runbook.phases.loss_forecast import planned_loss, show_planned_loss
from runbook.phases.messages import PhaseMessage
from runbook.phases.run_plan import load_plan
from runbook.runs.run_folder import RUNS_VARIABLE

TABLES = Path(__file__).parents[2] / "benchmarks" / "forecast"


@pytest.fixture(autouse=True)
def no_runs(tmp_path, monkeypatch):
    monkeypatch.setenv(RUNS_VARIABLE, str(tmp_path))


def test_the_interval_of_the_law_holds_80_percent_of_other_families():
    errors = []
    for path in sorted(TABLES.glob("forecast_*.csv")):
        for row in csv.DictReader(path.read_text().splitlines()):
            law = published_law.published_loss(float(row["params"]), float(row["tokens"]))
            errors.append(abs(math.log(law.loss / float(row["loss"]))))
    assert len(errors) == 86
    assert np.quantile(errors, 0.8) == pytest.approx(published_law.HALF_WIDTH, abs=0.015)


def test_the_best_size_has_the_least_loss_at_its_compute():
    size, tokens = published_law.best_size(1e9, 300e9)
    assert size * tokens == pytest.approx(300e18)
    best = published_law.published_loss(size, tokens).loss
    for ratio in (0.9, 1.1):
        other = published_law.published_loss(size * ratio, tokens / ratio).loss
        assert other > best
    # Chinchilla itself, with 70 B parameters and 1.4 T tokens, had about 20 tokens per parameter.
    size, tokens = published_law.best_size(70e9, 1.4e12)
    assert 10 < tokens / size < 40


def test_a_large_run_without_a_ladder_has_the_published_law_with_its_source():
    settings, plan = load_plan("lumi-13b", ())
    forecast = planned_loss(settings, plan).forecast
    assert forecast is not None
    assert "Besiroglu" in forecast.source
    assert forecast.low < forecast.loss < forecast.high
    assert len(forecast.same_compute) == 5
    assert forecast.best is not None
    assert any("no ladder" in warning for warning in forecast.warnings)
    text = repr(show_planned_loss(settings, plan))
    best = forecast.best
    size = {"parameters": show_count(best.parameters), "tokens": show_count(best.tokens)}
    assert says(text, PhaseMessage.BEST_SIZE, **size, loss=best.loss)
    assert says(text, PhaseMessage.LADDER_WOULD_COST, run="lumi-13b")


def test_the_interval_of_the_law_grows_with_the_decades_beyond_its_trainings():
    inside = published_law.published_loss(16e9, 500e9)
    assert (inside.widening, inside.high / inside.loss) == (1.0, math.exp(published_law.HALF_WIDTH))
    one_decade = published_law.published_loss(160e9, 500e9)
    assert one_decade.widening == pytest.approx(math.sqrt(1.3 / 0.3))
    assert math.log(one_decade.high / one_decade.loss) == pytest.approx(
        published_law.HALF_WIDTH * one_decade.widening
    )
    settings, plan = load_plan("azure-175b", ("training.iterations=100000",))
    forecast = planned_loss(settings, plan).forecast
    assert forecast is not None
    assert says(forecast.warnings[1], PhaseMessage.LAW_FAR_FROM_RUN, decades=1.0)


def test_a_run_outside_of_the_law_has_no_forecast_and_the_reason():
    settings, plan = load_plan("local", ())
    planned = planned_loss(settings, plan)
    assert planned.forecast is None
    assert says(planned.reason, ForecastMessage.OUTSIDE_OF_LAW, parameters=containing("17,682,432"))
    settings, plan = load_plan("lumi-13b", ("data.dataset=mock",))
    assert "random tokens" in planned_loss(settings, plan).reason
