"""The effect of changing one value: the same rules, memory and time as in a plan with that value."""

from __future__ import annotations

from typing import Any

import pytest
from suite.messages import containing, says

from runbook.plan_file.rules.codes import RuleCode
from runbook.planning import make_plan
from runbook.planning.layout_search import Alternative, what_if, what_if_table
from runbook.planning.plan_tables import AGAINST_PLAN
from runbook.planning.rule_codes import PlanCode

from .conftest import TWO_CORES, build

LARGE: dict[str, Any] = {
    "jobs": {"training": {"nodes": 16}},
    "parallel": {"tensor": 8, "pipeline": 16},
    "training": {
        "framework": "megatron-lm",
        "dropout": 0.1,
        "global_batch": 256,
        "micro_batch": 1,
        "iterations": 100,
    },
}


def by_change(found: list[Alternative]) -> dict[str, Alternative]:
    return {one.change: one for one in found}


def test_as_planned_says_what_the_plan_says() -> None:
    settings = build()
    plan = make_plan(settings, TWO_CORES).as_dict()
    first = what_if(settings, TWO_CORES)[0]
    assert first.change == "as planned"
    assert (first.seconds, first.cost) == (plan["time"]["04-training"]["seconds"], None)
    assert first.memory_bytes == plan["memory"]["04-training"]["least_bytes"]


def test_every_change_says_what_a_plan_with_it_says() -> None:
    found = by_change(what_if(build(), TWO_CORES))
    changed = make_plan(build({"parallel": {"tensor": 2}}), TWO_CORES).as_dict()
    assert found["parallel.tensor=2"].seconds == changed["time"]["04-training"]["seconds"]
    assert found["parallel.tensor=2"].problem == ""
    assert "ZeRO" not in found["parallel.tensor=2"].problem
    rule = RuleCode.ZERO_STAGE_OF_MEGATRON.message.rule
    assert says(found["parallel.zero_stage=2"].problem, rule)
    assert found["parallel.zero_stage=2"].seconds is None


def test_a_model_that_needs_128_devices_does_not_fit_half_of_them() -> None:
    found = by_change(what_if(build(LARGE, model="175b", device="H100-SXM")))
    assert found["as planned"].problem == ""
    assert found["as planned"].devices == 128
    assert says(
        found["jobs.training.nodes=8"].problem,
        PlanCode.WORLD_SIZE.message.value,
        world_size=64,
        nodes="8 nodes",
        devices_per_node=8,
        groups=containing("groups of 128"),
    )
    assert found["jobs.training.nodes=32"].seconds < found["as planned"].seconds
    assert found["training.micro_batch=2"].problem.startswith("stage 0, the fullest, needs 83")
    assert (
        found["training.micro_batch=2"].memory_bytes
        > found["training.micro_batch=2"].memory_limit_bytes
    )


def test_the_best_layout_is_offered_in_words_for_set() -> None:
    found = what_if(build(LARGE, model="175b", device="H100-SXM"))
    assert found[-1].change.endswith("(best by --search)")
    words = dict(
        word.split("=") for word in found[-1].change.removesuffix(" (best by --search)").split()
    )
    assert found[-1].seconds == min(
        one.seconds for one in found if one.seconds and one.devices == 128
    )
    assert int(words["parallel.tensor"]) * int(words["parallel.pipeline"]) <= 128


@pytest.mark.parametrize("price", [None, 2.0])
def test_the_table_keeps_what_is_possible_apart_from_what_is_not(price: float | None) -> None:
    site = {"price_per_device_hour": price}
    table = what_if_table(what_if(build(LARGE, model="175b", device="H100-SXM", site=site)), "EUR")
    assert table.rows[0][AGAINST_PLAN] == "1.00 x"
    assert (table.rows[0]["cost"] == "not known") == (price is None)
    assert table.rows[0]["cost"].endswith("EUR") == (price is not None)
    notes = [note for note in table.notes if note.startswith("training.micro_batch=2: ")]
    fullest = containing("stage 0")
    assert all(says(note, PlanCode.MEMORY_FITS.message.value, processes=fullest) for note in notes)
    assert notes
