"""DeepSpeed's configuration of a job: one file with a name of its own, so that no two jobs write the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from runbook.params import Settings
from runbook.params.schema import Framework
from runbook.plan.deepspeed_config import deepspeed_config

OWN_DEEPSPEED = "deepspeed.json"
"""Name of the file in the folder of a job of our own trainer."""


def deepspeed_name(settings: Settings, spec: Mapping[str, Any]) -> str:
    """Path of the file relative to the run's folder, where jobs work.

    It ends with a digest of the content: jobs that differ never share a file, and a changed one never reads the old.
    """
    digest = hashlib.sha256(deepspeed_file(settings, spec).encode()).hexdigest()
    return f"deepspeed/{spec['phase']}-zero{spec['parallel']['zero_stage']}-{digest[:12]}.json"


def deepspeed_file(settings: Settings, spec: Mapping[str, Any]) -> str:
    """The file's text: batch, ZeRO stage, precision, and what the site's document adds.

    For our own engine it is what plan.json hands to it, word for word.
    """
    if "deepspeed" in spec:
        return json.dumps(spec["deepspeed"], indent=2) + "\n"
    training = settings.run.training
    content = deepspeed_config(spec, hysteresis=training.loss_scale_hysteresis, offload=training.offload)
    extra = settings.site.frameworks[Framework.MEGATRON_DEEPSPEED].deepspeed
    return json.dumps(_merged(content, extra), indent=2) + "\n"


def _merged(content: dict[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """One mapping laid over another, sections within sections."""
    result = dict(content)
    for key, value in extra.items():
        inner = result.get(key)
        result[key] = _merged(inner, value) if isinstance(inner, dict) and isinstance(value, Mapping) else value
    return result
