"""Every coefficient of the step model, fitted or counted, has an effect that these step times pin."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import pytest

from runbook.params.catalogues import read_models
from runbook.params.project import project_root
from runbook.planning.cost import iteration as model
from runbook.planning.cost.iteration import DEFAULT, Coefficients, StepSetup, iteration
from runbook.tools.speed.predict import setup_of
from runbook.tools.speed.published_rows import read_row

CATALOGUE = read_models(project_root())
MODELS = {name: CATALOGUE.get(name) for name in CATALOGUE.names}


def setup(name: str, device: str, count: int, **cells: Any) -> StepSetup:
    columns = {"model": name, "accelerator": device, "n_accel": count, **cells}
    row = setup_of(read_row(1, {key: str(value) for key, value in columns.items()}), MODELS)
    assert not isinstance(row, str), row
    return row.setup


def without_sequence(one: StepSetup) -> StepSetup:
    """Return the step without sequence parallelism."""
    return replace(one, layout=replace(one.layout, sequence=False))


STOCK = {
    "software": "Megatron-LM core 0.14, Transformer Engine",
    "precision": "bf16",
    "seq_len": 8192,
}
TUNED = {"software": "NeMo", "precision": "fp8", "seq_len": 8192}
FORKS = {"software": "Megatron-DeepSpeed", "precision": "fp16", "seq_len": 2048, "zero_stage": 0}
BIGSCIENCE = FORKS | {
    "zero_stage": 1,
    "flash": "no",
    "recompute": "full",
    "global_batch": 2048,
    "micro_batch": 2,
    "layers": 78,
    "hidden": 13824,
    "vocabulary": 250000,
}
TINY = {"tp": 1, "pp": 1, "global_batch": 64, "micro_batch": 2, "precision": "bf16"}
SETUPS = {
    "H100, tensor 4": setup("Llama-3 70B", "H100", 64, tp=4, pp=4, global_batch=128, **TUNED),
    "H100, stock tensor 4": setup("Llama-3 70B", "H100", 64, tp=4, pp=4, global_batch=128, **STOCK),
    "H100, stock tensor 4 without sequence": without_sequence(
        setup("Llama-3 70B", "H100", 64, tp=4, pp=4, global_batch=128, **STOCK)
    ),
    "H100, one micro-batch": setup(
        "Llama-3 8B", "H100", 64, tp=1, pp=1, global_batch=64, micro_batch=1, **TUNED
    ),
    "B200, blocks": setup(
        "Llama-3 8B", "B200", 8, tp=1, pp=1, global_batch=16, fp8_recipe="mxfp8", **TUNED
    ),
    "A100, tensor waits": setup(
        "GPT-3 175B", "A100", 128, tp=8, pp=16, global_batch=256, software="NeMo", precision="bf16"
    ),
    "A100, forks": setup("GPT 20B", "A100", 64, tp=8, pp=8, global_batch=64, flash="no", **FORKS),
    "A100, small forks": setup("GPT-3 350M", "A100", 16, tp=2, pp=2, flash="no", **FORKS),
    "MI250X": setup("GPT-3 13B", "MI250X", 16, tp=2, pp=2, global_batch=64, **FORKS),
    "H100, eager": setup("GPT-3 1.3B", "H100", 8, code="eager", **TINY),
    "H100, launches": setup("GPT-3 125M", "H100", 8, **TINY),
    "H100, graphs": setup("GPT-3 125M", "H100", 8, cuda_graphs="yes", **TINY),
    "H100, ZeRO 3": setup("GPT-3 13B", "H100", 64, zero_stage=3, seq_len=2048, **TINY),
    "A100, first FSDP": setup(
        "GPT-3 6.7B", "A100", 64, date="2023", software="llm-foundry, FSDP", seq_len=2048, **TINY
    ),
    "A100, full recomputation": setup(
        "GPT-3 13B",
        "A100",
        64,
        date="2023-24",
        software="llm-foundry, FSDP, act ckpt=True",
        seq_len=2048,
        **(TINY | {"precision": "amp_bf16"}),
    ),
    "H100, tensor over two nodes": setup(
        "GPT-3 1.3B", "H100", 16, tp=16, pp=1, global_batch=16, micro_batch=1, seq_len=2048
    ),
    "H100, context": setup(
        "Llama-3 8B", "H100", 16, tp=2, pp=1, cp=2, global_batch=16, code="fused", seq_len=8192
    ),
    "H100, small context": setup(
        "GPT-3 125M", "H100", 8, tp=1, pp=1, cp=2, global_batch=4, micro_batch=1
    ),
    "H100, small graphs": setup(
        "GPT-3 125M",
        "H100",
        8,
        tp=1,
        pp=1,
        global_batch=8,
        micro_batch=1,
        seq_len=512,
        cuda_graphs="yes",
    ),
    "H100 of 500 W": setup("Llama-3 8B", "H100 96GB", 64, software="torchtitan", seq_len=8192),
    "GB300": setup("Llama-3 8B", "GB300", 8, tp=1, pp=1, global_batch=64, **TUNED),
    "V100": setup("GPT-3 13B", "V100", 64, tp=8, pp=1, software="Megatron-LM", precision="fp16"),
    "PVC": setup("GPT-3 13B", "PVC", 16, tp=4, pp=1, precision="bf16"),
    "H100, Nemotron": setup(
        "Nemotron 8B", "H100", 64, tp=2, pp=1, global_batch=256, micro_batch=4, **TUNED
    ),
    "MI300X": setup("GPT-3 13B", "MI300X", 8, precision="bf16"),
    "MI355X": setup("GPT-3 13B", "MI355X", 8, precision="bf16"),
    "H100, first vendor's attention": setup(
        "Llama-3 8B", "H100", 8, tp=1, pp=1, date="2024-05", global_batch=64, **TUNED
    ),
    "B200, first stack": setup(
        "Llama-3 8B", "B200", 8, tp=1, pp=1, date="2025-04", global_batch=64, **TUNED
    ),
    "A100, another program": setup(
        "GPT-3 1.3B", "A100", 8, **(TINY | {"software": "InternEvo", "seq_len": 2048})
    ),
    "L40S": setup("GPT-3 1.3B", "L40S", 8, precision="bf16"),
    "H100, small buckets": setup(
        "GPT-3 1.3B",
        "H100",
        512,
        **(TINY | {"software": "nanotron", "global_batch": 1024, "zero_stage": 1}),
    ),
    "A100, heads of 108": setup(
        "GPT 182B",
        "A100",
        384,
        **(BIGSCIENCE | {"heads": 128, "tp": 4, "pp": 12}),
    ),
}
SECONDS = {
    "H100, stock tensor 4": 15.15024,
    "H100, stock tensor 4 without sequence": 15.64304,
    "H100, tensor over two nodes": 0.5760488,
    "A100, full recomputation": 2.253798,
    "H100, tensor 4": 9.780735,
    "H100, one micro-batch": 0.6155845,
    "B200, blocks": 0.6077475,
    "A100, tensor waits": 24.92315,
    "A100, forks": 3.496882,
    "A100, small forks": 2.728941,
    "MI250X": 14.84021,
    "H100, eager": 0.4541659,
    "H100, launches": 0.07800556,
    "H100, graphs": 0.06888739,
    "H100, ZeRO 3": 0.6917307,
    "A100, first FSDP": 0.9878202,
    "H100, context": 1.06611,
    "H100, small context": 0.02924197,
    "H100, small graphs": 0.01347919,
    "H100 of 500 W": 2.538688,
    "GB300": 1.797987,
    "V100": 45.01686,
    "PVC": 125.2871,
    "H100, Nemotron": 2.5626,
    "MI300X": 67.48238,
    "L40S": 5.179148,
    "MI355X": 17.82598,
    "H100, first vendor's attention": 5.081071,
    "B200, first stack": 2.520842,
    "A100, another program": 0.8719019,
    "A100, heads of 108": 134.1793,
    "H100, small buckets": 0.3082204,
}
PINNED = 1e-4
"""Relative difference that the pinned step times allow."""


def step_times(coefficients: Coefficients = DEFAULT) -> dict[str, float]:
    return {name: iteration(one, coefficients).seconds for name, one in SETUPS.items()}


def moved_coefficients() -> Iterator[tuple[str, Coefficients]]:
    for family in DEFAULT.sustained:
        shares = {**DEFAULT.sustained, family: 1.05 * DEFAULT.sustained[family]}
        yield f"sustained {family}", replace(DEFAULT, sustained=shares)
    for field in fields(Coefficients):
        if field.name != "sustained":
            value = 1.1 * getattr(DEFAULT, field.name)
            yield field.name, replace(DEFAULT, **{field.name: value})


CONSTANTS = (
    *("_FORWARD_BYTES", "_SHARED_BYTES", "_BACKWARD", "_LOGIT_BYTES", "_OPTIMIZER_BYTES"),
    *("_FP8_CASTS", "_BLOCK_CASTS", "_WAVE", "_SPLIT"),
    *("_FORKS_BYTES", "_FORKS_SHARED_BYTES", "_FORKS_BANDWIDTH"),
    *("_OPERATORS_ELSEWHERE", "_PLAIN_ACTIVATION_BYTES", "_MEGATRON_LOGIT_BYTES"),
    *("_SOFTMAX_OPERATORS", "_CONTEXT_OPERATORS", "_BACKWARD_OPERATORS", "_GRAPHED"),
    *("_UNALIGNED", "_DDP_BUCKET", "_SHOWN_WITH_SEQUENCE", "_SHOWN_WITHOUT_SEQUENCE"),
    *("_FORWARD_SHARE", "_BUCKET", "_BUCKET_PER_RANK", "_NETWORK_LATENCY"),
)


def test_step_times_are_as_they_were() -> None:
    """If you change the step model on purpose, update the values here and add a line to CHANGELOG."""
    assert step_times() == pytest.approx(SECONDS, rel=PINNED)


MOVED = [*moved_coefficients()]


@pytest.mark.parametrize(("name", "coefficients"), MOVED, ids=[name for name, _ in MOVED])
def test_each_coefficient_moves_a_pinned_step_time(name: str, coefficients: Coefficients) -> None:
    moved = step_times(coefficients)
    assert max(abs(moved[key] / SECONDS[key] - 1) for key in SECONDS) > 2 * PINNED, name


@pytest.mark.parametrize("name", CONSTANTS)
def test_each_counted_constant_moves_a_pinned_step_time(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, name, 2 * getattr(model, name))
    moved = step_times()
    assert max(abs(moved[key] / SECONDS[key] - 1) for key in SECONDS) > 2 * PINNED, name


def test_pytorch_recomputes_all_of_a_layer_but_its_last_product() -> None:
    """The last product has 8 of the 24 operations per squared weight: its input is needed, but not
    its result.
    """
    early = SETUPS["A100, full recomputation"]
    assert early.stops_early
    whole = iteration(replace(early, stops_early=False))
    stopped = iteration(early)
    assert stopped.matrices == whole.matrices
    not_computed = whole.recompute - stopped.recompute
    assert not_computed == pytest.approx(whole.matrices / 3 / 3, rel=0.03)


@pytest.mark.parametrize(
    ("name", "share"),
    [
        # Keys (1,024), the product after attention (4,096) and one into the middle (14,336) of 53,248
        # columns; of GPT-3's 12 h^2 those for keys and after attention.
        ("Llama-3 8B", 19456 / 53248),
        ("GPT-3 13B", 2 / 12),
    ],
)
def test_torchtitan_computes_every_second_product_again(name: str, share: float) -> None:
    cells = {"software": "torchtitan", "seq_len": 2048, "recompute": "operators"}
    some = setup(name, "H100", 8, **cells, **(TINY | {"global_batch": 128, "micro_batch": 16}))
    step = iteration(replace(some, device=replace(some.device, memory_bandwidth=1e30)))
    assert step.recompute == pytest.approx(share * step.matrices / 3, rel=0.03)


def test_only_recipes_that_overlap_hide_tensor_parallel_messages() -> None:
    waiting = iteration(SETUPS["A100, tensor waits"])
    share = waiting.tensor / waiting.seconds
    assert share > 0.08, "Megatron-LM on A100 waits for every message"
    hidden = iteration(SETUPS["H100, tensor 4"])
    assert hidden.tensor < 0.05 * hidden.seconds


def test_stock_megatron_hides_two_of_eight_pieces_or_all_of_the_backward_pass() -> None:
    """Megatron-core sends asynchronously only while it computes the gradients of weights."""
    stock = SETUPS["H100, stock tensor 4"]
    assert stock.layout.sequence
    assert not stock.overlaps_tensor
    overlapping = replace(stock, overlaps_tensor=True)
    ratio = iteration(stock).tensor / iteration(overlapping).tensor
    assert ratio == pytest.approx(0.75 / DEFAULT.tensor_tuned)
    whole = without_sequence(stock)
    ratio = iteration(whole).tensor / iteration(replace(whole, overlaps_tensor=True)).tensor
    assert ratio == pytest.approx(0.5 / DEFAULT.tensor_tuned)
    software = f"{STOCK['software']}, --tp-comm-overlap"
    cells = STOCK | {"software": software}
    asked = setup("Llama-3 70B", "H100", 64, tp=4, pp=4, global_batch=128, **cells)
    assert asked == overlapping


def test_no_work_hides_the_first_and_the_last_bucket() -> None:
    """A step with one micro-batch gathers weights during its forward pass.

    It reduces gradients during its backward pass.
    """
    one = SETUPS["H100, one micro-batch"]
    assert one.num_microbatches == 1
    longer = replace(
        one, device=replace(one.device, network_bandwidth=one.device.network_bandwidth / 4)
    )
    assert iteration(longer).data > 3 * iteration(one).data > 0
    much_work = replace(one, micro_batch=64, global_batch=64 * one.global_batch)
    assert iteration(much_work).data > 5e-4


@pytest.mark.parametrize("stages", [4, 8, 16])
def test_a_vendors_model_with_another_layer_takes_no_less_time(stages: int) -> None:
    """A stage has a whole number of layers.

    With 125, 126 or 127 layers on 8 stages, the other stages wait for those with 16 layers.
    """
    cells = {"tp": 4, "pp": stages, "vp": 1, "global_batch": 128, "micro_batch": 1, **TUNED}
    size = {"hidden": 8192, "heads": 64, "kv_heads": 8, "ffn": 28672}
    seconds = []
    for layers in range(4 * stages, 6 * stages + 1):
        deeper = setup("Llama-3 70B", "H100", 128, layers=layers, **size, **cells)
        step = iteration(deeper)
        # More layers have more parameters to send and update. Here only stages count.
        seconds.append(step.seconds - step.data - step.optimizer - step.waiting)
    assert seconds == sorted(seconds)
    assert max(after / before for before, after in itertools.pairwise(seconds)) < 1.25


def test_deepspeeds_stages_send_a_part_from_each_tensor_rank() -> None:
    """Each tensor rank of a stage sends a part. The receivers gather the parts over faster
    links."""
    forks = SETUPS["A100, forks"]
    layout = forks.layout
    assert (layout.tensor, layout.pipeline, layout.sequence) == (8, 8, False)
    whole = replace(forks, code="fused")
    assert iteration(forks).pipeline < 0.4 * iteration(whole).pipeline


def test_interleaved_stages_hide_the_reduction_behind_a_group_of_micro_batches() -> None:
    """A chunk of layers computes as many micro-batches as there are stages before the next chunk."""
    cells = {"tp": 4, "pp": 4, "vp": 5, "global_batch": 128, "micro_batch": 1, **TUNED}
    interleaved = setup("Llama-3 70B", "H100", 256, **cells)
    device = interleaved.device
    slower = replace(device, network_bandwidth=device.network_bandwidth / 4)
    hides = replace(interleaved, device=slower)
    waits = replace(hides, hides_sends=False)
    assert iteration(hides).data < 0.8 * iteration(waits).data


def test_hidden_communication_takes_processors_from_the_computation() -> None:
    sharded = SETUPS["H100, ZeRO 3"]
    alone = replace(DEFAULT, contention=0.0)
    assert iteration(sharded).data > iteration(sharded, alone).data


def test_an_unknown_program_takes_a_constant_share_longer() -> None:
    other = SETUPS["A100, another program"]
    assert other.is_other_program
    fitted = iteration(replace(other, is_other_program=False)).seconds
    assert iteration(other).seconds == pytest.approx(DEFAULT.other_program * fitted)


def test_a_vendors_older_stacks_are_slower() -> None:
    attention = SETUPS["H100, first vendor's attention"]
    assert attention.first_vendor_attention
    newer = replace(attention, first_vendor_attention=False)
    ratio = iteration(newer).attention / iteration(attention).attention
    assert ratio == pytest.approx(DEFAULT.attention_vendor_first / DEFAULT.attention_vendor)
    blackwell = SETUPS["B200, first stack"]
    assert blackwell.first_blackwell
    newer = replace(blackwell, first_blackwell=False)
    ratio = iteration(newer).attention / iteration(blackwell).attention
    assert ratio == pytest.approx(DEFAULT.blackwell_first)


def test_products_of_attention_leave_tensor_cores_if_heads_are_not_a_multiple_of_8() -> None:
    """BigScience measured 147.41 s with heads of 108 and 107.12 s with heads of 144, at tensor 4."""
    unaligned = SETUPS["A100, heads of 108"]
    assert unaligned.shape.head_size == 108
    cells = BIGSCIENCE | {"heads": 96, "tp": 4, "pp": 12}
    aligned = setup("GPT 182B", "A100", 384, **cells)
    assert aligned.shape.head_size == 144
    longer = iteration(unaligned).seconds / iteration(aligned).seconds
    assert longer == pytest.approx(147.41 / 107.12, abs=0.05)
    fused = [replace(one, flash=True) for one in (unaligned, aligned)]
    ratio = iteration(fused[0]).seconds / iteration(fused[1]).seconds
    assert ratio == pytest.approx(1, abs=0.01), "FlashAttention pads heads"
    of_104 = replace(unaligned, shape=replace(unaligned.shape, head_width=104))
    assert iteration(of_104).attention < 0.3 * iteration(unaligned).attention


def test_deepspeed_fills_one_stage_after_the_other() -> None:
    """With 78 layers on 12 stages, eleven have 7 and the last has 1 (BigScience's chronicle)."""
    uneven = SETUPS["A100, heads of 108"]
    assert (uneven.shape.layers, uneven.layout.pipeline) == (78, 12)
    full_stages = replace(uneven, shape=replace(uneven.shape, layers=84))
    seconds = iteration(uneven)
    expected = iteration(full_stages)
    assert seconds.matrices == pytest.approx(expected.matrices)
    assert seconds.output < 0.2 * expected.output


def test_a_host_that_waits_for_each_kernel_hides_no_launch() -> None:
    hidden = SETUPS["A100, heads of 108"]
    waits = iteration(replace(hidden, launches_block=True))
    assert iteration(hidden).launching < 0.01 * waits.launching
    assert 0.02 < waits.launching / waits.seconds < 0.08


def test_each_bucket_and_each_sharded_layer_passes_through_all_nodes() -> None:
    """A ring's latency grows with the nodes, and counts once per piece that is sent around it."""
    buckets = SETUPS["H100, small buckets"]
    assert buckets.has_ddp_buckets
    in_megatrons_buckets = replace(buckets, has_ddp_buckets=False)
    assert iteration(buckets).data > 1.5 * iteration(in_megatrons_buckets).data

    sharded = replace(SETUPS["H100, ZeRO 3"], device=buckets.device)
    layout = sharded.layout.over(1024)
    on_many_nodes = replace(sharded, layout=layout, global_batch=layout.data)
    free = replace(DEFAULT, hop_microseconds=0.0)
    assert iteration(on_many_nodes).data > 1.1 * iteration(on_many_nodes, free).data
    one_node = replace(sharded, layout=sharded.layout.over(8))
    assert iteration(one_node).data == iteration(one_node, free).data
