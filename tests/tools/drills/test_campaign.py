"""`runbook drill --campaign`: simulated faults, handled by the rules of real jobs."""

from __future__ import annotations

import json
import re

import pytest
from suite.messages import refuses, says_only

from runbook.cli.drill import drill
from runbook.core.checks import counted
from runbook.core.errors import ParamsError
from runbook.planning.cost.fault_simulation import GPU, HANG, NODE, CampaignFailure, CampaignParts
from runbook.tools.drills.campaign import RealRules
from runbook.tools.drills.messages import DrillMessage
from runbook.tools.drills.random_kills import KillsAfterSteps, PlannedKill, plan_kills

AS_PLANNED = DrillMessage.AS_PLANNED.fill()
LARGE = ["--set", "jobs.training.nodes=2048", "--set", "training.global_batch=2048"]


def shown(capsys, *words: str):
    drill.main([*words, "--json"], standalone_mode=False)
    return json.loads(capsys.readouterr().out)


def test_spares_save_queues_and_the_interval_of_saves_decides_on_large_machines(capsys):
    words = ["azure-175b", "--campaign", "30d", "--queue", "2h"]
    campaign = shown(capsys, *words, *LARGE)
    rows = {row["change"]: row for row in campaign["rows"]}
    planned = rows[AS_PLANNED]
    assert planned["failures"] == pytest.approx(30 * 24 * 16384 / 50_677, rel=0.05)
    assert planned["low"] <= planned["useful"] <= planned["high"] < 1
    four_spares = rows[counted(4, "spare node")]
    assert four_spares["waiting_days"] < planned["waiting_days"] / 3
    assert four_spares["jobs"] < planned["jobs"] / 3
    assert rows[DrillMessage.SAVES_TWICE_AS_OFTEN.fill()]["useful"] < planned["useful"]
    best = max(rows, key=lambda change: rows[change]["useful"])
    assert says_only(best, DrillMessage.SAVES_BY_DALY)
    again = shown(capsys, *words)
    assert shown(capsys, *words) == again, "the same faults each time"
    small = {row["change"]: row for row in again["rows"]}
    one_spare = small[counted(1, "spare node")]
    assert one_spare["useful"] < small[AS_PLANNED]["useful"] - 0.05


def test_copies_in_node_memory_give_back_most_of_the_steps_that_are_done_again(capsys):
    words = ["azure-175b", "--campaign", "3d", "--queue", "2h", *LARGE]
    words += ["--set", "training.framework=runbook", "--set", "jobs.training.spares=4"]
    words += ["--set", "training.save_interval=1000"]
    without = {row["change"]: row for row in shown(capsys, *words)["rows"]}
    (change,) = [text for text in without if says_only(text, DrillMessage.COPIES_EVERY)]
    (steps,) = re.findall(r"\d+", change)
    campaign = shown(capsys, *words, "--set", f"training.near_interval={steps}")
    rows = {row["change"]: row for row in campaign["rows"]}
    planned = rows[AS_PLANNED]
    planned_without = without[AS_PLANNED]
    assert planned == {**without[change], "change": AS_PLANNED}
    assert rows[DrillMessage.NO_COPIES.fill()]["useful"] == planned_without["useful"]
    assert planned["near_restarts"] > planned["failures"] / 2
    assert planned_without["near_restarts"] == 0
    assert planned["lost_steps"] < planned_without["lost_steps"] / 2


def test_a_run_without_a_rate_of_failures_is_refused():
    with refuses(ParamsError, DrillMessage.NO_RATE_OF_FAILURES):
        drill.main(["local", "--campaign", "30d"], standalone_mode=False)


def failure(kind, *, began_at=100, reached=120, started=True):
    return CampaignFailure(kind, 1, began_at, reached, started)


def test_the_rules_of_real_jobs_answer():
    rules = RealRules(budget=3)
    assert rules([failure(GPU)]).goes_on
    assert rules([failure(NODE, reached=140)]).wait == 120
    assert not rules([failure(GPU, began_at=140, reached=140)]).goes_on, "it made no step"
    assert rules([failure(GPU, began_at=140, reached=150)]).goes_on, "a person began anew"
    assert not rules([failure(GPU, began_at=140, reached=150)]).goes_on, "twice at one step"


def test_hangs_without_a_step_are_bounded_by_the_budget():
    rules = RealRules(budget=3)
    answers = [rules([failure(HANG, reached=100)]).goes_on for _ in range(6)]
    assert False in answers
    assert answers[0]


def test_kills_of_the_drill_wait_for_their_steps():
    parts = CampaignParts(
        step=1, steps_between_saves=10, save_stall=0, save_lag=0, start=2, resume=0, nodes=1
    )
    planned = [PlannedKill(25, 0.3), PlannedKill(26, 0.6)]
    kills = KillsAfterSteps(parts, planned)
    first, _ = kills.after(0.0, 0, 2.0)
    assert first == 27 + 0.3
    # The attempt begins again at step 20, and 26 was not reached before.
    second, _ = kills.after(30.0, 20, 32.0)
    assert second == 32 + 6 + 0.6
    assert kills.after(50.0, 20, 52.0)[0] == float("inf")


def test_a_seed_plans_the_same_kills_in_order():
    kills = plan_kills(7, 50, 1000)
    assert kills == plan_kills(7, 50, 1000)
    assert kills != plan_kills(8, 50, 1000)
    steps = [kill.step for kill in kills]
    assert steps == sorted(steps)
    assert max(steps) < 1000 - 60
    delays = [kill.delay_seconds for kill in kills]
    assert 0 <= min(delays) < 0.1
    assert 0.7 < max(delays) <= 0.8


def test_kills_of_the_drill_do_not_count_saves_as_steps():
    parts = CampaignParts(
        step=1, steps_between_saves=10, save_stall=5, save_lag=5, start=2, resume=0, nodes=1
    )
    kills = KillsAfterSteps(parts, [PlannedKill(25, 0.5), PlannedKill(30, 0.5)])
    first, _ = kills.after(0.0, 0, 2.0)
    assert first == 2 + 25 + 2 * 5 + 0.5
    # If saves counted as steps, step 35 would already have been completed, and the kill after step
    # 30 would not wait.
    second, _ = kills.after(40.0, 20, 42.0)
    assert second == 42 + 10 + 0.5
