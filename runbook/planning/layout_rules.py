"""Rules for a layout: what model, engine and devices must divide by, and what an engine cannot do."""

import math
from collections.abc import Iterable, Iterator

from runbook.core.checks import Check, counted, judge
from runbook.core.units import show_bytes
from runbook.params.schema.site import AUTO
from runbook.plan_file.limits import (
    chunk_rules,
    engine_rules,
    shape_rules,
    sharing_rules,
    tuning_problems,
)
from runbook.planning.cost.step_inputs import memory_of
from runbook.planning.layout import Choice
from runbook.planning.sizes import on_rank


def check_layout(choice: Choice) -> list[Check]:
    """Every rule about devices, shape and batch; rules about things the run does not use are left out.

    Where the devices do not divide there is no number of copies, and nothing is said about the batch.
    """
    world = _world(choice)
    shape = choice.shape
    recompute = choice.training.recompute
    once: Iterable[tuple[str, bool, str, str, str]] = ()
    if not choice.smoke:
        once = engine_rules(choice.program, choice.zero_stage, choice.training.precision)
    checks = [world, *_devices(choice), *_shape(choice)]
    checks += [*(judge(*rule) for rule in once), *_zero_stage(choice)]
    checks += choice.judged(sharing_rules(shape, choice.parallel, choice.program, choice.keys))
    if not choice.smoke:  # said once, for both phases
        on_deepspeed = choice.program == "deepspeed"
        wrong = tuning_problems(
            choice.tuning, choice.parallel, shape.layers, recompute, deepspeed=on_deepspeed
        )
        checks += [
            *_precision(choice),
            *(Check("how a step is carried out", "fail", *one) for one in wrong),
        ]
    if world.verdict != "fail":
        chunks = chunk_rules(choice.parallel, choice.num_microbatches, choice.program, choice.keys)
        checks += [*_batch(choice), *choice.judged(chunks)]
    return checks


def _world(choice: Choice) -> Check:
    keys = choice.keys
    world = choice.world_size
    group = choice.tensor * choice.pipeline * choice.context
    factors = f"{keys.tensor}={choice.tensor} x {keys.pipeline}={choice.pipeline}"
    if choice.context > 1:
        factors += f" x parallel.context={choice.context}"
    divides = world % group == 0
    if divides:
        copies = f" = {choice.data} copies of {group}"
    else:
        copies = f" do not divide into groups of {group}"
    return judge(
        f"{choice.phase}: world size",
        divides,
        f"{world} devices ({counted(choice.nodes, 'node')} x {choice.devices_per_node}){copies} ({factors})",
        "world size = tensor x pipeline x context x data copies",
        f"Change {keys.job}.nodes to a multiple of {choice.node_multiple}, or choose {keys.tensor} x {keys.pipeline} "
        f"so that it divides {world}.",
    )


def _devices(choice: Choice) -> Iterator[Check]:
    hardware = choice.site.hardware
    keys = choice.keys
    has = hardware.devices_per_node
    cores = hardware.cores_per_node
    if choice.on_cpu:
        if cores:  # else 01-environment counts them
            yield judge(
                f"{choice.phase}: processes on a node",
                choice.devices_per_node <= cores,
                f"{choice.devices_per_node} processes on {cores} cores",
                "each process has a core of its own",
                f"Lower {keys.job}.devices_per_node to at most {cores}; more is only slower.",
                otherwise="warn",
            )
    elif hardware.device != AUTO:
        yield judge(
            f"{choice.phase}: devices on a node",
            choice.devices_per_node <= has,
            f"{choice.devices_per_node} of {has} devices a node of {choice.site.site} has",
            "a job asks for no more devices than a node has",
            f"Set {keys.job}.devices_per_node to at most {has}, or 0 for all of them.",
        )
    elif not choice.smoke:  # said once, for both phases
        yield Check(
            "GPUs",
            "fail",
            f"site {choice.site.site} computes on the GPUs of this machine, and none is seen",
            "nvidia-smi or rocm-smi lists a GPU, and CUDA_VISIBLE_DEVICES and its like do not hide it",
            "Look what nvidia-smi or rocm-smi says, or compute on the CPU: --set site=local.",
        )
    if choice.tensor > 1:
        yield judge(
            f"{choice.phase}: tensor inside a node",
            choice.devices_per_node % choice.tensor == 0,
            f"{keys.tensor}={choice.tensor} on nodes of {choice.devices_per_node} devices",
            "the devices that share a matrix sit in one node, where the links are fast",
            f"Choose a {keys.tensor} that divides {choice.devices_per_node}.",
            otherwise="warn",
        )


def _shape(choice: Choice) -> Iterator[Check]:
    shape = choice.shape
    whole_heads = shape.hidden % shape.heads == 0
    size = f"= {shape.head_size} a head" if whole_heads else "is not whole"
    odd = (
        shape.head_size % 2 == 1 and shape.position_embedding == "rope"
    )  # which turns pairs of numbers
    trains = whole_heads and not odd and choice.site.hardware.device == "cpu"
    yield judge(
        f"{choice.phase}: head size",
        whole_heads and shape.head_size % 8 == 0,
        f"hidden {shape.hidden} / {shape.heads} heads {size}",
        "the head size is a multiple of 8 (flash attention and the matrix units need it)",
        f"Choose heads for model {choice.model_name} so that hidden / heads is 64, 96 or 128.",
        otherwise="warn" if trains else "fail",
    )
    yield from choice.judged(shape_rules(shape, choice.parallel, choice.model_name, choice.keys))
    training = choice.training
    if training.sample_prompt and not choice.smoke:
        yield judge(
            f"{choice.phase}: sample",
            training.sample_tokens < shape.positions,
            f"training.sample_tokens={training.sample_tokens} after the prompt, {shape.positions} positions",
            "prompt and continuation fit into the model's positions",
            f"Lower training.sample_tokens to at most {shape.positions // 2}.",
        )


def _precision(choice: Choice) -> Iterator[Check]:
    """A number format that a CPU cannot train in, what needs Transformer Engine, and DeepSpeed's loss scale."""
    training = choice.training
    precision = choice.training.precision
    if choice.on_cpu:
        yield judge(
            "precision",
            precision != "fp16",
            f"training.precision={precision} on a CPU",
            "torch trains in bf16 and fp32 on a CPU; fp16 needs an accelerator",
            "Set training.precision to bf16 or fp32.",
        )
    wanted = [
        f"training.{key}" for key in ("overlap_tensor", "cuda_graphs") if getattr(training, key)
    ]
    wanted += [f"training.fp8={training.fp8}"] if training.fp8 != "none" else []
    if wanted:
        fits = (
            not choice.on_cpu
            and not choice.deepspeed
            and (training.fp8 == "none" or precision == "bf16")
        )
        yield judge(
            "Transformer Engine",
            fits,
            f"{', '.join(wanted)} with training.precision={precision} on {choice.site.hardware.device}",
            "these need GPUs, Transformer Engine and the engine megatron-core, and fp8 goes with bf16",
            "Leave them out, or set training.precision to bf16 and training.engine to megatron-core on a site of GPUs.",
        )
    if choice.program == "deepspeed" and precision == "fp16":
        initial = training.initial_loss_scale
        least = training.min_loss_scale
        yield judge(
            "loss scale",
            math.log2(initial).is_integer() and float(least).is_integer(),
            f"training.initial_loss_scale={initial:g}, training.min_loss_scale={least:g} with "
            "training.engine=deepspeed",
            "DeepSpeed takes the initial scale as a power of two, and the smallest as a whole number",
            f"Set training.initial_loss_scale to {2 ** round(math.log2(initial))}, training.min_loss_scale to 1.",
        )


def _zero_stage(choice: Choice) -> Iterator[Check]:
    """ZeRO 3 begins with whole weights."""
    training = choice.training
    stage = choice.zero_stage
    keys = choice.keys
    memory = memory_of(choice.site)
    if choice.program == "deepspeed" and stage == 3 and memory:
        width = 4 if training.precision == "fp32" else 2
        needed = width * on_rank(choice.shape, tensor=choice.tensor, pipeline=1, stage=0).total
        yield judge(
            f"{choice.phase}: ZeRO 3 at the start",
            needed <= memory,
            f"{show_bytes(needed)} of weights on each device of {show_bytes(memory)}",
            "our trainer builds the whole model of a device before ZeRO 3 cuts it up",
            f"Choose a larger {keys.tensor}, or training.engine=megatron-core with {keys.pipeline}.",
        )


def _batch(choice: Choice) -> Iterator[Check]:
    batch = choice.global_batch
    step = choice.micro_batch * choice.data
    yield judge(
        f"{choice.phase}: batch",
        batch % step == 0,
        f"{batch} sequences over {choice.micro_batch} micro x {choice.data} copies = {step}",
        "the global batch divides by micro-batch x data copies",
        f"Set {choice.keys.global_batch} to {max(step, round(batch / step) * step)}.",
    )
    if choice.pipeline > 1:
        yield judge(
            f"{choice.phase}: pipeline filled",
            choice.num_microbatches >= choice.pipeline,
            f"{choice.num_microbatches} micro-batches for {choice.pipeline} stages: {choice.bubble:.0%} idle beside "
            f"the work",
            "at least as many micro-batches as stages",
            f"Raise {choice.keys.global_batch}, or lower {choice.keys.pipeline}.",
            otherwise="warn",
        )
