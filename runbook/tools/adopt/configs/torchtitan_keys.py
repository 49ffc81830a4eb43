"""Keys in JobConfig (2024 and 2025) and Trainer.Config (2026) from torchtitan.

Based on pytorch/torchtitan, 2026-11 (torchtitan/config/job_config.py and configs.py), and its
forks.
"""

from typing import Any

from runbook.tools.adopt.configs.rows import (
    ADAMW,
    FOLDERS,
    GRADIENTS_IN_32_BITS,
    LOGGING,
    NO_EXPERTS,
    OFF,
    ONE,
    OTHER_WEIGHTS,
    OWN_CLASS,
    PERFORMANCE,
    PROFILE,
    TOKENIZER_FILE,
    CarriedKey,
    ChosenKey,
    ConvertedKey,
    DecimalKey,
    DroppedKey,
    IntegerKey,
    SwitchKey,
    TextKey,
    in_section,
    integer,
    zero_if_off,
)

_WHOLE_WEIGHTS = "here each device has all weights; the optimizer's states are sharded"
_LOCAL_BATCH = "a stage divides it into micro-batches of pipeline_parallel_microbatch_size"
_SAVES = "true: every checkpoint.interval steps"
_ENGINE = "our engine decides this itself"
_EIGHT_BITS = "goes with training.fp8"
_LEAST_RATE = "multiplied by optimizer.lr: training.min_learning_rate"
_HELD_OUT = "02-data holds out text with data.split"


def _recompute(mode: Any) -> str:
    """Convert the activation-checkpointing mode."""
    modes = {"none": "none", "selective": "selective", "full": "full"}
    return modes[str(mode).lower()]


def _zero_stage(degree: Any) -> int:
    """Convert a sharding degree, where 1 means no sharding and -1 means all devices."""
    return 0 if integer(degree) == 1 else 1


# job_config.py, Model
_MODEL_ROWS = in_section(
    "model",
    CarriedKey("name", "model"),
    CarriedKey("flavor", "model"),
    ChosenKey(
        "norm_type",
        "model.normalization",
        {"rmsnorm": "rmsnorm", "fused_rmsnorm": "rmsnorm", "layernorm": "layernorm"},
    ),
    CarriedKey("tokenizer_path", "data.tokenizer", why=TOKENIZER_FILE),
    CarriedKey("hf_assets_path", "data.tokenizer", why=TOKENIZER_FILE),
    DroppedKey("converters", why="our layers are converted by training.fp8", same_if=([],)),
)
# job_config.py, Optimizer and LRScheduler
_OPTIMIZER_ROWS = (
    *in_section(
        "optimizer",
        DroppedKey("name", why=ADAMW, same_if=("AdamW", "Adam")),
        DecimalKey("lr", "training.learning_rate"),
        DecimalKey("beta1", "training.adam_beta1"),
        DecimalKey("beta2", "training.adam_beta2"),
        DecimalKey("eps", "training.adam_epsilon"),
        DecimalKey("weight_decay", "training.weight_decay"),
        DroppedKey("implementation", why=PERFORMANCE),
        DroppedKey("fused", why=PERFORMANCE),
        DroppedKey("*", why=PERFORMANCE, same_if=OFF),
    ),
    *in_section(
        "lr_scheduler",
        IntegerKey("warmup_steps", "training.warmup_iterations"),
        TextKey(
            "decay_type",
            "training.schedule",
            why="with decay_ratio: training.wsd_decay_style",
        ),
        TextKey("lr_decay_type", "training.schedule"),
        DecimalKey("decay_ratio", "training.wsd_decay_fraction"),
        DroppedKey("min_lr_factor", why=_LEAST_RATE),
        DroppedKey("lr_min", why=_LEAST_RATE),
    ),
)
# job_config.py, Training; local_batch_size was batch_size in 2024
_TRAINING_ROWS = in_section(
    "training",
    IntegerKey("warmup_steps", "training.warmup_iterations"),
    IntegerKey("local_batch_size", "training.micro_batch", why=_LOCAL_BATCH),
    IntegerKey("batch_size", "training.micro_batch", why=_LOCAL_BATCH),
    IntegerKey("global_batch_size", "training.global_batch"),
    DroppedKey(
        "num_tokens_per_microbatch_per_dp_rank",
        why="tokens per step on a replica: training.micro_batch x training.sequence_length",
    ),
    IntegerKey("seq_len", "training.sequence_length"),
    DecimalKey("max_norm", "training.clip_gradient"),
    IntegerKey("steps", "training.iterations"),
    IntegerKey("seed", "training.seed"),
    DroppedKey("dataset", why="its text comes from Hugging Face's hub: set data.dataset"),
    DroppedKey("dataset_path", why="set data.folder, or download the text in 02-data"),
    DroppedKey(
        "dtype",
        why="weights have 32 bits, and products use training.precision",
        same_if=("float32",),
    ),
    ChosenKey(
        "mixed_precision_param",
        "training.precision",
        {"bfloat16": "bf16", "float32": "fp32", "float16": "fp16"},
    ),
    DroppedKey("mixed_precision_reduce", why=GRADIENTS_IN_32_BITS, same_if=("float32",)),
    SwitchKey("enable_cpu_offload", "training.offload"),
    IntegerKey("gc_freq", "training.gc_interval"),
    DroppedKey("compile", why=PERFORMANCE),
    DroppedKey(
        "deterministic",
        why="nothing to set: with the same layout, our trainer is reproducible bit for bit",
        same_if=OFF,
    ),
    DroppedKey("gc_debug", why=LOGGING),
)
# job_config.py, Parallelism; in 2024 the degrees were in [training] and [experimental]
_LAYOUT_ROWS = in_section(
    "*",
    DroppedKey(
        "data_parallel_replicate_degree",
        why="part of the data-parallel size",
        same_if=ONE,
    ),
    ConvertedKey(
        "data_parallel_shard_degree",
        "parallel.zero_stage",
        _zero_stage,
        why=_WHOLE_WEIGHTS,
    ),
    ConvertedKey(
        "data_parallel_degree",
        "parallel.zero_stage",
        _zero_stage,
        why=_WHOLE_WEIGHTS,
    ),
    DroppedKey("data_parallel_type", why=_WHOLE_WEIGHTS),
    DroppedKey("fsdp_reshard_after_forward", why=_WHOLE_WEIGHTS),
    IntegerKey("tensor_parallel_degree", "parallel.tensor"),
    IntegerKey("pipeline_parallel_degree", "parallel.pipeline"),
    IntegerKey("context_parallel_degree", "parallel.context"),
    DroppedKey(
        "pipeline_parallel_schedule",
        why="stages alternate one forward and one backward pass (1F1B)",
        same_if=("1F1B",),
    ),
    DroppedKey(
        "pipeline_parallel_*",
        why="layers are divided evenly, or by parallel.first_stage_layers",
        same_if=([], None, ""),
    ),
    DroppedKey("expert_parallel_degree", why=NO_EXPERTS, same_if=ONE, other_model="experts"),
    DroppedKey("expert_tensor_parallel_degree", why=NO_EXPERTS, same_if=ONE),
    SwitchKey(
        "enable_async_tensor_parallel",
        "training.overlap_tensor",
        why="with Transformer Engine only",
    ),
    DroppedKey("disable_loss_parallel", why=_ENGINE),
    DroppedKey("context_parallel_rotate_method", why=_ENGINE),
    DroppedKey("enable_compiled_autograd", why=PERFORMANCE),
)
# job_config.py, Checkpoint
_CHECKPOINT_ROWS = in_section(
    "checkpoint",
    ConvertedKey("enable_checkpoint", "training.save_interval", zero_if_off, why=_SAVES),
    ConvertedKey("enable", "training.save_interval", zero_if_off, why=_SAVES),
    IntegerKey("interval", "training.save_interval", why="nothing is saved in between"),
    ChosenKey(
        "async_mode",
        "training.async_save",
        {"disabled": False, "async": True, "async_with_pinned_mem": True},
    ),
    IntegerKey("keep_latest_k", "training.keep_checkpoints"),
    DroppedKey("folder", why=FOLDERS),
    DroppedKey("initial_load_path", why=OTHER_WEIGHTS, same_if=(None, "")),
    DroppedKey(
        "*",
        why="a checkpoint contains everything; `runbook export` writes only the weights",
    ),
)
# job_config.py: ActivationCheckpoint, Validation, Metrics, Float8 and others
_OTHER_ROWS = (
    ConvertedKey("activation_checkpoint.mode", "training.recompute", _recompute),
    DroppedKey(
        "activation_checkpoint.*",
        why="selective recomputes attention, and full recomputes each layer",
    ),
    DroppedKey("compile.*", why=PERFORMANCE),
    IntegerKey("metrics.log_freq", "training.log_interval"),
    DroppedKey("metrics.*", why=LOGGING),
    DroppedKey("profiling.*", why=PROFILE, same_if=OFF),
    DroppedKey("job.*", why=FOLDERS),
    IntegerKey("comm.train_timeout_seconds", "training.process_group_timeout"),
    DroppedKey("comm.*", why=LOGGING),
    ConvertedKey(
        "validation.enable",
        "training.eval_interval",
        zero_if_off,
        why="true: every validation.freq steps",
    ),
    IntegerKey("validation.freq", "training.eval_interval"),
    IntegerKey(
        "validation.steps",
        "training.eval_iterations",
        why="applies only with validation.enable; -1 (all batches) is not supported here",
    ),
    DroppedKey("validation.*", why=_HELD_OUT),
    DroppedKey("eval.*", why=_HELD_OUT),
    DroppedKey(
        "float8.enable_float8_linear",
        why="true: training.fp8 tensorwise",
        same_if=OFF,
    ),
    DroppedKey("float8.*", why=_EIGHT_BITS, same_if=OFF),
    DroppedKey("quantize.*", why=_EIGHT_BITS),
    DroppedKey("mx.*", why=_EIGHT_BITS),
    DroppedKey("memory_estimation.*", why="00-plan estimates memory", same_if=OFF),
    DroppedKey("fault_tolerance.*", why="jobs.training.restarts and spares", same_if=OFF),
    DroppedKey(
        "experimental.*",
        why="your own code, which adopt does not read",
        same_if=("", None, False),
    ),
    DroppedKey("infra.*", why=PERFORMANCE),
)
# Only in Python: torchtitan/trainer.py, Trainer.Config
_PYTHON_ROWS = (
    DroppedKey("model_spec.*", why="how the model is built; our trainer has its own kernels"),
    DroppedKey("dataloader*", why="02-data prepares its own text: data.dataset"),
    DroppedKey("loss*", why="the loss is the cross entropy, in 32 bits"),
    DroppedKey("dump_folder", why=FOLDERS),
    IntegerKey("debug.seed", "training.seed"),
    DroppedKey("*._target_", why=OWN_CLASS),
)
ROWS = (
    *_MODEL_ROWS,
    *_OPTIMIZER_ROWS,
    *_TRAINING_ROWS,
    *_LAYOUT_ROWS,
    *_CHECKPOINT_ROWS,
    *_OTHER_ROWS,
    *_PYTHON_ROWS,
)
DEFAULTS: dict[str, Any] = {
    "optimizer.lr": 8e-4,
    "optimizer.beta1": 0.9,
    "optimizer.beta2": 0.95,
    "optimizer.eps": 1e-8,
    "optimizer.weight_decay": 0.1,
    "training.seq_len": 2048,
    "training.max_norm": 1.0,
    "training.steps": 10_000,
    "training.mixed_precision_param": "bfloat16",
    "training.gc_freq": 50,
    "activation_checkpoint.mode": "selective",
    "metrics.log_freq": 10,
    "checkpoint.interval": 500,
    "parallelism.data_parallel_shard_degree": -1,
}
"""Defaults in torchtitan (job_config.py)."""
