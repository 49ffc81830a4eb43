"""Speed and cost of a training run that continued with fewer devices for a while."""

from __future__ import annotations

import pytest

from runbook.core import quantities
from runbook.results.devices_in_use import devices_table, spans_text
from runbook.results.history import Event, History, Step
from runbook.results.messages import ResultMessage
from runbook.results.metrics import summarize
from runbook.results.wall_time import Rates, account_wall_time, cost_table


def make_step(iteration, devices, seconds):
    segment = {2: 0, 1: 1}[devices]
    return Step(
        iteration,
        seconds,
        loss=3.0,
        global_batch=8,
        world_size=devices,
        segment=segment,
        time=100.0 + 10 * iteration,
    )


@pytest.fixture
def history():
    of_two = [make_step(iteration, 2, 1.0) for iteration in range(1, 9)]
    of_one = [make_step(iteration, 1, 2.0) for iteration in range(9, 13)]
    return History((*of_two, *of_one))


def test_the_spans_say_from_which_step_fewer_devices_trained(history):
    spans = [
        ResultMessage.STEPS_ON_DEVICES.fill(
            steps=ResultMessage.STEPS.fill(first=first, last=last), devices=devices
        )
        for first, last, devices in ((1, 8, "2 devices"), (9, 12, "1 device"))
    ]
    assert spans_text(history) == ", ".join(spans)
    first, second = devices_table(history, sequence_length=128)
    assert (first[quantities.THROUGHPUT], second[quantities.THROUGHPUT]) == (1024, 512)
    assert second[quantities.DEVICE_HOURS_IN_STEPS] == pytest.approx(4 * 2.0 / 3600)


def test_the_speed_is_that_of_the_usual_number_of_devices(history):
    summary = summarize(history, sequence_length=128)
    assert (summary.world_size, summary.seconds_per_iteration) == (2, 1.0)


def test_the_cost_counts_nodes_in_use_and_nodes_held(history):
    changed = Event("replicas_changed", time=180.0)
    account = account_wall_time(history, events=[changed])
    summary = summarize(history, sequence_length=128)
    held, productive, *_ = cost_table(summary, account, Rates()).rows
    assert held["value"] == pytest.approx(account.wall_seconds * 2 / 3600)
    assert productive["value"] == pytest.approx((8 * 1.0 * 2 + 4 * 2.0 * 1) / 3600)


def test_a_job_that_never_had_all_its_nodes_holds_them_all(history):
    """Run every step on half of the planned devices. The job still holds all of them."""
    half = History(history.steps[8:])
    changed = Event("replicas_changed", time=180.0, replicas=1, planned_replicas=2, world_size=1)
    account = account_wall_time(half, events=[changed])
    assert account.devices_of_job == 2
    summary = summarize(half, sequence_length=128)
    held, productive, *_ = cost_table(summary, account, Rates()).rows
    assert held["value"] == pytest.approx(account.wall_seconds * 2 / 3600)
    assert productive["value"] == pytest.approx(4 * 2.0 / 3600)
