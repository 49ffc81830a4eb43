"""DeepSpeed's configuration of a job: one file with a name of its own, so that no two jobs write the same."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

from runbook.params import Settings
from runbook.params.schema import Framework


def deepspeed_name(settings: Settings, spec: Mapping[str, Any]) -> str:
    """Path of the file relative to the run's folder, where jobs work.

    It ends with a digest of the content: jobs that differ never share a file, and a changed one never reads the old.
    """
    digest = hashlib.sha256(deepspeed_file(settings, spec).encode()).hexdigest()
    return f"deepspeed/{spec['phase']}-zero{spec['parallel']['zero_stage']}-{digest[:12]}.json"


def deepspeed_file(settings: Settings, spec: Mapping[str, Any]) -> str:
    """The file's text: batch, ZeRO stage, precision, and what the site's document adds."""
    content: dict[str, Any] = {
        "train_batch_size": spec["batch"]["global"],
        "train_micro_batch_size_per_gpu": spec["batch"]["micro"],
        "steps_per_print": spec["log"]["interval"],
        "zero_optimization": _zero(settings, spec),
        "gradient_clipping": spec["optimizer"]["clip_gradient"],
        "prescale_gradients": spec["parallel"]["zero_stage"] == 0,
        "wall_clock_breakdown": False,
        **_precision(settings, spec),
    }
    extra = settings.site.frameworks[Framework.MEGATRON_DEEPSPEED].deepspeed
    return json.dumps(_merged(content, extra), indent=2) + "\n"


def _zero(settings: Settings, spec: Mapping[str, Any]) -> dict[str, Any]:
    zero: dict[str, Any] = {"stage": spec["parallel"]["zero_stage"]}
    if settings.run.training.offload:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    return zero


def _precision(settings: Settings, spec: Mapping[str, Any]) -> dict[str, Any]:
    precision = spec["precision"]
    if precision["format"] == "bf16":
        return {"bf16": {"enabled": True}}
    if precision["format"] == "fp32":
        return {}
    return {
        "fp16": {
            "enabled": True,
            "loss_scale": 0,  # dynamic, here and in Megatron's own options: the Slurm document said both
            "loss_scale_window": precision["loss_scale_window"],
            "hysteresis": settings.run.training.loss_scale_hysteresis,
            "min_loss_scale": 1,
            "initial_scale_power": round(math.log2(precision["initial_loss_scale"])),
        }
    }


def _merged(content: dict[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """One mapping laid over another, sections within sections."""
    result = dict(content)
    for key, value in extra.items():
        inner = result.get(key)
        result[key] = _merged(inner, value) if isinstance(inner, dict) and isinstance(value, Mapping) else value
    return result
