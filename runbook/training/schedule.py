"""The learning rate as a pure function of the samples seen."""

from __future__ import annotations

import math

from runbook.training.spec import LearningRate


def learning_rate(plan: LearningRate, consumed_samples: int, global_batch: int) -> float:
    """Learning rate of the step that takes the next `global_batch` samples after `consumed_samples`.

    The first step already learns (its rate is that of its own last sample), and the step that completes the warm-up
    has the peak.

    >>> plan = LearningRate(peak=1.0, minimum=0.1, schedule="linear", warmup_samples=8, decay_samples=44)
    >>> [round(learning_rate(plan, step * 4, 4), 3) for step in (0, 1, 2, 6, 10, 20)]
    [0.5, 1.0, 0.9, 0.5, 0.1, 0.1]
    """
    samples = consumed_samples + global_batch
    if samples <= plan.warmup_samples:
        return plan.peak * samples / plan.warmup_samples
    if plan.schedule == "constant":
        return plan.peak
    if samples >= plan.decay_samples:
        return plan.minimum
    done = (samples - plan.warmup_samples) / (plan.decay_samples - plan.warmup_samples)
    share = 0.5 * (1 + math.cos(math.pi * done)) if plan.schedule == "cosine" else 1 - done
    return plan.minimum + (plan.peak - plan.minimum) * share
