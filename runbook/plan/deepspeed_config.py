"""DeepSpeed's configuration as plain values: what plan.json hands to our engine, and what `render` writes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def deepspeed_config(spec: Mapping[str, Any], *, hysteresis: int, offload: bool = False) -> dict[str, Any]:
    """What follows from a phase's orders: batch, ZeRO stage, clipping, precision."""
    zero: dict[str, Any] = {"stage": spec["parallel"]["zero_stage"]}
    if offload:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    return {
        "train_batch_size": spec["batch"]["global"],
        "train_micro_batch_size_per_gpu": spec["batch"]["micro"],
        "steps_per_print": spec["log"]["interval"],
        "zero_optimization": zero,
        "gradient_clipping": spec["optimizer"]["clip_gradient"],
        "prescale_gradients": spec["parallel"]["zero_stage"] == 0,
        "wall_clock_breakdown": False,
        **_precision(spec["precision"], hysteresis),
    }


def own_config(spec: Mapping[str, Any], *, hysteresis: int) -> dict[str, Any]:
    """The same for our own engine, with two words that only it needs."""
    content = deepspeed_config(spec, hysteresis=hysteresis)
    if spec["parallel"]["pipeline"] > 1:
        # Stages hand each other whole activations: cutting them over tensor ranks saves messages, not results.
        content["pipeline"] = {"pipe_partitioned": False, "grad_partitioned": False}
    if "bf16" in content:
        content["bf16"]["check_grad_overflow"] = True  # else a gradient that is no number goes into the weights
    return content


def _precision(precision: Mapping[str, Any], hysteresis: int) -> dict[str, Any]:
    if precision["format"] == "bf16":
        return {"bf16": {"enabled": True}}
    if precision["format"] == "fp32":
        return {}
    return {
        "fp16": {
            "enabled": True,
            # 0: dynamic, here and in Megatron's own options: the Slurm document said both
            "loss_scale": _plain(precision.get("static_loss_scale", 0)),
            "loss_scale_window": precision["loss_scale_window"],
            "hysteresis": hysteresis,
            "min_loss_scale": _plain(precision.get("minimum_loss_scale", 1)),
            "initial_scale_power": round(math.log2(precision["initial_loss_scale"])),
        }
    }


def _plain(value: float) -> float:
    """DeepSpeed takes the smallest scale as a whole number alone.

    >>> _plain(1.0), _plain(0.5)
    (1, 0.5)
    """
    return int(value) if float(value).is_integer() else value
