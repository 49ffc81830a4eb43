"""Figures show the numbers in a plan, with units and a reference line."""

from __future__ import annotations

from typing import Any

import pytest

from runbook.planning import Plan, make_plan
from runbook.planning.plan_tables import PART_WORDS, parts_table
from runbook.results.figures.plan_figures import memory_figure, step_figure

from .conftest import TWO_CORES, build

PHASES = {"03-smoke-test": "smoke test", "04-training": "training"}
LARGE: dict[str, Any] = {
    "jobs": {"training": {"nodes": 16}},
    "parallel": {"tensor": 8, "pipeline": 16},
    "training": {
        "framework": "megatron-lm",
        "global_batch": 256,
        "micro_batch": 1,
        "iterations": 100,
    },
}


def large() -> Plan:
    return make_plan(build(LARGE, model="175b", device="H100-SXM"))


@pytest.mark.parametrize("plan", [large(), make_plan(build(), TWO_CORES)])
def test_the_bars_of_memory_add_up_to_what_the_plan_needs(plan: Plan) -> None:
    axes = memory_figure(plan, PHASES).axes[0]
    assert axes.get_xlabel() == "memory (GiB)"
    fullest = plan.memory["04-training"].fullest_stage
    parts = ("weights", "gradients", "optimizer", "activations", "logits", "buffers", "passing")
    ends = [
        bar.get_x() + bar.get_width()
        for bar in axes.patches
        if round(bar.get_y() + bar.get_height() / 2) == 1
    ]
    assert max(ends) == pytest.approx(sum(getattr(fullest, part) for part in parts) / 2**30)
    assert len(axes.lines) == (1 if plan.memory["04-training"].limit_of == "device" else 0)


def test_the_parts_of_a_step_add_up_to_the_step() -> None:
    time = large().time["04-training"]
    assert sum(time.parts.values()) == pytest.approx(time.seconds_per_iteration, rel=1e-3)
    axes = step_figure(time.parts, PART_WORDS).axes[0]
    assert axes.get_xlabel() == "time (s)"
    assert sum(bar.get_width() for bar in axes.patches) == pytest.approx(sum(time.parts.values()))
    assert axes.lines[0].get_xdata()[0] == pytest.approx(sum(time.parts.values()))


def test_every_part_of_a_step_is_in_the_table_in_words() -> None:
    rows = parts_table(large()).rows
    assert rows[0]["part"] == PART_WORDS["matrices"]
    assert set(PART_WORDS) & {row["part"] for row in rows} == set()
    assert parts_table(make_plan(build(), TWO_CORES)).rows == ()


def test_the_share_of_the_peak_is_the_speed_over_the_datasheets() -> None:
    time = large().time["04-training"]
    assert time.mfu == pytest.approx(time.tflops_per_device / 989.4, rel=1e-3)
    assert make_plan(build(), TWO_CORES).time["04-training"].mfu is None
