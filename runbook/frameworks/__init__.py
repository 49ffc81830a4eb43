"""The training program's arguments, in the option names of each framework."""

from __future__ import annotations

from runbook.core.errors import ParamsError
from runbook.frameworks import megatron, nemo
from runbook.frameworks.options import PhaseRun
from runbook.params import Settings
from runbook.params.schema.value_types import Framework
from runbook.plan_file.schema import PhasePlan


def training_arguments(settings: Settings, phase: PhasePlan) -> list[str]:
    """What follows the training script, values as they reach the program.

    Relative paths in `phase` are relative to the run's folder, where jobs work.
    """
    training = settings.run.training
    if training.framework is Framework.NEMO:
        return nemo.arguments(PhaseRun(settings, phase))
    if training.framework is not Framework.RUNBOOK:
        return megatron.arguments(PhaseRun(settings, phase))
    if training.offload:
        raise ParamsError(
            "training.offload=true: our own trainer keeps the optimizer's states on the device. Set training.offload "
            "to false, or training.framework to megatron-deepspeed."
        )
    return ["plan.json", "--phase", phase.phase]
