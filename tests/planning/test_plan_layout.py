"""Every rule about devices, shape and batch: satisfied, broken, and the text that a user reads if
it is broken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from suite.messages import check_about, containing

from runbook.core.messages import CoreMessage
from runbook.params import Settings
from runbook.params.schema.entries import Model
from runbook.plan_file.phase_names import FULL
from runbook.planning import Check, make_plan
from runbook.planning.choice import full_choice, smoke_choice
from runbook.planning.rule_codes import PlanCode

from .conftest import build, hardware

H100 = {"device": "H100-SXM", "model": "175b"}
MEGATRON = {"framework": "megatron-lm", "global_batch": 512, "micro_batch": 1}
AZURE = {
    "parallel": {"tensor": 8, "pipeline": 16, "sequence": True},
    "training": MEGATRON,
    "jobs": {"training": {"nodes": 16}},
}


def odd(**values: Any) -> Model:
    return Model.model_validate(
        {
            "label": "odd",
            "layers": 4,
            "hidden": 128,
            "heads": 4,
            "sequence_length": 128,
            "source": "test",
            **values,
        }
    )


REFUSALS = [
    (
        {"parallel": {"tensor": 2, "pipeline": 2}},
        {},
        "04-training: world size: 2 devices (1 node x 2) do not divide into groups of 4 (parallel.tensor=2 x "
        "parallel.pipeline=2). Rule: world size = tensor x pipeline x context x data replicas. Change "
        "jobs.training.nodes to a multiple of 2, or choose parallel.tensor x parallel.pipeline so that it divides 2.",
    ),
    (
        {"training": {"smoke": {"tensor": 3}}},
        {},
        "03-smoke-test: world size: 2 devices (1 node x 2) do not divide into groups of 3 (training.smoke.tensor=3 x "
        "training.smoke.pipeline=1). Rule: world size = tensor x pipeline x context x data replicas. Change "
        "jobs.smoke.nodes to a multiple of 3, or choose training.smoke.tensor x training.smoke.pipeline so that it "
        "divides 2.",
    ),
    (
        {"parallel": {"tensor": 2}},
        {"model": odd(heads=1)},
        "04-training: heads by tensor: 1 heads over parallel.tensor=2. Rule: the attention heads "
        "are divisible by tensor. Choose a parallel.tensor that divides 1.",
    ),
    (
        {"parallel": {"tensor": 2}},
        {"model": odd(kv_heads=1)},
        "04-training: key-value heads: 1 key-value heads for 4 heads over parallel.tensor=2. "
        "Rule: the heads are divisible by the key-value heads, and those by tensor. Choose a "
        "parallel.tensor that divides 1, or another kv_heads for other.",
    ),
    (
        {"parallel": {"tensor": 2}},
        {"model": odd(ffn_hidden=301)},
        "04-training: feed-forward by tensor: feed-forward width 301 over parallel.tensor=2. "
        "Rule: the feed-forward width is divisible by tensor. Choose a parallel.tensor that "
        "divides 301.",
    ),
    (
        {},
        {"model": odd(heads=32), "device": "H100-SXM"},
        "04-training: head size: hidden 128 / 32 heads = 4 per head. Rule: the head size is a multiple of 8 (flash "
        "attention and the matrix units need it). Choose heads for model other so that hidden / heads is 64, 96 or "
        "128.",
    ),
    (
        {},
        {"model": odd(heads=3)},
        "04-training: head size: hidden 128 / 3 heads is not whole.",
    ),
    (
        {"parallel": {"pipeline": 2}},
        {"model": odd(layers=5)},
        "04-training: layers by pipeline: 5 layers over parallel.pipeline=2. Rule: the layers are "
        "divisible by pipeline x virtual pipeline. Choose stages so that their product divides 5.",
    ),
    (
        {"training": {"global_batch": 7}},
        {},
        "04-training: batch: 7 sequences over 2 micro x 2 replicas = 4. Rule: the global batch is divisible by "
        "micro-batch x data replicas. Set training.global_batch to 8.",
    ),
    (
        {"training": {"smoke": {"global_batch": 3}}},
        {},
        "03-smoke-test: batch: 3 sequences over 1 micro x 2 replicas = 2. Rule: the global batch is divisible by "
        "micro-batch x data replicas. Set training.smoke.global_batch to 4.",
    ),
    (
        {"training": {"sequence_length": 256}},
        {"model": odd(positions=128)},
        "04-training: positions: sequences of 256 tokens, 128 learned positions. Rule: a sequence "
        "has at most as many tokens as the model has positions. Lower training.sequence_length to "
        "128, or give model other more positions.",
    ),
    (
        {"training": {"smoke": {"sequence_length": 4096}}},
        {},
        "03-smoke-test: positions: sequences of 4096 tokens, 2048 learned positions.",
    ),
    (
        {"training": {"sample_prompt": "The", "sample_tokens": 128}},
        {},
        "04-training: sample: training.sample_tokens=128 after the prompt, 128 positions. Rule: prompt and "
        "continuation fit into the model's positions. Lower training.sample_tokens to at most 64.",
    ),
    (
        {"parallel": {"zero_stage": 2}},
        {},
        "ZeRO stage: parallel.zero_stage=2 with training.engine=megatron-core. Rule: Megatron's distributed optimizer "
        "partitions only optimizer states, which is stage 1. Set parallel.zero_stage to 1, or training.engine to "
        "deepspeed.",
    ),
    (
        {
            "parallel": {"zero_stage": 3, "pipeline": 2},
            "training": {"framework": "megatron-deepspeed"},
        },
        {},
        "04-training: ZeRO stage: parallel.zero_stage=3 with parallel.pipeline=2. Rule: ZeRO 2 and 3 partition "
        "gradients, but a pipeline accumulates them over micro-batches, so it allows only stages 0 and 1. Set "
        "parallel.zero_stage to 1, or "
        "parallel.pipeline to 1.",
    ),
    (
        {"parallel": {"zero_stage": 2, "pipeline": 2}, "training": {"engine": "deepspeed"}},
        {},
        "04-training: ZeRO stage: parallel.zero_stage=2 with parallel.pipeline=2. Rule: ZeRO 2 and 3 partition "
        "gradients, but a pipeline accumulates them over micro-batches, so it allows only stages 0 and 1. Set "
        "parallel.zero_stage to 1, or "
        "parallel.pipeline to 1.",
    ),
    (
        {"parallel": {"virtual_pipeline": 2, "pipeline": 2}, "training": {"engine": "deepspeed"}},
        {},
        "04-training: virtual pipeline: parallel.virtual_pipeline=2 with parallel.pipeline=2 under DeepSpeed. Rule: "
        "DeepSpeed's pipeline has one chunk of layers per stage. Set parallel.virtual_pipeline to 1, or "
        "training.engine "
        "to megatron-core.",
    ),
    (
        {
            "parallel": {"zero_stage": 3},
            "training": {"engine": "deepspeed"},
        },
        H100,
        "04-training: ZeRO 3 at the start: 325 GiB of weights on each device of 80.0 GiB. Rule: our trainer builds the "
        "whole model of a device before ZeRO 3 shards it. Choose a larger parallel.tensor, or "
        "training.engine=megatron-core with parallel.pipeline.",
    ),
    (
        {"training": {"engine": "deepspeed", "precision": "fp16"}, "parallel": {"zero_stage": 0}},
        H100,
        "fp16 with ZeRO: training.precision=fp16 with parallel.zero_stage=0 and training.engine=deepspeed. Rule: "
        "without ZeRO, DeepSpeed 0.19.8 divides gradients by a loss scale that it never applied to the loss. Set "
        "parallel.zero_stage to 1, training.precision to bf16, or training.engine to megatron-core.",
    ),
    (
        {"training": {"engine": "deepspeed", "precision": "fp16", "initial_loss_scale": 1000}},
        H100,
        "loss scale: training.initial_loss_scale=1000, training.min_loss_scale=1 with training.engine=deepspeed. Rule: "
        "DeepSpeed accepts the initial scale as a power of two, and the smallest as a whole number. Set "
        "training.initial_loss_scale to 1024, training.min_loss_scale to 1.",
    ),
    (
        {"training": {"precision": "fp16"}},
        {},
        "precision: training.precision=fp16 on a CPU. Rule: torch trains in bf16 and fp32 on a CPU; fp16 needs an "
        "accelerator. Set training.precision to bf16 or fp32.",
    ),
    (
        {"parallel": {"sequence": True, "tensor": 2}, "training": {"engine": "deepspeed"}},
        {},
        "04-training: sequence parallel: parallel.sequence=true with training.engine=deepspeed. Rule: the gradients "
        "of norms must be summed over the tensor ranks, which DeepSpeed does not do. Set parallel.sequence to false, "
        "or "
        "training.engine to megatron-core.",
    ),
    (
        {"parallel": {"sequence": True}},
        {},
        "04-training: sequence parallel: parallel.sequence=true with parallel.tensor=1, 128 tokens. Rule: sequence "
        "parallelism splits the sequence over the tensor ranks, so tensor must be above 1 and divide the sequence length. "
        "Set parallel.sequence to false, or parallel.tensor to more than 1.",
    ),
    (
        {"parallel": {"sequence": True}, "training": {"framework": "megatron-lm"}},
        {},
        "04-training: sequence parallel: parallel.sequence=true with parallel.tensor=1, 128 tokens. Rule: sequence "
        "parallelism splits the sequence over the tensor ranks, so tensor must be above 1 and divide the sequence length. "
        "Set parallel.sequence to false, or parallel.tensor to more than 1.",
    ),
    (
        {"parallel": {"context": 2}, "training": {"engine": "deepspeed"}},
        {},
        "04-training: context parallel: parallel.context=2 with training.engine=deepspeed. Rule: the gradients of a "
        "sequence's parts must be summed, which DeepSpeed does not do here. Set parallel.context to 1, or "
        "training.engine to megatron-core.",
    ),
    (
        {
            "parallel": {"context": 2},
            "training": {"framework": "megatron-lm", "sequence_length": 126},
        },
        {},
        "04-training: context parallel: parallel.context=2, 126 tokens. Rule: the sequence length "
        "is divisible by 2 x context (each rank takes an early and a late piece). Choose a "
        "parallel.context so that 2 x context divides 126.",
    ),
    (
        {"parallel": {"context": 2}, "training": {"framework": "megatron-deepspeed"}},
        {"model": odd(heads=1)},
        "04-training: context parallel: parallel.context=2, 1 heads, 128 tokens. Rule: Ulysses "
        "exchanges sequence for heads: the heads of a tensor rank and the sequence length are "
        "divisible by context. Choose a parallel.context that divides 1.",
    ),
    (
        {"parallel": {"virtual_pipeline": 2}},
        {},
        "04-training: virtual pipeline: parallel.virtual_pipeline=2 with parallel.pipeline=1, 2 micro-batches per step. "
        "Rule: interleaving needs more than one stage, and a number of micro-batches that is "
        "divisible by the number of stages.",
    ),
    (
        {"parallel": {"virtual_pipeline": 2, "pipeline": 2}, "training": {"global_batch": 6}},
        {},
        "04-training: virtual pipeline: parallel.virtual_pipeline=2 with parallel.pipeline=2, 3 micro-batches per step.",
    ),
    (
        {
            "parallel": {"virtual_pipeline": 2, "pipeline": 2},
            "training": {"framework": "megatron-deepspeed"},
        },
        {},
        "04-training: virtual pipeline: parallel.virtual_pipeline=2 with parallel.pipeline=2 under DeepSpeed. Rule: "
        "DeepSpeed's pipeline has one chunk of layers per stage. Set parallel.virtual_pipeline to 1, or "
        "training.engine "
        "to megatron-core.",
    ),
    (
        {
            "jobs": {"training": {"devices_per_node": 16}, "smoke": {"nodes": 1}},
            "training": MEGATRON,
        },
        {"device": "H100-SXM"},
        "04-training: devices on a node: 16 devices per node; a node of here has 8. Rule: a job requests no "
        "more devices than a node has. Set jobs.training.devices_per_node to at most 8, or to 0 for all of them.",
    ),
]


@pytest.mark.parametrize(
    ("sections", "others", "text"), REFUSALS, ids=[row[2].partition(". ")[0] for row in REFUSALS]
)
def test_a_broken_rule_says_values_rule_and_remedy(
    refusal: Callable[..., str], sections: dict[str, Any], others: dict[str, Any], text: str
) -> None:
    assert text in refusal(sections, **others)


def test_a_cpu_trains_heads_of_any_size(broken: Callable[..., tuple[Check, ...]]) -> None:
    checks = make_plan(build(model=odd(heads=32))).checks
    check = check_about(checks, PlanCode.HEAD_SIZE, FULL, hidden=128, heads=32)
    assert check.verdict == "warn"
    failed = broken({}, model=odd(hidden=36, position_embedding="rope"))
    check_about(failed, PlanCode.HEAD_SIZE, FULL, hidden=36, head_size="= 9 per head")


def test_all_broken_rules_come_in_one_error(refusal: Callable[..., str]) -> None:
    text = refusal(
        {
            "parallel": {"pipeline": 2, "context": 2, "zero_stage": 2},
            "training": {"min_learning_rate": 1.0, "sequence_length": 126, "smoke": {"tensor": 3}},
            "data": {"split": "0,1,1"},
        },
        model=odd(layers=5, heads=3),
    )
    lines = text.splitlines()
    assert lines[0] == CoreMessage.THINGS_DO_NOT_FIT.fill(
        things=CoreMessage.MANY_THINGS.fill(number=10)
    )
    expected = [
        "data split",
        "03-smoke-test: world size",
        "03-smoke-test: heads by tensor",
        "03-smoke-test: feed-forward by tensor",
        "04-training: world size",
        "04-training: head size",
        "04-training: layers by pipeline",
        "ZeRO stage",
        "04-training: context parallel",
        "learning rates",
    ]
    for number, (line, name) in enumerate(zip(lines[1:], expected, strict=True), 1):
        assert line.startswith(f"  {number}. {name}: ")


def test_175b_takes_16_nodes_of_8_and_multiples(
    broken: Callable[..., tuple[Check, ...]],
) -> None:
    """Azure's document states this minimum layout: tensor 8 x pipeline 16 = 128 devices."""
    plan = make_plan(build(AZURE, **H100))
    assert plan.as_dict()["phases"]["04-training"]["parallel"]["data"] == 1
    for nodes in (8, 24):
        checks = broken({**AZURE, "jobs": {"training": {"nodes": nodes}}}, **H100)
        check_about(
            checks,
            PlanCode.WORLD_SIZE,
            FULL,
            world_size=nodes * 8,
            nodes=f"{nodes} nodes",
            devices_per_node=8,
            groups=containing("groups of 128"),
            job_key="jobs.training",
            node_multiple=16,
        )


def test_rules_of_unused_things_are_not_listed(verdicts: Callable[..., dict[str, Check]]) -> None:
    names = " ".join(verdicts())
    for word in ("context", "virtual", "ZeRO", "sequence parallel", "key-value", "tensor inside"):
        assert word not in names


def test_what_only_slows_is_a_warning(verdicts: Callable[..., dict[str, Check]]) -> None:
    found = verdicts({"parallel": {"pipeline": 2}, "training": {"global_batch": 2}})
    check = check_about(
        found.values(),
        PlanCode.PIPELINE_FILLED,
        FULL,
        num_microbatches=1,
        pipeline=2,
        bubble=1.0,
        batch_key="training.global_batch",
        pipeline_key="parallel.pipeline",
    )
    assert check.verdict == "warn"
    wide = verdicts({"parallel": {"tensor": 4}, "jobs": {"training": {"nodes": 2}}})
    across = check_about(wide.values(), PlanCode.TENSOR_INSIDE_NODE, FULL, tensor=4)
    assert across.verdict == "warn"
    crowded = verdicts(site={"hardware": hardware(cores_per_node=1)})
    processes = check_about(crowded.values(), PlanCode.PROCESSES_ON_NODE, FULL, cores=1)
    assert processes.verdict == "warn"


def test_smoke_test_has_its_own_cut_and_drops_sequence_parallelism(
    settings: Callable[..., Settings],
) -> None:
    smoke = make_plan(settings(AZURE, **H100)).as_dict()["phases"]["03-smoke-test"]
    assert smoke["parallel"] == {
        "tensor": 1,
        "pipeline": 1,
        "virtual_pipeline": 1,
        "context": 1,
        "sequence": False,
        "data": 8,
        "world_size": 8,
        "zero_stage": 1,
    }
    assert smoke["batch"] == {"micro": 1, "global": 16, "num_microbatches": 2}


@pytest.mark.parametrize(("pipeline", "micro_batches"), [(1, 2), (2, 2), (4, 4)])
def test_smoke_batch_left_open_fills_the_pipeline(pipeline: int, micro_batches: int) -> None:
    chosen = build(
        {
            "training": {"smoke": {"pipeline": pipeline, "micro_batch": 3}},
            "jobs": {"smoke": {"nodes": 4}},
        }
    )
    choice = smoke_choice(chosen)
    assert choice.num_microbatches == micro_batches
    assert choice.global_batch == micro_batches * choice.layout.data * 3


@given(
    tensor=st.sampled_from([1, 2, 4]),
    pipeline=st.sampled_from([1, 2, 4]),
    copies=st.integers(1, 8),
    micro=st.integers(1, 4),
    steps=st.integers(1, 6),
    virtual=st.sampled_from([1, 2]),
)
def test_a_layout_multiplies_back(
    tensor: int, pipeline: int, copies: int, micro: int, steps: int, virtual: int
) -> None:
    world = tensor * pipeline * copies
    chosen = build(
        {
            "parallel": {"tensor": tensor, "pipeline": pipeline, "virtual_pipeline": virtual},
            "training": {"micro_batch": micro, "global_batch": micro * copies * steps},
            "jobs": {"training": {"devices_per_node": world}},
        }
    )
    choice = full_choice(chosen)
    layout = choice.layout
    assert (
        layout.tensor * layout.pipeline * layout.context * layout.data == layout.world_size == world
    )
    assert layout.ranks_per_replica * layout.data == world
    assert choice.micro_batch * layout.data * choice.num_microbatches == choice.global_batch
    assert choice.bubble == (pipeline - 1) / (steps * virtual)


def test_a_job_with_more_nodes_than_the_site_has_is_refused(
    broken: Callable[..., tuple[Check, ...]],
) -> None:
    site = {"hardware": hardware("H100-SXM", nodes=4)}
    jobs = {"smoke": {"nodes": 1}, "training": {"nodes": 5}}
    checks = broken({"jobs": jobs, "training": {**MEGATRON, "global_batch": 80}}, site=site)
    check = check_about(checks, PlanCode.NODES_OF_SITE, FULL, site_nodes=4)
    assert check.verdict == "fail"
    assert "5 nodes of the 4" in check.value


def test_a_site_of_unknown_size_limits_no_job() -> None:
    jobs = {"smoke": {"nodes": 1}, "training": {"nodes": 5}}
    checks = make_plan(build({"jobs": jobs, "training": {"global_batch": 80}})).checks
    assert not [check for check in checks if check.code is PlanCode.NODES_OF_SITE]
