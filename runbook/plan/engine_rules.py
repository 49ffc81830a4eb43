"""What each engine and framework cannot do."""

from __future__ import annotations

import math

from runbook.params.schema import Framework, Precision
from runbook.plan.checks import Check, judge
from runbook.plan.choices import Choice
from runbook.plan.layout import Layout
from runbook.plan.sizes import Shape, on_rank
from runbook.units import show_bytes


def precision_there(choice: Choice, layout: Layout, shape: Shape) -> Check | None:
    """A number format that a CPU cannot train in; said once, for both phases."""
    if choice.smoke or not choice.on_cpu:
        return None
    precision = choice.training.precision
    return judge(
        "precision",
        precision is not Precision.FP16,
        f"training.precision={precision} on a CPU",
        "torch trains in bf16 and fp32 on a CPU; fp16 needs an accelerator",
        "Set training.precision to bf16 or fp32.",
    )


def virtual_pipeline(choice: Choice, layout: Layout, shape: Shape) -> Check | None:
    """Interleaved stages: megatron-core only, more than one stage, micro-batches that divide by the stages."""
    if choice.virtual_pipeline == 1:
        return None
    value = f"parallel.virtual_pipeline={choice.virtual_pipeline} with {choice.keys.pipeline}={choice.pipeline}"
    if choice.deepspeed:
        return Check(
            f"{choice.phase}: virtual pipeline",
            "fail",
            f"{value} under DeepSpeed",
            "DeepSpeed's pipeline has one chunk of layers a stage",
            "Set parallel.virtual_pipeline to 1, or training.engine to megatron-core.",
        )
    return judge(
        f"{choice.phase}: virtual pipeline",
        choice.pipeline > 1 and layout.num_microbatches % choice.pipeline == 0,
        f"{value}, {layout.num_microbatches} micro-batches a step",
        "interleaving needs more than one stage, and micro-batches that divide by the stages",
        "Set parallel.virtual_pipeline to 1, or choose a training.global_batch that gives a multiple of "
        f"{choice.pipeline} micro-batches to each copy.",
    )


def zero_stage(choice: Choice, layout: Layout, shape: Shape) -> Check | None:
    """ZeRO 2 and 3: DeepSpeed only (said once, for both phases), and not with a pipeline."""
    if choice.zero_stage < 2:
        return None
    if not choice.deepspeed:
        if choice.smoke:
            return None
        return Check(
            "ZeRO stage",
            "fail",
            f"parallel.zero_stage={choice.zero_stage} with {_who(choice)}",
            "Megatron's distributed optimizer shares optimizer states only, which is stage 1",
            f"Set parallel.zero_stage to 1, or {_deepspeed_instead(choice)}.",
        )
    return judge(
        f"{choice.phase}: ZeRO stage",
        choice.pipeline == 1,
        f"parallel.zero_stage={choice.zero_stage} with {choice.keys.pipeline}={choice.pipeline}",
        "ZeRO 2 and 3 share gradients, which a pipeline adds up over micro-batches: only stages 0 and 1 go with it",
        f"Set parallel.zero_stage to 1, or {choice.keys.pipeline} to 1.",
    )


def whole_at_start(choice: Choice, layout: Layout, shape: Shape) -> Check | None:
    """ZeRO 3 in our own trainer: each device holds its whole model once, before DeepSpeed cuts it up."""
    memory = choice.site.hardware.device_memory
    if not (choice.own_trainer and choice.deepspeed and choice.zero_stage == 3 and memory):
        return None
    width = 4 if choice.training.precision is Precision.FP32 else 2
    needed = width * on_rank(shape, tensor=layout.tensor, pipeline=1, stage=0).total
    return judge(
        f"{choice.phase}: ZeRO 3 at the start",
        needed <= memory,
        f"{show_bytes(needed)} of weights on each device of {show_bytes(memory)}",
        "our trainer builds the whole model of a device before ZeRO 3 cuts it up",
        f"Choose a larger {choice.keys.tensor}, or training.engine=megatron-core with {choice.keys.pipeline}.",
    )


def zero_in_fp16(choice: Choice, layout: Layout, shape: Shape) -> Check | None:
    """fp16 under our DeepSpeed engine without ZeRO; said once, for both phases."""
    if choice.smoke or not (choice.own_trainer and choice.deepspeed and choice.training.precision is Precision.FP16):
        return None
    return judge(
        "fp16 with ZeRO",
        choice.zero_stage > 0,
        f"training.precision=fp16 with parallel.zero_stage={choice.zero_stage} and training.engine=deepspeed",
        "without ZeRO, DeepSpeed 0.19.8 divides gradients by a loss scale that it never applied to the loss",
        "Set parallel.zero_stage to 1, training.precision to bf16, or training.engine to megatron-core.",
    )


def loss_scale(choice: Choice, layout: Layout, shape: Shape) -> Check | None:
    """DeepSpeed counts its loss scale in powers of two; said once, for both phases."""
    training = choice.training
    if choice.smoke or not (choice.own_trainer and choice.deepspeed and training.precision is Precision.FP16):
        return None
    initial, least = training.initial_loss_scale, training.min_loss_scale
    return judge(
        "loss scale",
        math.log2(initial).is_integer() and float(least).is_integer(),
        f"training.initial_loss_scale={initial:g}, training.min_loss_scale={least:g} with training.engine=deepspeed",
        "DeepSpeed takes the initial scale as a power of two, and the smallest as a whole number",
        f"Set training.initial_loss_scale to {2 ** round(math.log2(initial))}, training.min_loss_scale to 1.",
    )


def sequence_parallel(choice: Choice, layout: Layout, shape: Shape) -> Check | None:
    """Needs tensor ranks to cut over, and an engine that adds up the norms' gradients over them."""
    if not choice.sequence:
        return None
    name = f"{choice.phase}: sequence parallel"
    if choice.own_trainer and choice.deepspeed:
        return Check(
            name,
            "fail",
            "parallel.sequence=true with training.engine=deepspeed",
            "the gradients of norms must be added up over tensor ranks, which DeepSpeed does not do",
            "Set parallel.sequence to false, or training.engine to megatron-core.",
        )
    return judge(
        name,
        choice.tensor > 1 and shape.sequence_length % choice.tensor == 0,
        f"parallel.sequence=true with {choice.keys.tensor}={choice.tensor}, {shape.sequence_length} tokens",
        "sequence parallelism cuts the sequence over the tensor ranks: tensor > 1, and the length divides by it",
        f"Set parallel.sequence to false, or {choice.keys.tensor} to more than 1.",
    )


def context_parallel(choice: Choice, layout: Layout, shape: Shape) -> Check | None:
    """Needs an attention that our trainer does not have; each framework cuts in its own way."""
    if choice.context == 1:
        return None
    name = f"{choice.phase}: context parallel"
    if choice.own_trainer:
        return Check(
            name,
            "fail",
            f"parallel.context={choice.context} with our own trainer",
            "megatron-core's attention without Transformer Engine knows whole sequences only",
            "Set parallel.context to 1, or training.framework to megatron-lm or megatron-deepspeed.",
        )
    if choice.training.framework is Framework.MEGATRON_DEEPSPEED:
        return judge(
            name,
            shape.heads // choice.tensor % choice.context == 0 and shape.sequence_length % choice.context == 0,
            f"parallel.context={choice.context}, {shape.heads} heads, {shape.sequence_length} tokens",
            "Ulysses exchanges sequence for heads: the heads of a tensor rank and the sequence divide by context",
            f"Choose a parallel.context that divides {max(1, shape.heads // choice.tensor)}.",
        )
    return judge(
        name,
        shape.sequence_length % (2 * choice.context) == 0,
        f"parallel.context={choice.context}, {shape.sequence_length} tokens",
        "the sequence divides by 2 x context (each rank takes an early and a late piece)",
        f"Choose a parallel.context so that 2 x context divides {shape.sequence_length}.",
    )


def _who(choice: Choice) -> str:
    if choice.own_trainer:
        return f"training.engine={choice.training.engine}"
    return f"training.framework={choice.training.framework}"


def _deepspeed_instead(choice: Choice) -> str:
    return "training.engine to deepspeed" if choice.own_trainer else "training.framework to megatron-deepspeed"
