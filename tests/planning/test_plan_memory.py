"""Memory by part, compared with published values, and the messages if a plan needs too much of
it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from suite.messages import check_about, says

from runbook.core.quantities import PROCESS_MEMORY
from runbook.plan_file.diagnostics import Statement
from runbook.plan_file.kept_checkpoints import bytes_per_parameter, most_at_once
from runbook.plan_file.phase_names import FULL
from runbook.plan_file.schema import ADAM_MOMENTS, Checkpoint, Layout, ModelShape, Precision
from runbook.planning import Check, make_plan
from runbook.planning.choice import full_choice
from runbook.planning.cost import cpu
from runbook.planning.cost.checkpoint_size import (
    Storage,
    checkpoint_bytes,
    storage,
)
from runbook.planning.cost.cpu import PROCESS_BYTES
from runbook.planning.cost.memory import (
    StageMemory,
    all_stages,
    check_host_memory,
    layer_activations,
    node_bytes,
    stage_memory,
    state_bytes,
)
from runbook.planning.messages import PlanningMessage
from runbook.planning.rule_codes import PlanCode
from runbook.results.plan_versus_actual import planned_numbers

from .conftest import TWO_CORES, build, hardware

GPT3 = ModelShape(
    layers=96,
    hidden=12288,
    heads=96,
    kv_heads=96,
    ffn_hidden=49152,
    sequence_length=2048,
    positions=2048,
    vocabulary=50257,
    padded_vocabulary=51200,
)

UNCUT = Layout(
    tensor=1,
    pipeline=1,
    virtual_pipeline=1,
    context=1,
    sequence=False,
    data=1,
    world_size=1,
    zero_stage=1,
)

STATES = [
    # Megatron's distributed optimizer (docs/dist_optimizer.md): unsharded, then sharded over d
    # replicas
    ("fp16", False, 0, 1, 20),
    ("fp16", False, 1, 4, 4 + 16 / 4),
    ("bf16", False, 0, 1, 18),
    ("bf16", False, 1, 4, 6 + 12 / 4),
    ("fp32", False, 0, 1, 16),
    ("fp32", False, 1, 4, 8 + 8 / 4),
    # The ZeRO stages 0 to 3 of DeepSpeed
    ("fp16", True, 0, 8, 16),
    ("fp16", True, 1, 8, 4 + 12 / 8),
    ("fp16", True, 2, 8, 2 + 14 / 8),
    ("fp16", True, 3, 8, 16 / 8),
    ("fp32", True, 1, 4, 8 + 12 / 4),
]


@pytest.mark.parametrize(("precision", "deepspeed", "zero", "data", "bytes_"), STATES)
def test_states_are_the_documented_bytes(
    precision: Precision, deepspeed: bool, zero: int, data: int, bytes_: float
) -> None:
    assert state_bytes(precision, deepspeed=deepspeed, zero_stage=zero, data=data).total == bytes_


@pytest.mark.parametrize(("precision", "deepspeed", "zero", "data", "_"), STATES)
def test_each_further_moment_takes_four_bytes_in_memory_and_on_disk(
    precision: Precision, deepspeed: bool, zero: int, data: int, _: float
) -> None:
    def total(moments: tuple[str, ...]) -> float:
        return state_bytes(
            precision, deepspeed=deepspeed, zero_stage=zero, data=data, moments=moments
        ).total

    three = (*ADAM_MOMENTS, "max_exp_avg_sq")
    share = data if zero >= 1 else 1
    assert total(three) - total(ADAM_MOMENTS) == pytest.approx(4 / share)
    assert bytes_per_parameter(precision, three) - bytes_per_parameter(precision) == 4


@pytest.mark.parametrize(("nodes", "gigabytes"), [(16, 24.6), (32, 16.4), (64, 12.3), (128, 10.2)])
def test_states_of_175b_on_tensor_8_pipeline_16(nodes: int, gigabytes: float) -> None:
    each = state_bytes("bf16", deepspeed=False, zero_stage=1, data=nodes // 16).total
    assert each * 175e9 / 128 / 1e9 == pytest.approx(gigabytes, abs=0.06)


ACTIVATIONS = [
    # Korthikanti et al., table 2, in units of s b h
    ({}, 34, 5 * 96 * 2048 / 12288),
    ({"tensor": 8}, 10 + 24 / 8, 5 * 96 * 2048 / 12288 / 8),
    ({"tensor": 8, "sequence": True}, 34 / 8, 5 * 96 * 2048 / 12288 / 8),
    ({"context": 2}, 34 / 2, 5 * 96 * 2048 / 12288 / 2),
]


@pytest.mark.parametrize(("cut", "kept", "scores"), ACTIVATIONS)
def test_activations_of_a_layer_are_korthikantis(
    cut: dict[str, Any], kept: float, scores: float
) -> None:
    unit = 2048 * 12288
    found = layer_activations(GPT3, replace(UNCUT, **cut), 1, "bf16")
    assert found == pytest.approx((kept * unit, scores * unit))
    assert layer_activations(GPT3, replace(UNCUT, **cut), 1, "fp32") == pytest.approx(
        (2 * kept * unit, 2 * scores * unit)
    )


def test_gated_and_grouped_layers_keep_what_they_make() -> None:
    """SwiGLU with 2/3 of the width keeps as many activations as GELU. If queries are in groups of
    8, an eighth of the keys and values remains.
    """
    gated = replace(GPT3, ffn_hidden=2 * 49152 // 3, activation="swiglu")
    assert layer_activations(gated, UNCUT, 1, "bf16")[0] == pytest.approx(34 * 2048 * 12288)
    grouped = replace(GPT3, kv_heads=12)
    assert layer_activations(grouped, UNCUT, 1, "bf16")[0] == pytest.approx(
        (34 - 4 * 7 / 8) * 2048 * 12288
    )


def test_transformer_engine_saves_the_inputs_of_matrix_products_in_one_byte() -> None:
    """In fp8, the results of both norms and the input of the last matrix take half. The input of
    attention's output takes one more byte, since attention keeps its result in 16 bits.
    """
    unit = 2048 * 12288
    saved, _ = layer_activations(GPT3, UNCUT, 1, "bf16", saves_in_fp8=True)
    assert saved == pytest.approx((34 - 2 + 1 - 4) * unit)
    gated = replace(GPT3, ffn_hidden=2 * 49152 // 3, activation="swiglu")
    saved, _ = layer_activations(gated, UNCUT, 1, "bf16", saves_in_fp8=True)
    assert saved == pytest.approx((34 - 2 + 1 - 8 / 3) * unit)


@pytest.mark.parametrize(("framework", "saves"), [("megatron-lm", True), ("runbook", False)])
def test_only_other_programs_are_planned_with_inputs_in_fp8(framework: str, saves: bool) -> None:
    def kept(fp8: str) -> int:
        training = {"framework": framework, "precision": "bf16", "fp8": fp8}
        (stage,) = stages({"training": training}, model="13b", device="H100-SXM")
        return stage.activations

    assert (kept("delayed") < kept("none")) == saves


def stages(sections: dict[str, Any], **others: Any) -> list[StageMemory]:
    choice = full_choice(build(sections, **others))
    return all_stages(choice)


def test_first_stage_holds_all_micro_batches_in_flight() -> None:
    """With 1F1B, the first stage keeps p micro-batches of L/p layers, and the last stage keeps
    one."""
    one = stages({"training": {"global_batch": 32}})[0]
    first, last = stages({"parallel": {"pipeline": 2}, "training": {"global_batch": 32}})
    assert first.activations == one.activations
    assert last.activations == pytest.approx(one.activations / 2)
    assert (first.logits, last.logits) == (0, one.logits)


def test_a_step_of_one_micro_batch_holds_no_more_than_that() -> None:
    first, last = stages({"parallel": {"pipeline": 2}, "training": {"global_batch": 2}})
    assert first.activations == last.activations


def test_interleaving_holds_more() -> None:
    plain, _ = stages({"parallel": {"pipeline": 2}})
    interleaved, _ = stages({"parallel": {"pipeline": 2, "virtual_pipeline": 2}})
    assert interleaved.activations == pytest.approx(plain.activations * 1.25)


def test_recomputing_keeps_less() -> None:
    by_mode = {
        mode: stages({"training": {"recompute": mode}}, model="375m")[0]
        for mode in ("none", "selective", "full")
    }
    assert by_mode["selective"].activations == by_mode["none"].activations
    assert by_mode["selective"].attention_scores == pytest.approx(
        by_mode["none"].attention_scores / 12
    )
    unit = 1024 * 2 * 512
    assert by_mode["full"].activations == round(cpu.ACTIVATIONS * (12 * 2 * unit + 34 * unit))


LUMI = {
    "parallel": {"zero_stage": 1},
    "training": {
        "framework": "megatron-deepspeed",
        "precision": "fp16",
        "global_batch": 1024,
        "micro_batch": 2,
    },
}


def test_lumi_13b_with_zero_1_on_8_gcds_does_not_fit(
    broken: Callable[..., tuple[Check, ...]],
) -> None:
    """LUMI's table lists a speed for this layout, but the states take 70.7e9 bytes, and a GCD has
    68.7e9."""
    (stage,) = stages(LUMI, model="13b", device="MI250X-GCD")
    assert stage.states == pytest.approx(70.7e9, abs=0.05e9)
    checks = broken(LUMI, model="13b", device="MI250X-GCD")
    needs = {
        "processes": "stage 0, the fullest, needs",
        "states": "65.8 GiB",
        "available": "64.0 GiB",
    }
    check = check_about(checks, PlanCode.MEMORY_FITS, "04-training", **needs)
    assert check.verdict == "fail"
    ways = (
        "a larger parallel.tensor or parallel.pipeline",
        "training.micro_batch 1",
        "training.recompute full",
        "parallel.zero_stage 2",
        "training.offload true",
    )
    assert check.remedy == PlanningMessage.LESS_MEMORY.fill(
        ways=", ".join(ways), job_key="jobs.training"
    )


@pytest.mark.parametrize(("zero", "gib"), [(1, 56.9), (2, 34.4)])
def test_lumi_13b_on_two_nodes_has_the_stated_states(zero: int, gib: float) -> None:
    sections = {**LUMI, "parallel": {"zero_stage": zero}, "jobs": {"training": {"nodes": 2}}}
    (stage,) = stages(sections, model="13b", device="MI250X-GCD")
    assert stage.states / 2**30 == pytest.approx(gib, abs=0.05)


TRAINED_WITH_DROPOUT = {
    "framework": "megatron-lm",
    "micro_batch": 1,
    "global_batch": 512,
    "dropout": 0.1,
}


def test_what_fits_only_without_attention_scores_is_a_warning(
    verdicts: Callable[..., dict[str, Check]],
) -> None:
    memory = 64 * 2**30
    site = {"hardware": hardware("H100-SXM", device_memory=memory)}
    sections = {
        "parallel": {"tensor": 8, "pipeline": 16},
        "training": TRAINED_WITH_DROPOUT,
        "jobs": {"training": {"nodes": 16}},
    }
    (first, *_) = stages(sections, model="175b", device="H100-SXM")
    assert first.least < memory < first.most
    check = verdicts(sections, model="175b", site=site)["04-training: memory"]
    assert check.verdict == "warn"
    assert check.remedy == PlanningMessage.FLASH_ATTENTION.fill()


def test_175b_with_sequence_parallelism_keeps_the_stated_activations() -> None:
    """The first stage of tensor 8 x pipeline 16 keeps about 9.6 GiB if attention stores no scores."""
    sections = {
        "parallel": {"tensor": 8, "pipeline": 16, "sequence": True},
        "training": TRAINED_WITH_DROPOUT,
        "jobs": {"training": {"nodes": 16}},
    }
    first, *_ = stages(sections, model="175b", device="H100-SXM")
    assert first.activations / 2**30 == pytest.approx(9.6, abs=0.05)


def test_a_device_whose_memory_is_not_known_gives_no_verdict(
    verdicts: Callable[..., dict[str, Check]],
) -> None:
    site = {"hardware": {"device": "NewChip", "devices_per_node": 8}}
    check = verdicts({"training": {"global_batch": 16}}, site=site)["04-training: memory"]
    assert check.verdict == "unknown"
    room = PlanningMessage.MEMORY_UNKNOWN.fill()
    assert (check.values["room"], check.values["available"]) == (room, "")
    assert verdicts(machine=None)["04-training: memory"].verdict == "unknown"


def test_processes_on_a_cpu_share_the_nodes_memory(
    broken: Callable[..., tuple[Check, ...]],
) -> None:
    chosen = build()
    choice = full_choice(chosen)
    least, most = node_bytes(all_stages(choice), 2)
    stage = stage_memory(choice, 0)
    assert (least, most) == (2 * (stage.least + PROCESS_BYTES), 2 * (stage.most + PROCESS_BYTES))
    checks = broken(machine=replace(TWO_CORES, memory_bytes=2**30))
    needs = {"processes": "2 processes need", "needed": "3.46 GiB", "states": "740 MiB"}
    memory = PlanningMessage.MEMORY_OF_THE_NODE.fill()
    room = {"memory": memory, "available": "1.00 GiB"}
    check = check_about(checks, PlanCode.MEMORY_FITS, "03-smoke-test", **needs, **room)
    assert check.verdict == "fail"


def test_memory_of_the_site_is_used_where_nobody_looked() -> None:
    memory = make_plan(build(site={"hardware": hardware(node_memory=2**40)})).as_dict()["memory"]
    assert memory["04-training"]["limit_bytes"] == 2**40
    assert memory["04-training"]["limit_of"] == "node"


@given(st.integers(1, 64), st.sampled_from(get_args(Precision)), st.booleans())
def test_sharing_more_never_takes_more(data: int, precision: Precision, deepspeed: bool) -> None:
    totals = [
        state_bytes(precision, deepspeed=deepspeed, zero_stage=zero, data=data).total
        for zero in (1, 2, 3)
    ]
    assert totals == sorted(totals, reverse=True)


def test_175b_checkpoint_is_2_22_tib_and_takes_the_true_minutes() -> None:
    """Azure's document divides GiB by GB/s: 2.04 / 0.61 / 0.31 / 0.15 min. In consistent units, the
    times are 4 to 7 % longer.
    """
    size = checkpoint_bytes(174_615_846_912, "fp16")
    assert size == 2_444_621_856_768
    assert size / 2**40 == pytest.approx(2.223, abs=1e-3)
    minutes = [size / (rate * 1e9) / 60 for rate in (19.2, 64, 128, 256)]
    assert minutes == pytest.approx([2.122, 0.637, 0.318, 0.159], abs=6e-4)


def disk_of(iterations: int = 100, program: str = "megatron-core", **checkpoint: int) -> Storage:
    """Return the disk space for a training run with 1,000 parameters in bf16."""
    phase = make_plan(build()).phases["04-training"]
    phase = replace(
        phase,
        model=replace(phase.model, parameters=1000),
        precision=replace(phase.precision, format="bf16"),
        duration=replace(phase.duration, iterations=iterations),
        checkpoint=Checkpoint("checkpoints", **{"interval": 10, "keep": 2} | checkpoint),
    )
    return storage(phase, program)


def test_disk_holds_the_kept_checkpoints_and_the_new_one() -> None:
    assert bytes_per_parameter("fp32") == 12
    store = disk_of()
    assert (store.checkpoint_bytes, store.num_checkpoints, store.disk_bytes) == (14_000, 3, 42_000)


def most_seen(iterations: int, interval: int, keep: int, keep_every: int) -> int:
    """Count the checkpoints on disk save by save, as a second method.

    It deletes checkpoints as `seal_checkpoint` does.
    """
    on_disk: list[int] = []
    most = keep + 1
    for iteration in range(1, iterations + 1):
        if iteration % interval == 0 or iteration == iterations:
            on_disk.append(iteration)
            most = max(most, len(on_disk))
            on_disk = [one for one in on_disk[:-keep] if one % keep_every == 0] + on_disk[-keep:]
    return most


@given(st.integers(1, 300), st.integers(1, 30), st.integers(1, 5), st.integers(1, 40))
def test_disk_holds_the_checkpoints_that_are_kept_for_ever(
    iterations: int, interval: int, keep: int, keep_every: int
) -> None:
    kept = Checkpoint("checkpoints", interval=interval, keep=keep, keep_every=keep_every)
    assert most_at_once(kept, iterations) == most_seen(iterations, interval, keep, keep_every)


def test_disk_holds_all_checkpoints_of_a_program_that_deletes_none() -> None:
    assert disk_of(keep_every=10).num_checkpoints == 10
    assert disk_of(program="megatron-lm").num_checkpoints == 10
    assert disk_of(program="megatron-deepspeed", interval=0).num_checkpoints == 1
    assert disk_of(program="nemo").num_checkpoints == 3


OFFLOADED = {
    "parallel": {"zero_stage": 1},
    "training": {
        "framework": "megatron-deepspeed",
        "precision": "fp16",
        "global_batch": 1024,
        "offload": True,
    },
}


def test_offloaded_states_leave_the_device_for_the_node() -> None:
    """With ZeRO 1, LUMI's 13B model fits on eight GCDs only with offload.

    The time of the optimizer step on the host is unknown.
    """
    (stage,) = stages(OFFLOADED, model="13b", device="MI250X-GCD")
    parameters = stage.weights / 2
    assert (stage.gradients, stage.optimizer, stage.host) == (
        2 * parameters,
        0,
        16 * parameters / 8,
    )
    (second,) = stages(
        {**OFFLOADED, "parallel": {"zero_stage": 2}}, model="13b", device="MI250X-GCD"
    )
    assert (second.gradients, second.optimizer, second.host) == (0, 0, stage.host)


@pytest.mark.parametrize(
    ("gib", "verdict", "available"),
    [
        (480, "warn", PlanningMessage.NODE_MEMORY.of(available="480 GiB")),
        (100, "fail", PlanningMessage.NODE_MEMORY.of(available="100 GiB")),
        (0, "unknown", PlanningMessage.NODE_MEMORY_NOT_KNOWN.of()),
    ],
)
def test_the_node_must_hold_what_is_offloaded(gib: int, verdict: str, available: Statement) -> None:
    choice = full_choice(
        build(
            OFFLOADED,
            model="13b",
            site={"hardware": hardware("MI250X-GCD", node_memory=gib * 2**30)},
        )
    )
    (check,) = check_host_memory(choice, all_stages(choice))
    assert check.verdict == verdict
    assert check.value.endswith(str(available))
    assert says(check.value, PlanningMessage.OFFLOAD, devices=8, needed="192 GiB")


def test_what_cannot_be_offloaded_is_refused() -> None:
    for change in ({"framework": "megatron-lm"}, {}):
        sections = {
            **OFFLOADED,
            "training": {**OFFLOADED["training"], **change},
            "parallel": {"zero_stage": 0},
        }
        choice = full_choice(build(sections, model="13b", device="MI250X-GCD"))
        (check,) = check_host_memory(choice, all_stages(choice))
        assert check.verdict == "fail"
        assert check.remedy == PlanningMessage.SHARE_TO_OFFLOAD.fill()


def test_memory_of_a_process_is_a_share_of_its_node_not_of_all_nodes() -> None:
    jobs = {"smoke": {"nodes": 2}, "training": {"nodes": 2}}
    plan = make_plan(build({"jobs": jobs}))
    memory = plan.memory[FULL]
    per_node = plan.phases[FULL].parallel.world_size // 2
    assert memory.limit_of == "node"
    assert planned_numbers(plan, FULL)[PROCESS_MEMORY] == memory.least_bytes / per_node
