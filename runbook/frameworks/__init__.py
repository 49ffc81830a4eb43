"""The training program's arguments, in the option names of each framework."""

from dataclasses import fields
from operator import attrgetter

from runbook.core.errors import ParamsError
from runbook.frameworks import megatron, nemo
from runbook.frameworks.options import PhaseRun
from runbook.params import Settings
from runbook.params.schema.keys import all_keys
from runbook.plan_file.schema import PhasePlan, Tuning


def training_arguments(settings: Settings, phase: PhasePlan) -> list[str]:
    """What follows the training script, values as they reach the program.

    Relative paths in `phase` are relative to the run's folder, where jobs work.
    """
    training = settings.run.training
    if training.framework != "runbook":
        _refuse_unknown(settings)
        write = nemo.arguments if training.framework == "nemo" else megatron.arguments
        return write(PhaseRun(settings, phase))
    if training.offload:
        raise ParamsError(
            "training.offload=true: our own trainer keeps the optimizer's states on the device. Set training.offload "
            "to false, or training.framework to megatron-deepspeed."
        )
    return ["plan.json", "--phase", phase.phase]


_TABLES = {
    "megatron-lm": megatron.MEGATRON_LM,
    "megatron-deepspeed": megatron.MEGATRON_DEEPSPEED,
    "nemo": nemo.OPTIONS,
}
_TUNED = (
    *(f"training.{member.name}" for member in fields(Tuning)),
    *(
        "training.fp8",
        "parallel.context",
        "parallel.first_stage_layers",
        "parallel.last_stage_layers",
    ),
)


def _refuse_unknown(settings: Settings) -> None:
    """`ParamsError` where a tuning was chosen that the framework's table has no option for."""
    framework = settings.run.training.framework
    has = {key for option in _TABLES[framework] for key in option.keys}
    if framework == "megatron-deepspeed":
        has.add("training.overlap_gradients")  # overlap_comm of DeepSpeed's file
    if framework != "nemo":
        has.add(
            "training.broadcast_batches"
        )  # both Megatrons always do it, and have no option for it
    for key in _TUNED:
        value = attrgetter(key)(settings.run)
        default = all_keys()[key].default
        if value != default and key not in has:
            raise ParamsError(
                f"{key}={value}: no option of {framework} is known for it here. Set {key} to {default}, or "
                "training.framework to runbook or megatron-lm."
            )
