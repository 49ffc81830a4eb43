"""Changes that would make a step faster, and the time that the step model predicts for each."""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from runbook.plan_file.schema import Layout, ModelShape
from runbook.planning.cost.accelerators import find_accelerator
from runbook.planning.cost.iteration import StepSetup, iteration
from runbook.planning.layout_search import MICRO_BATCHES, SearchSpace, layouts
from runbook.tools.speed.described_training import operations
from runbook.tools.speed.facts import Facts
from runbook.tools.speed.parts import GapPart
from runbook.tools.speed.planned_choice import choice_of, fits_device

_LEAST_GAIN = 0.004
"""A change is reported if it saves at least this share of a step."""


class Speedup(NamedTuple):
    """A change to a training run that may make a step faster."""

    name: str
    setup: StepSetup
    """The training run after the change."""
    sign: str
    """Evidence that the change may help."""
    remedy: str
    words: str = ""
    """The change as an argument of --set."""


class _Gain(NamedTuple):
    """Seconds per operation that a change saves."""

    seconds: float
    change: Speedup


def price(setup: StepSetup) -> float:
    """Return the seconds that a step takes, divided by its operations."""
    return iteration(setup).seconds / operations(setup)


def modelled_parts(
    setup: StepSetup, facts: Facts, table_shape: ModelShape | None
) -> tuple[list[GapPart], float]:
    """Return how much of the gap each change closes, and the seconds per step with all changes.

    The parts are proportional to the time that each change saves on its own. The parts add up to
    the time that all changes save together.
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
        again = []
        for change in _changes(best, facts, table_shape):
            if change.name == gain.change.name:
                again.append(change.setup)

        best = min([best, *again], key=price)

    if not gains:
        return [], step_operations * price(best)
    all_alone = sum(gain.seconds for gain in gains)
    share = step_operations * (price_before - price(best)) / all_alone
    parts = []
    for seconds, change in gains:
        parts.append(
            GapPart(change.name, seconds * share, change.sign, change.remedy, change.words)
        )

    return parts, step_operations * price(best)


def _changes(setup: StepSetup, facts: Facts, table_shape: ModelShape | None) -> Iterator[Speedup]:
    """Yield every change that the evidence suggests, whether the change saves time or not.

    A layout or a batch size is changed only if it was stated.
    """
    yield from _work_changes(setup)
    yield from _communication_changes(setup)
    # Values that the text does not state were assumed, and an assumption is not a cause. Memory for
    # experts is not counted.
    stated = set(facts)
    if stated & {"pp", "global_batch"}:
        yield _bubble_change(setup)
    if "experts" not in stated and stated & {"tp", "pp", "dp", "zero_stage"}:
        yield _layout_change(setup)
    if "experts" not in stated and "micro_batch" in stated:
        yield _micro_batch_change(setup)

    if table_shape is not None:
        yield _model_change(setup, table_shape)


def _work_changes(setup: StepSetup) -> Iterator[Speedup]:
    """Yield changes to how a device computes: precision, recomputation, attention, kernels."""
    if setup.precision == "fp32":
        yield Speedup(
            "precision",
            replace(setup, precision="bf16"),
            "fp32: neither --bf16 nor --fp16 is set",
            "train in bf16",
            "training.precision=bf16",
        )

    if setup.recompute in ("full", "operators"):
        selective = replace(setup, recompute="selective")
        remedy = "keep activations"
        if not fits_device(selective):
            remedy += ": more pipeline stages or a smaller micro-batch free memory"
        yield Speedup(
            "recompute",
            selective,
            "activations are recomputed, and no reported figure counts this work",
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
            "norms, activations, loss and gradient sums each run in separate kernels",
            "use the trainer's Triton kernels",
            "training.kernels=compiled",
        )


def _communication_changes(setup: StepSetup) -> Iterator[Speedup]:
    """Yield changes to communication: overlap, sequence parallelism, a faster network."""
    layout = setup.layout
    in_sequence = replace(layout, sequence=layout.tensor > 1)
    lacks_sequence = in_sequence.sequence and not layout.sequence
    options = []
    if setup.shown_data:
        options.append("training.overlap_gradients=true")
    if lacks_sequence:
        options.append("parallel.sequence=true")
    if options:
        yield Speedup(
            "communication",
            replace(setup, shown_data=0.0, layout=in_sequence),
            "ranks wait for messages",
            "let them overlap with the computation",
            " ".join(options),
        )

    usual_device = find_accelerator(setup.device.name) or setup.device
    bandwidth = setup.device.network_bandwidth
    if bandwidth < usual_device.network_bandwidth:
        gbit_s = bandwidth * 8e-9
        yield Speedup(
            "network",
            replace(setup, device=usual_device),
            f"{gbit_s:g} Gbit/s per device between nodes, as given, or because NCCL uses sockets",
            "use InfiniBand or RoCE; NCCL_DEBUG=INFO shows which network NCCL chose",
        )


def _model_change(setup: StepSetup, table_shape: ModelShape) -> Speedup:
    """Return the change to the model in the table, with the largest micro-batch that fits."""
    tried = []
    for size in reversed(MICRO_BATCHES):
        tried.append(replace(setup, shape=table_shape, micro_batch=size))

    run_size = f"{setup.shape.layers} layers x {setup.shape.hidden}"
    table_size = f"{table_shape.layers} x {table_shape.hidden}"
    return Speedup(
        "another model",
        next(filter(fits_device, tried), tried[-1]),
        f"{run_size}, but the table's model has {table_size}",
        "compare with a table for this size",
    )


def _bubble_change(setup: StepSetup) -> Speedup:
    """Return the change to more micro-batches and interleaved chunks."""
    layout = setup.layout
    count = setup.num_microbatches
    stages = layout.pipeline
    better = setup
    set_words = []
    enough = 4 * stages if stages > 1 else 2
    if count < enough:
        global_batch = max(4 * stages, 8) * layout.data * setup.micro_batch
        better = replace(better, global_batch=global_batch)
        set_words.append(f"training.global_batch={global_batch}")

    layers_per_stage = setup.shape.layers // stages
    chunks = max((size for size in (1, 2, 3, 4, 5) if layers_per_stage % size == 0), default=1)
    # Interleaved chunks need a micro-batch count that is a multiple of the stage count.
    if stages > 1 and layout.virtual_pipeline < chunks and better.num_microbatches % stages == 0:
        interleaved = replace(layout, virtual_pipeline=chunks)
        better = replace(better, layout=interleaved)
        set_words.append(f"parallel.virtual_pipeline={chunks}")

    micro_batches = f"{count} micro-batch(es) a step"
    return Speedup(
        "pipeline bubble",
        better,
        f"{micro_batches} for {stages} stage(s) of {layout.virtual_pipeline} chunk(s)",
        "use more micro-batches per step, and interleaved chunks",
        " ".join(set_words),
    )


def _layout_change(setup: StepSetup) -> Speedup:
    """Return the change to the fastest layout that fits on the same devices."""
    zero_stages = tuple(sorted({1, setup.layout.zero_stage}))
    space = _space(setup, zero_stages=zero_stages, micro_batches=(setup.micro_batch,))
    new = min([setup, *_fitting(setup, space)], key=price)
    set_words = (
        f"parallel.tensor={new.layout.tensor} parallel.pipeline={new.layout.pipeline} "
        f"parallel.zero_stage={new.layout.zero_stage}"
    )
    return Speedup(
        "layout",
        new,
        f"{_layout_text(setup)}: {_layout_text(new)} also fits",
        "split no more than memory requires",
        set_words,
    )


def _space(
    setup: StepSetup, *, zero_stages: tuple[int, ...], micro_batches: tuple[int, ...]
) -> SearchSpace:
    """Return the options that the planner may vary, which do not include recomputation."""
    return SearchSpace(
        micro_batches=micro_batches,
        recompute=("full",) if setup.recompute == "full" else ("none",),
        zero_stages=zero_stages,
        most_chunks=setup.layout.virtual_pipeline,
    )


def _fitting(setup: StepSetup, space: SearchSpace) -> Iterator[StepSetup]:
    """Yield the layouts that the planner allows on these devices, as input for the step model."""
    for choice in layouts(choice_of(setup), space):
        layout = choice.layout
        if layout.pipeline > 1 and layout.virtual_pipeline != setup.layout.virtual_pipeline:
            continue
        in_sequence = replace(layout, sequence=layout.sequence or layout.tensor > 1)
        new = replace(setup, layout=in_sequence, micro_batch=choice.micro_batch)
        if fits_device(new):
            yield new


def _layout_text(setup: StepSetup) -> str:
    """Return a text that describes a layout."""
    layout = setup.layout
    return f"tensor {layout.tensor}, pipeline {layout.pipeline}, ZeRO {layout.zero_stage}"


def _micro_batch_change(setup: StepSetup) -> Speedup:
    """Return the change to the fastest micro-batch that fits in the current layout."""
    space = _space(setup, zero_stages=(setup.layout.zero_stage,), micro_batches=MICRO_BATCHES)
    candidates = [other for other in _fitting(setup, space) if _has_cut_of(other.layout, setup)]
    new = min([setup, *candidates], key=price)
    micro_batch = f"micro-batch {setup.micro_batch}"
    return Speedup(
        "micro-batch",
        new,
        f"{micro_batch}, {setup.num_microbatches} times per step: small matrices",
        f"use {new.micro_batch}, which fits by our estimate",
        f"training.micro_batch={new.micro_batch}",
    )


def _has_cut_of(layout: Layout, setup: StepSetup) -> bool:
    """Return whether two layouts divide the model in the same way."""
    tensor_and_pipeline = (setup.layout.tensor, setup.layout.pipeline)
    return (layout.tensor, layout.pipeline) == tensor_and_pipeline
