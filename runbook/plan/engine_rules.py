"""What each engine and framework cannot do."""

from __future__ import annotations

from runbook.params.schema import Engine, Framework, Precision
from runbook.plan.checks import Check, judge
from runbook.plan.choices import Choice
from runbook.plan.layout import Layout
from runbook.plan.sizes import Shape

ENGINES_THERE = (Engine.MEGATRON_CORE,)
"""Engines that our trainer has today."""


def engine_there(choice: Choice, layout: Layout, shape: Shape) -> Check | None:
    """Our own trainer with an engine that it does not have yet; said once, for both phases."""
    engine = choice.training.engine
    if choice.smoke or not choice.own_trainer:
        return None
    return judge(
        "engine",
        engine in ENGINES_THERE,
        f"training.engine={engine} with training.framework=runbook",
        f"our trainer has {', '.join(ENGINES_THERE)}",
        f"Set training.engine to {ENGINES_THERE[0]}, or training.framework to megatron-deepspeed.",
    )


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
            "Set parallel.zero_stage to 1, or training.engine to deepspeed (framework: megatron-deepspeed).",
        )
    return judge(
        f"{choice.phase}: ZeRO stage",
        choice.pipeline == 1,
        f"parallel.zero_stage={choice.zero_stage} with {choice.keys.pipeline}={choice.pipeline}",
        "ZeRO 2 and 3 share gradients, which a pipeline adds up over micro-batches: only stages 0 and 1 go with it",
        f"Set parallel.zero_stage to 1, or {choice.keys.pipeline} to 1.",
    )


def deepspeed_grid(choice: Choice, layout: Layout, shape: Shape) -> Check | None:
    """A pipeline with tensor parallelism under our DeepSpeed engine was not tried."""
    if not (choice.own_trainer and choice.deepspeed and choice.pipeline > 1 and choice.tensor > 1):
        return None
    return Check(
        f"{choice.phase}: DeepSpeed pipeline with tensor",
        "fail",
        f"{choice.keys.pipeline}={choice.pipeline} x {choice.keys.tensor}={choice.tensor}, training.engine=deepspeed",
        "our DeepSpeed engine was tried with a pipeline or with tensor parallelism, not with both",
        f"Set {choice.keys.pipeline} or {choice.keys.tensor} to 1, or training.engine to megatron-core.",
    )


def sequence_parallel(choice: Choice, layout: Layout, shape: Shape) -> Check | None:
    """Needs tensor ranks to cut over, and norms that our trainer does not have."""
    if not choice.sequence:
        return None
    name = f"{choice.phase}: sequence parallel"
    if choice.own_trainer:
        return Check(
            name,
            "fail",
            "parallel.sequence=true with our own trainer",
            "megatron-core's norms without Transformer Engine or apex refuse sequence parallelism",
            "Set parallel.sequence to false, or training.framework to megatron-lm.",
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
