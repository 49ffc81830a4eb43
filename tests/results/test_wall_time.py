"""The account of a run over many jobs: its parts add up, and every interruption is reported
together with its cost.
"""

from __future__ import annotations

import doctest
import json

import pytest

from runbook.core import quantities
from runbook.results import wall_time as module
from runbook.results.history import Event, ValidationLoss, parse_events, parse_metrics
from runbook.results.metrics import summarize
from runbook.results.wall_time import (
    Rates,
    account_wall_time,
    cost_table,
    interruptions_table,
    wall_time_table,
)


def row(iteration, time, segment=0, seconds=1.0, wait=0.0):
    return {
        "iteration": iteration,
        "time": time,
        "segment": segment,
        "seconds": seconds,
        "loss": 1.0,
        "data_wait_seconds": wait,
    }


ROWS = [
    *[row(n, 10 + n) for n in range(1, 6)],  # steps 1-5 from 10 to 15
    *[row(n, 20 + n, segment=1) for n in range(4, 9)],  # killed at 16; steps 4-8 from 23 to 28
]
EVENTS = [
    {"event": "submitted", "time": 6.0, "job": "04-training"},
    {"event": "saved", "time": 13.5, "seconds": 0.4, "stall_seconds": 0.25},
    {
        "event": "ended",
        "time": 16.5,
        "at": 16.0,
        "job": "04-training",
        "decision": "go on",
        "failure": "killed",
    },
    {"event": "submitted", "time": 17.0, "job": "04-training-2"},
    {"event": "finished", "time": 28.5},
]


def account(rows=ROWS, events=EVENTS):
    return account_wall_time(
        parse_metrics([json.dumps(one) for one in rows]), (), tuple(parse_events(events))
    )


def test_parts_that_overlap_leave_nothing_and_never_less():
    evaluation = ValidationLoss(5, 1.0, 2.7, 8, seconds=1000.0)
    history = parse_metrics([json.dumps(line) for line in ROWS])
    overlapping = account_wall_time(history, (evaluation,), tuple(parse_events(EVENTS)))
    assert overlapping.parts["evaluation"] == 1000.0
    assert overlapping.parts["other"] == 0.0


def test_what_somebody_notes_hours_later_is_no_wall_time():
    late = [
        {"event": "forecast_left", "time": 36_000.0, "iteration": 8},
        {"event": "ended", "time": 36_001.0, "at": 28.5, "job": "04-training-2"},
    ]
    assert account(events=[*EVENTS, *late]).wall_seconds == account().wall_seconds


def test_the_parts_of_an_interrupted_run():
    one = account()
    assert one.parts == pytest.approx(
        {
            "start-up": 4.0,
            "detection": 1.0,  # from step 5 at 15 to the end of the job at 16
            "restart": 7.0,  # from then until the beginning of step 4 at 23
            "lost work": 2.0,  # steps 4 and 5
            "save stall": 0.25,
            "evaluation": 0.0,
            quantities.WAITING_FOR_DATA: 0.0,
            "other": 0.25,
            "productive": 8.0,
        }
    )
    assert sum(one.parts.values()) == pytest.approx(one.wall_seconds)
    assert one.goodput == pytest.approx(8 / 22.5)
    assert (one.jobs, one.steps, one.lost_steps, one.missing_steps) == (2, 8, 2, 0)


def test_each_interruption_has_its_job_cause_and_cost():
    assert list(interruptions_table(account())) == [
        {
            "job": "04-training",
            "after step": 5,
            "cause": "killed",
            quantities.DETECTION_SECONDS: 1.0,
            quantities.RESTART_SECONDS: 7.0,
            "steps lost": 2,
            quantities.RESUMED_FROM: "",
        }
    ]


def test_copies_in_node_memory_count_as_saves_and_as_what_a_job_went_on_from():
    near = [
        {"event": "near_saved", "time": 12.5, "iteration": 3, "stall_seconds": 0.25},
        {"event": "resumed", "time": 21.0, "iteration": 3, "source": "near own"},
    ]
    with_copies = account(events=[*EVENTS, *near])
    assert with_copies.parts["save stall"] == pytest.approx(0.5)
    assert with_copies.interruptions[0].went_on_from == "near own"


def test_an_end_that_nobody_noted_is_told_as_such_and_still_adds_up():
    one = account(events=[])
    assert one.interruptions[0].cause == "not noted"
    assert (one.parts["detection"], one.parts["restart"]) == (0.0, 8.0)
    assert sum(one.parts.values()) == pytest.approx(one.wall_seconds)


def test_a_run_that_nothing_happened_to_has_no_interruption():
    one = account(ROWS[:5], EVENTS[:2])
    assert one.interruptions == () and one.lost_steps == 0
    assert one.goodput == pytest.approx(5 / 9)


def test_the_table_goes_from_the_whole_to_what_was_productive():
    rows = wall_time_table(account()).rows
    assert rows[0] == {"part": "wall time", "seconds (s)": 22.5, "share (%)": 100.0}
    assert rows[-1] == {
        "part": "productive",
        "seconds (s)": 8.0,
        "share (%)": pytest.approx(100 * 8 / 22.5),
    }


def test_evaluations_and_steps_done_again_are_parts_of_the_wall_time(make):
    first = [make.step(n) for n in range(1, 61)]
    again = [make.step(n, segment=1, time=1200.0 + 2.0 * (n - 50)) for n in range(51, 101)]
    events = [make.started, *make.saved(50), Event("finished", time=1310.0)]
    validation = [ValidationLoss(100, 4.4, 81.5, 32, 3.0, 1303.0)]
    one = account_wall_time(make.history(first + again), validation, events)
    assert one.wall_seconds == 320.0
    parts = one.parts
    assert (parts["start-up"], parts["restart"], parts["lost work"]) == (10.0, 80.0, 20.0)
    assert (parts["productive"], parts[quantities.WAITING_FOR_DATA]) == (150.0, 50.0)
    assert (parts["save stall"], parts["evaluation"], parts["other"]) == (1.0, 3.0, 6.0)
    assert sum(parts.values()) == pytest.approx(one.wall_seconds)
    assert one.goodput == pytest.approx(150 / 320)


def test_save_after_the_last_step_is_not_part_of_the_restart_gap(make):
    records = [make.step(1, time=1002.0), make.step(2, segment=1, time=1020.0)]
    events = [Event("saved", iteration=1, seconds=3.0, time=1005.0)]
    assert account_wall_time(make.history(records), (), events).parts["restart"] == 13.0


def test_waiting_in_the_queue_is_in_the_wall_time_and_costs_no_device():
    began = [{"event": "started", "time": 9.0}, {"event": "started", "time": 20.0}]
    one = account(events=[*EVENTS, *began])
    assert one.wall_seconds == 22.5
    assert one.waiting_seconds == (9.0 - 6.0) + (20.0 - 17.0)
    summary = summarize(parse_metrics([json.dumps(line) for line in ROWS]), sequence_length=128)
    hours = {line["what"]: line["value"] for line in cost_table(summary, one, Rates())}[
        "device-hours"
    ]
    assert hours == pytest.approx((22.5 - 6.0) * summary.world_size / 3600)


def test_the_queue_between_two_jobs_of_a_chain_holds_no_device_and_spares_do(make):
    """The jobs of a chain share a folder, and only the first job is submitted.

    Every start therefore counts as an attempt.
    """
    attempt = {"event": "attempt_began", "job": "04-training"}
    chain = [
        {**attempt, "id": "slurm-12", "time": 9.0},
        {"event": "ended", "job": "04-training", "time": 12.0},
        {**attempt, "id": "slurm-12", "time": 12.5},
        {"event": "ended", "job": "04-training", "time": 13.0},
        {**attempt, "id": "slurm-13", "time": 19.0},
    ]
    one = account(events=[EVENTS[0], *chain])
    assert one.waiting_seconds == 19.0 - 13.0
    chain[-2] = {**chain[-2], "waits": 4.0}
    assert account(events=[EVENTS[0], *chain]).waiting_seconds == 2.0, "a job that waits holds them"
    chain[-2] = {**chain[-2], "waits": 120.0}
    assert account(events=[EVENTS[0], *chain]).waiting_seconds == 0.0, "a wait that was cut short"
    summary = summarize(parse_metrics([json.dumps(line) for line in ROWS]), sequence_length=128)
    alone = cost_table(summary, one, Rates()).rows[0]["value"]
    with_spares = cost_table(summary, one, Rates(held_devices=1.125)).rows[0]["value"]
    assert with_spares == pytest.approx(1.125 * alone)


def test_a_job_that_a_person_started_again_keeps_its_cause():
    reason = "it is cancelled"
    stop = {
        "event": "ended",
        "time": 16.5,
        "at": 16.0,
        "job": "04-training",
        "decision": "stop",
        "why": reason,
    }
    one = account(events=[EVENTS[0], stop, {**stop, "time": 16.7}, *EVENTS[3:]])
    assert [(row["job"], row["cause"]) for row in interruptions_table(one)] == [
        ("04-training", reason)
    ]


def test_no_step_no_account():
    assert account_wall_time(parse_metrics([])) is None


def test_examples_in_docstrings_are_true():
    assert doctest.testmod(module).failed == 0
