"""The configuration that DeepSpeed is started with: plan.json's own, or the same again from its other values."""

from __future__ import annotations

import math
from typing import Any

from runbook.training.spec import Spec


def configuration(spec: Spec) -> dict[str, Any]:
    """What the plan says under `deepspeed`, word for word; a plan written by hand may leave it out."""
    return spec.deepspeed or from_values(spec)


def from_values(spec: Spec) -> dict[str, Any]:
    """The configuration that follows from the other values of the spec; the plan's builder makes the same."""
    return {
        "train_batch_size": spec.batch.global_,
        "train_micro_batch_size_per_gpu": spec.batch.micro,
        "steps_per_print": spec.log.interval,
        "zero_optimization": {"stage": spec.parallel.zero_stage},
        "gradient_clipping": spec.optimizer.clip_gradient,
        "prescale_gradients": spec.parallel.zero_stage == 0,
        "wall_clock_breakdown": False,
        **_pipeline(spec),
        **_precision(spec),
    }


def _pipeline(spec: Spec) -> dict[str, Any]:
    if spec.parallel.pipeline == 1:
        return {}
    # Stages hand each other whole activations: cutting them over tensor ranks saves messages, not results.
    return {"pipeline": {"pipe_partitioned": False, "grad_partitioned": False}}


def _precision(spec: Spec) -> dict[str, Any]:
    precision = spec.precision
    if precision.format == "bf16":
        return {"bf16": {"enabled": True}}
    if precision.format == "fp32":
        return {}
    return {
        "fp16": {
            "enabled": True,
            "loss_scale": 0,
            "loss_scale_window": precision.loss_scale_window,
            "hysteresis": 2,
            "min_loss_scale": 1,
            "initial_scale_power": round(math.log2(precision.initial_loss_scale)),
        }
    }
