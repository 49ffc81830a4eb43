"""How long a phase trains, and how its learning rate runs, both in samples."""

from __future__ import annotations

import math
from dataclasses import dataclass

from runbook.params.schema import Precision, Schedule, Training
from runbook.plan.checks import Check, judge
from runbook.plan.choices import Choice
from runbook.plan.layout import Layout
from runbook.plan.ramp import check_ramp, ramp_of
from runbook.plan.spec_options import check_options

SMOKE_DECAY = 100
"""A smoke test's rate decays over this many times its own length: at its end it is still 99 % of the peak."""


@dataclass(frozen=True)
class Duration:
    """The length of a training in the three ways people count it."""

    iterations: int
    samples: int
    tokens: int


@dataclass(frozen=True)
class LearningRate:
    """Linear from 0 to the peak over the warm-up, then down to the minimum at the end of the decay."""

    peak: float
    minimum: float
    schedule: str
    warmup_samples: int
    decay_samples: int

    def at(self, samples: int) -> float:
        """The rate once this many samples are consumed (Megatron's rule)."""
        if self.warmup_samples and samples <= self.warmup_samples:
            return self.peak * samples / self.warmup_samples
        if self.schedule == Schedule.CONSTANT:
            return self.peak
        if samples > self.decay_samples:
            return self.minimum
        done = (samples - self.warmup_samples) / (self.decay_samples - self.warmup_samples)
        left = 1 - done if self.schedule == Schedule.LINEAR else 0.5 * (math.cos(math.pi * done) + 1)
        return self.minimum + left * (self.peak - self.minimum)


def duration(choice: Choice, layout: Layout) -> Duration:
    """Whole steps: samples or tokens that fill no whole step are left over, as in Megatron."""
    training, ramp = choice.training, ramp_of(choice, layout)
    if choice.smoke:
        iterations = training.smoke.iterations
    elif training.iterations:
        iterations = training.iterations
    else:
        iterations = ramp.iterations_within(training.samples or training.tokens // choice.sequence_length)
    samples = ramp.samples_after(iterations)
    return Duration(iterations=iterations, samples=samples, tokens=samples * choice.sequence_length)


def learning_rate(choice: Choice, layout: Layout, length: Duration) -> LearningRate:
    """The schedule of the full training, or the smoke test's: the same peak, reached early and hardly left."""
    training = choice.training
    if choice.smoke:
        warmup = training.smoke.warmup_iterations * layout.global_batch
        decay = SMOKE_DECAY * length.samples
    else:
        decay = _samples(training, "decay", choice, layout) or length.samples
        warmup = _samples(training, "warmup", choice, layout) or round(training.warmup_fraction * decay)
    return LearningRate(
        peak=training.learning_rate,
        minimum=training.min_learning_rate,
        schedule=str(training.schedule),
        warmup_samples=warmup,
        decay_samples=decay,
    )


def check_schedule(choice: Choice, layout: Layout) -> list[Check]:
    """Every rule about length and learning rate."""
    length = duration(choice, layout)
    rate = learning_rate(choice, layout, length)
    checks = [
        *check_ramp(choice, layout),
        *check_options(choice),
        *_given_once(choice),
        _length(choice, layout, length),
        *_rates(choice, rate),
    ]
    if length.iterations:
        checks += [_warmup(choice, rate, length), *_decay(choice, rate, length), *_loss_scale(choice, length)]
        checks += _rehearsal(choice, length)
    return checks


def expected_skips(precision: Precision, initial_loss_scale: float) -> int:
    """Steps that fp16 will probably skip while its loss scale halves down to 2^16.

    >>> expected_skips(Precision.FP16, 2.0**32), expected_skips(Precision.BF16, 2.0**32)
    (16, 0)
    """
    if precision is not Precision.FP16:
        return 0
    return max(0, math.ceil(math.log2(initial_loss_scale)) - 16)


def _samples(training: Training, what: str, choice: Choice, layout: Layout) -> int:
    iterations: int = getattr(training, f"{what}_iterations")
    samples: int = getattr(training, f"{what}_samples")
    tokens: int = getattr(training, f"{what}_tokens")
    return ramp_of(choice, layout).samples_after(iterations) or samples or tokens // choice.sequence_length


def _given_once(choice: Choice) -> list[Check]:
    if choice.smoke:
        return []
    training = choice.training
    checks = []
    for what, prefix, needed in (("length", "", True), ("warm-up", "warmup_", False), ("decay", "decay_", False)):
        names = [f"{prefix}iterations", f"{prefix}samples", f"{prefix}tokens"]
        names += ["warmup_fraction"] if prefix == "warmup_" else []
        given = [f"training.{name}={getattr(training, name)}" for name in names if getattr(training, name)]
        keys = ", ".join(f"training.{name}" for name in names)
        checks.append(
            judge(
                f"{choice.phase}: {what} given once",
                len(given) == 1 if needed else len(given) <= 1,
                " and ".join(given) or "none given",
                f"{'exactly' if needed else 'at most'} one of {keys}",
                "Give one of them and leave the others 0.",
            )
        )
    return checks


def _length(choice: Choice, layout: Layout, length: Duration) -> Check:
    training = choice.training
    asked = training.tokens // choice.sequence_length if training.tokens else training.samples
    left = asked - length.samples if not choice.smoke and asked else 0
    rest = f" ({left} samples fill no whole step and are left over)" if left > 0 and length.iterations else ""
    ramp = ramp_of(choice, layout)
    size = f"{ramp.start:,} to {ramp.full:,}" if ramp.start else f"{ramp.full:,}"
    return judge(
        f"{choice.phase}: length",
        length.iterations > 0,
        f"{length.iterations:,} steps x {size} sequences = {length.samples:,} samples = {length.tokens:,} tokens{rest}",
        "a training has at least one whole step",
        f"Raise {choice.keys.iterations}, or lower {choice.keys.global_batch}.",
    )


def _rates(choice: Choice, rate: LearningRate) -> list[Check]:
    if choice.smoke:
        return []
    return [
        judge(
            "learning rates",
            rate.minimum <= rate.peak,
            f"peak {rate.peak:g}, minimum {rate.minimum:g}",
            "the minimum is not above the peak",
            "Lower training.min_learning_rate (a tenth of the peak is usual).",
        )
    ]


def _warmup(choice: Choice, rate: LearningRate, length: Duration) -> Check:
    name, value = f"{choice.phase}: warm-up", f"{rate.warmup_samples:,} samples of {length.samples:,}"
    if rate.warmup_samples >= rate.decay_samples:
        return Check(
            name,
            "fail",
            f"{value}, decay over {rate.decay_samples:,}",
            "the warm-up is shorter than the decay",
            f"Lower {choice.keys.warmup}, or decay over more samples.",
        )
    return judge(
        name,
        rate.warmup_samples < length.samples,
        value,
        "the run reaches its peak learning rate",
        f"Lower {choice.keys.warmup} or train longer.",
        otherwise="warn",
    )


def _decay(choice: Choice, rate: LearningRate, length: Duration) -> list[Check]:
    if choice.smoke or rate.schedule == Schedule.CONSTANT:
        return []
    end = rate.at(length.samples)
    return [
        judge(
            f"{choice.phase}: decay",
            rate.decay_samples <= length.samples,
            f"decay over {rate.decay_samples:,} samples, run of {length.samples:,}: it ends at a rate of {end:.2e} "
            f"(peak {rate.peak:g})",
            "the decay is no longer than the run",
            "Right for the first part of a longer training; else leave the decay keys 0, which means the run's length.",
            otherwise="warn",
        )
    ]


def _loss_scale(choice: Choice, length: Duration) -> list[Check]:
    training = choice.training
    if training.precision is not Precision.FP16:
        return []
    skips = expected_skips(training.precision, training.initial_loss_scale)
    return [
        judge(
            f"{choice.phase}: steps skipped under fp16",
            skips < length.iterations,
            f"about {skips} of {length.iterations} steps skipped while the loss scale halves from "
            f"{training.initial_loss_scale:g}",
            "some steps are left that change the weights",
            f"Lower training.initial_loss_scale (65536), raise {choice.keys.iterations}, or train in bf16.",
        )
    ]


def _rehearsal(choice: Choice, length: Duration) -> list[Check]:
    stop = choice.training.rehearse_stop
    if choice.smoke or not stop:
        return []
    return [
        judge(
            f"{choice.phase}: rehearsed stop",
            stop < length.iterations,
            f"stop after step {stop} of {length.iterations}",
            "a rehearsed stop leaves steps to resume with",
            f"No stop is rehearsed; set training.rehearse_stop below {length.iterations} for one.",
            otherwise="warn",
        )
    ]
