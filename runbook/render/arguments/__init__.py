"""The training program's arguments, in the option names of each framework: from orders and settings to a list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runbook.params import Settings
from runbook.params.schema import Framework
from runbook.render.arguments import megatron_deepspeed, megatron_lm, nemo, runbook

RENDERERS = {
    Framework.RUNBOOK: runbook.arguments,
    Framework.MEGATRON_LM: megatron_lm.arguments,
    Framework.MEGATRON_DEEPSPEED: megatron_deepspeed.arguments,
    Framework.NEMO: nemo.arguments,
}


def training_arguments(settings: Settings, spec: Mapping[str, Any]) -> list[str]:
    """What follows the training script, values as they reach the program.

    `spec` is the phase's part of plan.json; relative paths in it are relative to the run's folder, where jobs work.
    """
    return RENDERERS[settings.run.training.framework](settings, spec)
