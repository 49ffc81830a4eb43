"""Single numbers of a spec that no training can have: a negative rate, a beta of one, NaN."""

from __future__ import annotations

import math
from collections.abc import Iterator

from runbook.training.spec import Spec

_NOT_NEGATIVE = (
    "learning_rate.minimum", "learning_rate.warmup_samples", "learning_rate.decay_samples", "optimizer.weight_decay",
    "optimizer.clip_gradient", "precision.static_loss_scale", "model.init_std", "evaluation.interval",
    "evaluation.iterations", "checkpoint.interval", "checkpoint.keep_every", "limits.exit_duration_seconds",
    "limits.exit_interval", "sampling.tokens", "log.peak_tflops", "log.measured_tflops",
)  # fmt: skip
_ABOVE_ZERO = (
    "learning_rate.peak", "optimizer.epsilon", "precision.initial_loss_scale", "precision.minimum_loss_scale",
)  # fmt: skip
_BELOW_ONE = ("model.dropout", "optimizer.beta1", "optimizer.beta2")
HIGHEST_SEED = 2**32 - 1
"""numpy, which shuffles the samples, takes no larger one."""


def out_of_range(spec: Spec) -> Iterator[str]:
    """One sentence for each number that is outside its range; none of them is a number where NaN is given."""
    for key in _NOT_NEGATIVE:
        if not 0 <= (value := _number(spec, key)) < math.inf:
            yield f"{key}: {value} is not 0 or more"
    for key in _ABOVE_ZERO:
        if not 0 < (value := _number(spec, key)) < math.inf:
            yield f"{key}: {value} is not more than 0"
    for key in _BELOW_ONE:
        if not 0 <= (value := _number(spec, key)) < 1:
            yield f"{key}: {value} is not at least 0 and below 1"
    if spec.learning_rate.minimum > spec.learning_rate.peak:
        yield f"learning_rate.minimum: {spec.learning_rate.minimum} is above the peak {spec.learning_rate.peak}"
    if not 0 <= spec.seed <= HIGHEST_SEED:
        yield f"seed: {spec.seed} is not from 0 to {HIGHEST_SEED}"


def _number(spec: Spec, key: str) -> float:
    section, _, name = key.partition(".")
    value: float = getattr(getattr(spec, section), name)
    return value
