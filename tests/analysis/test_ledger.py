"""The account of a run over many jobs: its parts add up, and every interruption is told with its cost."""

from __future__ import annotations

import doctest
import json

import pytest

from runbook.analysis import ledger as module
from runbook.analysis.history import join
from runbook.analysis.ledger import interruption_rows, ledger, ledger_rows


def row(iteration, time, segment=0, seconds=1.0, wait=0.0):
    return {"iteration": iteration, "time": time, "segment": segment, "seconds": seconds, "loss": 1.0,
            "data_wait_seconds": wait}  # fmt: skip


ROWS = [
    *[row(n, 10 + n) for n in range(1, 6)],  # steps 1-5 from 10 to 15
    *[row(n, 20 + n, segment=1) for n in range(4, 9)],  # killed at 16; steps 4-8 from 23 to 28
]
EVENTS = [
    {"event": "submitted", "time": 6.0, "job": "04-training"},
    {"event": "saved", "time": 13.5, "seconds": 0.4, "stall_seconds": 0.25},
    {"event": "ended", "time": 16.5, "at": 16.0, "job": "04-training", "decision": "go on", "failure": "killed"},
    {"event": "submitted", "time": 17.0, "job": "04-training-2"},
    {"event": "finished", "time": 28.5},
]


def account(rows=ROWS, events=EVENTS):
    return ledger(join([json.dumps(one) for one in rows]), (), events)


def test_the_parts_of_an_interrupted_run():
    one = account()
    assert dict(one.parts()) == pytest.approx(
        {
            "start-up": 4.0,
            "detection": 1.0,  # from step 5 at 15 to the end of the job at 16
            "restart": 7.0,  # from there to the beginning of step 4 at 23
            "lost work": 2.0,  # steps 4 and 5
            "save stall": 0.25,
            "evaluation": 0.0,
            "waiting for data": 0.0,
            "other": 0.25,
            "productive": 8.0,
        }
    )
    assert sum(seconds for _, seconds in one.parts()) == pytest.approx(one.wall_seconds)
    assert one.goodput == pytest.approx(8 / 22.5)
    assert (one.jobs, one.steps, one.lost_steps, one.missing_steps) == (2, 8, 2, 0)


def test_each_interruption_has_its_job_cause_and_cost():
    assert interruption_rows(account()) == [
        {
            "job": "04-training",
            "after step": 5,
            "cause": "killed",
            "detected after s": 1.0,
            "restarted after s": 7.0,
            "steps lost": 2,
        }
    ]


def test_an_end_that_nobody_noted_is_told_as_such_and_still_adds_up():
    one = account(events=[])
    assert one.interruptions[0].cause == "not noted"
    assert (one.detection_seconds, one.restart_seconds) == (0.0, 8.0)
    assert sum(seconds for _, seconds in one.parts()) == pytest.approx(one.wall_seconds)


def test_a_run_that_nothing_happened_to_has_no_interruption():
    one = account(ROWS[:5], EVENTS[:2])
    assert one.interruptions == () and one.lost_steps == 0
    assert one.goodput == pytest.approx(5 / 9)


def test_the_table_ends_with_the_whole():
    rows = ledger_rows(account())
    assert rows[-1] == {"part": "wall time", "seconds": 22.5, "share": "100.0%"}
    assert rows[-2] == {"part": "productive", "seconds": 8.0, "share": "35.6%"}


def test_no_step_no_account():
    assert ledger(join([])) is None


def test_examples_in_docstrings_are_true():
    assert doctest.testmod(module).failed == 0
