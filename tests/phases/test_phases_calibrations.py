"""Later plans find what a smoke test measured, and no existing plan changes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from suite.messages import says
from test_phases_parts import settings_of
from toy_run import open_run, write_metrics

from runbook.phases.p03_smoke_test.phase import BY_MEASURED_STEPS, outlook
from runbook.phases.run_plan import load_plan
from runbook.planning.messages import PlanningMessage
from runbook.results.history import read_metrics
from runbook.runs import this_machine


@pytest.fixture
def smoke(runs):
    """Store a toy smoke test, whose steps took 0.5 s each, as a calibration."""
    open_phase = open_run("03-smoke-test", runs=runs)
    history = read_metrics(write_metrics(open_phase, 6, seconds=0.5))
    kept = this_machine.keep_calibration(
        open_phase.settings, open_phase.plan, open_phase.folder, history
    )
    assert kept is not None
    return open_phase, kept


def test_a_later_plan_is_corrected_to_the_measured_step(smoke):
    open_phase, kept = smoke
    words = ["model=tiny", "training.smoke.model=tiny", "training.iterations=7"]
    _, plain = load_plan("local", words)
    _, corrected = load_plan("local", words, measured=True)
    found = corrected.as_dict()["time"]["03-smoke-test"]
    assert found["seconds_per_iteration"] == pytest.approx(0.5, rel=1e-3)
    measured = {"run": open_phase.settings.name, "measured": kept.measured[:10]}
    assert says(found["basis"], PlanningMessage.CORRECTED_BY_SMOKE_TEST, **measured)
    basis = plain.as_dict()["time"]["03-smoke-test"]["basis"]
    assert not says(basis, PlanningMessage.CORRECTED_BY_SMOKE_TEST)


def test_a_smoke_test_that_was_warned_of_rescales_its_own_run_alone(smoke):
    open_phase, _ = smoke
    settings = open_phase.settings
    history = read_metrics(metrics(open_phase))
    this_machine.keep_calibration(
        settings, open_phase.plan, open_phase.folder, history, warned=True
    )
    runs = open_phase.folder.parent
    assert [one.run for one in this_machine.known_calibrations(settings, runs).found] == [
        settings.name
    ]
    other = replace(settings, variant="other")
    assert this_machine.known_calibrations(other, runs).found == ()


def test_the_plan_of_a_run_stays_as_it_was_made(smoke, runs):
    open_phase, _ = smoke
    again = open_run("03-smoke-test", runs=runs)
    assert again.plan == open_phase.plan
    rows = outlook(again.run)
    assert rows[0]["planned"] != rows[0][BY_MEASURED_STEPS]


def test_measuring_twice_does_not_multiply_the_factor(smoke, runs):
    open_phase, kept = smoke
    again = this_machine.keep_calibration(
        open_phase.settings,
        load_plan("local", [], measured=False)[1],
        open_phase.folder,
        read_metrics(metrics(open_phase)),
    )
    assert again is not None
    assert again.measured_seconds == kept.measured_seconds == 0.5


def metrics(open_phase):
    return open_phase.folder / open_phase.phase_plan.log.metrics


def test_too_few_steps_say_nothing(runs):
    open_phase = open_run("03-smoke-test", runs=runs)
    history = read_metrics(write_metrics(open_phase, 3, seconds=0.5))
    assert (
        this_machine.keep_calibration(
            open_phase.settings, open_phase.plan, open_phase.folder, history
        )
        is None
    )
    assert this_machine.known_calibrations(open_phase.settings, runs).found == ()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"factor": 1}', "null", "\x00"])
def test_a_file_that_cannot_be_read_is_passed_over(smoke, runs, text):
    open_phase, _ = smoke
    (open_phase.folder / this_machine.CALIBRATION_FILE).write_text(text)
    assert this_machine.known_calibrations(settings_of(), runs).found == ()


def test_a_stored_calibration_that_is_broken_does_not_stop_the_run(smoke, runs):
    open_phase, _ = smoke
    path = open_phase.folder / "plan.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "calibration": {"03-smoke-test": {"factor": -1}}}))
    assert this_machine.calibrations_of_run(open_phase.settings, open_phase.folder).found != ()
