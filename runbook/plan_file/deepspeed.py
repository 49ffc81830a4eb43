"""Builds the DeepSpeed configuration for a phase in plan.json, and checks it against the plan."""

import json
import math
from collections.abc import Iterator
from typing import Any

from runbook.plan_file.messages import PlanFileMessage
from runbook.plan_file.schema import PhasePlan, PlannedPrecision


def deepspeed_config(phase: PhasePlan, *, offload: bool = False) -> dict[str, Any]:
    """Return the DeepSpeed values all frameworks share: batch, ZeRO, clipping, precision."""
    zero: dict[str, Any] = {"stage": phase.parallel.zero_stage}
    if phase.tuning.overlap_gradients:
        zero["overlap_comm"] = True
    if offload:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    return {
        "train_batch_size": phase.batch.global_,
        "train_micro_batch_size_per_gpu": phase.batch.micro,
        "steps_per_print": phase.log.interval,
        "zero_optimization": zero,
        "gradient_clipping": phase.optimizer.clip_gradient,
        "prescale_gradients": phase.parallel.zero_stage == 0,
        "wall_clock_breakdown": False,
        **_precision(phase.precision),
    }


def bucket_elements(parameters: int, tensor: int) -> int:
    """Return the number of elements in a gradient bucket.

    DeepSpeed allocates a full bucket even if a rank has only a few gradients.

    >>> bucket_elements(51_696_640, 4), bucket_elements(12_853_626_880, 2)
    (12924160, 500000000)
    """
    return min(LARGEST_BUCKET, parameters // tensor or LARGEST_BUCKET)


LARGEST_BUCKET = 500_000_000
"""Largest bucket in elements, which is the DeepSpeed default."""


def own_config(phase: PhasePlan) -> dict[str, Any]:
    """Return the configuration for our own trainer, with keys only our trainer needs."""
    content = deepspeed_config(phase)
    content["zero_optimization"]["reduce_bucket_size"] = bucket_elements(
        phase.model.parameters, phase.parallel.tensor
    )
    if phase.parallel.pipeline > 1:
        # Stages send complete activations to each other. Partitioning them over the tensor ranks
        # would reduce the traffic but change no result.
        content["pipeline"] = {"pipe_partitioned": False, "grad_partitioned": False}

    if "bf16" in content:
        # Without this check, a NaN gradient would be applied to the weights.
        content["bf16"]["check_grad_overflow"] = True

    return content


def problems(phase: PhasePlan) -> Iterator[str]:
    """Yield each contradiction between the planned DeepSpeed configuration and other values."""
    if not phase.deepspeed:
        return
    config = phase.deepspeed
    planned_config = own_config(phase)
    keys = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_clipping")
    values = {key: (config.get(key), planned_config[key]) for key in keys}
    values["zero_optimization.stage"] = (
        _within(config, "zero_optimization", "stage", 0),
        phase.parallel.zero_stage,
    )
    for key in ("fp16", "bf16"):
        values[f"{key}.enabled"] = (
            _within(config, key, "enabled", False),
            phase.precision.format == key,
        )

    for key, (configured, planned) in values.items():
        if configured != planned:
            yield PlanFileMessage.CONFIGURED_OTHERWISE.fill(
                key=key,
                configured=json.dumps(configured),
                planned=json.dumps(planned),
            )


def _within(
    content: dict[str, Any],
    section: str,
    key: str,
    default: Any,
) -> Any:
    inner = content.get(section)
    if isinstance(inner, dict):
        return inner.get(key, default)
    return default


def _precision(precision: PlannedPrecision) -> dict[str, Any]:
    if precision.format == "bf16":
        return {"bf16": {"enabled": True}}
    if precision.format == "fp32":
        return {}
    return {
        "fp16": {
            "enabled": True,
            # 0 means a dynamic scale, here and in Megatron's options.
            "loss_scale": _whole(precision.static_loss_scale),
            "loss_scale_window": precision.loss_scale_window,
            "hysteresis": precision.hysteresis,
            "min_loss_scale": _whole(precision.minimum_loss_scale),
            "initial_scale_power": round(math.log2(precision.initial_loss_scale)),
        }
    }


def _whole(value: float) -> float:
    """Convert a whole number to an int, as DeepSpeed requires for the minimum scale.

    >>> _whole(1.0), _whole(0.5)
    (1, 0.5)
    """
    if float(value).is_integer():
        return int(value)
    return value
