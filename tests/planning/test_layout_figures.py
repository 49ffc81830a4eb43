"""Layout figures, and formulas with numbers from a plan, compared with sums computed here."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from latex2mathml.converter import convert
from suite.messages import says

from runbook.planning import make_plan
from runbook.results.figures import formulas
from runbook.results.figures.plan_figures import device_figure, planned_pipeline_figure, rate_figure
from runbook.results.messages import ResultMessage

from .conftest import TWO_CORES, build
from .test_plan_figures import large

FULL = "04-training"
COPIES: dict[str, Any] = {
    "jobs": {"training": {"nodes": 4}},
    "parallel": {"tensor": 2, "pipeline": 4, "last_stage_layers": 6},
    "training": {
        "framework": "megatron-lm",
        "global_batch": 64,
        "micro_batch": 1,
        "iterations": 100,
    },
}


def test_each_device_is_drawn_where_megatron_counts_it() -> None:
    plan = make_plan(
        build({**COPIES, "parallel": {"tensor": 2, "pipeline": 4}}, model="13b", device="H100-SXM")
    )
    phase = plan.phases[FULL]
    axes = device_figure(phase, 8).axes[0]
    cells = {
        text.get_text(): (int(text.get_position()[0]), text.get_position()[1])
        for text in axes.texts
    }
    assert len(cells) == phase.parallel.world_size == 32
    assert (cells["0"], cells["1"], cells["2"], cells["8"], cells["31"]) == (
        (0, 0),
        (1, 0),
        (2, 0),
        (0, 1),
        (7, 3),
    )
    assert [label.get_text() for label in axes.get_yticklabels()][:2] == [
        ResultMessage.LAYERS_OF_STAGE.fill(stage=0, first=1, last=10),
        ResultMessage.LAYERS_OF_STAGE.fill(stage=1, first=11, last=20),
    ]
    assert [label.get_text() for label in axes.get_xticklabels()] == [
        f"replica {number}" for number in range(1, 5)
    ]


def test_of_a_large_layout_the_first_copies_are_drawn_and_it_is_said() -> None:
    wide = {"jobs": {"training": {"nodes": 32}}, "parallel": {"tensor": 2, "pipeline": 2}}
    phase = make_plan(build({**COPIES, **wide}, model="13b", device="H100-SXM")).phases[FULL]
    axes = device_figure(phase, phase.parallel.world_size // 32).axes[0]
    assert says(
        axes.get_xlabel(),
        ResultMessage.FIRST_COPIES_DRAWN,
        drawn=16,
        replicas=phase.parallel.data,
    )


def test_the_pipeline_ends_when_the_plan_says() -> None:
    plan = large()
    time = plan.time[FULL]
    figure = planned_pipeline_figure(plan.phases[FULL], time.parts, time.seconds_per_iteration)
    assert len(figure.axes[0].get_yticks()) == 16
    without = time.seconds_per_iteration - time.parts.get("waiting", 0.0)
    assert figure.axes[-1].get_xlim()[1] == pytest.approx(without, rel=0.02)
    assert says(figure.legends[0].get_title().get_text(), ResultMessage.PLANNED_SECONDS)


def test_the_rate_rises_and_falls_as_the_trainer_has_it() -> None:
    phase = make_plan(build(), TWO_CORES).phases[FULL]
    (line,) = rate_figure({"training": phase}).axes[0].lines
    steps = [round(share * phase.duration.iterations / 100) for share in line.get_xdata()]
    assert steps[0] == 1 and steps[-1] == phase.duration.iterations
    expected = [phase.learning_rate.at(step * phase.batch.global_) for step in steps]
    assert list(line.get_ydata()) == pytest.approx(expected)


@pytest.mark.parametrize("plan", [large(), make_plan(build(), TWO_CORES)], ids=["large", "small"])
def test_formulas_are_right_sums_in_latex_and_in_words(plan: Any) -> None:
    whole = plan.parameters[FULL].whole
    phase = plan.phases[FULL]
    latex, words = formulas.parameters(plan, FULL)
    layers, one, others, total = (
        int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*", words)
    )
    assert layers * one + others == total == whole.total
    assert (
        f"ln {phase.model.shape.vocabulary:,} = {math.log(phase.model.shape.vocabulary):.2f}"
        in formulas.first_loss(plan, FULL)[1]
    )
    batch = formulas.batch(plan, FULL)[1]
    assert f"= {phase.batch.global_:,} sequences" in batch and ("wait" in batch) == (
        phase.parallel.pipeline > 1
    )
    memory = formulas.memory(plan, FULL)[1]
    count, *each = (float(number) for number in re.findall(r"[\d.]+", memory)[:4])
    assert 8 <= sum(each) <= 20 and count > 0
    shown = [formula for formula in (formulas.step_time(plan, FULL),) if formula]
    assert bool(shown) == (plan.time[FULL].mfu is not None)
    for drawn, _ in [
        (latex, words),
        formulas.first_loss(plan, FULL),
        formulas.batch(plan, FULL),
        *shown,
    ]:
        assert convert(drawn).startswith("<math") and "\\" not in convert(drawn)
