"""Messages about options that a framework lacks, one per row; `{name}` stands for a value."""

from __future__ import annotations

from runbook.plan_file.diagnostics import Message


class FrameworkMessage(Message):
    """Messages about options that a framework lacks."""

    KERNELS_OF_OUR_TRAINER = (
        "training.kernels={kernels}: only our own trainer has these kernels, and {framework} has "
        "no option for them. Set training.kernels to auto, or training.framework to runbook."
    )
    KIND_UNKNOWN_TO_NEMO = (
        "model {model_name} has {properties}: the configuration files of the pinned NeMo are for "
        "GPT-3, and no option that sets this is known here. Choose a model of GPT-3's kind, or "
        "training.framework=runbook or megatron-lm."
    )
    NO_BLOCKWISE_FP8 = (
        "training.fp8=blockwise: Megatron-LM's pinned commit supports only delayed, tensorwise and "
        "mxfp8. Set training.fp8 to one of these."
    )
    NO_OFFLOAD = (
        "training.offload=true: our own trainer keeps the optimizer's states on the device. Set "
        "training.offload to false, or training.framework to megatron-deepspeed."
    )
    NO_SUCH_SCHEDULE = (
        "training.schedule={schedule}: the pinned version of {framework} has only {schedules}. Set "
        "training.schedule to one of these, or training.framework to {frameworks}."
    )
    ONLY_GPT2_TOKENIZER = (
        "data.tokenizer={tokenizer} with training.framework={framework}: only GPT-2's vocabulary "
        "and merges are rendered for it. Set data.tokenizer to gpt2."
    )
    ONLY_MEGATRON_LM_HAS_IT = (
        "{key}={value}: only Megatron-LM supports this; {framework} does not. Set {key} to "
        "{default}, or training.framework to megatron-lm."
    )
    OPTION_UNKNOWN_TO_FRAMEWORK = (
        "{key}={value}: no option of {framework} that sets this is known here. Set {key} to "
        "{default}, or training.framework to runbook or megatron-lm."
    )
    QKV_BIASES_ALONE = (
        "model {model_name}: Megatron-DeepSpeed adds biases to all matrices or to none, and "
        "cannot add them only for queries, keys and values. Choose a model without qkv_biases, or "
        "training.framework=runbook."
    )
