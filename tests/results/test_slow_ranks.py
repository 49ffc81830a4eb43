"""Slow ranks, the parts of a step, and stalls."""

from __future__ import annotations

import json

import pytest

from runbook.core import quantities
from runbook.results.history import ValidationLoss, read_metrics
from runbook.results.messages import ResultMessage
from runbook.results.metrics import parts_of, step_parts_table
from runbook.results.slow_ranks import slow_ranks_table
from runbook.results.wall_time import stalls_table


def test_the_slow_rank_is_named_and_an_even_run_has_none(make):
    times = [1.0, 1.02, 1.5, 0.99]
    slow = make.history(
        [make.step(n, rank_seconds=[one + n % 3 / 100 for one in times]) for n in range(1, 41)]
    )
    found = {
        row["rank"]: (row["straggler"], row[quantities.TIMES_SLOWEST])
        for row in slow_ranks_table(slow)
    }
    assert found == {0: ("no", 0.0), 1: ("no", 0.0), 2: ("yes", 100.0), 3: ("no", 0.0)}
    table = slow_ranks_table(slow)
    assert (table.rows[0]["rank"], table.rows[0]["straggler"]) == (2, "yes")
    assert table.rows[0][quantities.OVER_MEDIAN_RANK] == pytest.approx(
        100 * (1.51 / 1.02 - 1), abs=1.0
    )
    even = make.history([make.step(n, rank_seconds=[1.0, 1.05]) for n in range(1, 41)])
    assert all(row["straggler"] == "no" for row in slow_ranks_table(even))


@pytest.mark.parametrize(("seconds", "verdict"), [(1.09, "no"), (1.11, "yes")])
def test_a_straggler_is_a_tenth_above_the_median_rank(make, seconds, verdict):
    history = make.history(
        [make.step(n, rank_seconds=[1.0, 1.0, 1.0, seconds]) for n in range(1, 41)]
    )
    verdicts = {row["rank"]: row["straggler"] for row in slow_ranks_table(history)}
    assert verdicts == {0: "no", 1: "no", 2: "no", 3: verdict}


def test_one_rank_and_old_files_have_no_stragglers(make, history):
    assert slow_ranks_table(history).notes == (ResultMessage.NO_RANK_TIMES.fill(),)
    assert (
        slow_ranks_table(make.history([make.step(n, rank_seconds=[1.0]) for n in range(1, 9)])).rows
        == ()
    )


def test_ranks_are_those_of_the_last_world(make):
    records = [make.step(n, rank_seconds=[1.0] * 4) for n in range(1, 21)]
    records += [make.step(n, segment=1, rank_seconds=[1.0, 3.0]) for n in range(21, 41)]
    assert sorted(row["rank"] for row in slow_ranks_table(make.history(records))) == [0, 1]


def test_times_in_a_file_of_their_own_are_read_with_the_metrics(make, tmp_path):
    """Write the mean times of every two steps. An incomplete last line is ignored."""
    (tmp_path / "metrics.jsonl").write_text(
        "".join(json.dumps(make.step(n)) + "\n" for n in range(1, 41))
    )
    lines = [
        {"iteration": n, "steps": 2, "segment": 0, "seconds": [1.0, 1.0, 1.5]}
        for n in range(2, 41, 2)
    ]
    (tmp_path / "rank_times.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in lines) + '{"iteration": 42'
    )
    history = read_metrics(tmp_path / "metrics.jsonl")
    assert [one.iteration for one in history.rank_times] == list(range(2, 41, 2))
    assert slow_ranks_table(history).rows[0]["rank"] == 2
    assert slow_ranks_table(history).rows[0][quantities.TIMES_SLOWEST] == 100


def test_parts_add_up_to_the_step(make):
    told = {"forward_backward_seconds": 1.4, "communication_seconds": 0.3, "optimizer_seconds": 0.4}
    history = make.history([make.step(n, **told) for n in range(1, 41)])
    parts = parts_of(history.steps[0])
    assert parts == pytest.approx(
        {
            quantities.WAITING_FOR_DATA: 0.5,
            "computing": 0.6,
            "communication": 0.3,
            "optimizer": 0.4,
            "other": 0.2,
        }
    )
    rows = {row["part"]: row for row in step_parts_table(history)}
    assert rows["computing"][quantities.SHARE_OF_STEP_TIME] == pytest.approx(30)
    assert sum(row[quantities.SHARE_OF_STEP_TIME] for row in rows.values()) == pytest.approx(100)


def test_parts_of_an_older_trainer_are_not_made_up(history):
    rows = {row["part"]: row["median (s/iteration)"] for row in step_parts_table(history)}
    assert (rows[quantities.WAITING_FOR_DATA], rows["computing"], rows["other"]) == (0.5, 0.0, 1.5)
    assert step_parts_table(history).notes[1] == ResultMessage.NO_PARTS.fill()


def test_stalls_by_kind(make):
    validation = [
        ValidationLoss(50, 5.0, 148.4, 32, 2.0, 1100.0),
        ValidationLoss(100, 5.0, 148.4, 32, 4.0, 1200.0),
    ]
    rows = {
        row["stall"]: row
        for row in stalls_table(validation, make.saved(50, 100), wall_seconds=200.0)
    }
    assert (rows["checkpoint"]["count"], rows["checkpoint"]["all (s)"]) == (2, 2.0)
    assert (rows["evaluation"]["median (s)"], rows["evaluation"]["longest (s)"]) == (3.0, 4.0)
    assert rows["evaluation"][quantities.SHARE_OF_WALL_TIME] == 3.0
