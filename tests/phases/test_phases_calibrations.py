"""What a smoke test measured is found again by later plans, and changes none that was already made."""

from __future__ import annotations

import json

import pytest
from test_phases_parts import settings_of
from toy_run import open_run, write_metrics

from runbook.analysis.history import read_metrics
from runbook.phases import calibrations
from runbook.phases.overview import make
from runbook.phases.smoke_test import outlook


@pytest.fixture
def smoke(runs):
    """A toy smoke test whose steps took 0.5 s each, kept as a calibration."""
    campaign = open_run("03-smoke-test", runs=runs)
    history = read_metrics(write_metrics(campaign, 6, seconds=0.5))
    kept = calibrations.keep(campaign.settings, campaign.plan, campaign.folder, history)
    assert kept is not None
    return campaign, kept


def test_a_later_plan_is_corrected_to_the_measured_step(smoke):
    campaign, kept = smoke
    words = ["model=tiny", "training.smoke.model=tiny", "training.iterations=7"]
    _, plain = make("local", words)
    _, corrected = make("local", words, measured=True)
    found = corrected.as_dict()["time"]["03-smoke-test"]
    assert found["seconds_per_iteration"] == pytest.approx(0.5, rel=1e-3)
    assert f"measured by the smoke test of {campaign.settings.name} on {kept.measured[:10]}" in found["basis"]
    assert "measured by the smoke test" not in plain.as_dict()["time"]["03-smoke-test"]["basis"]


def test_the_plan_of_a_run_stays_as_it_was_made(smoke, runs):
    campaign, _ = smoke
    again = open_run("03-smoke-test", runs=runs)
    assert again.plan.as_dict() == campaign.plan.as_dict()
    rows = outlook(again)
    assert rows[0]["planned"] != rows[0]["by the measured steps"]


def test_measuring_twice_does_not_multiply_the_factor(smoke, runs):
    campaign, kept = smoke
    again = calibrations.keep(
        campaign.settings, make("local", [], measured=False)[1], campaign.folder, read_metrics(metrics(campaign))
    )
    assert again is not None
    assert again.measured_seconds == kept.measured_seconds == 0.5


def metrics(campaign):
    return campaign.folder / campaign.spec["log"]["metrics"]


def test_too_few_steps_say_nothing(runs):
    campaign = open_run("03-smoke-test", runs=runs)
    history = read_metrics(write_metrics(campaign, 3, seconds=0.5))
    assert calibrations.keep(campaign.settings, campaign.plan, campaign.folder, history) is None
    assert calibrations.known(campaign.settings, runs).found == ()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"factor": 1}', "null", "\x00"])
def test_a_file_that_cannot_be_read_is_passed_over(smoke, runs, text):
    campaign, _ = smoke
    (campaign.folder / calibrations.FILE).write_text(text)
    assert calibrations.known(settings_of(), runs).found == ()


def test_a_stored_calibration_that_is_broken_does_not_stop_the_run(smoke, runs):
    campaign, _ = smoke
    path = campaign.folder / "plan.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "calibration": {"03-smoke-test": {"factor": -1}}}))
    assert calibrations.for_run(campaign.settings, campaign.folder).found != ()
