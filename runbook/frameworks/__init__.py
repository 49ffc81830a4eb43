"""Translates keys in a run file into options for each framework."""

from dataclasses import fields, replace
from operator import attrgetter

from runbook.core.errors import ParamsError
from runbook.frameworks import megatron, nemo
from runbook.frameworks.messages import FrameworkMessage
from runbook.frameworks.option_rows import PhaseRun, written
from runbook.frameworks.schedules import SCHEDULE_NAMES
from runbook.params import Settings
from runbook.params.schema.keys import all_keys
from runbook.params.schema.run_file import OPTIMIZER_KEYS
from runbook.plan_file.schema import PhasePlan, Tuning


def training_arguments(settings: Settings, phase: PhasePlan) -> list[str]:
    """Return the arguments passed to the training program after the script name.

    Relative paths in `phase` are relative to the run folder, where jobs run.
    """
    training = settings.run.training
    if training.framework != "megatron-lm":
        _refuse_options_of_megatron_lm(settings)
    if training.framework != "runbook":
        _refuse_unknown(settings)
        if training.framework == "nemo":
            _refuse_other_kind(phase)
            write = nemo.arguments
        else:
            write = megatron.arguments

        return write(PhaseRun(settings, phase))

    if training.offload:
        raise ParamsError(FrameworkMessage.NO_OFFLOAD)

    return ["plan.json", "--phase", phase.phase]


def option_values(settings: Settings, phase: PhasePlan, framework: str) -> dict[str, list[str]]:
    """Return the options to train this phase with a framework, with values as lists of words.

    The run itself may use a different framework. If it does not use the GPT-2 tokenizer, the
    options for that tokenizer are left out.
    """
    training = settings.run.training.model_copy(update={"framework": framework})
    data = settings.run.data.model_copy(update={"tokenizer": "gpt2"})
    run = settings.run.model_copy(update={"training": training, "data": data})
    values = written(_TABLES[framework], PhaseRun(replace(settings, run=run), phase))
    if settings.run.data.tokenizer != "gpt2":
        for name in _OF_TOKENIZER:
            values.pop(name, None)

    options: dict[str, list[str]] = {}
    for name, value in values.items():
        if framework == "nemo":
            options[name.lstrip("+")] = [nemo.hydra_text(value)]
        else:
            options[name.replace("_", "-")] = megatron.texts(value)

    return options


_TABLES = {
    "megatron-lm": megatron.MEGATRON_LM,
    "megatron-deepspeed": megatron.MEGATRON_DEEPSPEED,
    "nemo": nemo.OPTIONS,
}
_OF_TOKENIZER = (
    "tokenizer-type",
    "vocab-file",
    "merge-file",
    "model.tokenizer.vocab_file",
    "model.tokenizer.merge_file",
)
_RENDERED = (
    *(f"training.{member.name}" for member in fields(Tuning)),
    *OPTIMIZER_KEYS,
    "training.static_loss_scale",
    "training.min_loss_scale",
    "training.exit_interval",
    "training.process_group_timeout",
    "training.fp8",
    "parallel.context",
    "parallel.first_stage_layers",
    "parallel.last_stage_layers",
)
"""Keys that change what a step computes, how it is computed, or when training ends.

A run that sets one of these keys is refused if its framework has no option for it.
"""


_OF_MEGATRON_LM = ("training.reduce_in_bf16", "training.loss_fusion")
"""Keys that only Megatron-LM honours.

Our own trainer sums gradients in fp32 and implements the loss itself.
"""


def _refuse_options_of_megatron_lm(settings: Settings) -> None:
    """Raise `ParamsError` if an option was set that only Megatron-LM has."""
    for key in _OF_MEGATRON_LM:
        value = attrgetter(key)(settings.run)
        default = all_keys()[key].default
        if value != default:
            raise ParamsError(
                FrameworkMessage.ONLY_MEGATRON_LM_HAS_IT,
                key=key,
                value=value,
                framework=settings.run.training.framework,
                default=default,
            )


def _keys_of(framework: str) -> set[str]:
    """Return the run file keys that a framework honours."""
    keys = set()
    for option in _TABLES[framework]:
        for key in option.keys:
            keys.add(key)

    if framework == "megatron-deepspeed":
        # overlap_comm in the DeepSpeed configuration file
        keys.add("training.overlap_gradients")

    if framework != "nemo":
        # Both Megatron-LM and Megatron-DeepSpeed always do this, and have no option for it.
        keys.add("training.broadcast_batches")

    return keys


def honours(framework: str, key: str) -> bool:
    """Return whether a framework honours the value given by the run file for a key.

    Lengths apply to every framework, and are written in the unit that it uses.

    >>> honours("megatron-lm", "training.async_save"), honours("runbook", "training.async_save")
    (False, True)
    """
    if framework == "runbook":
        return key != "training.offload"
    if not key.startswith(("training.", "parallel.")) or key.startswith(_WRITTEN_OTHERWISE):
        return True
    return key in _keys_of(framework)


_WRITTEN_OTHERWISE = (
    "training.iterations",
    "training.samples",
    "training.tokens",
    "training.warmup_",
    "training.decay_",
    "training.wsd_decay_",
    "training.exit_duration",
    "training.save_interval",
    "training.keep_checkpoints",
    "training.smoke.",
    "training.shape.",
    "training.framework",
    "parallel.virtual_pipeline",
    "parallel.zero_stage",
)
"""Keys received by a framework in another unit, as multiple options, or from the job script."""


def _refuse_unknown(settings: Settings) -> None:
    """Raise `ParamsError` if a key is set that the options table for the framework lacks."""
    framework = settings.run.training.framework
    supported = _keys_of(framework)
    kernels = settings.run.training.kernels
    if kernels != "auto":
        raise ParamsError(
            FrameworkMessage.KERNELS_OF_OUR_TRAINER, kernels=kernels, framework=framework
        )

    schedule = settings.run.training.schedule
    if schedule not in SCHEDULE_NAMES[framework]:
        others = [name for name, names in SCHEDULE_NAMES.items() if schedule in names]
        raise ParamsError(
            FrameworkMessage.NO_SUCH_SCHEDULE,
            schedule=schedule,
            framework=framework,
            schedules=", ".join(SCHEDULE_NAMES[framework]),
            frameworks=" or ".join(["runbook", *others]),
        )

    for key in _RENDERED:
        value = attrgetter(key)(settings.run)
        default = all_keys()[key].default
        if value != default and key not in supported:
            raise ParamsError(
                FrameworkMessage.OPTION_UNKNOWN_TO_FRAMEWORK,
                key=key,
                value=value,
                framework=framework,
                default=default,
            )


def _refuse_other_kind(phase: PhasePlan) -> None:
    """Raise `ParamsError` if NeMo would train a different type of model than the phase plans."""
    properties = nemo.other_kind(phase.model.shape)
    if properties:
        raise ParamsError(
            FrameworkMessage.KIND_UNKNOWN_TO_NEMO,
            model_name=phase.model.name,
            properties=", ".join(properties),
        )
