"""Arguments of our own trainer: plan.json says the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runbook.errors import ParamsError
from runbook.params import Settings


def arguments(settings: Settings, spec: Mapping[str, Any]) -> list[str]:
    """`plan.json --phase <phase>`."""
    if settings.run.training.offload:
        raise ParamsError(
            "training.offload=true: our own trainer keeps the optimizer's states on the device. Set training.offload "
            "to false, or training.framework to megatron-deepspeed."
        )
    return ["plan.json", "--phase", str(spec["phase"])]
