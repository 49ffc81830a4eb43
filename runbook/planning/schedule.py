"""Length, batch ramp and learning rate in a training phase, and the rules for them."""

import math
from collections.abc import Iterator
from dataclasses import replace

from runbook.core.checks import Check, check_of
from runbook.params.schema.keys import EXCLUSIVE
from runbook.params.schema.run_file import Training
from runbook.params.schema.value_types import OnlyOwnTrainer
from runbook.plan_file.batch import Batch, Ramp
from runbook.plan_file.diagnostics import RuleResult, Value
from runbook.plan_file.learning_rate import LearningRate
from runbook.plan_file.rules.batch_ramp import ramp_rules
from runbook.plan_file.schema import Duration
from runbook.planning.choice import Choice
from runbook.planning.messages import PlanningMessage
from runbook.planning.rule_codes import PlanCode

_GIVEN = (("length", "exactly"), ("warm-up", "at most"), ("decay", "at most"))
"""Name for each group of keys in `EXCLUSIVE`, and how many keys in the group may be set."""


def batch_of(choice: Choice) -> Batch:
    """Return the batch for a phase, including the ramp."""
    training = choice.training
    ramp = Ramp(training.rampup_start, training.rampup_increment, training.rampup_samples)
    return Batch(choice.micro_batch, choice.global_batch, choice.num_microbatches, ramp)


def duration(choice: Choice) -> Duration:
    """Return the length in whole steps.

    Samples or tokens that do not fill a step are dropped, as in Megatron.
    """
    training = choice.training
    batch = batch_of(choice)
    sequences = training.samples or training.tokens // choice.sequence_length
    iterations = training.iterations or batch.iterations_within(sequences)
    samples = batch.samples_after(iterations)
    return Duration(
        iterations=iterations,
        samples=samples,
        tokens=samples * choice.sequence_length,
    )


def learning_rate(choice: Choice, length: Duration) -> LearningRate:
    """Return the learning-rate schedule in samples, whatever unit the run file uses."""
    training = choice.training
    batch = batch_of(choice)
    decay = batch.samples_after(training.decay_iterations) or training.decay_samples
    decay = decay or training.decay_tokens // choice.sequence_length or length.samples
    warmup = batch.samples_after(training.warmup_iterations) or training.warmup_samples
    warmup = (
        warmup
        or training.warmup_tokens // choice.sequence_length
        or round(training.warmup_fraction * decay)
    )
    rate = LearningRate(
        peak=training.learning_rate,
        minimum=training.min_learning_rate,
        schedule=training.schedule,
        warmup_samples=warmup,
        decay_samples=decay,
    )
    if training.schedule != "wsd":
        return rate
    batch_samples = batch.global_
    falling = training.wsd_decay_fraction * decay
    # Counted in whole steps, as with --lr-wsd-decay-iters in Megatron.
    falling_samples = max(1, round(falling / batch_samples)) * batch_samples
    return replace(
        rate,
        wsd_decay_samples=min(falling_samples, max(1, decay - warmup)),
        wsd_decay_style=training.wsd_decay_style,
    )


def check_schedule(choice: Choice) -> list[Check]:
    """Apply every rule about length and learning rate."""
    length = duration(choice)
    rate = learning_rate(choice, length)
    ramp = ramp_rules(batch_of(choice), choice.layout)
    checks = [
        *choice.checks_of(ramp),
        *_ignored_keys(choice),
        *_replay_cost(choice),
        *choice.checks_of(_given_once(choice)),
        check_of(_length(choice, length), choice.phase),
    ]
    if not choice.smoke:
        checks.append(check_of(_learning_rates(rate)))
    if length.iterations:
        checks += [_warmup(choice, rate, length), *_course(choice, rate, length)]
    return checks


def _ignored_keys(choice: Choice) -> Iterator[Check]:
    """Yield a warning if keys for our own trainer are set but a different framework is used."""
    training = choice.training
    ignored = []
    for key, info in Training.model_fields.items():
        is_own = any(isinstance(mark, OnlyOwnTrainer) for mark in info.metadata)
        if is_own and getattr(training, key) != info.default:
            ignored.append(f"training.{key}")

    if ignored and not choice.smoke and not choice.own_trainer:
        result = RuleResult(
            code=PlanCode.FRAMEWORK_IGNORES_KEYS,
            holds=False,
            values={"ignored": ", ".join(ignored), "framework": training.framework},
            keys=(*ignored, "training.framework"),
        )
        yield check_of(result, choice.phase, otherwise="warn")


MOST_REPLAYED = 0.05
"""If replay needs more than this share of the computation, there is a warning.

This value is our choice, not a measurement.
"""


def _replay_cost(choice: Choice) -> Iterator[Check]:
    """Yield a check on the cost of recomputing micro-batches, if that is requested."""
    layout = choice.layout
    interval = choice.training.replay_interval
    if not interval or choice.smoke or not choice.own_trainer:
        return
    # Interleaved stages process as many micro-batches at a time as there are stages.
    again = layout.pipeline if layout.virtual_pipeline > 1 else 1
    share = again / (choice.num_microbatches * interval)
    result = RuleResult(
        code=PlanCode.REPLAY_COST,
        holds=share <= MOST_REPLAYED,
        values={
            "again": again,
            "num_microbatches": choice.num_microbatches,
            "interval": interval,
            "share": share,
            "enough": math.ceil(again / (choice.num_microbatches * MOST_REPLAYED)),
        },
        keys=("training.replay_interval",),
    )
    yield check_of(result, choice.phase, otherwise="warn")


def _given_once(choice: Choice) -> Iterator[RuleResult]:
    if choice.smoke:
        return
    for (what, number), names in zip(_GIVEN, EXCLUSIVE.values(), strict=True):
        values = {name: getattr(choice.training, name.removeprefix("training.")) for name in names}
        given = [f"{name}={value}" for name, value in values.items() if value]
        is_exact = number == "exactly"
        yield RuleResult(
            code=PlanCode.GIVEN_ONCE,
            holds=len(given) == 1 or not (given or is_exact),
            values={
                "what": what,
                "given": " and ".join(given) or "none given",
                "number": number,
                "alternatives": ", ".join(names),
            },
            keys=tuple(names),
        )


def _length(choice: Choice, length: Duration) -> RuleResult:
    training = choice.training
    batch = batch_of(choice)
    samples_asked_for = training.samples
    if training.tokens:
        samples_asked_for = training.tokens // choice.sequence_length
    left_over = ""
    if samples_asked_for > length.samples and length.iterations:
        samples_left = samples_asked_for - length.samples
        left_over = PlanningMessage.LEFT_OVER.fill(samples=samples_left)

    sequences = f"{batch.global_:,}"
    if batch.ramp.start:
        sequences = f"{batch.ramp.start:,} to {sequences}"
    keys = choice.keys
    return RuleResult(
        code=PlanCode.LENGTH,
        holds=length.iterations > 0,
        values={
            "iterations": length.iterations,
            "batch": sequences,
            "samples": length.samples,
            "tokens": length.tokens,
            "left_over": left_over,
            "iterations_key": keys.iterations,
            "batch_key": keys.global_batch,
        },
        keys=(keys.iterations, keys.global_batch),
    )


def _learning_rates(rate: LearningRate) -> RuleResult:
    return RuleResult(
        code=PlanCode.LEARNING_RATES,
        holds=rate.minimum <= rate.peak,
        values={"peak": rate.peak, "minimum": rate.minimum},
        keys=("training.min_learning_rate", "training.learning_rate"),
    )


def _warmup(choice: Choice, rate: LearningRate, length: Duration) -> Check:
    """Check that the warm-up ends before the decay and before the end of the run."""
    key = choice.keys.warmup_iterations
    values: dict[str, Value] = {
        "warmup_samples": rate.warmup_samples,
        "decay_samples": rate.decay_samples,
        "samples": length.samples,
        "warmup_key": key,
    }
    if rate.warmup_samples >= rate.decay_samples:
        result = RuleResult(
            code=PlanCode.WARMUP_WITHIN_DECAY,
            holds=False,
            values=values,
            keys=(key,),
        )
        return check_of(result, choice.phase)

    result = RuleResult(
        code=PlanCode.WARMUP_WITHIN_RUN,
        holds=rate.warmup_samples < length.samples,
        values=values,
        keys=(key,),
    )
    return check_of(result, choice.phase, otherwise="warn")


def _course(choice: Choice, rate: LearningRate, length: Duration) -> Iterator[Check]:
    """Check the decay, the steps that fp16 skips, and a planned stop."""
    training = choice.training
    if not choice.smoke and rate.schedule != "constant":
        yield check_of(_decay(rate, length), choice.phase, otherwise="warn")
    if training.precision == "fp16":
        yield check_of(_steps_skipped(choice, length), choice.phase)
    if training.rehearse_stop and not choice.smoke:
        stop = RuleResult(
            code=PlanCode.PLANNED_STOP,
            holds=training.rehearse_stop < length.iterations,
            values={"stop": training.rehearse_stop, "steps": length.iterations},
            keys=("training.rehearse_stop",),
        )
        yield check_of(stop, choice.phase, otherwise="warn")


def _decay(rate: LearningRate, length: Duration) -> RuleResult:
    return RuleResult(
        code=PlanCode.DECAY_WITHIN_RUN,
        holds=rate.decay_samples <= length.samples,
        values={
            "decay_samples": rate.decay_samples,
            "samples": length.samples,
            "last_rate": rate.at(length.samples),
            "peak": rate.peak,
        },
        keys=EXCLUSIVE["lengths of the decay"],
    )


def _steps_skipped(choice: Choice, length: Duration) -> RuleResult:
    initial = choice.training.initial_loss_scale
    # Each skipped step halves the scale, down to about 2^16.
    skipped = max(0, math.ceil(math.log2(initial)) - 16)
    keys = choice.keys
    return RuleResult(
        code=PlanCode.STEPS_SKIPPED,
        holds=skipped < length.iterations,
        values={
            "skipped": skipped,
            "steps": length.iterations,
            "initial": initial,
            "iterations_key": keys.iterations,
        },
        keys=("training.initial_loss_scale", keys.iterations),
    )
