"""What our trainer requires from a phase: ranges, layout, shape, batch and engine."""

from collections.abc import Iterator
from dataclasses import fields
from itertools import chain

from runbook.plan_file import deepspeed
from runbook.plan_file.errors import RefusedError
from runbook.plan_file.json_records import value_at
from runbook.plan_file.messages import PlanFileMessage
from runbook.plan_file.ranges import AT_LEAST_ONE, BELOW_ONE, NOT_NEGATIVE, POSITIVE, Range
from runbook.plan_file.rules.batch_ramp import ramp_rules
from runbook.plan_file.rules.layout import chunk_rules, engine_rules, shape_rules, sharing_rules
from runbook.plan_file.rules.replay import replay_problems
from runbook.plan_file.rules.tuning import tuning_problems
from runbook.plan_file.schema import Optimizer, PhasePlan

HIGHEST_SEED = 2**32 - 1
"""Largest seed that numpy, which shuffles the samples, accepts."""
_SEEDS = Range(f"from 0 to {HIGHEST_SEED}", lambda value: 0 <= value <= HIGHEST_SEED)
_KEYS_BY_RANGE: dict[Range, tuple[str, ...]] = {
    AT_LEAST_ONE: (
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
    NOT_NEGATIVE: (
        "learning_rate.minimum",
        "learning_rate.warmup_samples",
        "learning_rate.decay_samples",
        "learning_rate.wsd_decay_samples",
        "precision.static_loss_scale",
        "model.init_std",
        "evaluation.interval",
        "evaluation.iterations",
        "checkpoint.interval",
        "checkpoint.keep_every",
        "checkpoint.near_interval",
        "limits.exit_duration_seconds",
        "limits.exit_interval",
        "limits.replay_interval",
        "sampling.tokens",
        "log.peak_tflops",
        "log.measured_tflops",
        "tuning.gc_interval",
        "parallel.first_stage_layers",
        "parallel.last_stage_layers",
    ),
    POSITIVE: (
        "learning_rate.peak",
        "precision.initial_loss_scale",
        "precision.minimum_loss_scale",
        "model.norm_epsilon",
        "model.rope_base",
    ),
    BELOW_ONE: ("model.dropout",),
    _SEEDS: ("seed",),
}
"""Keys, grouped by the range of allowed values.

Fields not listed here declare their ranges themselves, using `ranges.within`.
"""


def check(phase: PhasePlan, world_size: int, *, fp16: bool) -> None:
    """Raise `RefusedError` with every rule that forbids training `phase` on `world_size` ranks."""
    problems = list(_out_of_range(phase)) or [
        *_layout(phase, world_size),
        *_shape(phase),
        *_batch(phase),
        *_not_here(phase, fp16),
    ]
    if problems:
        lines = "\n".join(f"  {problem}" for problem in problems)
        raise RefusedError(PlanFileMessage.CANNOT_BE_TRAINED, problems=lines)


def _out_of_range(phase: PhasePlan) -> Iterator[str]:
    """Yield a sentence for each value outside the allowed range. NaN is outside every range."""
    for key, allowed in _ranges():
        value = value_at(phase, key)
        if not allowed.holds(value):
            yield f"{key}: {value} is not {allowed.text}"

    if phase.learning_rate.minimum > phase.learning_rate.peak:
        yield (
            f"learning_rate.minimum: {phase.learning_rate.minimum} is above the peak "
            f"{phase.learning_rate.peak}"
        )


def _ranges() -> Iterator[tuple[str, Range]]:
    """Yield each key in a phase that is limited to a range, with the range."""
    for allowed, keys in _KEYS_BY_RANGE.items():
        for key in keys:
            yield key, allowed

    for member in fields(Optimizer):
        if "range" in member.metadata:
            yield f"optimizer.{member.name}", member.metadata["range"]


def _layout(phase: PhasePlan, world_size: int) -> Iterator[str]:
    parallel = phase.parallel
    ranks = parallel.tensor * parallel.pipeline * parallel.context * parallel.data
    if parallel.world_size != ranks:
        yield (
            f"parallel: tensor {parallel.tensor} x pipeline {parallel.pipeline} x context "
            f"{parallel.context} x data {parallel.data} is {ranks} ranks, not world_size "
            f"{parallel.world_size}"
        )
    elif world_size != ranks:
        yield PlanFileMessage.RANKS_STARTED.fill(
            world_size=world_size,
            ranks=ranks,
            tensor=parallel.tensor,
            pipeline=parallel.pipeline,
            data=parallel.data,
        )

    if phase.model.shape.padded_vocabulary % parallel.tensor:
        yield (
            f"model.padded_vocabulary {phase.model.shape.padded_vocabulary} is not divisible by "
            f"tensor {parallel.tensor}"
        )

    rules = chain(
        shape_rules(phase.model.shape, parallel, phase.model.name),
        engine_rules(phase.engine, parallel.zero_stage, phase.precision.format),
        sharing_rules(phase.model.shape, parallel, phase.engine),
        chunk_rules(parallel, phase.batch.num_microbatches, phase.engine),
        ramp_rules(phase.batch, parallel),
    )
    for result in rules:
        if not result.holds:
            text = result.render()
            yield f"{text.value}: {text.rule}. {text.remedy}"


def _shape(phase: PhasePlan) -> Iterator[str]:
    model = phase.model
    shape = model.shape
    if shape.hidden % shape.heads:
        yield f"model.hidden {shape.hidden} is not divisible by heads {shape.heads}"
    elif shape.position_embedding == "rope" and shape.hidden // shape.heads % 2:
        yield (
            "model.position_embedding rope rotates pairs of numbers, so the head size must be "
            f"even, but it is {shape.hidden // shape.heads}"
        )

    if shape.vocabulary > shape.padded_vocabulary:
        yield (
            f"model.vocabulary {shape.vocabulary} is larger than padded_vocabulary "
            f"{shape.padded_vocabulary}"
        )

    outside = [token for token in phase.sampling.prompt_ids if not 0 <= token < shape.vocabulary]
    if outside:
        yield f"sampling.prompt_ids: {outside[0]} is not below the vocabulary of {shape.vocabulary}"
    room = shape.positions - len(phase.sampling.prompt_ids)
    if phase.sampling.prompt_ids and phase.sampling.tokens > room:
        yield (
            f"sampling.tokens {phase.sampling.tokens} after the prompt exceeds the {room} "
            "positions that remain"
        )


def _batch(phase: PhasePlan) -> Iterator[str]:
    batch = phase.batch
    data = phase.parallel.data
    if batch.global_ != batch.micro * data * batch.num_microbatches:
        yield (
            f"batch.global {batch.global_} is not micro {batch.micro} x data {data} x "
            f"num_microbatches {batch.num_microbatches} = "
            f"{batch.micro * data * batch.num_microbatches}"
        )

    if phase.duration.samples != (samples := batch.samples_after(phase.duration.iterations)):
        yield (
            f"duration.samples {phase.duration.samples} is not the {samples} that "
            f"{phase.duration.iterations} iterations take"
        )


def _not_here(phase: PhasePlan, fp16: bool) -> Iterator[str]:
    parallel = phase.parallel
    layers = phase.model.shape.layers
    on_deepspeed = phase.engine == "deepspeed"
    problems = chain(
        tuning_problems(
            phase.tuning,
            parallel,
            layers,
            phase.recompute,
            deepspeed=on_deepspeed,
        ),
        replay_problems(
            phase.limits.replay_interval,
            phase.tuning,
            phase.precision.fp8,
            deepspeed=on_deepspeed,
        ),
    )
    for problem in problems:
        text = problem.render()
        yield f"{text.value}: {text.rule}: {text.remedy}"

    if phase.precision.fp8 != "none" and (phase.precision.format != "bf16" or on_deepspeed):
        yield ("precision.fp8: 8-bit matmuls require precision bf16 and the engine megatron-core")

    if on_deepspeed:
        yield from deepspeed.problems(phase)
    if not 0 <= parallel.zero_stage <= 3:
        yield f"parallel.zero_stage {parallel.zero_stage}: ZeRO has the stages 0, 1, 2 and 3"
    if phase.precision.format == "fp16" and not fp16:
        yield (
            "precision.format fp16 needs a GPU, because a CPU multiplies fp16 far more slowly "
            "than bf16 or fp32. Use one of those"
        )
