"""Rules for a phase that our trainer can train: ranges, layout, shape, batch, engine."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from operator import attrgetter

from runbook.plan_file import deepspeed
from runbook.plan_file.errors import RefusedError
from runbook.plan_file.schema import Batch, PhasePlan, PlannedParallel, Ramp, Shape, Tuning

DEEPSPEED = ("deepspeed", "megatron-deepspeed")
HIGHEST_SEED = 2**32 - 1
"""numpy, which shuffles the samples, takes no larger one."""
_RANGES: dict[str, tuple[Callable[[float], bool], tuple[str, ...]]] = {
    "a positive number": (
        lambda value: value >= 1,
        (
            "parallel.tensor",
            "parallel.pipeline",
            "parallel.virtual_pipeline",
            "parallel.context",
            "parallel.data",
            "parallel.world_size",
            "model.layers",
            "model.hidden",
            "model.heads",
            "model.kv_heads",
            "model.ffn_hidden",
            "model.sequence_length",
            "model.positions",
            "model.vocabulary",
            "model.padded_vocabulary",
            "batch.micro",
            "batch.global",
            "duration.iterations",
            "checkpoint.keep",
            "log.interval",
            "precision.loss_scale_window",
            "precision.hysteresis",
            "limits.nan_limit",
            "limits.process_group_timeout_seconds",
            "tuning.recompute_num_layers",
        ),
    ),
    "0 or more": (
        lambda value: 0 <= value < math.inf,
        (
            "learning_rate.minimum",
            "learning_rate.warmup_samples",
            "learning_rate.decay_samples",
            "optimizer.weight_decay",
            "optimizer.clip_gradient",
            "precision.static_loss_scale",
            "model.init_std",
            "evaluation.interval",
            "evaluation.iterations",
            "checkpoint.interval",
            "checkpoint.keep_every",
            "limits.exit_duration_seconds",
            "limits.exit_interval",
            "sampling.tokens",
            "log.peak_tflops",
            "log.measured_tflops",
            "tuning.gc_interval",
            "parallel.first_stage_layers",
            "parallel.last_stage_layers",
        ),
    ),
    "more than 0": (
        lambda value: 0 < value < math.inf,
        (
            "learning_rate.peak",
            "optimizer.epsilon",
            "precision.initial_loss_scale",
            "precision.minimum_loss_scale",
            "model.norm_epsilon",
            "model.rope_base",
        ),
    ),
    "at least 0 and below 1": (
        lambda value: 0 <= value < 1,
        ("model.dropout", "optimizer.beta1", "optimizer.beta2"),
    ),
    f"from 0 to {HIGHEST_SEED}": (lambda value: 0 <= value <= HIGHEST_SEED, ("seed",)),
}


@dataclass(frozen=True)
class Keys:
    """Where a phase's values are chosen, for the remedies."""

    tensor: str = "parallel.tensor"
    pipeline: str = "parallel.pipeline"
    micro_batch: str = "training.micro_batch"
    global_batch: str = "training.global_batch"
    sequence_length: str = "training.sequence_length"
    iterations: str = "training.iterations"
    warmup_iterations: str = "training.warmup_iterations"
    job: str = "jobs.training"


FULL_KEYS = Keys()
Rule = tuple[str, bool, str, str, str]
"""A rule applied to a layout: its name, whether it holds, the values, the rule in words, the remedy."""


def shape_rules(
    shape: Shape, parallel: PlannedParallel, model: str, keys: Keys = FULL_KEYS
) -> Iterator[Rule]:
    """What a cut asks of the model of this name."""
    over = f"{keys.tensor}={parallel.tensor}"
    yield (
        "heads by tensor",
        shape.heads % parallel.tensor == 0,
        f"{shape.heads} heads over {over}",
        "attention heads divide by tensor",
        f"Choose a {keys.tensor} that divides {shape.heads}.",
    )
    if shape.kv_heads != shape.heads:
        yield (
            "key-value heads",
            shape.heads % shape.kv_heads == 0 and shape.kv_heads % parallel.tensor == 0,
            f"{shape.kv_heads} key-value heads for {shape.heads} heads over {over}",
            "heads divide by key-value heads, and key-value heads by tensor",
            f"Choose a {keys.tensor} that divides {shape.kv_heads}, or another kv_heads for {model}.",
        )
    if parallel.tensor > 1:
        yield (
            "feed-forward by tensor",
            shape.ffn_hidden % parallel.tensor == 0,
            f"feed-forward width {shape.ffn_hidden} over {over}",
            "the feed-forward width divides by tensor",
            f"Choose a {keys.tensor} that divides {shape.ffn_hidden}.",
        )
    if parallel.virtual_pipeline > 1:
        virtual = f" x parallel.virtual_pipeline={parallel.virtual_pipeline}"
    else:
        virtual = ""
    ends = {name: getattr(parallel, name) for name in ("first_stage_layers", "last_stage_layers")}
    own = "".join(f", parallel.{name}={count}" for name, count in ends.items() if count)
    yield (
        "layers by pipeline",
        bool(parallel.stage_layers(shape.layers)),
        f"{shape.layers} layers over {keys.pipeline}={parallel.pipeline}{virtual}{own}",
        "layers divide by pipeline x virtual pipeline"
        + (", without those of the first and last stage" if own else ""),
        f"Choose stages so that their product divides {'what is left' if own else shape.layers}.",
    )
    yield (
        "positions",
        shape.sequence_length <= shape.positions,
        f"sequences of {shape.sequence_length} tokens, {shape.positions} {shape.position_embedding} positions",
        "a sequence is no longer than the model has positions",
        f"Lower {keys.sequence_length} to {shape.positions}, or give model {model} more positions.",
    )


def sharing_rules(
    shape: Shape, parallel: PlannedParallel, program: str, keys: Keys = FULL_KEYS
) -> Iterator[Rule]:
    """What can be shared out together, by the program that trains: an engine of our own trainer, or a framework."""
    stage = parallel.zero_stage
    length = shape.sequence_length
    cut = parallel.context
    if stage >= 2 and program in DEEPSPEED:
        yield (
            "ZeRO stage",
            parallel.pipeline == 1,
            f"parallel.zero_stage={stage} with {keys.pipeline}={parallel.pipeline}",
            "ZeRO 2 and 3 share gradients, which a pipeline adds up over micro-batches: only stages 0 and 1 go with it",
            f"Set parallel.zero_stage to 1, or {keys.pipeline} to 1.",
        )
    if parallel.sequence and program == "deepspeed":
        yield (
            "sequence parallel",
            False,
            "parallel.sequence=true with training.engine=deepspeed",
            "the gradients of norms must be added up over tensor ranks, which DeepSpeed does not do",
            "Set parallel.sequence to false, or training.engine to megatron-core.",
        )
    elif parallel.sequence:
        yield (
            "sequence parallel",
            parallel.tensor > 1 and length % parallel.tensor == 0,
            f"parallel.sequence=true with {keys.tensor}={parallel.tensor}, {length} tokens",
            "sequence parallelism cuts the sequence over the tensor ranks: tensor > 1, and the length divides by it",
            f"Set parallel.sequence to false, or {keys.tensor} to more than 1.",
        )
    if cut > 1 and program == "deepspeed":
        yield (
            "context parallel",
            False,
            f"parallel.context={cut} with training.engine=deepspeed",
            "the gradients of a sequence's pieces must be added up, which DeepSpeed does not do here",
            "Set parallel.context to 1, or training.engine to megatron-core.",
        )
    elif cut > 1 and program == "megatron-deepspeed":
        heads = shape.heads // parallel.tensor
        yield (
            "context parallel",
            heads % cut == 0 and length % cut == 0,
            f"parallel.context={cut}, {shape.heads} heads, {length} tokens",
            "Ulysses exchanges sequence for heads: the heads of a tensor rank and the sequence divide by context",
            f"Choose a parallel.context that divides {max(1, heads)}.",
        )
    elif cut > 1:
        yield (
            "context parallel",
            length % (2 * cut) == 0,
            f"parallel.context={cut}, {length} tokens",
            "the sequence divides by 2 x context (each rank takes an early and a late piece)",
            f"Choose a parallel.context so that 2 x context divides {length}.",
        )


def engine_rules(program: str, zero_stage: int, precision: str) -> Iterator[Rule]:
    """What the program that trains cannot do with this ZeRO stage and number format, in whatever layout."""
    if zero_stage >= 2 and program not in DEEPSPEED:
        own = program == "megatron-core"
        key, other = ("engine", "deepspeed") if own else ("framework", "megatron-deepspeed")
        yield (
            "ZeRO stage",
            False,
            f"parallel.zero_stage={zero_stage} with training.{key}={program}",
            "Megatron's distributed optimizer shares optimizer states only, which is stage 1",
            f"Set parallel.zero_stage to 1, or training.{key} to {other}.",
        )
    if program == "deepspeed" and precision == "fp16":
        yield (
            "fp16 with ZeRO",
            zero_stage > 0,
            f"training.precision=fp16 with parallel.zero_stage={zero_stage} and training.engine=deepspeed",
            "without ZeRO, DeepSpeed 0.19.8 divides gradients by a loss scale that it never applied to the loss",
            "Set parallel.zero_stage to 1, training.precision to bf16, or training.engine to megatron-core.",
        )


def chunk_rules(
    parallel: PlannedParallel, num_microbatches: int, program: str, keys: Keys = FULL_KEYS
) -> Iterator[Rule]:
    """Interleaved stages: megatron-core only, more than one stage, micro-batches that divide by the stages."""
    value = f"parallel.virtual_pipeline={parallel.virtual_pipeline} with {keys.pipeline}={parallel.pipeline}"
    if parallel.virtual_pipeline > 1 and program in DEEPSPEED:
        yield (
            "virtual pipeline",
            False,
            f"{value} under DeepSpeed",
            "DeepSpeed's pipeline has one chunk of layers a stage",
            "Set parallel.virtual_pipeline to 1, or training.engine to megatron-core.",
        )
    elif parallel.virtual_pipeline > 1:
        yield (
            "virtual pipeline",
            parallel.pipeline > 1 and num_microbatches % parallel.pipeline == 0,
            f"{value}, {num_microbatches} micro-batches a step",
            "interleaving needs more than one stage, and micro-batches that divide by the stages",
            "Set parallel.virtual_pipeline to 1, or choose a training.global_batch that gives a multiple of "
            f"{parallel.pipeline} micro-batches to each copy.",
        )


def ramp_rules(batch: Batch, parallel: PlannedParallel) -> Iterator[Rule]:
    """Whether a batch's ramp ends at the global batch, in steps that all copies can compute."""
    ramp = batch.ramp
    if ramp == Ramp():
        return
    group = (
        batch.micro * parallel.data * (parallel.pipeline if parallel.virtual_pipeline > 1 else 1)
    )
    value = f"from {ramp.start} by {ramp.increment} to {batch.global_} sequences over {ramp.samples:,} samples"
    yield (
        "batch ramp",
        batch.ramp_is_sound,
        value,
        "rampup_start + a multiple of rampup_increment is global_batch, and all three ramp keys are given",
        "Choose training.rampup_start, rampup_increment and rampup_samples so that it is, or leave all three 0.",
    )
    if batch.ramp_is_sound:
        yield (
            "batch ramp divides",
            ramp.start % group == 0 and ramp.increment % group == 0,
            f"{value}; all copies compute {group} at once",
            "every batch of the ramp divides by micro_batch x data parallel",
            f"Make training.rampup_start and rampup_increment multiples of {group}.",
        )


def check(phase: PhasePlan, world_size: int, *, fp16: bool) -> None:
    """`RefusedError` with everything that speaks against training `phase` on `world_size` ranks."""
    problems = list(_out_of_range(phase)) or [
        *_layout(phase, world_size),
        *_shape(phase),
        *_batch(phase),
        *_not_here(phase, fp16),
    ]
    if problems:
        raise RefusedError(
            "this plan cannot be trained:\n" + "\n".join(f"  {problem}" for problem in problems)
        )


def _out_of_range(phase: PhasePlan) -> Iterator[str]:
    """One sentence for each value that is outside its range; none of them is a number where NaN is given."""
    for words, (holds, keys) in _RANGES.items():
        for key in keys:
            if not holds(value := attrgetter(key.replace("global", "global_"))(phase)):
                yield f"{key}: {value} is not {words}"
    if phase.learning_rate.minimum > phase.learning_rate.peak:
        yield f"learning_rate.minimum: {phase.learning_rate.minimum} is above the peak {phase.learning_rate.peak}"


def _layout(phase: PhasePlan, world_size: int) -> Iterator[str]:
    parallel = phase.parallel
    ranks = parallel.tensor * parallel.pipeline * parallel.context * parallel.data
    if parallel.world_size != ranks:
        yield (
            f"parallel: tensor {parallel.tensor} x pipeline {parallel.pipeline} x context {parallel.context} x "
            f"data {parallel.data} is {ranks} ranks, not world_size {parallel.world_size}"
        )
    elif world_size != ranks:
        yield (
            f"{world_size} ranks were started, but the plan is for {ranks} (tensor {parallel.tensor} x pipeline "
            f"{parallel.pipeline} x data {parallel.data}): start {ranks}, or make a plan for {world_size}"
        )
    if phase.model.padded_vocabulary % parallel.tensor:
        yield f"model.padded_vocabulary {phase.model.padded_vocabulary} does not divide by tensor {parallel.tensor}"
    rules = chain(
        shape_rules(phase.model, parallel, phase.model.name),
        engine_rules(phase.engine, parallel.zero_stage, phase.precision.format),
        sharing_rules(phase.model, parallel, phase.engine),
        chunk_rules(parallel, phase.batch.num_microbatches, phase.engine),
        ramp_rules(phase.batch, parallel),
    )
    for _, holds, value, rule, remedy in rules:
        if not holds:
            yield f"{value}: {rule}. {remedy}"


def _shape(phase: PhasePlan) -> Iterator[str]:
    model = phase.model
    if model.hidden % model.heads:
        yield f"model.hidden {model.hidden} does not divide by heads {model.heads}"
    elif model.position_embedding == "rope" and model.hidden // model.heads % 2:
        yield f"model.position_embedding rope turns pairs of numbers, and a head has {model.hidden // model.heads}"
    if model.vocabulary > model.padded_vocabulary:
        yield f"model.vocabulary {model.vocabulary} is larger than padded_vocabulary {model.padded_vocabulary}"
    outside = [token for token in phase.sampling.prompt_ids if not 0 <= token < model.vocabulary]
    if outside:
        yield f"sampling.prompt_ids: {outside[0]} is not below the vocabulary of {model.vocabulary}"
    room = model.positions - len(phase.sampling.prompt_ids)
    if phase.sampling.prompt_ids and phase.sampling.tokens > room:
        yield f"sampling.tokens {phase.sampling.tokens} after the prompt is more than the {room} positions left"


def _batch(phase: PhasePlan) -> Iterator[str]:
    batch = phase.batch
    data = phase.parallel.data
    if batch.global_ != batch.micro * data * batch.num_microbatches:
        yield (
            f"batch.global {batch.global_} is not micro {batch.micro} x data {data} x "
            f"num_microbatches {batch.num_microbatches} = {batch.micro * data * batch.num_microbatches}"
        )
    if phase.duration.samples != (samples := batch.samples_after(phase.duration.iterations)):
        yield (
            f"duration.samples {phase.duration.samples} is not the {samples} that {phase.duration.iterations} "
            "iterations take"
        )


def tuning_problems(
    tuning: Tuning, parallel: PlannedParallel, layers: int, recompute: str, *, deepspeed: bool
) -> Iterator[tuple[str, str, str]]:
    """What of a tuning cannot be done with this layout: the keys as they are, the rule, the remedy."""
    if tuning.overlap_weights and not (tuning.overlap_gradients and parallel.zero_stage == 1):
        yield (
            f"training.overlap_weights without overlap_gradients, or with parallel.zero_stage={parallel.zero_stage}",
            "weights are gathered late where the copies share the optimizer and bring gradients together early",
            "Set training.overlap_gradients true and parallel.zero_stage 1, or training.overlap_weights false.",
        )
    if (tuning.overlap_tensor and not parallel.sequence) or (
        tuning.cuda_graphs and recompute == "full"
    ):
        yield (
            "training.overlap_tensor without parallel.sequence, or training.cuda_graphs with recompute full",
            "what is sent beside the products are pieces of sequences; a graph of a layer cannot compute it again",
            "Set parallel.sequence true, or the key to false; training.recompute selective goes with graphs.",
        )
    own = [count // parallel.virtual_pipeline for count in parallel.stage_layers(layers)]
    group = tuning.recompute_num_layers
    if (
        recompute == "full"
        and tuning.recompute_method == "uniform"
        and any(count % group for count in own)
    ):
        yield (
            f"training.recompute_num_layers={group}, and the stages have {' or '.join(map(str, sorted({*own})))} layers"
            + (" a chunk" if parallel.virtual_pipeline > 1 else ""),
            "uniform groups divide the layers of every stage",
            "Choose a number that divides them, or training.recompute_method block.",
        )
    own_ways = (
        replace(
            tuning,
            overlap_gradients=False,
            kernels="auto",
            gc_interval=0,
            broadcast_batches=False,
        )
        != Tuning()
    )
    if deepspeed and (own_ways or parallel.first_stage_layers or parallel.last_stage_layers):
        yield (
            "overlap_weights, overlap_pipeline, fuse_gradients, recompute_* or uneven stages with engine deepspeed",
            "these are megatron-core's; DeepSpeed has its own ways",
            "Leave them out, or set training.engine to megatron-core.",
        )


def _not_here(phase: PhasePlan, fp16: bool) -> Iterator[str]:
    parallel = phase.parallel
    layers = phase.model.layers
    on_deepspeed = phase.engine == "deepspeed"
    for wrong in tuning_problems(
        phase.tuning, parallel, layers, phase.recompute, deepspeed=on_deepspeed
    ):
        yield ": ".join(wrong)
    if phase.precision.fp8 != "none" and (phase.precision.format != "bf16" or on_deepspeed):
        yield "precision.fp8: products in 8 bits go with precision bf16 and the engine megatron-core"
    if on_deepspeed:
        yield from deepspeed.problems(phase)
    if not 0 <= parallel.zero_stage <= 3:
        yield f"parallel.zero_stage {parallel.zero_stage}: ZeRO has the stages 0, 1, 2 and 3"
    if phase.precision.format == "fp16" and not fp16:
        yield "precision.format fp16 needs a GPU: a CPU multiplies fp16 far slower than bf16 or fp32; use one of those"
