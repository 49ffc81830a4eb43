"""The best way to lay a model out over some devices: every cut that keeps the rules and fits, ranked by its speed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

from runbook.params.schema import Recompute, Training
from runbook.plan import flops, memory
from runbook.plan.accelerators import Accelerator
from runbook.plan.choices import Choice
from runbook.plan.iteration import iteration
from runbook.plan.layout import Layout, lay_out
from runbook.plan.layout_rules import check_layout
from runbook.plan.sizes import Shape
from runbook.plan.step import device_of, setup_for, why_unknown

MICRO_BATCHES = (1, 2, 4, 8, 16)
RECOMPUTE = (Recompute.NONE, Recompute.FULL)
"""Selective recomputation drops attention scores, which fused attention never keeps: it is the same as none."""
MOST_CHUNKS = 8
RESERVE = 0.94
"""Share of a device's memory that may be planned with: contexts, communication and fragments need the rest."""


@dataclass(frozen=True)
class Candidate:
    """A layout that keeps the rules and fits."""

    nodes: int
    devices: int
    tensor: int
    pipeline: int
    virtual_pipeline: int
    data: int
    micro_batch: int
    recompute: str
    zero_stage: int
    sequence: bool
    memory_bytes: int
    seconds_per_step: float
    tokens_per_second: float
    tflops_per_device: float
    mfu: float
    days: float | None
    cost: float | None
    nodes_in_multiples_of: int

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


@dataclass(frozen=True)
class Search:
    """All that was found, best first."""

    candidates: tuple[Candidate, ...]
    looked_at: int
    broke_a_rule: int
    did_not_fit: int
    reason: str = ""
    """Why there is none, or an empty word."""
    least_bytes: int = 0
    """What the thriftiest layout needs of one device, where none fits."""


def search(choice: Choice, tokens: float = 0.0) -> Search:
    """Every cut of the choice's model over its nodes; its global batch and sequence length are kept.

    `tokens`: of the whole training, for days and cost (0: not given).
    """
    if reason := why_unknown(choice):
        return Search((), 0, 0, 0, reason)
    device = device_of(choice.site)
    assert device is not None
    found: list[Candidate] = []
    looked = broken = too_large = 0
    thriftiest = 0
    for tried in _choices(choice):
        looked += 1
        layout = lay_out(tried)
        shape = tried.shape
        need = fullest_bytes(tried, layout, shape)
        if need > RESERVE * device.memory_bytes:
            too_large += 1
            thriftiest = min(thriftiest or need, need)
        elif any(check.verdict == "fail" for check in check_layout(tried, layout)):
            broken += 1
        else:
            found.append(_candidate(tried, layout, need, tokens, device))
    found.sort(key=lambda one: (one.seconds_per_step, one.memory_bytes))
    return Search(tuple(found), looked, broken, too_large, _why_none(choice, found, looked, thriftiest), thriftiest)


def growth(choice: Choice, tokens: float = 0.0, most_devices: int = 10_000) -> list[Candidate | str]:
    """The best layout of the same training on twice the nodes, again and again; a reason where there is none."""
    rows: list[Candidate | str] = []
    per_node, nodes = choice.devices_per_node, choice.nodes
    while nodes * per_node <= most_devices:
        result = search(replace(choice, nodes=nodes), tokens)
        rows.append(result.candidates[0] if result.candidates else f"{nodes} nodes: {result.reason}")
        nodes *= 2
    return rows


def node_multiple(choice: Choice, tensor: int, pipeline: int) -> int:
    """The fewest nodes that hold whole copies of the model; every number of nodes must be a multiple of it.

    A model cut 8 x 16 on nodes of 8 devices needs 16 nodes, 32, 48 ...
    """
    group = tensor * pipeline * choice.context
    return math.lcm(group, choice.devices_per_node) // choice.devices_per_node


def fullest_bytes(choice: Choice, layout: Layout, shape: Shape) -> int:
    """Bytes of the fullest stage: the first keeps most activations, the last has the logits."""
    stages = {0, layout.pipeline - 1}
    return max(memory.stage_memory(choice, layout, shape, stage).least for stage in stages)


def _choices(choice: Choice) -> Iterator[Choice]:
    """Every cut that divides evenly; the finer rules are left to `check_layout`."""
    world, model = choice.nodes * choice.devices_per_node, choice.model
    trainings = [choice.training.model_copy(update={"recompute": mode}) for mode in RECOMPUTE]
    zero_stages = (0, 1, 2, 3) if choice.deepspeed else (0, 1)
    for tensor in _divisors(choice.devices_per_node):
        if model.heads % tensor or world % tensor:
            continue
        for pipeline in _divisors(model.layers):
            group = tensor * pipeline * choice.context
            if world % group:
                continue
            copies = world // group
            for micro, zero, training in product(MICRO_BATCHES, zero_stages, trainings):
                if choice.global_batch % (micro * copies) or (zero and copies * choice.context == 1):
                    continue
                yield from _interleaved(choice, (tensor, pipeline, micro, zero), training)


def _interleaved(choice: Choice, cut: tuple[int, int, int, int], training: Training) -> Iterator[Choice]:
    tensor, pipeline, micro, zero = cut
    deep = 1 if pipeline == 1 or choice.deepspeed else MOST_CHUNKS
    for chunks in range(1, deep + 1):
        if (choice.model.layers // pipeline) % chunks == 0:
            yield replace(
                choice,
                tensor=tensor,
                pipeline=pipeline,
                virtual_pipeline=chunks,
                sequence=_cuts_sequence(choice, tensor),
                zero_stage=zero,
                micro_batch=micro,
                training=training,
            )


def _cuts_sequence(choice: Choice, tensor: int) -> bool:
    """Sequence parallelism wherever the framework has it: it only saves memory."""
    if tensor == 1 or choice.own_trainer:
        return False
    return choice.sequence or not choice.deepspeed


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]


def _candidate(choice: Choice, layout: Layout, need: int, tokens: float, device: Accelerator) -> Candidate:
    shape = choice.shape
    seconds = iteration(setup_for(choice, layout, device)).seconds
    work = flops.flops(shape, layout.global_batch) / seconds / layout.world_size / 1e12
    per_second = layout.global_batch * shape.sequence_length / seconds
    days = tokens / per_second / 86400 if tokens else None
    price = choice.site.price_per_device_hour
    return Candidate(
        nodes=choice.nodes,
        devices=layout.world_size,
        tensor=layout.tensor,
        pipeline=layout.pipeline,
        virtual_pipeline=layout.virtual_pipeline,
        data=layout.data,
        micro_batch=layout.micro_batch,
        recompute=str(choice.training.recompute),
        zero_stage=layout.zero_stage,
        sequence=layout.sequence,
        memory_bytes=need,
        seconds_per_step=_round(seconds),
        tokens_per_second=_round(per_second),
        tflops_per_device=_round(work),
        mfu=_round(work / device.peaks[str(choice.training.precision)]),
        days=None if days is None else _round(days),
        cost=None if days is None or price is None else _round(days * 24 * layout.world_size * price),
        nodes_in_multiples_of=node_multiple(choice, layout.tensor, layout.pipeline),
    )


def _why_none(choice: Choice, found: list[Candidate], looked: int, thriftiest: int) -> str:
    if found:
        return ""
    world = choice.nodes * choice.devices_per_node
    if not looked:
        return (
            f"no cut of {choice.model.layers} layers and {choice.model.heads} heads over {world} devices divides a "
            f"global batch of {choice.global_batch}: change jobs.training.nodes or training.global_batch"
        )
    if thriftiest:
        return (
            f"the thriftiest of {looked} layouts needs {thriftiest / 2**30:.1f} GiB of each device: take more nodes, "
            "or an engine that shares more states (parallel.zero_stage with DeepSpeed)"
        )
    return f"none of {looked} layouts keeps the rules of {choice.training.framework}"


def _round(value: float) -> float:
    return float(f"{value:.4g}")
