"""The search finds layouts that fit, follows the rules, ranks by speed, and agrees with the
documents' facts.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from typing import Any

import pytest
from suite.messages import containing, says

from runbook.params.schema.entries import Model
from runbook.planning.choice import Choice, full_choice
from runbook.planning.cost.iteration import iteration
from runbook.planning.cost.memory import RESERVE
from runbook.planning.cost.step_inputs import device_of, setup_for
from runbook.planning.cost.step_time import modelled_step
from runbook.planning.layout_rules import check_layout
from runbook.planning.layout_search import (
    RankedLayout,
    Search,
    SearchSpace,
    growth,
    layouts,
    search,
)
from runbook.planning.messages import PlanningMessage
from runbook.planning.rule_codes import PlanCode

from .conftest import MODELS, build

AZURE = {
    "training": {"framework": "megatron-lm", "global_batch": 512, "micro_batch": 1},
    "parallel": {"tensor": 8, "pipeline": 16, "sequence": True},
}
LUMI = {"training": {"framework": "megatron-deepspeed", "global_batch": 1024, "precision": "fp16"}}


def choice(
    sections: dict[str, Any],
    nodes: int,
    model: str | Model = "175b",
    device: str = "H100-SXM",
    **others: Any,
) -> Choice:
    return full_choice(
        build(
            {**sections, "jobs": {"training": {"nodes": nodes}}},
            model=model,
            device=device,
            **others,
        )
    )


def cuts(found: Search) -> set[tuple[int, int]]:
    return {(one.layout.tensor, one.layout.pipeline) for one in found.ranked}


def test_175b_at_8_x_16_needs_128_h100_in_multiples_of_16_nodes() -> None:
    at_16 = choice(AZURE, 16)
    assert at_16.in_layout(replace(at_16.layout, tensor=8, pipeline=16)).node_multiple == 16
    for nodes in (1, 4, 8, 15, 17, 24):
        assert (8, 16) not in cuts(search(choice(AZURE, nodes)))
    for nodes in (16, 32):
        assert (8, 16) in cuts(search(choice(AZURE, nodes)))


def test_13b_with_zero_1_over_8_copies_does_not_fit_a_gcd() -> None:
    found = search(choice(LUMI, 1, "13b", "MI250X-GCD"))
    alone = [one for one in found.ranked if one.layout.tensor * one.layout.pipeline == 1]
    assert {one.layout.zero_stage for one in alone} <= {2, 3}
    assert found.did_not_fit > 0


@pytest.mark.parametrize("stages", [(0, 1), (1,)])
def test_a_single_replica_is_tried_once_whatever_zero_would_share(stages: tuple[int, ...]) -> None:
    """ZeRO shards nothing over a single replica, so a higher stage would only cost time.

    Interleaved chunks of pipeline stages are tried with every ZeRO stage.
    """
    space = SearchSpace(
        micro_batches=(1,),
        recompute=("full",),
        zero_stages=stages,
        most_chunks=2,
    )
    tried = dict[tuple[int, int], list[tuple[int, int]]]()
    for variant in layouts(choice(AZURE, 16), space):
        layout = variant.layout
        pair = (layout.zero_stage, layout.virtual_pipeline)
        tried.setdefault((layout.tensor, layout.pipeline), []).append(pair)

    assert tried[8, 16] == [(stages[0], 1), (stages[0], 2)]
    assert tried[8, 8] == list(itertools.product(stages, (1, 2)))


def test_a_single_replica_in_fp16_is_tried_with_a_zero_stage_that_deepspeed_accepts() -> None:
    sections = {"training": {"engine": "deepspeed", "global_batch": 512, "micro_batch": 1}}
    stages = dict[str, set[int]]()
    for precision in ("bf16", "fp16"):
        sections["training"]["precision"] = precision
        found = search(choice(sections, 1, "375m"))
        single_replicas = [one.layout for one in found.ranked if one.layout.data == 1]
        assert {(layout.tensor, layout.pipeline) for layout in single_replicas} == {
            (2, 4),
            (4, 2),
            (8, 1),
        }
        stages[precision] = {layout.zero_stage for layout in single_replicas}

    assert stages == {"bf16": {0}, "fp16": {1}}


def test_what_is_found_keeps_every_rule_and_fits() -> None:
    chosen = choice(AZURE, 32)
    device = device_of(chosen.site)
    assert device is not None
    found = search(chosen)
    assert found.looked_at == len(found.ranked) + found.did_not_fit + found.broke_a_rule
    for one in found.ranked:
        assert one.memory_bytes <= RESERVE * device.memory_bytes
        layout = one.layout
        assert layout.world_size == 256 == layout.tensor * layout.pipeline * layout.data
        assert one.choice.nodes % one.choice.node_multiple == 0


def test_the_fastest_comes_first_and_is_the_speed_of_the_plan() -> None:
    chosen = choice(AZURE, 16)
    found = search(chosen, tokens=300e9)
    times = [one.seconds_per_step for one in found.ranked]
    assert times == sorted(times)
    assert 0.4 < found.ranked[0].mfu < 0.6
    assert not any(check.verdict == "fail" for check in check_layout(chosen))
    seconds, *_ = modelled_step(chosen, None)
    device = device_of(chosen.site)
    assert device is not None
    assert seconds == iteration(setup_for(chosen, device)).seconds
    assert found.ranked[0].seconds_per_step <= (seconds or 0) * 1.001


def test_days_and_cost_follow_from_speed_and_price() -> None:
    best = search(choice(AZURE, 16, site={"price_per_device_hour": 2.0}), tokens=300e9).ranked[0]
    assert best.days == pytest.approx(300e9 / best.tokens_per_second / 86400, rel=1e-3)
    assert best.cost == pytest.approx(best.days * 24 * 128 * 2, rel=1e-3)
    without = search(choice(AZURE, 16)).ranked[0]
    assert without.days is None
    assert without.cost is None


def test_where_nothing_fits_it_says_what_would() -> None:
    found = search(choice(AZURE, 1))
    assert not found.ranked
    assert says(
        found.reason,
        PlanningMessage.LAYOUTS_TOO_LARGE,
        too_large=found.did_not_fit,
        layouts=found.looked_at,
        share=0.94,
        memory="80.0 GiB",
    )
    assert search(choice(AZURE, 17)).reason == PlanningMessage.NO_LAYOUT_DIVIDES.fill(
        layers=96, heads=96, devices=136, global_batch=512
    )


def test_where_every_layout_breaks_a_rule_the_rule_is_named() -> None:
    odd = MODELS["13b"].model_copy(update={"hidden": 5160})  # 129 per head
    found = search(choice(LUMI, 16, odd))
    assert (found.ranked, found.did_not_fit < found.looked_at) == ((), True)
    head_size = PlanCode.HEAD_SIZE.message
    value = head_size.value.format(hidden=5160, heads=40, head_size="= 129 per head")
    assert says(
        found.reason,
        PlanningMessage.LAYOUTS_BREAK_RULE,
        broken=found.broke_a_rule,
        layouts=found.looked_at,
        rule=containing(head_size.title, value, head_size.rule),
    )
    six = choice(LUMI | {"parallel": {"context": 3}}, 1)
    reason = PlanningMessage.CONTEXT_DOES_NOT_DIVIDE.fill(context=3, devices=8)
    assert search(six).reason == reason


def test_a_site_that_names_its_device_alone_is_searched() -> None:
    own = {"hardware": {"device": "A100-40GB", "devices_per_node": 4}}
    found = search(choice(LUMI, 4, "13b", site=own))
    assert found.ranked
    assert max(one.memory_bytes for one in found.ranked) <= RESERVE * 40 * 2**30
    unsaid = search(
        choice(LUMI, 4, "13b", site={"hardware": {"device": "A100", "devices_per_node": 4}})
    )
    assert unsaid.reason == PlanningMessage.NAME_WITHOUT_MEMORY.fill(
        device="A100", where="params/sites/here.yaml"
    )
    unknown = search(
        choice(LUMI, 4, "13b", site={"hardware": {"device": "A1000-40GB", "devices_per_node": 4}})
    )
    assert says(
        unknown.reason,
        PlanningMessage.DEVICE_NOT_IN_TABLE,
        device="A1000-40GB",
        site="here",
        names=containing("A100-SXM4-40GB"),
    )


def test_unknown_devices_and_cpus_give_a_reason() -> None:
    assert search(full_choice(build())).reason == PlanningMessage.CPU_HAS_NO_LINKS.fill()


def test_ten_thousand_layouts_in_seconds() -> None:
    looked, started = (
        0,
        time.process_time(),
    )  # of this process, because other users' load does not count
    for nodes in (96, 128, 192, 256, 384):
        chosen = choice({"training": {"framework": "megatron-lm", "global_batch": 9216}}, nodes)
        looked += search(chosen, tokens=300e9).looked_at
    assert looked >= 10_000
    assert (
        time.process_time() - started < 20
    )  # 2 s on a fast core, several times that on a slow one


def test_growth_reaches_ten_thousand_devices_and_slows_down() -> None:
    rows = growth(choice(AZURE, 16), tokens=300e9)
    found = [row for row in rows if isinstance(row, RankedLayout)]
    assert [row.layout.world_size for row in found] == [128, 256, 512, 1024, 2048, 4096, 8192]
    assert found[0].mfu > found[-1].mfu
    assert found[0].days is not None
    assert found[3].days is not None
    assert found[3].days < found[0].days / 5
