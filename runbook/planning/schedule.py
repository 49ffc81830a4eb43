"""Length, batch ramp and learning rate of a training phase, with their rules."""

import math
from collections.abc import Iterator

from runbook.core.checks import Check, judge
from runbook.params.schema.keys import EXCLUSIVE
from runbook.params.schema.run_file import Training
from runbook.plan_file.limits import ramp_rules
from runbook.plan_file.schema import Batch, Duration, LearningRate, Ramp
from runbook.planning.layout import Choice

_OWN_KEYS = (
    *("nan_policy", "nan_limit", "spike_policy", "alarm_webhook", "alarm_command"),
    *("keep_every", "async_save", "resume_changed"),
)
"""Keys below `training` that only our own trainer knows."""
_GIVEN = (("length", "exactly"), ("warm-up", "at most"), ("decay", "at most"))
"""What the groups of `EXCLUSIVE` say, and how many keys of each are given."""


def batch_of(choice: Choice) -> Batch:
    """The batch of a phase with its ramp."""
    training = choice.training
    ramp = Ramp(training.rampup_start, training.rampup_increment, training.rampup_samples)
    return Batch(choice.micro_batch, choice.global_batch, choice.num_microbatches, ramp)


def duration(choice: Choice) -> Duration:
    """Whole steps: samples or tokens that fill no whole step are left over, as in Megatron."""
    training = choice.training
    batch = batch_of(choice)
    sequences = training.samples or training.tokens // choice.sequence_length
    iterations = training.iterations or batch.iterations_within(sequences)
    samples = batch.samples_after(iterations)
    return Duration(iterations=iterations, samples=samples, tokens=samples * choice.sequence_length)


def learning_rate(choice: Choice, length: Duration) -> LearningRate:
    """The schedule in samples, whatever unit its parts are given in."""
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
    return LearningRate(
        peak=training.learning_rate,
        minimum=training.min_learning_rate,
        schedule=training.schedule,
        warmup_samples=warmup,
        decay_samples=decay,
    )


def check_schedule(choice: Choice) -> list[Check]:
    """Every rule about length and learning rate."""
    length = duration(choice)
    rate = learning_rate(choice, length)
    checks = [
        *choice.judged(ramp_rules(batch_of(choice), choice.parallel)),
        *_options(choice),
        *_given_once(choice),
    ]
    checks.append(_length(choice, length))
    if not choice.smoke:
        checks.append(
            judge(
                "learning rates",
                rate.minimum <= rate.peak,
                f"peak {rate.peak:g}, minimum {rate.minimum:g}",
                "the minimum is not above the peak",
                "Lower training.min_learning_rate (a tenth of the peak is usual).",
            )
        )
    if length.iterations:
        checks += [_warmup(choice, rate, length), *_course(choice, rate, length)]
    return checks


def _options(choice: Choice) -> Iterator[Check]:
    """A warning where a key of our own trainer is set and another framework trains."""
    training = choice.training
    defaults = Training.model_fields
    given = [
        f"training.{key}" for key in _OWN_KEYS if getattr(training, key) != defaults[key].default
    ]
    if given and not choice.smoke and not choice.own_trainer:
        yield Check(
            f"{choice.phase}: keys of our own trainer",
            "warn",
            f"{', '.join(given)} with training.framework={training.framework}",
            "these keys act in our own trainer; another framework gets no option for them",
            "Leave them out, or pass the framework's own option in the site's file.",
        )


def _given_once(choice: Choice) -> Iterator[Check]:
    if choice.smoke:
        return
    for (what, number), names in zip(_GIVEN, EXCLUSIVE.values(), strict=True):
        values = {name: getattr(choice.training, name.removeprefix("training.")) for name in names}
        given = [f"{name}={value}" for name, value in values.items() if value]
        yield judge(
            f"{choice.phase}: {what} given once",
            len(given) == 1 or not (given or number == "exactly"),
            " and ".join(given) or "none given",
            f"{number} one of {', '.join(names)}",
            "Give one of them and leave the others 0.",
        )


def _length(choice: Choice, length: Duration) -> Check:
    training = choice.training
    batch = batch_of(choice)
    asked = training.tokens // choice.sequence_length if training.tokens else training.samples
    left = asked - length.samples if asked else 0
    if left > 0 and length.iterations:
        rest = f" ({left} samples fill no whole step and are left over)"
    else:
        rest = ""
    if batch.ramp.start:
        size = f"{batch.ramp.start:,} to {batch.global_:,}"
    else:
        size = f"{batch.global_:,}"
    return judge(
        f"{choice.phase}: length",
        length.iterations > 0,
        f"{length.iterations:,} steps x {size} sequences = {length.samples:,} samples = {length.tokens:,} tokens{rest}",
        "a training has at least one whole step",
        f"Raise {choice.keys.iterations}, or lower {choice.keys.global_batch}.",
    )


def _warmup(choice: Choice, rate: LearningRate, length: Duration) -> Check:
    name = f"{choice.phase}: warm-up"
    key = choice.keys.warmup_iterations
    value = f"{rate.warmup_samples:,} samples of {length.samples:,}"
    if rate.warmup_samples >= rate.decay_samples:
        value += f", decay over {rate.decay_samples:,}"
        rule = "the warm-up is shorter than the decay"
        remedy = f"Lower {key}, or decay over more samples."
        return Check(name, "fail", value, rule, remedy)
    rule = "the run reaches its peak learning rate"
    remedy = f"Lower {key} or train longer."
    return judge(name, rate.warmup_samples < length.samples, value, rule, remedy, otherwise="warn")


def _course(choice: Choice, rate: LearningRate, length: Duration) -> Iterator[Check]:
    """Decay, steps that fp16 skips, and a rehearsed stop."""
    training = choice.training
    steps = length.iterations
    if not choice.smoke and rate.schedule != "constant":
        yield judge(
            f"{choice.phase}: decay",
            rate.decay_samples <= length.samples,
            f"decay over {rate.decay_samples:,} samples, run of {length.samples:,}: it ends at a rate of "
            f"{rate.at(length.samples):.2e} (peak {rate.peak:g})",
            "the decay is no longer than the run",
            "Right for the first part of a longer training; else leave the decay keys 0, which means the run's length.",
            otherwise="warn",
        )
    if training.precision == "fp16":
        skips = max(
            0, math.ceil(math.log2(training.initial_loss_scale)) - 16
        )  # the scale halves down to 2^16
        yield judge(
            f"{choice.phase}: steps skipped under fp16",
            skips < steps,
            f"about {skips} of {steps} steps skipped while the loss scale halves from {training.initial_loss_scale:g}",
            "some steps are left that change the weights",
            f"Lower training.initial_loss_scale (65536), raise {choice.keys.iterations}, or train in bf16.",
        )
    if training.rehearse_stop and not choice.smoke:
        yield judge(
            f"{choice.phase}: rehearsed stop",
            training.rehearse_stop < steps,
            f"stop after step {training.rehearse_stop} of {steps}",
            "a rehearsed stop leaves steps to resume with",
            f"No stop is rehearsed; set training.rehearse_stop below {steps} for one.",
            otherwise="warn",
        )
