"""Keys in YAML files for nanotron: model, optimizer, parallelism, tokens and data_stages.

Based on huggingface/nanotron, 2026-11 (src/nanotron/config/config.py and models_config.py), and on
its users' files.
"""

from typing import Any

from runbook.tools.adopt.configs.rows import (
    ADAMW,
    FOLDERS,
    GRADIENTS_IN_32_BITS,
    LOGGING,
    NO_EXPERTS,
    NO_SUCH_PART,
    OFF,
    ON,
    ONE,
    ONE_TENSOR_RANK,
    OTHER_WEIGHTS,
    PADDED_VOCABULARY,
    PERFORMANCE,
    PROFILE,
    SCALED_ROTARY,
    SOME_WITHOUT_ROTARY,
    TOKENIZER_FILE,
    UNSET,
    UNSET_OR_OFF,
    WHOLE_DOCUMENTS,
    WINDOWED,
    ZERO,
    ChosenKey,
    ConvertedKey,
    DecimalKey,
    DroppedKey,
    IntegerKey,
    SwitchKey,
    TextKey,
    at_least_zero,
    in_section,
)
from runbook.tools.adopt.messages import AdoptMessage

_MODEL_KIND = "the model's kind"
_ONE_SEED = "one seed for weights and text: training.seed"
_OWN_TEXT = "02-data prepares its own text: data.dataset"
_IN_TOKENIZER_FILE = "given by the tokenizer's file"

# models_config.py, LlamaConfig and Qwen2Config
_MODEL_CONFIG_ROWS = in_section(
    "model.model_config",
    IntegerKey("num_hidden_layers", "training.shape.layers"),
    IntegerKey("hidden_size", "training.shape.hidden"),
    IntegerKey("num_attention_heads", "training.shape.heads"),
    IntegerKey("num_key_value_heads", "training.shape.kv_heads"),
    IntegerKey("intermediate_size", "training.shape.ffn_hidden"),
    ChosenKey("hidden_act", "model.activation", {"silu": "swiglu", "swiglu": "swiglu"}),
    DecimalKey("rms_norm_eps", "model.norm_epsilon"),
    IntegerKey("rope_theta", "model.rope_base"),
    SwitchKey("tie_word_embeddings", "model.tied_embeddings"),
    SwitchKey("attention_bias", "model.qkv_biases"),
    IntegerKey("vocab_size", "model.vocabulary"),
    DroppedKey("max_position_embeddings", why=AdoptMessage.ROTARY_WITHOUT_TABLE.fill()),
    DroppedKey("rope_scaling*", why=NO_SUCH_PART, same_if=(None, {}), other_model=SCALED_ROTARY),
    DroppedKey(
        "no_rope_layer",
        why=NO_SUCH_PART,
        same_if=(None, 0),
        other_model=SOME_WITHOUT_ROTARY,
    ),
    DroppedKey("sliding_window_size", why=NO_SUCH_PART, same_if=UNSET, other_model=WINDOWED),
    DroppedKey(
        "moe_config.num_experts",
        why=NO_EXPERTS,
        same_if=(None, 0, 1),
        other_model="experts",
    ),
    DroppedKey("moe_config*", why=NO_EXPERTS, same_if=UNSET_OR_OFF),
    DroppedKey("z_loss_enabled", why=NO_SUCH_PART, same_if=OFF),
    DroppedKey("z_loss_coefficient", why="applies only with z_loss_enabled"),
    DroppedKey("_use_doc_masking", why=WHOLE_DOCUMENTS, same_if=OFF),
    DroppedKey("_*", why=PERFORMANCE),
    DroppedKey("is_llama_config", why=_MODEL_KIND, same_if=ON),
    DroppedKey("is_qwen2_config", why=_MODEL_KIND, same_if=ON),
    DroppedKey("is_*", why=NO_SUCH_PART, same_if=OFF, other_model="custom layers"),
    DroppedKey("vision_config*", why=NO_SUCH_PART, same_if=UNSET, other_model="a vision encoder"),
    DroppedKey("text_config*", why="the text model of a vision-language model"),
    DroppedKey("initializer_range", why="model.init_method.std is used"),
    DroppedKey("rope_interleaved", why="the order of a weight's columns", same_if=OFF),
    DroppedKey("pretraining_tp", why=PERFORMANCE, same_if=ONE),
    DroppedKey("use_cache", why="for generating text only"),
    DroppedKey("*_token_id", why=_IN_TOKENIZER_FILE),
    DroppedKey("flex_attention_mask", why=NO_SUCH_PART, same_if=UNSET),
)
# config.py, ModelArgs
_MODEL_ROWS = in_section(
    "model",
    DecimalKey("init_method.std", "training.init_std"),
    DroppedKey(
        "init_method.scaling_method",
        why="smaller for output matrices, depending on the number of layers",
        same_if=("NUM_LAYERS",),
    ),
    DroppedKey("init_method.path", why=OTHER_WEIGHTS),
    DroppedKey("init_method.*", why=NO_SUCH_PART),
    ChosenKey(
        "dtype",
        "training.precision",
        {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"},
    ),
    DroppedKey("make_vocab_size_divisible_by", why=PADDED_VOCABULARY),
    DroppedKey("ddp_bucket_cap_mb", why=PERFORMANCE),
)
# config.py, OptimizerArgs; in earlier versions, values for Adam were in a separate section
_OPTIMIZER_ROWS = in_section(
    "optimizer",
    DecimalKey("optimizer_factory.adam_beta1", "training.adam_beta1"),
    DecimalKey("optimizer_factory.adam_beta2", "training.adam_beta2"),
    DecimalKey("optimizer_factory.adam_eps", "training.adam_epsilon"),
    DroppedKey("optimizer_factory.name", why=ADAMW, same_if=("adamW", "adamw")),
    DroppedKey("optimizer_factory.torch_adam_is_fused", why=PERFORMANCE),
    DecimalKey("adam_beta1", "training.adam_beta1"),
    DecimalKey("adam_beta2", "training.adam_beta2"),
    DecimalKey("adam_eps", "training.adam_epsilon"),
    DroppedKey("torch_adam_is_fused", why=PERFORMANCE),
    DecimalKey("weight_decay", "training.weight_decay"),
    DroppedKey(
        "weight_decay_exclude_named_params",
        why="weight decay excludes only norms and biases",
        same_if=([], None),
    ),
    DecimalKey("clip_grad", "training.clip_gradient"),
    IntegerKey("zero_stage", "parallel.zero_stage", why="our trainer supports 0 and 1"),
    DroppedKey("accumulate_grad_in_fp32", why=GRADIENTS_IN_32_BITS, same_if=ON),
)
# config.py, LRSchedulerArgs
_SCHEDULE_ROWS = in_section(
    "optimizer.learning_rate_scheduler",
    DecimalKey("learning_rate", "training.learning_rate"),
    IntegerKey("lr_warmup_steps", "training.warmup_iterations"),
    DroppedKey("lr_warmup_style", why="the warm-up is linear", same_if=("linear",)),
    TextKey("lr_decay_style", "training.schedule", why="first stays at the peak: schedule wsd"),
    IntegerKey(
        "lr_decay_steps",
        "training.decay_iterations",
        why="there counted from the end of the warm-up, here from the first step",
    ),
    DroppedKey(
        "lr_decay_starting_step",
        why="included in training.decay_iterations and wsd_decay_fraction",
        same_if=UNSET,
    ),
    DecimalKey("min_decay_lr", "training.min_learning_rate"),
)
# config/parallelism_config.py
_LAYOUT_ROWS = in_section(
    "parallelism",
    IntegerKey("tp", "parallel.tensor"),
    IntegerKey("pp", "parallel.pipeline"),
    DroppedKey(
        "dp",
        why="jobs.training.nodes sets the devices; the remaining ones are data parallel",
    ),
    IntegerKey("context_parallel_size", "parallel.context"),
    DroppedKey("expert_parallel_size", why=NO_EXPERTS, same_if=ONE),
    DroppedKey("moe_layer_recompute", why=NO_EXPERTS, same_if=OFF),
    ChosenKey(
        "tp_mode",
        "parallel.sequence",
        {"reduce_scatter": True, "all_reduce": False},
        why=ONE_TENSOR_RANK,
    ),
    DroppedKey(
        "pp_engine",
        why="stages alternate one forward and one backward pass (1F1B)",
        same_if=("1f1b",),
    ),
    ChosenKey("recompute_layer", "training.recompute", {True: "full", False: "none"}),
    DroppedKey("tp_*", why=PERFORMANCE),
)
# config.py, TokensArgs
_TOKENS_ROWS = in_section(
    "tokens",
    IntegerKey("sequence_length", "training.sequence_length"),
    IntegerKey("train_steps", "training.iterations"),
    IntegerKey("micro_batch_size", "training.micro_batch"),
    DroppedKey(
        "batch_accumulation_per_replica",
        why="micro-batch x replicas x accumulation: training.global_batch",
    ),
    ConvertedKey("val_check_interval", "training.eval_interval", at_least_zero),
    IntegerKey("limit_val_batches", "training.eval_iterations", why="nothing is evaluated"),
    DroppedKey("limit_test_batches", why="there is no test after training", same_if=ZERO),
)
# config.py, DatasetStageArgs; earlier versions have a single `data` section
_DATA_ROWS = (
    *in_section(
        "data_stages",
        DroppedKey("0.data.seed", why=_ONE_SEED),
        DroppedKey("0.data.num_loading_workers", why=PERFORMANCE),
        TextKey("0.data.dataset.text_column_name", "data.text_key"),
        ChosenKey("0.data.dataset", "data.dataset", {None: "mock"}),
        DroppedKey(
            "0.data.dataset.dataset_folder",
            why="set data.folder, or data.blend with one dataset per folder",
        ),
        DroppedKey(
            "0.data.dataset.dataset_weights",
            why="set data.blend",
            same_if=(None, [1], [1.0]),
        ),
        DroppedKey("0.data.dataset.*", why=_OWN_TEXT),
        DroppedKey("0.*", why="the only stage that is read"),
        DroppedKey("*", why="one dataset for the whole training run: later stages are left out"),
    ),
    *in_section(
        "data",
        TextKey("dataset.text_column_name", "data.text_key"),
        DroppedKey("dataset*", why=_OWN_TEXT),
        DroppedKey("seed", why=_ONE_SEED),
        DroppedKey("num_loading_workers", why=PERFORMANCE),
    ),
)
# config.py: GeneralArgs, DoremiArgs, CheckpointsArgs, TokenizerArgs, LoggingArgs and others
_PROGRESS_ROWS = (
    IntegerKey("general.seed", "training.seed"),
    DroppedKey("general.*", why=LOGGING),
    DroppedKey("doremi.*", why="the weight of each text is fixed: data.blend", same_if=UNSET),
    IntegerKey("checkpoints.checkpoint_interval", "training.save_interval"),
    DroppedKey("checkpoints.resume_checkpoint_path", why=OTHER_WEIGHTS, same_if=UNSET),
    DroppedKey("checkpoints.*", why=FOLDERS),
    TextKey("tokenizer.tokenizer_name_or_path", "data.tokenizer", why=TOKENIZER_FILE),
    DroppedKey("tokenizer.*", why=_IN_TOKENIZER_FILE, same_if=UNSET),
    IntegerKey("logging.iteration_step_info_interval", "training.log_interval"),
    DroppedKey("logging.*", why=LOGGING),
    DroppedKey("metrics_logging*", why=LOGGING),
    DroppedKey("profiler*", why=PROFILE, same_if=UNSET),
    DroppedKey("lighteval*", why="06-evaluation", same_if=UNSET),
    DroppedKey("s3_upload*", why=FOLDERS, same_if=UNSET),
)
ROWS = (
    *_MODEL_CONFIG_ROWS,
    *_MODEL_ROWS,
    *_SCHEDULE_ROWS,
    *_OPTIMIZER_ROWS,
    *_LAYOUT_ROWS,
    *_TOKENS_ROWS,
    *_DATA_ROWS,
    *_PROGRESS_ROWS,
)
DEFAULTS: dict[str, Any] = {
    "optimizer.learning_rate_scheduler.lr_decay_style": "linear",
    "optimizer.zero_stage": 0,
    "tokens.limit_val_batches": 0,
}
"""Defaults in nanotron (config.py)."""
