"""Forecasts are sealed before the first step and scored once, and a changed forecast is detected."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
from suite.messages import refuses, says

from runbook.core import quantities
from runbook.core.errors import RecordError
from runbook.phases import run_report
from runbook.phases.messages import PhaseMessage
from runbook.phases.phase_steps import VERSIONS, train_step
from runbook.phases.run_plan import load_plan
from runbook.phases.sealed_forecasts import (
    START_SECONDS,
    make_forecasts,
    score_forecasts,
    seal_forecasts,
)
from runbook.phases.training_outputs import sealed_paths
from runbook.plan_file.phase_names import FULL
from runbook.records.manifest import writer_of
from runbook.results.forecast_scores import (
    SCORES_FILE,
    append_scores,
    calibration_text,
    own_half_width,
    pinball,
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
from runbook.results.messages import ResultMessage
from runbook.results.plan_versus_actual import planned_numbers
from runbook.runs.planned_run import PlannedRun
from runbook.runs.run_folder import RUNS_VARIABLE

LOSS = Forecast("loss", "nats", 5.0, 4.9, 5.1, "five rungs of local")
STEP = Forecast("step time", "s", 0.10, 0.05, 0.20, "the plan")


def sealed(run: str = "local", *, late: bool = False) -> SealedForecasts:
    return SealedForecasts(run, "f" * 16, "2026-11-26T21:00:00Z", late, (LOSS, STEP))


@pytest.fixture
def opened(tmp_path, monkeypatch):
    """Open a run with a real plan."""
    monkeypatch.setenv(RUNS_VARIABLE, str(tmp_path))
    settings, plan = load_plan("local", ())
    folder = tmp_path / "local"
    folder.mkdir()
    return PlannedRun(settings, plan, folder)


def sealing_events(run: PlannedRun) -> list[dict[str, object]]:
    """Return the events about seals, without their times."""
    lines = map(json.loads, run.training(FULL).events_path.read_text().splitlines())
    return [{key: line[key] for key in line if key != "time"} for line in lines]


def test_a_sealed_forecast_is_read_as_it_was_written(tmp_path):
    written = seal(sealed(), tmp_path)
    assert read_sealed(tmp_path) == written
    assert written.checksum


@pytest.mark.parametrize("change", [("low", 4.0), ("value", 5.5), ("source", "a guess")])
def test_a_changed_forecast_is_found(tmp_path, change):
    written = seal(sealed(), tmp_path)
    path = tmp_path / FORECASTS_FILE
    content = json.loads(path.read_text())
    key, value = change
    content["forecasts"][0][key] = value
    path.write_text(json.dumps(content))
    with refuses(
        RecordError,
        ResultMessage.FORECAST_CHANGED,
        path=path,
        sealed=written.sealed,
        checksum=written.checksum[:12],
    ):
        read_sealed(tmp_path)


def test_verify_knows_the_file_as_the_trainings():
    assert writer_of(FORECASTS_FILE) == FULL


def test_a_score_says_whether_the_interval_held():
    scores = score(sealed(), {"loss": 5.3, "step time": 0.12})
    assert [one.hit for one in scores] == [False, True]
    assert scores[0].pinball == pytest.approx((0.1 * 0.4 + 0.9 * 0.2) / 2 / 5.0)


def test_a_score_far_off_is_shown_by_three_digits():
    """Score a run that takes 25 times as long as planned because others use the machine, too."""
    table = scores_table(score(sealed(), {"step time": 25 * 0.1 + 0.03}), "all")
    digits = table.rows[0]["pinball"].replace(".", "")
    assert float(table.rows[0]["pinball"]) > 1
    assert len(digits) == 3


def test_pinball_prefers_a_narrow_interval_that_holds():
    wide = replace(LOSS, low=4.0, high=6.0)
    assert pinball(LOSS, 5.0) < pinball(wide, 5.0)
    assert pinball(LOSS, 7.0) > pinball(wide, 7.0)


def test_scores_are_appended_once_and_misses_come_first(tmp_path):
    first = score(seal(sealed("a"), tmp_path), {"loss": 5.0, "step time": 0.12})
    missed = score(seal(sealed("b"), tmp_path), {"loss": 5.3})
    append_scores(first, tmp_path)
    append_scores(first, tmp_path)
    append_scores(missed, tmp_path)
    assert len((tmp_path / SCORES_FILE).read_text().splitlines()) == 3
    scores = read_scores_of_all(tmp_path)
    table = scores_table(scores, "all")
    assert table.rows[0]["run"] == "b"
    assert calibration_text(scores) == ResultMessage.FORECASTS_HELD.fill(
        hits=2, counted=3, interval="80% interval"
    )


def test_a_late_forecast_says_so_and_is_not_counted(tmp_path):
    scores = score(seal(sealed(late=True), tmp_path), {"loss": 5.0})
    held = ResultMessage.FORECASTS_HELD.fill(hits=0, counted=0, interval="80% interval")
    late = ResultMessage.LATE_NOT_COUNTED.fill(late=len(scores))
    assert calibration_text(scores) == held + late
    verdict = scores_table(scores, "all").rows[0]["verdict"]
    assert says(verdict, ResultMessage.MADE_LATE, verdict="inside")


def test_after_five_runs_an_interval_is_as_wide_as_their_errors(tmp_path):
    scores = []
    for number, actual in enumerate((0.11, 0.12, 0.13, 0.14, 0.15)):
        one = seal(sealed(f"run-{number}"), tmp_path)
        scores += score(one, {"step time": actual})
    assert own_half_width(scores[:4], "step time") is None
    assert own_half_width(scores, "step time") == pytest.approx(math.log(1.5))


def test_what_the_plan_knows_is_forecast_with_an_interval(opened):
    forecasts = {one.quantity: one for one in make_forecasts(opened)}
    assert set(forecasts) == {"step time", "memory", "total time", "cost"}
    for one in forecasts.values():
        assert one.low < one.value < one.high
        assert one.source
    time = forecasts["total time"]
    assert time.high == pytest.approx(2 * time.value + START_SECONDS)
    hours = forecasts["cost"]
    assert hours.high == pytest.approx(2 * hours.value + 2 * START_SECONDS / 3600)


def test_money_is_sealed_where_the_site_has_a_price_and_spare_nodes_cost(opened):
    words = (
        "jobs.price_per_device_hour=2.5",
        "jobs.training.spares=2",
        "training.iterations=60000",
    )
    opened = PlannedRun(*load_plan("azure-175b", words), opened.folder)
    forecasts = {one.quantity: one for one in make_forecasts(opened)}
    hours = opened.plan.time[FULL].device_hours
    nodes = opened.settings.run.jobs.training.nodes
    assert forecasts["cost"].value == pytest.approx(hours * (nodes + 2) / nodes)
    money = forecasts["cost in money"]
    assert money.value == pytest.approx(2.5 * forecasts["cost"].value)
    assert money.high == pytest.approx(2.5 * forecasts["cost"].high)


def test_useful_time_is_sealed_as_the_analysis_measures_it(opened):
    words = ("training.iterations=60000",)
    opened = PlannedRun(*load_plan("azure-175b", words), opened.folder)
    (forecast,) = [one for one in make_forecasts(opened) if one.quantity == "useful time"]
    planned = planned_numbers(opened.plan, FULL)[quantities.USEFUL_TIME]
    assert forecast.value == pytest.approx(planned)
    assert 50 < forecast.low < forecast.value < forecast.high < 100


def test_forecasts_are_sealed_once_and_before_the_first_step(opened):
    seal_forecasts(opened)
    first = read_sealed(opened.folder)
    assert first is not None
    assert not first.late
    seal_event = {
        "event": "forecasts_sealed",
        "phase": FULL,
        "checksum": first.checksum,
        "late": False,
    }
    assert sealing_events(opened) == [seal_event]
    seal_forecasts(opened)
    assert read_sealed(opened.folder) == first
    assert len(sealing_events(opened)) == 1


def test_a_forecast_after_the_first_step_is_late_and_the_first_one_is_kept(opened, monkeypatch):
    seal_forecasts(opened)
    (opened.folder / "metrics.jsonl").write_text('{"iteration": 1, "loss": 10.8}\n')
    monkeypatch.setitem(VERSIONS, FULL, 2)
    seal_forecasts(opened)
    later = read_sealed(opened.folder)
    assert later is not None
    assert later.late
    assert list((opened.folder / "history").glob(f"*/{FORECASTS_FILE}"))
    assert sealed_paths(opened.folder, "03-smoke-test") == []


def test_nothing_is_scored_before_the_training_is_finished(opened):
    """Half of a training always costs less than forecast, and later intervals depend on scores."""
    seal_forecasts(opened)
    steps = [{"iteration": n + 1, "loss": 9.0, "seconds": 0.5} for n in range(3)]
    (opened.folder / "metrics.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in steps))
    session = SimpleNamespace(add_results=lambda results: pytest.fail(f"stored {results}"))
    (said,) = score_forecasts(opened, session)
    assert says(said, PhaseMessage.FORECASTS_NOT_SCORED, phase=FULL, missing="not done yet")
    assert read_scores_of_all(opened.folder.parent) == []

    train_step(opened, FULL).mark_done()
    stored = dict[str, object]()
    score_forecasts(opened, SimpleNamespace(add_results=stored.update))
    assert "forecast of step time held" in stored
    assert [one.quantity for one in read_scores_of_all(opened.folder.parent)]


def missed_text(*, held, **values):
    """Return the text about one missed forecast, and the number of forecasts that held."""
    hits, counted = held
    calibration = ResultMessage.FORECASTS_HELD.fill(
        hits=hits, counted=counted, interval="80% interval"
    )
    misses = PhaseMessage.MISSED_FORECAST.fill(**values)
    return PhaseMessage.MISSED_FORECASTS.fill(misses=misses, calibration=calibration)


def test_the_report_names_misses_first(tmp_path):
    assert run_report._forecast_facts(tmp_path) == []
    append_scores(score(seal(sealed("b"), tmp_path), {"loss": 5.3, "step time": 0.1}), tmp_path)
    ((name, text),) = run_report._forecast_facts(tmp_path)
    assert name == run_report.FORECASTS_OF_ALL_RUNS
    assert text == missed_text(
        run="b", quantity="loss", actual="5.3 nats", low="4.9", high="5.1", held=(1, 2)
    )


def test_a_report_gives_missed_bytes_in_a_unit_that_fits(tmp_path):
    memory = Forecast("memory", "B", 5.5e8, 5.0e8, 6.0e8, "the plan")
    seals = replace(sealed("b"), forecasts=(memory,))
    append_scores(score(seal(seals, tmp_path), {"memory": 8.113e8}), tmp_path)
    ((_, text),) = run_report._forecast_facts(tmp_path)
    assert text == missed_text(
        run="b", quantity="memory", actual="774 MiB", low="477 MiB", high="572 MiB", held=(0, 1)
    )
