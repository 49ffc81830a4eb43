"""Keys in NeMo 2: trainer, data, optim, log, and the model keys that Megatron Bridge shares.

Based on NVIDIA/NeMo, 2025-09 (nemo/collections/llm/recipes and nemo/lightning), and
NVIDIA/NeMo-Run.
"""

from typing import Any

from runbook.tools.adopt.configs.rows import (
    ADAMW,
    ALL_EARLIER_TOKENS,
    BATCH_RAMP,
    EVEN_STAGES,
    EVERY_TOKEN_COUNTS,
    FOLDER_OR_BLEND,
    FOLDERS,
    FULL_RECOMPUTE_ONLY,
    GRADIENTS_IN_32_BITS,
    HEAD_WIDTH,
    LOGGING,
    MODEL_CLASS,
    NO_EXPERTS,
    NO_SUCH_PART,
    OFF,
    ON,
    ONE,
    ONE_TENSOR_RANK,
    OTHER_WEIGHTS,
    OWN_CHECKPOINT,
    OWN_CLASS,
    PADDED_VOCABULARY,
    PERFORMANCE,
    PROFILE,
    QUERY_KEY_NORMS,
    ROTARY_SHARE,
    SCALED_ROTARY,
    SOME_WITHOUT_ROTARY,
    STARTER,
    UNSET,
    UNSET_OR_OFF,
    UNSET_OR_ONE,
    WHOLE_DOCUMENTS,
    WHOLE_WEIGHTS,
    WINDOWED,
    ZERO,
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

_UNSET_OR_ZERO = (None, 0)
_INTERVAL = "a number of batches; a fraction of an epoch is not supported here"
_OWN_FUNCTION = "the program's own function"
_SET_FP8 = "set training.fp8"
_PLUGINS_SAY_IT = "set by trainer.plugins"
_PRECISION_SIGNS = {"bf16": "bf16", "fp16": "fp16", "16": "fp16", "32": "fp32"}
"""Substrings that identify a precision, as in `bf16_mixed`. The first match applies."""


def _precision(value: Any) -> str:
    """Convert a precision, given by its name or class in NeMo, to ours."""
    name = str(value).lower()
    for sign, precision in _PRECISION_SIGNS.items():
        if sign in name:
            return precision
    raise ValueError(value)


def _batches(value: Any) -> int:
    """Convert a batch count.

    0.0 means no batches. Other fractions of an epoch cannot be converted.
    """
    is_share = isinstance(value, float) and value < 1
    if is_share and value:
        raise ValueError(value)
    return 0 if is_share else integer(value)


def _shares(value: Any) -> str:
    """Convert the text split, which is a string `900,50,50` or a list of three numbers."""
    text = value if isinstance(value, str) else ",".join(map(str, value))
    return text.strip("[]").replace(" ", "")


# TransformerConfig in megatron-core, and GPTConfig in nemo/collections/llm/gpt/model/base.py
_MODEL_CONFIG = (
    IntegerKey("num_layers", "training.shape.layers"),
    IntegerKey("hidden_size", "training.shape.hidden"),
    IntegerKey("num_attention_heads", "training.shape.heads"),
    IntegerKey("num_query_groups", "training.shape.kv_heads"),
    IntegerKey("ffn_hidden_size", "training.shape.ffn_hidden"),
    IntegerKey(
        "seq_length",
        "training.sequence_length",
        why="the sequence length of the text applies: data.seq_length",
    ),
    DecimalKey("hidden_dropout", "training.dropout"),
    DecimalKey("init_method_std", "training.init_std"),
    DecimalKey("layernorm_epsilon", "model.norm_epsilon"),
    IntegerKey("rotary_base", "model.rope_base"),
    SwitchKey("share_embeddings_and_output_weights", "model.tied_embeddings"),
    SwitchKey("add_bias_linear", "model.biases"),
    SwitchKey("add_qkv_bias", "model.qkv_biases"),
    ChosenKey("gated_linear_unit", "model.activation", {True: "swiglu", False: "gelu"}),
    ChosenKey(
        "normalization",
        "model.normalization",
        {"layernorm": "layernorm", "rmsnorm": "rmsnorm"},
    ),
    ChosenKey(
        "position_embedding_type",
        "model.position_embedding",
        {"rope": "rope", "learned_absolute": "learned"},
    ),
    IntegerKey("vocab_size", "model.vocabulary"),
    ChosenKey(
        "recompute_granularity",
        "training.recompute",
        {None: "none", "selective": "selective", "full": "full"},
    ),
    TextKey("recompute_method", "training.recompute_method", why=FULL_RECOMPUTE_ONLY),
    IntegerKey("recompute_num_layers", "training.recompute_num_layers", why=FULL_RECOMPUTE_ONLY),
    SwitchKey("enable_cuda_graph", "training.cuda_graphs"),
    IntegerKey("tensor_model_parallel_size", "parallel.tensor"),
    IntegerKey("pipeline_model_parallel_size", "parallel.pipeline"),
    IntegerKey("context_parallel_size", "parallel.context"),
    ConvertedKey(
        "virtual_pipeline_model_parallel_size",
        "parallel.virtual_pipeline",
        chunks_or_one,
    ),
    SwitchKey("sequence_parallel", "parallel.sequence", why=ONE_TENSOR_RANK),
)
_OTHER_MODEL_KEYS = in_section(
    "model",
    CarriedKey("config._target_", "model"),
    DroppedKey("*attention_dropout", why="training.dropout is one value for both dropouts"),
    DroppedKey("*num_moe_experts", why=NO_EXPERTS, same_if=UNSET_OR_ONE, other_model="experts"),
    DroppedKey("*moe_*", why=NO_EXPERTS, same_if=UNSET_OR_OFF),
    DroppedKey("*expert_*", why=NO_EXPERTS, same_if=UNSET_OR_ONE),
    DroppedKey(
        "*window_size",
        why=NO_SUCH_PART,
        same_if=ALL_EARLIER_TOKENS,
        other_model=WINDOWED,
    ),
    DroppedKey("*qk_layernorm", why=NO_SUCH_PART, same_if=OFF, other_model=QUERY_KEY_NORMS),
    DroppedKey("*qk_l2_norm", why=NO_SUCH_PART, same_if=OFF, other_model=QUERY_KEY_NORMS),
    DroppedKey(
        "*multi_latent_attention",
        why=NO_SUCH_PART,
        same_if=UNSET_OR_OFF,
        other_model="multi-head latent attention",
    ),
    DroppedKey(
        "*mtp_num_layers",
        why=NO_SUCH_PART,
        same_if=_UNSET_OR_ZERO,
        other_model="layers that predict further tokens",
    ),
    DroppedKey(
        "*hybrid_override_pattern",
        why=NO_SUCH_PART,
        same_if=UNSET,
        other_model="Mamba layers",
    ),
    DroppedKey(
        "*is_hybrid_model", why=NO_SUCH_PART, same_if=UNSET_OR_OFF, other_model="Mamba layers"
    ),
    DroppedKey(
        "*softmax_type",
        why=NO_SUCH_PART,
        same_if=(None, "vanilla"),
        other_model="a softmax with sinks",
    ),
    DroppedKey(
        "*experimental_attention_variant",
        why=NO_SUCH_PART,
        same_if=UNSET,
        other_model="another kind of attention",
    ),
    DroppedKey(
        "*linear_attention_freq",
        why=NO_SUCH_PART,
        same_if=UNSET,
        other_model="layers of linear attention",
    ),
    DroppedKey(
        "*attention_output_gate",
        why=NO_SUCH_PART,
        same_if=UNSET_OR_OFF,
        other_model="gates on the output of the attention",
    ),
    DroppedKey("*no_rope_freq", why=NO_SUCH_PART, same_if=UNSET, other_model=SOME_WITHOUT_ROTARY),
    DroppedKey(
        "*seq_len_interpolation_factor",
        why=NO_SUCH_PART,
        same_if=UNSET_OR_ONE,
        other_model=SCALED_ROTARY,
    ),
    DroppedKey(
        "*logit_softcapping",
        why=NO_SUCH_PART,
        same_if=_UNSET_OR_ZERO,
        other_model="capped scores",
    ),
    DroppedKey(
        "*apply_residual_connection_post_layernorm",
        why=NO_SUCH_PART,
        same_if=UNSET_OR_OFF,
        other_model="residual connections that start after the norms",
    ),
    DroppedKey("*kv_channels", why=HEAD_WIDTH, same_if=UNSET),
    DroppedKey("*activation_func", why="goes with gated_linear_unit", same_if=UNSET),
    DroppedKey("*scale_factor", why="for sequences longer than those in training"),
    DroppedKey("*rotary_percent", why=NO_SUCH_PART, same_if=ONE, other_model=ROTARY_SHARE),
    DroppedKey("*fp8*", why=_SET_FP8, same_if=UNSET_OR_OFF),
    DroppedKey("*pipeline_dtype", why=PERFORMANCE),
    DroppedKey("*params_dtype", why=PERFORMANCE),
    DroppedKey("*make_vocab_size_divisible_by", why=PADDED_VOCABULARY),
    DroppedKey("*_target_", why=MODEL_CLASS),
    DroppedKey("*.*fusion", why=PERFORMANCE),
    DroppedKey("*account_for_*_in_pipeline_split", why=EVEN_STAGES, same_if=OFF),
    SwitchKey("*tp_comm_overlap", "training.overlap_tensor"),
)
MODEL_ROWS = (
    *in_section("model.config", *_MODEL_CONFIG),
    *in_section("model", *_MODEL_CONFIG),
    *_OTHER_MODEL_KEYS,
)
"""Rows for model keys, which NeMo 2 has under model.config, and Megatron Bridge under model."""

# Arguments for a recipe (recipes/llama3_8b.py), also used in scripts/performance/helpers.py
_ARGUMENTS = (
    IntegerKey("num_nodes", "jobs.training.nodes"),
    IntegerKey("num_gpus_per_node", "jobs.training.devices_per_node"),
    IntegerKey("max_steps", "training.iterations"),
    IntegerKey("tensor_parallelism", "parallel.tensor"),
    IntegerKey("pipeline_parallelism", "parallel.pipeline"),
    IntegerKey("context_parallelism", "parallel.context"),
    ConvertedKey("virtual_pipeline_parallelism", "parallel.virtual_pipeline", chunks_or_one),
    SwitchKey("sequence_parallelism", "parallel.sequence"),
    IntegerKey("global_batch_size", "training.global_batch"),
    IntegerKey("micro_batch_size", "training.micro_batch"),
    IntegerKey("seq_length", "training.sequence_length"),
    IntegerKey("warmup_steps", "training.warmup_iterations"),
    DecimalKey("max_lr", "training.learning_rate"),
    DecimalKey("min_lr", "training.min_learning_rate"),
    ConvertedKey("precision", "training.precision", _precision),
    DecimalKey("gradient_clip_val", "training.clip_gradient"),
    IntegerKey("tp_size", "parallel.tensor"),
    IntegerKey("pp_size", "parallel.pipeline"),
    IntegerKey("cp_size", "parallel.context"),
    ConvertedKey("vp_size", "parallel.virtual_pipeline", chunks_or_one),
    IntegerKey("gbs", "training.global_batch"),
    IntegerKey("mbs", "training.micro_batch"),
    SwitchKey("enable_cuda_graphs", "training.cuda_graphs"),
)
_CALL_ROWS = (
    *in_section(
        "pretrain_recipe",
        *_ARGUMENTS,
        DroppedKey("dir", why=FOLDERS),
        DroppedKey("name", why=FOLDERS),
        DroppedKey("performance_mode", why=PERFORMANCE),
        IntegerKey("log_every_n_steps", "training.log_interval"),
        DroppedKey("fn", why=_OWN_FUNCTION),
    ),
    *in_section(
        "set_primary_perf_configs",
        *_ARGUMENTS,
        DroppedKey("ep_size", why=NO_EXPERTS, same_if=UNSET_OR_ONE),
        DroppedKey("etp_size", why=NO_EXPERTS, same_if=UNSET_OR_ONE),
        DroppedKey("compute_dtype", why="fp8: set training.fp8", same_if=("bf16",)),
        DroppedKey("fp8_recipe", why=_SET_FP8, same_if=UNSET),
        DroppedKey("*", why=PERFORMANCE, same_if=UNSET_OR_OFF),
    ),
    DroppedKey("get_comm_overlap_callback_idx*", why=PERFORMANCE),
)
# nemo/lightning/pytorch/trainer.py and plugins/mixed_precision.py
_TRAINER_ROWS = in_section(
    "trainer",
    IntegerKey("num_nodes", "jobs.training.nodes"),
    IntegerKey("devices", "jobs.training.devices_per_node"),
    IntegerKey("max_steps", "training.iterations"),
    IntegerKey("val_check_interval", "training.eval_interval", why=_INTERVAL),
    ConvertedKey("limit_val_batches", "training.eval_iterations", _batches, why=_INTERVAL),
    DroppedKey("limit_test_batches", why="there is no test after training"),
    DroppedKey("num_sanity_val_steps", why="the first evaluation is at eval_interval"),
    IntegerKey("log_every_n_steps", "training.log_interval"),
    DecimalKey("gradient_clip_val", "training.clip_gradient"),
    DroppedKey(
        "accumulate_grad_batches",
        why=("computed from the global batch and the micro-batch"),
        same_if=ONE,
    ),
    DroppedKey("max_epochs", why="training.iterations sets the length"),
    DroppedKey("max_time", why="training.exit_duration"),
    ConvertedKey("plugins.precision", "training.precision", _precision),
    ConvertedKey(
        "plugins._target_",
        "training.precision",
        _precision,
        why="not the name of a precision",
    ),
    DroppedKey("plugins.grad_reduce_in_fp32", why=GRADIENTS_IN_32_BITS, same_if=ON),
    DroppedKey("plugins.fp8*", why=_SET_FP8, same_if=UNSET_OR_OFF),
    DroppedKey("plugins*", why="set by training.precision"),
    DroppedKey("enable_checkpointing", why="false means training.save_interval: 0"),
    SwitchKey(
        "callbacks.*tp_comm_overlap",
        "training.overlap_tensor",
        why="applies only with parallel.sequence",
    ),
    DroppedKey("callbacks*", why="code of that program"),
    DroppedKey("check_val_every_n_epoch", why="set by training.eval_interval", same_if=UNSET),
    DroppedKey("profiler*", why=PROFILE, same_if=UNSET),
    DroppedKey("enable_*", why=LOGGING),
    DroppedKey("logger*", why=LOGGING),
    DroppedKey("accelerator", why=STARTER),
    DroppedKey("use_distributed_sampler", why=STARTER),
    DroppedKey("_target_", why=OWN_CLASS),
)
# nemo/lightning/pytorch/strategies/megatron_strategy.py
_STRATEGY_ROWS = in_section(
    "trainer",
    IntegerKey("strategy.tensor_model_parallel_size", "parallel.tensor"),
    IntegerKey("strategy.pipeline_model_parallel_size", "parallel.pipeline"),
    IntegerKey("strategy.context_parallel_size", "parallel.context"),
    ConvertedKey(
        "strategy.virtual_pipeline_model_parallel_size",
        "parallel.virtual_pipeline",
        chunks_or_one,
    ),
    SwitchKey("strategy.sequence_parallel", "parallel.sequence", why=ONE_TENSOR_RANK),
    DroppedKey("strategy.expert_*", why=NO_EXPERTS, same_if=UNSET_OR_ONE),
    DroppedKey("strategy.account_for_*", why=EVEN_STAGES, same_if=OFF),
    SwitchKey("strategy.ddp.overlap_grad_reduce", "training.overlap_gradients"),
    SwitchKey("strategy.ddp.overlap_param_gather", "training.overlap_weights"),
    ChosenKey(
        "strategy.ddp.use_distributed_optimizer",
        "parallel.zero_stage",
        {True: 1, False: 0},
    ),
    DroppedKey("strategy.ddp.grad_reduce_in_fp32", why=GRADIENTS_IN_32_BITS, same_if=ON),
    SwitchKey("strategy.ckpt_async_save", "training.async_save"),
    DroppedKey("strategy.fsdp", why=WHOLE_WEIGHTS, same_if=UNSET),
    DroppedKey("strategy*", why=PERFORMANCE),
)
# nemo/collections/llm/gpt/data/pre_training.py, PreTrainingDataModule
_DATA_ROWS = in_section(
    "data",
    IntegerKey("seq_length", "training.sequence_length"),
    IntegerKey("global_batch_size", "training.global_batch"),
    IntegerKey("micro_batch_size", "training.micro_batch"),
    ConvertedKey("split", "data.split", _shares),
    IntegerKey("seed", "training.seed"),
    DroppedKey("paths*", why=FOLDER_OR_BLEND),
    DroppedKey("tokenizer*", why="data.tokenizer names its file"),
    DroppedKey("num_train_samples", why="training.iterations sets the length"),
    DroppedKey("rampup_batch_size", why=BATCH_RAMP, same_if=UNSET),
    DroppedKey("num_workers", why=PERFORMANCE),
    DroppedKey("pin_memory", why=PERFORMANCE),
    DroppedKey("persistent_workers", why=PERFORMANCE),
    DroppedKey("index_mapping_dir", why=FOLDERS),
    DroppedKey("dataset_kwargs*", why="02-data prepares the text", same_if=(None, {})),
    DroppedKey("reset_*", why=WHOLE_DOCUMENTS, same_if=OFF),
    DroppedKey("eod_mask_loss", why=EVERY_TOKEN_COUNTS, same_if=OFF),
    DroppedKey("_target_", why="02-data prepares the text"),
)
# OptimizerConfig in megatron-core, and nemo/lightning/pytorch/optim/lr_scheduler.py
_OPTIMIZER_ROWS = (
    *in_section(
        "optim.config",
        DecimalKey("lr", "training.learning_rate"),
        DecimalKey("weight_decay", "training.weight_decay"),
        DecimalKey("adam_beta1", "training.adam_beta1"),
        DecimalKey("adam_beta2", "training.adam_beta2"),
        DecimalKey("adam_eps", "training.adam_epsilon"),
        DecimalKey("clip_grad", "training.clip_gradient"),
        ChosenKey("bf16", "training.precision", {True: "bf16"}, why=_PLUGINS_SAY_IT),
        ChosenKey("fp16", "training.precision", {True: "fp16"}, why=_PLUGINS_SAY_IT),
        ChosenKey("use_distributed_optimizer", "parallel.zero_stage", {True: 1, False: 0}),
        DroppedKey("optimizer", why=ADAMW, same_if=("adam",)),
        DroppedKey("min_lr", why="optim.lr_scheduler.min_lr applies"),
        DroppedKey("*", why=PERFORMANCE),
    ),
    *in_section(
        "optim.lr_scheduler",
        IntegerKey("warmup_steps", "training.warmup_iterations"),
        DecimalKey("min_lr", "training.min_learning_rate"),
        IntegerKey("max_steps", "training.decay_iterations"),
        DroppedKey(
            "constant_steps",
            why="our schedules stay at the minimum automatically",
            same_if=ZERO,
        ),
        ChosenKey(
            "_target_",
            "training.schedule",
            {"cosineannealingscheduler": "cosine"},
            why="none of our schedules",
        ),
    ),
    *in_section(
        "optim",
        DecimalKey("max_lr", "training.learning_rate"),
        DecimalKey("min_lr", "training.min_learning_rate"),
        IntegerKey("warmup_steps", "training.warmup_iterations"),
        DecimalKey("clip_grad", "training.clip_gradient"),
        DroppedKey("adam_beta*", why="set training.adam_beta1 and adam_beta2"),
        DroppedKey("*", why=OWN_CLASS),
    ),
)
# nemo/lightning/run/plugins.py
_PLUGIN_ROWS = in_section(
    "run.plugins",
    DroppedKey("PerfEnvPlugin*", why="the site file sets environment variables"),
    DroppedKey("NsysPlugin*", why=PROFILE),
    DroppedKey("MemoryProfilePlugin*", why=PROFILE),
    DroppedKey("PreemptionPlugin*", why="a job that receives a stop signal saves and ends"),
    DroppedKey("FaultTolerancePlugin*", why="jobs.training.restarts and spares"),
    DroppedKey("ConfigValidationPlugin*", why="`runbook check` validates the run file"),
)
# nemo/lightning/nemo_logger.py and resume.py
_PROGRESS_ROWS = (
    IntegerKey("log.ckpt.every_n_train_steps", "training.save_interval"),
    DroppedKey("log.ckpt.save_top_k", why="training.keep_checkpoints keeps the newest"),
    DroppedKey("log.*", why=LOGGING),
    DroppedKey("resume.restore_config*", why=OTHER_WEIGHTS, same_if=UNSET),
    DroppedKey("resume*", why=OWN_CHECKPOINT),
    DroppedKey("tokenizer*", why="data.tokenizer names its file"),
)
ROWS = (
    CarriedKey("recipe", "model"),
    DroppedKey("_target_", why=_OWN_FUNCTION),
    DroppedKey("_partial_", why=_OWN_FUNCTION),
    *_CALL_ROWS,
    *_TRAINER_ROWS,
    *_STRATEGY_ROWS,
    *_DATA_ROWS,
    *_OPTIMIZER_ROWS,
    *_PLUGIN_ROWS,
    *_PROGRESS_ROWS,
    *MODEL_ROWS,
)
DEFAULTS: dict[str, Any] = {
    "trainer.max_steps": 1_168_251,
    "trainer.val_check_interval": 2000,
    "trainer.limit_val_batches": 32,
    "trainer.log_every_n_steps": 10,
    "trainer.num_nodes": 1,
    "trainer.devices": 8,
    "optim.config.lr": 3e-4,
    "optim.config.weight_decay": 0.1,
    "optim.config.adam_beta1": 0.9,
    "optim.config.adam_beta2": 0.95,
    "optim.config.adam_eps": 1e-5,
    "optim.config.clip_grad": 1.0,
    "optim.lr_scheduler.warmup_steps": 2000,
    "trainer.strategy.ddp.overlap_grad_reduce": True,
    "trainer.strategy.ddp.overlap_param_gather": True,
}
"""Defaults that recipes in NeMo share (recipes/llama3_8b.py, optim/adam.py, log/default.py)."""
