"""The configuration that DeepSpeed is started with: plan.json's own, or the same again from its other values."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
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


def problems(spec: Spec) -> Iterator[str]:
    """Where the plan's configuration for DeepSpeed says something else than the plan's other values."""
    if spec.deepspeed:
        own = from_values(spec)
        for key in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_clipping"):
            yield from _differing(key, spec.deepspeed.get(key), own[key])
        stage = _within(spec.deepspeed, "zero_optimization", "stage", 0)
        yield from _differing("zero_optimization.stage", stage, spec.parallel.zero_stage)
        for key in ("fp16", "bf16"):
            enabled = _within(spec.deepspeed, key, "enabled", False)
            yield from _differing(f"{key}.enabled", enabled, spec.precision.format == key)


def _within(content: dict[str, Any], section: str, key: str, default: Any) -> Any:
    inner = content.get(section)
    return inner.get(key, default) if isinstance(inner, dict) else default


def _differing(key: str, said: Any, meant: Any) -> Iterator[str]:
    if said != meant:
        meant = json.dumps(meant)
        yield f"deepspeed.{key}: {json.dumps(said)}, but the rest of the plan means {meant}; make the plan anew"


def _pipeline(spec: Spec) -> dict[str, Any]:
    if spec.parallel.pipeline == 1:
        return {}
    # Stages hand each other whole activations: cutting them over tensor ranks saves messages, not results.
    return {"pipeline": {"pipe_partitioned": False, "grad_partitioned": False}}


def _precision(spec: Spec) -> dict[str, Any]:
    precision = spec.precision
    if precision.format == "bf16":
        return {"bf16": {"enabled": True, "check_grad_overflow": True}}
    if precision.format == "fp32":
        return {}
    return {
        "fp16": {
            "enabled": True,
            "loss_scale": precision.static_loss_scale,  # 0: dynamic
            "loss_scale_window": precision.loss_scale_window,
            "hysteresis": precision.hysteresis,
            "min_loss_scale": precision.minimum_loss_scale,
            "initial_scale_power": round(math.log2(precision.initial_loss_scale)),
        }
    }
