"""Changes that would make a step faster, and what the model of a step expects of each."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import NamedTuple

from runbook.plan_file.schema import Shape
from runbook.planning.cost.accelerators import find_accelerator
from runbook.planning.cost.iteration import StepSetup, iteration
from runbook.planning.layout_search import MICRO_BATCHES
from runbook.tools.speed.described_training import operations
from runbook.tools.speed.facts import Facts
from runbook.tools.speed.parts import GapPart
from runbook.tools.speed.predict import free_bytes, sequence_bytes

_LEAST_GAIN = 0.004
"""Share of a step that a change has to bring in order to be named."""
_TENSOR_SIZES = (1, 2, 4, 8)
_PIPELINE_SIZES = (1, 2, 4, 8, 16)


class Speedup(NamedTuple):
    """A change of a training that may make a step faster."""

    name: str
    setup: StepSetup
    """The training after the change."""
    sign: str
    """What shows that the change may help."""
    remedy: str
    words: str = ""
    """The change as --set takes it."""


class _Gain(NamedTuple):
    """Seconds that a change saves for each operation."""

    seconds: float
    change: Speedup


def price(setup: StepSetup) -> float:
    """Return the seconds of a step for each of its operations."""
    return iteration(setup).seconds / operations(setup)


def fits(setup: StepSetup) -> bool:
    """Return whether the states and the activations of all micro-batches in flight fit.

    The count is rough.
    """
    in_flight = min(setup.pipeline, setup.num_microbatches) * setup.micro_batch
    return in_flight * sequence_bytes(setup) <= free_bytes(setup)


def modelled_parts(
    setup: StepSetup, facts: Facts, table_shape: Shape | None
) -> tuple[list[GapPart], float]:
    """Return the part of each change, and the seconds of a step with all of them.

    The parts are proportional to what each change brings alone. Together they are what all bring.
    """
    step_operations = operations(setup)
    price_before = price(setup)
    gains = []
    for change in _changes(setup, facts, table_shape):
        saved = price_before - price(change.setup)
        if saved > _LEAST_GAIN * price_before:
            gains.append(_Gain(saved, change))
    gains.sort(key=lambda gain: (gain.seconds, gain.change.name), reverse=True)
    best = setup
    for gain in gains:
        again = [
            change.setup
            for change in _changes(best, facts, table_shape)
            if change.name == gain.change.name
        ]
        best = min([best, *again], key=price)
    if not gains:
        return [], step_operations * price(best)
    all_alone = sum(gain.seconds for gain in gains)
    share = step_operations * (price_before - price(best)) / all_alone
    parts = [
        GapPart(change.name, seconds * share, change.sign, change.remedy, change.words)
        for seconds, change in gains
    ]
    return parts, step_operations * price(best)


def _changes(setup: StepSetup, facts: Facts, table_shape: Shape | None) -> Iterator[Speedup]:
    """Yield every change that has a sign, whether it brings something or not."""
    yield from _work_changes(setup)
    yield from _communication_changes(setup)
    yield _bubble_change(setup)
    if "experts" not in facts:  # The memory of experts is not counted.
        yield _layout_change(setup)
        yield _micro_batch_change(setup)
    if table_shape is not None:
        yield _model_change(setup, table_shape)


def _work_changes(setup: StepSetup) -> Iterator[Speedup]:
    """Yield changes of what a device computes: precision, recomputation, attention, kernels."""
    if setup.precision == "fp32":
        yield Speedup(
            "precision",
            replace(setup, precision="bf16"),
            "fp32: neither --bf16 nor --fp16",
            "train in bf16",
            "training.precision=bf16",
        )
    if setup.recompute in ("full", "operators"):
        selective = replace(setup, recompute="selective")
        remedy = "keep activations"
        if not fits(selective):
            remedy += ": more pipeline, or a smaller micro-batch, makes room"
        yield Speedup(
            "recompute",
            selective,
            "activations are recomputed: work that no figure counts",
            remedy,
            "training.recompute=selective",
        )
    if not setup.flash:
        yield Speedup(
            "flash attention",
            replace(setup, flash=True),
            "attention keeps its scores",
            "fused attention",
            "training.attention=flash2",
        )
    if setup.code == "eager":
        yield Speedup(
            "kernels",
            replace(setup, code="tuned"),
            "layers are not fused, or weights are cast for every product (megatron_amp_O2=False)",
            "Transformer Engine, megatron_amp_O2=True",
        )
    if setup.code == "plain":
        yield Speedup(
            "kernels",
            replace(setup, code="compiled"),
            "norms, activations, loss and sums of gradients are kernels of their own",
            "the trainer's Triton kernels",
            "training.kernels=compiled",
        )


def _communication_changes(setup: StepSetup) -> Iterator[Speedup]:
    """Yield changes of what devices send: overlap, sequence parallelism, a faster network."""
    lacks_sequence = setup.tensor > 1 and not setup.sequence
    options = []
    if setup.shown_data:
        options.append("training.overlap_gradients=true")
    if lacks_sequence:
        options.append("parallel.sequence=true")
    if options:
        yield Speedup(
            "communication",
            replace(setup, shown_data=0.0, sequence=setup.tensor > 1),
            "messages are waited for",
            "let them run beside the work",
            " ".join(options),
        )
    usual_device = find_accelerator(setup.device.name) or setup.device
    bandwidth = setup.device.network_bandwidth
    if bandwidth < usual_device.network_bandwidth:
        gbit_s = bandwidth * 8e-9
        yield Speedup(
            "network",
            replace(setup, device=usual_device),
            f"{gbit_s:g} Gbit/s a device between nodes, as given or as NCCL took sockets",
            "InfiniBand or RoCE; see NCCL_DEBUG=INFO",
        )


def _model_change(setup: StepSetup, table_shape: Shape) -> Speedup:
    """Return the change to the table's model, with the largest micro-batch that fits."""
    tried = [
        replace(setup, shape=table_shape, micro_batch=size) for size in reversed(MICRO_BATCHES)
    ]
    run_size = f"{setup.shape.layers} layers x {setup.shape.hidden}"
    table_size = f"{table_shape.layers} x {table_shape.hidden}"
    return Speedup(
        "another model",
        next(filter(fits, tried), tried[-1]),
        f"{run_size}, the table's model has {table_size}",
        "compare with a table of this size",
    )


def _bubble_change(setup: StepSetup) -> Speedup:
    """Return the change to more micro-batches and interleaved chunks."""
    count = setup.num_microbatches
    stages = setup.pipeline
    better = setup
    set_words = []
    enough = 4 * stages if stages > 1 else 2
    if count < enough:
        global_batch = max(4 * stages, 8) * setup.data * setup.micro_batch
        better = replace(better, global_batch=global_batch)
        set_words.append(f"training.global_batch={global_batch}")
    layers_per_stage = setup.shape.layers // stages
    chunks = max((size for size in (1, 2, 3, 4, 5) if layers_per_stage % size == 0), default=1)
    # Interleaved chunks need a multiple of the stages as micro-batches.
    if stages > 1 and setup.virtual_pipeline < chunks and better.num_microbatches % stages == 0:
        better = replace(better, virtual_pipeline=chunks)
        set_words.append(f"parallel.virtual_pipeline={chunks}")
    micro_batches = f"{count} micro-batch(es) a step"
    return Speedup(
        "pipeline bubble",
        better,
        f"{micro_batches} for {stages} stage(s) of {setup.virtual_pipeline} chunk(s)",
        "more micro-batches a step, interleaved chunks",
        " ".join(set_words),
    )


def _layout_change(setup: StepSetup) -> Speedup:
    """Return the change to the fastest layout over the same devices that fits."""
    fitting = [layout for layout in _possible_layouts(setup) if fits(layout)]
    new = min([setup, *fitting], key=price)
    set_words = (
        f"parallel.tensor={new.tensor} parallel.pipeline={new.pipeline} "
        f"parallel.zero_stage={new.zero_stage}"
    )
    return Speedup(
        "layout",
        new,
        f"{_layout_text(setup)}: {_layout_text(new)} fits as well",
        "cut no finer than memory asks for",
        set_words,
    )


def _possible_layouts(setup: StepSetup) -> Iterator[StepSetup]:
    """Yield every layout that the devices, the model and the batch divide into."""
    zero_stages = sorted({1, setup.zero_stage})
    for tensor, pipeline, zero_stage in product(_TENSOR_SIZES, _PIPELINE_SIZES, zero_stages):
        data, devices_over = divmod(setup.world, tensor * pipeline * setup.context)
        heads_over = setup.shape.heads % tensor
        layers_over = setup.shape.layers % (pipeline * setup.virtual_pipeline)
        if devices_over or heads_over or layers_over:
            continue
        if tensor > setup.device.devices_per_node:
            continue
        if setup.global_batch % (data * setup.micro_batch):
            continue
        yield replace(
            setup,
            tensor=tensor,
            pipeline=pipeline,
            data=data,
            zero_stage=zero_stage,
            sequence=tensor > 1,
            virtual_pipeline=setup.virtual_pipeline if pipeline > 1 else 1,
        )


def _layout_text(setup: StepSetup) -> str:
    """Return a layout in words."""
    return f"tensor {setup.tensor}, pipeline {setup.pipeline}, ZeRO {setup.zero_stage}"


def _micro_batch_change(setup: StepSetup) -> Speedup:
    """Return the change to the fastest micro-batch of the present layout that fits."""
    sequences_per_replica = setup.global_batch // setup.data
    candidates = [setup]
    for size in MICRO_BATCHES:
        if size <= sequences_per_replica and sequences_per_replica % size == 0:
            larger = replace(setup, micro_batch=size)
            if fits(larger):
                candidates.append(larger)
    new = min(candidates, key=price)
    micro_batch = f"micro-batch {setup.micro_batch}"
    return Speedup(
        "micro-batch",
        new,
        f"{micro_batch}, {setup.num_microbatches} times a step: small matrices",
        f"{new.micro_batch} fits by our count",
        f"training.micro_batch={new.micro_batch}",
    )
