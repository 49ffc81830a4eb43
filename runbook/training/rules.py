"""Which specs this trainer refuses, each with the values, the rule and what to change."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from runbook.training import deepspeed_config, faults
from runbook.training.bad_steps import POLICIES
from runbook.training.errors import RefusedError
from runbook.training.ramp import samples_after
from runbook.training.ranges import out_of_range
from runbook.training.spec import Spec

ENGINES = ("megatron-core", "deepspeed")
SCHEDULES = ("cosine", "linear", "constant")
_CHOICES = {
    "engine": ENGINES,
    "precision.format": ("fp32", "bf16", "fp16"),
    "recompute": ("none", "selective", "full"),
    "learning_rate.schedule": SCHEDULES,
    "model.position_embedding": ("learned", "rope"),
    "model.normalization": ("layernorm", "rmsnorm"),
    "model.activation": ("gelu", "swiglu"),
    "limits.nan_policy": POLICIES,
}


def check(spec: Spec, world_size: int, *, cuda: bool) -> None:
    """`RefusedError` with everything that speaks against training `spec` on `world_size` ranks."""
    problems = [
        *_choices(spec),
        *_positive(spec),
        *out_of_range(spec),
    ]
    problems = problems or [*_layout(spec, world_size), *_shape(spec), *_batch(spec), *_not_here(spec, cuda)]
    if problems:
        raise RefusedError("this plan cannot be trained:\n" + "\n".join(f"  {problem}" for problem in problems))


def _choices(spec: Spec) -> Iterator[str]:
    for key, allowed in _CHOICES.items():
        section, _, name = key.rpartition(".")
        value = getattr(getattr(spec, section) if section else spec, name)
        if value not in allowed:
            yield f"{key}: {value!r} is not one of {', '.join(allowed)}"


def _positive(spec: Spec) -> Iterator[str]:
    model, batch, parallel = spec.model, spec.batch, spec.parallel
    counts = {
        **{f"parallel.{key}": value for key, value in dataclasses.asdict(parallel).items() if key != "zero_stage"},
        **{f"model.{key}": getattr(model, key) for key in _SIZES},
        "batch.micro": batch.micro,
        "batch.global": batch.global_,
        "duration.iterations": spec.duration.iterations,
        "checkpoint.keep": spec.checkpoint.keep,
        "log.interval": spec.log.interval,
        "precision.loss_scale_window": spec.precision.loss_scale_window,
        "precision.hysteresis": spec.precision.hysteresis,
        "limits.nan_limit": spec.limits.nan_limit,
        "limits.process_group_timeout_seconds": spec.limits.process_group_timeout_seconds,
    }
    for key, value in counts.items():
        if not isinstance(value, bool) and value < 1:
            yield f"{key}: {value} is not a positive number"


_SIZES = (
    "layers", "hidden", "heads", "kv_heads", "ffn_hidden", "sequence_length", "positions", "vocabulary",
    "padded_vocabulary",
)  # fmt: skip


def _layout(spec: Spec, world_size: int) -> Iterator[str]:
    parallel = spec.parallel
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
    stages = parallel.pipeline * parallel.virtual_pipeline
    if spec.model.layers % stages:
        yield (
            f"{spec.model.layers} layers do not divide over {stages} stages "
            f"(pipeline {parallel.pipeline} x virtual_pipeline {parallel.virtual_pipeline})"
        )
    if parallel.virtual_pipeline > 1 and parallel.pipeline == 1:
        yield f"virtual_pipeline {parallel.virtual_pipeline} needs pipeline of at least 2, not 1"
    if parallel.virtual_pipeline > 1 and spec.batch.num_microbatches % parallel.pipeline:
        yield (
            f"virtual_pipeline needs micro-batches ({spec.batch.num_microbatches}) that divide by pipeline "
            f"({parallel.pipeline}): change the global batch"
        )
    for key in ("heads", "kv_heads", "ffn_hidden", "padded_vocabulary"):
        if getattr(spec.model, key) % parallel.tensor:
            yield f"model.{key} {getattr(spec.model, key)} does not divide by tensor {parallel.tensor}"


def _shape(spec: Spec) -> Iterator[str]:
    model = spec.model
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
    outside = [token for token in spec.sampling.prompt_ids if not 0 <= token < model.vocabulary]
    if outside:
        yield f"sampling.prompt_ids: {outside[0]} is not below the vocabulary of {model.vocabulary}"
    room = model.positions - len(spec.sampling.prompt_ids)
    if spec.sampling.prompt_ids and spec.sampling.tokens > room:
        yield f"sampling.tokens {spec.sampling.tokens} after the prompt is more than the {room} positions left"


def _batch(spec: Spec) -> Iterator[str]:
    batch, data = spec.batch, spec.parallel.data
    if batch.global_ != batch.micro * data * batch.num_microbatches:
        yield (
            f"batch.global {batch.global_} is not micro {batch.micro} x data {data} x "
            f"num_microbatches {batch.num_microbatches} = {batch.micro * data * batch.num_microbatches}"
        )
    yield from _ramp(spec)
    if not batch.ramp.start and spec.duration.samples != spec.duration.iterations * batch.global_:
        yield (
            f"duration.samples {spec.duration.samples} is not iterations {spec.duration.iterations} x "
            f"batch.global {batch.global_}"
        )


def _ramp(spec: Spec) -> Iterator[str]:
    batch, ramp = spec.batch, spec.batch.ramp
    if not ramp.start:
        return
    group = batch.micro * spec.parallel.data * (spec.parallel.pipeline if spec.parallel.virtual_pipeline > 1 else 1)
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
            f"sequences that all copies compute at once (micro {batch.micro} x data {spec.parallel.data})"
        )
    elif spec.duration.samples != (samples := samples_after(batch, spec.duration.iterations)):
        yield (
            f"duration.samples {spec.duration.samples} is not the {samples} that {spec.duration.iterations} "
            f"iterations of this ramp take"
        )


def _not_here(spec: Spec, cuda: bool) -> Iterator[str]:
    parallel = spec.parallel
    if parallel.context > 1:
        yield f"parallel.context {parallel.context}: this trainer has no context parallelism; use 1"
    if parallel.sequence and (parallel.tensor == 1 or spec.model.sequence_length % parallel.tensor):
        yield (
            f"parallel.sequence: the {spec.model.sequence_length} tokens of a sequence are cut evenly over the tensor "
            f"ranks, {parallel.tensor} here; set parallel.sequence false, or choose another tensor"
        )
    if spec.engine == "deepspeed":
        yield from _not_deepspeed(spec)
    elif parallel.zero_stage > 1:
        yield (
            f"parallel.zero_stage {parallel.zero_stage}: the megatron-core engine shares optimizer states (1) or "
            f"nothing (0); stages 2 and 3 need training.engine deepspeed"
        )
    if spec.precision.format == "fp16" and not cuda and not faults.asked_for("fp16"):
        yield "precision.format fp16 needs a GPU: a CPU multiplies fp16 far slower than bf16 or fp32; use one of those"


def _not_deepspeed(spec: Spec) -> Iterator[str]:
    parallel = spec.parallel
    yield from deepspeed_config.problems(spec)
    if not 0 <= parallel.zero_stage <= 3:
        yield f"parallel.zero_stage {parallel.zero_stage}: ZeRO has the stages 0, 1, 2 and 3"
    if parallel.zero_stage == 0 and spec.precision.format == "fp16":
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
