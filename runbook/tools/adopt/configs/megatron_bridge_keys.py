"""Keys in Megatron Bridge: train, optimizer, scheduler, dataset and the sections around them.

Based on NVIDIA-NeMo/Megatron-Bridge, 2026-08 (src/megatron/bridge/training/config.py and
recipes/common.py).
"""

from typing import Any

from runbook.tools.adopt.configs.nemo_keys import MODEL_ROWS
from runbook.tools.adopt.configs.rows import (
    ADAMW,
    BATCH_RAMP,
    EVERY_TOKEN_COUNTS,
    FOLDER_OR_BLEND,
    FOLDERS,
    GRADIENTS_IN_32_BITS,
    LOGGING,
    NO_EXPERTS,
    NO_KEY,
    OFF,
    ON,
    OTHER_WEIGHTS,
    OWN_CLASS,
    PERFORMANCE,
    PROFILE,
    STARTER,
    UNSET,
    UNSET_OR_OFF,
    UNSET_OR_ONE,
    WHOLE_DOCUMENTS,
    WHOLE_WEIGHTS,
    CarriedKey,
    ChosenKey,
    ConvertedKey,
    DecimalKey,
    DroppedKey,
    IntegerKey,
    SwitchKey,
    TextKey,
    chunks_or_one,
    in_section,
    integer,
)

_HELD_OUT = "02-data holds out text with data.split"
_SLOW_RANKS = "an alarm reports slow ranks"
_RESTARTS = "jobs.training.restarts and spares"
_COUNTS_WHERE_ON = "applies where it is enabled"
_MIXED_PRECISION_SAYS_IT = "set by mixed_precision"
_PRECISION_SIGNS = {"bf16": "bf16", "fp16": "fp16", "32": "fp32"}
"""Substrings that identify a precision, as in `bf16_mixed`. The first match applies."""


def _precision(value: Any) -> str:
    """Convert the name that the program uses for a precision to ours."""
    name = str(value).lower()
    for sign, precision in _PRECISION_SIGNS.items():
        if sign in name:
            return precision
    raise ValueError(value)


def _seconds(minutes: Any) -> int:
    """Convert minutes to seconds."""
    return 60 * integer(minutes)


# TrainingConfig and ValidationConfig. Earlier versions configure evaluation in TrainingConfig.
_TRAIN_ROWS = (
    *in_section(
        "train",
        IntegerKey("train_iters", "training.iterations"),
        IntegerKey("train_samples", "training.samples"),
        IntegerKey("global_batch_size", "training.global_batch"),
        IntegerKey("micro_batch_size", "training.micro_batch"),
        DroppedKey("rampup_batch_size", why=BATCH_RAMP, same_if=UNSET),
        IntegerKey("eval_interval", "training.eval_interval"),
        IntegerKey("eval_iters", "training.eval_iterations"),
        IntegerKey("manual_gc_interval", "training.gc_interval"),
        DroppedKey("manual_gc*", why="goes with training.gc_interval"),
        IntegerKey("exit_interval", "training.exit_interval"),
        DroppedKey(
            "exit_duration_in_mins",
            why="the job saves and ends before its time limit",
            same_if=UNSET,
        ),
        DroppedKey("exit_signal*", why="a job that receives a stop signal saves and ends"),
        DroppedKey("skip_train", why="a run always trains", same_if=OFF),
        DroppedKey("*", why=PERFORMANCE, same_if=UNSET_OR_OFF),
    ),
    *in_section(
        "validation",
        IntegerKey("eval_interval", "training.eval_interval"),
        IntegerKey("eval_iters", "training.eval_iterations"),
        DroppedKey("*", why=_HELD_OUT, same_if=UNSET_OR_OFF),
    ),
)
# OptimizerConfig in megatron-core, and SchedulerConfig
_OPTIMIZER_ROWS = (
    *in_section(
        "optimizer",
        DecimalKey("lr", "training.learning_rate"),
        DecimalKey("min_lr", "training.min_learning_rate"),
        DecimalKey("weight_decay", "training.weight_decay"),
        DecimalKey("adam_beta1", "training.adam_beta1"),
        DecimalKey("adam_beta2", "training.adam_beta2"),
        DecimalKey("adam_eps", "training.adam_epsilon"),
        DecimalKey("clip_grad", "training.clip_gradient"),
        DroppedKey("optimizer", why=ADAMW, same_if=("adam",)),
        ChosenKey("use_distributed_optimizer", "parallel.zero_stage", {True: 1, False: 0}),
        ChosenKey("bf16", "training.precision", {True: "bf16"}, why=_MIXED_PRECISION_SAYS_IT),
        ChosenKey("fp16", "training.precision", {True: "fp16"}, why=_MIXED_PRECISION_SAYS_IT),
        DroppedKey("lr_*", why="Megatron Bridge reads the schedule in its section scheduler"),
        DroppedKey("*overlap*", why=PERFORMANCE),
        DroppedKey("*dtype", why=PERFORMANCE),
        DroppedKey("*", why=NO_KEY, same_if=UNSET_OR_OFF),
    ),
    *in_section(
        "scheduler",
        IntegerKey("lr_warmup_iters", "training.warmup_iterations"),
        IntegerKey("lr_warmup_samples", "training.warmup_samples"),
        DecimalKey("lr_warmup_fraction", "training.warmup_fraction"),
        IntegerKey("lr_decay_iters", "training.decay_iterations"),
        IntegerKey("lr_decay_samples", "training.decay_samples"),
        ChosenKey(
            "lr_decay_style",
            "training.schedule",
            {"cosine": "cosine", "linear": "linear", "constant": "constant", "wsd": "wsd"},
        ),
        TextKey(
            "lr_wsd_decay_style",
            "training.wsd_decay_style",
            why="applies only with schedule wsd",
        ),
        DroppedKey("*", why="computed from the others"),
    ),
)
# megatron-core's DistributedDataParallelConfig
_LAYOUT_ROWS = (
    *in_section(
        "ddp",
        SwitchKey("overlap_grad_reduce", "training.overlap_gradients"),
        SwitchKey("overlap_param_gather", "training.overlap_weights"),
        ChosenKey("use_distributed_optimizer", "parallel.zero_stage", {True: 1, False: 0}),
        DroppedKey("use_*fsdp", why=WHOLE_WEIGHTS, same_if=OFF),
        DroppedKey("grad_reduce_in_fp32", why=GRADIENTS_IN_32_BITS, same_if=ON),
        DroppedKey("*", why=PERFORMANCE),
    ),
    SwitchKey("comm_overlap.tp_comm_overlap", "training.overlap_tensor"),
    DroppedKey("comm_overlap*", why=PERFORMANCE, same_if=UNSET),
    ConvertedKey(
        "dist.distributed_timeout_minutes",
        "training.process_group_timeout",
        _seconds,
    ),
    DroppedKey("dist*", why=STARTER),
)
# GPTDatasetConfig and TokenizerConfig
_DATA_ROWS = (
    *in_section(
        "dataset",
        IntegerKey("seq_length", "training.sequence_length"),
        IntegerKey("sequence_length", "training.sequence_length"),
        TextKey("split", "data.split"),
        TextKey("data_path", "data.folder"),
        DroppedKey("blend*", why=FOLDER_OR_BLEND, same_if=UNSET),
        DroppedKey("random_seed", why="one seed for weights and text: training.seed"),
        DroppedKey("eod_mask_loss", why=EVERY_TOKEN_COUNTS, same_if=OFF),
        DroppedKey("reset_*", why=WHOLE_DOCUMENTS, same_if=OFF),
        DroppedKey("*", why="02-data prepares the text"),
    ),
    DroppedKey("tokenizer.*", why="data.tokenizer names its file"),
)
# CheckpointConfig, LoggerConfig, RNGConfig, MixedPrecisionConfig and others
_OTHER_ROWS = (
    IntegerKey("rng.seed", "training.seed"),
    DroppedKey("rng.*", why=PERFORMANCE, same_if=UNSET_OR_OFF),
    IntegerKey("logger.log_interval", "training.log_interval"),
    DroppedKey("logger.*", why=LOGGING),
    IntegerKey("checkpoint.save_interval", "training.save_interval"),
    SwitchKey("checkpoint.async_save", "training.async_save"),
    DroppedKey("checkpoint.pretrained_checkpoint", why=OTHER_WEIGHTS, same_if=UNSET),
    DroppedKey("checkpoint.*", why=FOLDERS),
    ConvertedKey("mixed_precision", "training.precision", _precision),
    *in_section(
        "mixed_precision",
        ChosenKey("bf16", "training.precision", {True: "bf16"}, why=_COUNTS_WHERE_ON),
        ChosenKey("fp16", "training.precision", {True: "fp16"}, why=_COUNTS_WHERE_ON),
        DroppedKey("grad_reduce_in_fp32", why=GRADIENTS_IN_32_BITS, same_if=ON),
        DroppedKey("fp8", why="set training.fp8", same_if=UNSET_OR_OFF),
        DroppedKey("fp8*", why="goes with training.fp8"),
        DroppedKey("*", why="set by training.precision"),
    ),
    DroppedKey("profiling*", why=PROFILE, same_if=UNSET),
    DroppedKey("ft*", why=_RESTARTS, same_if=UNSET),
    DroppedKey("straggler*", why=_SLOW_RANKS, same_if=UNSET),
    DroppedKey("nvrx_straggler*", why=_SLOW_RANKS, same_if=UNSET),
    DroppedKey("rerun_state_machine*", why="training.replay_interval", same_if=UNSET),
    DroppedKey("peft*", why="runs do not fine-tune", same_if=UNSET),
    DroppedKey("inprocess_restart*", why=_RESTARTS, same_if=UNSET),
    DroppedKey("tensor_inspect*", why=LOGGING, same_if=UNSET),
    DroppedKey("env_vars*", why="the site file sets environment variables", same_if=UNSET),
    DroppedKey("_target_", why=OWN_CLASS),
)
# Arguments of a recipe (recipes/llama/llama3.py, LlamaCommonKwargs)
_ARGUMENT_ROWS = in_section(
    "pretrain_recipe",
    IntegerKey("train_iters", "training.iterations"),
    IntegerKey("global_batch_size", "training.global_batch"),
    IntegerKey("micro_batch_size", "training.micro_batch"),
    IntegerKey("seq_length", "training.sequence_length"),
    DecimalKey("lr", "training.learning_rate"),
    DecimalKey("min_lr", "training.min_learning_rate"),
    IntegerKey("lr_warmup_iters", "training.warmup_iterations"),
    IntegerKey("lr_decay_iters", "training.decay_iterations"),
    IntegerKey("eval_interval", "training.eval_interval"),
    IntegerKey("save_interval", "training.save_interval"),
    IntegerKey("tensor_model_parallel_size", "parallel.tensor"),
    IntegerKey("pipeline_model_parallel_size", "parallel.pipeline"),
    IntegerKey("context_parallel_size", "parallel.context"),
    ConvertedKey(
        "virtual_pipeline_model_parallel_size",
        "parallel.virtual_pipeline",
        chunks_or_one,
    ),
    SwitchKey("sequence_parallel", "parallel.sequence"),
    ConvertedKey("precision_config", "training.precision", _precision),
    DroppedKey("expert_*", why=NO_EXPERTS, same_if=UNSET_OR_ONE),
    DroppedKey("name", why=FOLDERS),
    DroppedKey("dir", why=FOLDERS),
    DroppedKey("mock", why="set data.dataset", same_if=ON),
    DroppedKey("*data_path*", why="set data.folder, or data.blend", same_if=UNSET),
    DroppedKey("pipeline_dtype", why=PERFORMANCE),
    DroppedKey("comm_overlap_config", why=PERFORMANCE, same_if=UNSET),
    DroppedKey("use_megatron_fsdp", why=WHOLE_WEIGHTS, same_if=UNSET_OR_OFF),
)
ROWS = (
    CarriedKey("recipe", "model"),
    CarriedKey("model._target_", "model"),
    *MODEL_ROWS,
    DroppedKey("model.*", why=PERFORMANCE, same_if=UNSET_OR_OFF),
    *_TRAIN_ROWS,
    *_OPTIMIZER_ROWS,
    *_LAYOUT_ROWS,
    *_DATA_ROWS,
    *_OTHER_ROWS,
    *_ARGUMENT_ROWS,
)
DEFAULTS: dict[str, Any] = {
    "train.train_iters": 300_000,
    "train.global_batch_size": 32,
    "train.micro_batch_size": 2,
    "train.manual_gc_interval": 100,
    "optimizer.lr": 3e-4,
    "optimizer.min_lr": 3e-5,
    "optimizer.weight_decay": 0.1,
    "optimizer.adam_beta2": 0.95,
    "optimizer.adam_eps": 1e-5,
    "scheduler.lr_warmup_iters": 500,
    "scheduler.lr_decay_style": "cosine",
    "dataset.seq_length": 4096,
    "dataset.split": "9999,8,2",
    "checkpoint.save_interval": 500,
    "logger.log_interval": 10,
    "rng.seed": 1234,
    "mixed_precision": "bf16_mixed",
    "ddp.overlap_grad_reduce": True,
    "ddp.overlap_param_gather": True,
}
"""Defaults that all recipes share (recipes/common.py, _pretrain_common)."""
