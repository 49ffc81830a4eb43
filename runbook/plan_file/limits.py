"""Rules for a phase that our trainer can train: ranges, layout, shape, batch, engine."""

import math
from collections.abc import Iterator
from dataclasses import replace
from operator import attrgetter

from runbook.plan_file import deepspeed
from runbook.plan_file.errors import RefusedError
from runbook.plan_file.schema import PhasePlan, PlannedParallel, Tuning

_NOT_NEGATIVE = (
    "learning_rate.minimum", "learning_rate.warmup_samples", "learning_rate.decay_samples", "optimizer.weight_decay",
    "optimizer.clip_gradient", "precision.static_loss_scale", "model.init_std", "evaluation.interval",
    "evaluation.iterations", "checkpoint.interval", "checkpoint.keep_every", "limits.exit_duration_seconds",
    "limits.exit_interval", "sampling.tokens", "log.peak_tflops", "log.measured_tflops", "tuning.gc_interval",
    "parallel.first_stage_layers", "parallel.last_stage_layers",
)  # fmt: skip
_ABOVE_ZERO = (
    "learning_rate.peak", "optimizer.epsilon", "precision.initial_loss_scale", "precision.minimum_loss_scale",
    "model.norm_epsilon", "model.rope_base",
)  # fmt: skip
_BELOW_ONE = ("model.dropout", "optimizer.beta1", "optimizer.beta2")
HIGHEST_SEED = 2**32 - 1
"""numpy, which shuffles the samples, takes no larger one."""
_POSITIVE = (
    "parallel.tensor", "parallel.pipeline", "parallel.virtual_pipeline", "parallel.context", "parallel.data",
    "parallel.world_size", "model.layers", "model.hidden", "model.heads", "model.kv_heads", "model.ffn_hidden",
    "model.sequence_length", "model.positions", "model.vocabulary", "model.padded_vocabulary", "batch.micro",
    "batch.global", "duration.iterations", "checkpoint.keep", "log.interval", "precision.loss_scale_window",
    "precision.hysteresis", "limits.nan_limit", "limits.process_group_timeout_seconds", "tuning.recompute_num_layers",
)  # fmt: skip


def check(phase: PhasePlan, world_size: int, *, fp16: bool) -> None:
    """`RefusedError` with everything that speaks against training `phase` on `world_size` ranks."""
    problems = list(_out_of_range(phase)) or [
        *_layout(phase, world_size),
        *_shape(phase),
        *_batch(phase),
        *_not_here(phase, fp16),
    ]
    if problems:
        raise RefusedError("this plan cannot be trained:\n" + "\n".join(f"  {problem}" for problem in problems))


def _out_of_range(phase: PhasePlan) -> Iterator[str]:
    """One sentence for each value that is outside its range; none of them is a number where NaN is given."""
    for key in _POSITIVE:
        if (value := attrgetter(key.replace("global", "global_"))(phase)) < 1:
            yield f"{key}: {value} is not a positive number"
    for key in _NOT_NEGATIVE:
        if not 0 <= (value := attrgetter(key)(phase)) < math.inf:
            yield f"{key}: {value} is not 0 or more"
    for key in _ABOVE_ZERO:
        if not 0 < (value := attrgetter(key)(phase)) < math.inf:
            yield f"{key}: {value} is not more than 0"
    for key in _BELOW_ONE:
        if not 0 <= (value := attrgetter(key)(phase)) < 1:
            yield f"{key}: {value} is not at least 0 and below 1"
    if phase.learning_rate.minimum > phase.learning_rate.peak:
        yield f"learning_rate.minimum: {phase.learning_rate.minimum} is above the peak {phase.learning_rate.peak}"
    if not 0 <= phase.seed <= HIGHEST_SEED:
        yield f"seed: {phase.seed} is not from 0 to {HIGHEST_SEED}"


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
    if not parallel.stage_layers(phase.model.layers):
        ends = (parallel.first_stage_layers, parallel.last_stage_layers)
        yield (
            f"{phase.model.layers} layers do not divide over {parallel.pipeline * parallel.virtual_pipeline} stages "
            f"(pipeline {parallel.pipeline} x virtual_pipeline {parallel.virtual_pipeline})"
            + (f" with {ends[0]} on the first and {ends[1]} on the last (0: as the others)" if any(ends) else "")
        )
    if parallel.virtual_pipeline > 1 and parallel.pipeline == 1:
        yield f"virtual_pipeline {parallel.virtual_pipeline} needs pipeline of at least 2, not 1"
    if parallel.virtual_pipeline > 1 and phase.batch.num_microbatches % parallel.pipeline:
        yield (
            f"virtual_pipeline needs micro-batches ({phase.batch.num_microbatches}) that divide by pipeline "
            f"({parallel.pipeline}): change the global batch"
        )
    for key in ("heads", "kv_heads", "ffn_hidden", "padded_vocabulary"):
        if getattr(phase.model, key) % parallel.tensor:
            yield f"model.{key} {getattr(phase.model, key)} does not divide by tensor {parallel.tensor}"


def _shape(phase: PhasePlan) -> Iterator[str]:
    model = phase.model
    if model.hidden % model.heads:
        yield f"model.hidden {model.hidden} does not divide by heads {model.heads}"
    elif model.position_embedding == "rope" and model.hidden // model.heads % 2:
        yield f"model.position_embedding rope turns pairs of numbers, and a head has {model.hidden // model.heads}"
    if model.heads % model.kv_heads:
        yield f"model.heads {model.heads} does not divide by kv_heads {model.kv_heads}"
    if model.sequence_length > model.positions:
        yield (
            f"sequence_length {model.sequence_length} is longer than the model's {model.positions} positions: "
            f"shorten training.sequence_length, or choose a model with more positions"
        )
    if model.vocabulary > model.padded_vocabulary:
        yield f"model.vocabulary {model.vocabulary} is larger than padded_vocabulary {model.padded_vocabulary}"
    outside = [token for token in phase.sampling.prompt_ids if not 0 <= token < model.vocabulary]
    if outside:
        yield f"sampling.prompt_ids: {outside[0]} is not below the vocabulary of {model.vocabulary}"
    room = model.positions - len(phase.sampling.prompt_ids)
    if phase.sampling.prompt_ids and phase.sampling.tokens > room:
        yield f"sampling.tokens {phase.sampling.tokens} after the prompt is more than the {room} positions left"


def _batch(phase: PhasePlan) -> Iterator[str]:
    batch, data = phase.batch, phase.parallel.data
    if batch.global_ != batch.micro * data * batch.num_microbatches:
        yield (
            f"batch.global {batch.global_} is not micro {batch.micro} x data {data} x "
            f"num_microbatches {batch.num_microbatches} = {batch.micro * data * batch.num_microbatches}"
        )
    yield from _ramp(phase)
    if not batch.ramp.start and phase.duration.samples != phase.duration.iterations * batch.global_:
        yield (
            f"duration.samples {phase.duration.samples} is not iterations {phase.duration.iterations} x "
            f"batch.global {batch.global_}"
        )


def _ramp(phase: PhasePlan) -> Iterator[str]:
    batch, ramp = phase.batch, phase.batch.ramp
    if not ramp.start:
        return
    group = batch.micro * phase.parallel.data * (phase.parallel.pipeline if phase.parallel.virtual_pipeline > 1 else 1)
    if min(ramp.start, ramp.increment, ramp.samples) < 1 or ramp.start > batch.global_:
        yield (
            f"batch.ramp: start {ramp.start}, increment {ramp.increment} and samples {ramp.samples} are not positive "
            f"numbers with a start up to batch.global {batch.global_}"
        )
    elif (batch.global_ - ramp.start) % ramp.increment:
        yield (
            f"batch.ramp: from {ramp.start} to batch.global {batch.global_} is {batch.global_ - ramp.start}, which "
            f"does not divide by the increment {ramp.increment}"
        )
    elif ramp.start % group or ramp.increment % group:
        yield (
            f"batch.ramp: start {ramp.start} and increment {ramp.increment} do not both divide by {group}, the "
            f"sequences that all copies compute at once (micro {batch.micro} x data {phase.parallel.data})"
        )
    elif phase.duration.samples != (samples := batch.samples_after(phase.duration.iterations)):
        yield (
            f"duration.samples {phase.duration.samples} is not the {samples} that {phase.duration.iterations} "
            f"iterations of this ramp take"
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
    if (tuning.overlap_tensor and not parallel.sequence) or (tuning.cuda_graphs and recompute == "full"):
        yield (
            "training.overlap_tensor without parallel.sequence, or training.cuda_graphs with recompute full",
            "what is sent beside the products are pieces of sequences; a graph of a layer cannot compute it again",
            "Set parallel.sequence true, or the key to false; training.recompute selective goes with graphs.",
        )
    own = [count // parallel.virtual_pipeline for count in parallel.stage_layers(layers)]
    group = tuning.recompute_num_layers
    if recompute == "full" and tuning.recompute_method == "uniform" and any(count % group for count in own):
        yield (
            f"training.recompute_num_layers={group}, and the stages have {' or '.join(map(str, sorted({*own})))} layers"
            + (" a chunk" if parallel.virtual_pipeline > 1 else ""),
            "uniform groups divide the layers of every stage",
            "Choose a number that divides them, or training.recompute_method block.",
        )
    own_ways = replace(tuning, overlap_gradients=False, gc_interval=0, broadcast_batches=False) != Tuning()
    if deepspeed and (own_ways or parallel.first_stage_layers or parallel.last_stage_layers):
        yield (
            "overlap_weights, overlap_pipeline, fuse_gradients, recompute_* or uneven stages with engine deepspeed",
            "these are megatron-core's; DeepSpeed has its own ways",
            "Leave them out, or set training.engine to megatron-core.",
        )


def _not_here(phase: PhasePlan, fp16: bool) -> Iterator[str]:
    parallel, layers, on_deepspeed = phase.parallel, phase.model.layers, phase.engine == "deepspeed"
    for wrong in tuning_problems(phase.tuning, parallel, layers, phase.recompute, deepspeed=on_deepspeed):
        yield ": ".join(wrong)
    if parallel.context > 1 and (on_deepspeed or phase.model.sequence_length % (2 * parallel.context)):
        yield (
            f"parallel.context {parallel.context} with {phase.model.sequence_length} tokens: the megatron-core engine "
            f"cuts a sequence into 2 x context equal pieces; use 1 with engine deepspeed"
        )
    if parallel.sequence and (parallel.tensor == 1 or phase.model.sequence_length % parallel.tensor):
        yield (
            f"parallel.sequence: the {phase.model.sequence_length} tokens of a sequence are cut evenly over the tensor "
            f"ranks, {parallel.tensor} here; set parallel.sequence false, or choose another tensor"
        )
    if phase.precision.fp8 != "none" and (phase.precision.format != "bf16" or on_deepspeed):
        yield "precision.fp8: products in 8 bits go with precision bf16 and the engine megatron-core"
    if phase.engine == "deepspeed":
        yield from _not_deepspeed(phase)
    elif parallel.zero_stage > 1:
        yield (
            f"parallel.zero_stage {parallel.zero_stage}: the megatron-core engine shares optimizer states (1) or "
            f"nothing (0); stages 2 and 3 need training.engine deepspeed"
        )
    if phase.precision.format == "fp16" and not fp16:
        yield "precision.format fp16 needs a GPU: a CPU multiplies fp16 far slower than bf16 or fp32; use one of those"


def _not_deepspeed(phase: PhasePlan) -> Iterator[str]:
    parallel = phase.parallel
    yield from deepspeed.problems(phase)
    if not 0 <= parallel.zero_stage <= 3:
        yield f"parallel.zero_stage {parallel.zero_stage}: ZeRO has the stages 0, 1, 2 and 3"
    if parallel.zero_stage == 0 and phase.precision.format == "fp16":
        yield (
            "parallel.zero_stage 0 with precision.format fp16: without ZeRO, DeepSpeed divides gradients by a loss "
            "scale that it never applied; use stage 1"
        )
    if parallel.zero_stage > 1 and parallel.pipeline > 1:
        yield (
            f"parallel.zero_stage {parallel.zero_stage} with pipeline {parallel.pipeline}: ZeRO 2 and 3 share out "
            f"gradients, which a pipeline adds up over micro-batches; use stage 0 or 1, or pipeline 1"
        )
    if parallel.sequence:
        yield (
            "parallel.sequence with engine deepspeed: the gradients of norms must be added up over tensor ranks, which "
            "DeepSpeed does not do; set parallel.sequence false, or engine megatron-core"
        )
    if parallel.virtual_pipeline > 1:
        yield (
            f"parallel.virtual_pipeline {parallel.virtual_pipeline}: DeepSpeed's pipeline has one chunk of layers a "
            f"stage; use 1, or engine megatron-core"
        )
