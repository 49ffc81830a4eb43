"""The keys of GPT-NeoX's YAML files. Keys may be spelled with `-` or `_`.

Based on EleutherAI/gpt-neox (megatron/neox_arguments/neox_args.py and deepspeed_args.py, 2026-11).
"""

from typing import Any

from runbook.tools.adopt.configs.rows import (
    ADAMW,
    FOLDER_OR_BLEND,
    FOLDERS,
    FULL_RECOMPUTE_ONLY,
    GRADIENTS_IN_32_BITS,
    LOGGING,
    NO_EXPERTS,
    NO_SUCH_PART,
    OFF,
    ON,
    ONE,
    OTHER_WEIGHTS,
    OWN_CHECKPOINT,
    PADDED_VOCABULARY,
    PERFORMANCE,
    PROFILE,
    QUERY_KEY_NORMS,
    ROTARY_SHARE,
    STARTER,
    UNSET,
    UNSET_OFF_OR_ONE,
    WINDOWED,
    ChosenKey,
    ConvertedKey,
    DecimalKey,
    DroppedKey,
    IntegerKey,
    PairKey,
    SwitchKey,
    TextKey,
    at_least_one,
    in_section,
    integer,
    without_spaces,
)
from runbook.tools.adopt.messages import AdoptMessage

_BUCKETS = "DeepSpeed's buffers: our trainer has its own"
_FP16_ONLY = "fp16 only"
_ALL_DEVICES = "jobs.training.nodes sets the devices"
_HELD_OUT_FILES = "list the files of the dataset, and set data.held_out"
_ACCUMULATION = "micro-batch x replicas x steps: training.global_batch"
_SAVED_WHOLE = "a checkpoint contains everything"
_GENERATION = "for generating text only"
_SHARE_OF_SAVES = "a share or a logarithm: set training.save_interval"
_PRECISION_SAYS_MORE = "`precision` or `bf16` is more specific"


def _power_of_two(value: Any) -> float:
    """Convert the exponent of a loss scale to the scale."""
    return 2.0 ** integer(value)


# neox_args.py, NeoXArgsModel
_MODEL_ROWS = (
    IntegerKey("num_layers", "training.shape.layers"),
    IntegerKey("hidden_size", "training.shape.hidden"),
    IntegerKey("num_attention_heads", "training.shape.heads"),
    IntegerKey("num_kv_heads", "training.shape.kv_heads"),
    IntegerKey(
        "intermediate_size",
        "training.shape.ffn_hidden",
        why="there, a gated block gets a third of it",
    ),
    IntegerKey("seq_length", "training.sequence_length"),
    IntegerKey(
        "max_position_embeddings",
        "training.shape.positions",
        why=AdoptMessage.ROTARY_WITHOUT_TABLE.fill(),
    ),
    ChosenKey(
        "norm",
        "model.normalization",
        {
            "layernorm": "layernorm",
            "rmsnorm": "rmsnorm",
            "te_rmsnorm": "rmsnorm",
            "te_layernorm": "layernorm",
        },
    ),
    DecimalKey("layernorm_epsilon", "model.norm_epsilon", why="applies only with its own norm"),
    DecimalKey("rms_norm_epsilon", "model.norm_epsilon", why="applies only with its own norm"),
    ChosenKey("pos_emb", "model.position_embedding", {"rotary": "rope", "learned": "learned"}),
    IntegerKey("rotary_emb_base", "model.rope_base"),
    DroppedKey(
        "rotary_pct",
        why=f"rotates a share of each head: {NO_SUCH_PART}",
        same_if=ONE,
        other_model=ROTARY_SHARE,
    ),
    ChosenKey(
        "activation",
        "model.activation",
        {"gelu": "gelu", "swiglu": "swiglu", "silu": "swiglu"},
    ),
    ChosenKey("no_weight_tying", "model.tied_embeddings", {True: False, False: True}),
    SwitchKey("use_bias_in_attn_linear", "model.biases"),
    SwitchKey(
        "use_bias_in_mlp",
        "model.biases",
        why="one switch for all matrices: use_bias_in_attn_linear",
    ),
    DroppedKey("use_bias_in_norms", why="a LayerNorm has biases here, an RMSNorm has none"),
    DroppedKey(
        "gpt_j_residual",
        why=f"attention and feed-forward side by side: {NO_SUCH_PART}",
        same_if=OFF,
        other_model="attention and feed-forward side by side",
    ),
    DroppedKey(
        "gpt_j_tied",
        why=NO_SUCH_PART,
        same_if=OFF,
        other_model="one norm for attention and feed-forward",
    ),
    DroppedKey("use_qk_layernorm", why=NO_SUCH_PART, same_if=OFF, other_model=QUERY_KEY_NORMS),
    DroppedKey("sliding_window_width", why=NO_SUCH_PART, same_if=UNSET, other_model=WINDOWED),
    DroppedKey("moe_num_experts", why=NO_EXPERTS, same_if=(None, 0, 1), other_model="experts"),
    DroppedKey("moe_*", why=NO_EXPERTS, same_if=UNSET_OFF_OR_ONE),
    DroppedKey("expert_*", why=NO_EXPERTS, same_if=UNSET_OFF_OR_ONE),
    ChosenKey(
        "mlp_type",
        "model.activation",
        {"regular": "gelu", "llama": "swiglu"},
        why="`activation` is more specific",
    ),
    DroppedKey("use_mup", why=NO_SUCH_PART, same_if=OFF),
    DroppedKey("mup_*", why="applies only with use_mup"),
    DroppedKey("attention_config", why="one kernel for all layers: training.attention"),
    DroppedKey("sparsity_config*", why="applies only to sparse layers of attention_config"),
    DroppedKey("mlp_multiple_of", why="included in training.shape.ffn_hidden"),
    DroppedKey("make_vocab_size_divisible_by", why=PADDED_VOCABULARY),
    DroppedKey(
        "init_method",
        why="a normal distribution with training.init_std",
        same_if=("normal",),
    ),
    DroppedKey(
        "output_layer_init_method",
        why="smaller for output matrices, depending on the number of layers",
        same_if=("scaled_normal",),
    ),
    DecimalKey("init_method_std", "training.init_std"),
    DroppedKey(
        "output_layer_parallelism",
        why="the output matrix is split by columns",
        same_if=("column",),
    ),
    DroppedKey("attention_dropout", why="training.dropout is one value for both dropouts"),
    DecimalKey("hidden_dropout", "training.dropout"),
)
# neox_args.py, NeoXArgsOptimizer and NeoXArgsLRScheduler
_OPTIMIZER_ROWS = (
    *in_section(
        "optimizer",
        DroppedKey("type", why=ADAMW, same_if=("Adam", "adam", "AdamW")),
        DecimalKey("params.lr", "training.learning_rate"),
        PairKey("params.betas", "training.adam_beta1", "training.adam_beta2"),
        DecimalKey("params.eps", "training.adam_epsilon"),
        DecimalKey("params.weight_decay", "training.weight_decay"),
    ),
    DecimalKey("lr", "training.learning_rate"),
    DecimalKey("min_lr", "training.min_learning_rate"),
    DecimalKey("weight_decay", "training.weight_decay"),
    DecimalKey("gradient_clipping", "training.clip_gradient"),
    DecimalKey("clip_grad", "training.clip_gradient"),
    IntegerKey("train_iters", "training.iterations"),
    DroppedKey("train_epochs", why="set training.iterations, or training.tokens"),
    IntegerKey("lr_decay_iters", "training.decay_iterations"),
    DroppedKey("lr_decay_fraction", why="multiplied by train_iters: training.decay_iterations"),
    TextKey("lr_decay_style", "training.schedule"),
    DecimalKey(
        "warmup",
        "training.warmup_fraction",
        why="1 is the whole training run: training.warmup_iterations",
    ),
    DroppedKey("override_lr_scheduler", why="training.resume_changed", same_if=OFF),
    DroppedKey("use_checkpoint_lr_scheduler", why="training.resume_changed", same_if=OFF),
)
# neox_args.py, NeoXArgsParallelism
_LAYOUT_ROWS = (
    ConvertedKey("pipe_parallel_size", "parallel.pipeline", at_least_one),
    IntegerKey("model_parallel_size", "parallel.tensor"),
    SwitchKey("sequence_parallel", "parallel.sequence"),
    IntegerKey("context_parallel_size", "parallel.context"),
    DroppedKey("pipe_partition_method", why="all stages have the same number of layers"),
    DroppedKey("global_num_gpus", why=_ALL_DEVICES, same_if=UNSET),
    DroppedKey("num_gpus", why=_ALL_DEVICES),
    IntegerKey("num_nodes", "jobs.training.nodes"),
)
# deepspeed_args.py
_DEEPSPEED_ROWS = (
    IntegerKey("train_micro_batch_size_per_gpu", "training.micro_batch"),
    IntegerKey("batch_size", "training.micro_batch"),
    IntegerKey("train_batch_size", "training.global_batch"),
    IntegerKey("gradient_accumulation_steps", "gas", why=_ACCUMULATION),
    IntegerKey("gas", "gas", why=_ACCUMULATION),
    *in_section(
        "zero_optimization",
        IntegerKey("stage", "parallel.zero_stage", why="stages above 1 are DeepSpeed's"),
        SwitchKey("cpu_offload", "training.offload"),
        SwitchKey("overlap_comm", "training.overlap_gradients"),
        DroppedKey("*", why=_BUCKETS),
    ),
    DroppedKey("zero_allow_untested_optimizer", why=_BUCKETS),
    *in_section(
        "fp16",
        ChosenKey(
            "enabled",
            "training.precision",
            {True: "fp16", False: "fp32"},
            why=_PRECISION_SAYS_MORE,
        ),
        ChosenKey("type", "training.precision", {"bfloat16": "bf16", "fp16": "fp16"}),
        ChosenKey(
            "fp16",
            "training.precision",
            {True: "fp16", False: "fp32"},
            why=_PRECISION_SAYS_MORE,
        ),
        DecimalKey("loss_scale", "training.static_loss_scale", why=_FP16_ONLY),
        IntegerKey("loss_scale_window", "training.loss_scale_window", why=_FP16_ONLY),
        IntegerKey("hysteresis", "training.loss_scale_hysteresis", why=_FP16_ONLY),
        DecimalKey("min_loss_scale", "training.min_loss_scale", why=_FP16_ONLY),
        ConvertedKey(
            "initial_scale_power",
            "training.initial_loss_scale",
            _power_of_two,
            why=_FP16_ONLY,
        ),
        DroppedKey("*", why=_FP16_ONLY),
    ),
    ChosenKey(
        "bf16.enabled",
        "training.precision",
        {True: "bf16", False: "fp32"},
        why="`precision` is more specific",
    ),
    ChosenKey(
        "precision",
        "training.precision",
        {"bfloat16": "bf16", "fp16": "fp16", "fp32": "fp32"},
    ),
    DroppedKey("data_types.grad_accum_dtype", why=GRADIENTS_IN_32_BITS, same_if=("fp32",)),
    DroppedKey("fp32_allreduce", why=GRADIENTS_IN_32_BITS, same_if=ON),
    DroppedKey("activation_checkpointing.*", why="goes with training.recompute"),
    DroppedKey("steps_per_print", why=LOGGING),
    DroppedKey("wall_clock_breakdown", why=LOGGING),
    DroppedKey("comms_logger*", why=LOGGING),
    DroppedKey("flops_profiler*", why=PROFILE),
    DroppedKey("deepspeed_*", why=STARTER),
)
# neox_args.py, NeoXArgsModel: recomputed activations
_RECOMPUTE_ROWS = (
    ChosenKey("checkpoint_activations", "training.recompute", {True: "full", False: "none"}),
    IntegerKey(
        "checkpoint_num_layers",
        "training.recompute_num_layers",
        why=FULL_RECOMPUTE_ONLY,
    ),
    DroppedKey(
        "partition_activations",
        why="a layer's stored activations are not split over the tensor ranks",
        same_if=OFF,
    ),
    DroppedKey("synchronize_each_layer", why=PERFORMANCE),
    DroppedKey("contiguous_checkpointing", why=PERFORMANCE),
    DroppedKey("checkpoint_in_cpu", why="activations stay on the device", same_if=OFF),
)
# neox_args.py, NeoXArgsTraining and NeoXArgsTokenizer
_TEXT_ROWS = (
    TextKey("data_path", "data.folder"),
    DroppedKey("train_data_paths", why=FOLDER_OR_BLEND),
    DroppedKey("valid*data*paths", why=_HELD_OUT_FILES),
    DroppedKey("test*data*paths", why=_HELD_OUT_FILES),
    DroppedKey("*data*weights", why="set data.blend"),
    DroppedKey("label_data_paths", why=NO_SUCH_PART),
    ConvertedKey("split", "data.split", without_spaces),
    TextKey("vocab_file", "data.tokenizer", why="GPT-2's vocabulary and merges are shipped"),
    DroppedKey("merge*file", why="GPT-2's merges are shipped; tokenizer.json has its own"),
    DroppedKey("tokenizer_type", why="data.tokenizer names its file"),
    DroppedKey("data_impl", why="token files are read by mmap", same_if=("mmap",)),
    DroppedKey("pack_impl", why="documents are packed", same_if=("packed",)),
    DroppedKey("weight_by_num_documents", why="set data.blend", same_if=OFF),
    DroppedKey("weighted_sampler_alpha", why="set data.blend"),
    DroppedKey("num_workers", why=PERFORMANCE),
    DroppedKey("mmap_warmup", why=PERFORMANCE),
)
# neox_args.py, NeoXArgsTraining
_CHECKPOINT_ROWS = (
    IntegerKey("checkpoint_factor", "training.save_interval", why=_SHARE_OF_SAVES),
    IntegerKey("save_interval", "training.save_interval"),
    DroppedKey("checkpoint_scale", why="saves are evenly spaced", same_if=("linear",)),
    DroppedKey("extra_save_iters", why="saves are evenly spaced"),
    IntegerKey("keep_last_n_checkpoints", "training.keep_checkpoints"),
    DroppedKey("checkpoint*", why="a checkpoint is verified with checksums"),
    DroppedKey("finetune", why=OTHER_WEIGHTS, same_if=OFF),
    DroppedKey("no_*_optim", why=_SAVED_WHOLE, same_if=OFF),
    DroppedKey("no_*_rng", why=_SAVED_WHOLE, same_if=OFF),
    DroppedKey("save", why=FOLDERS),
    DroppedKey("load", why=OWN_CHECKPOINT),
    DroppedKey("s3_*", why=FOLDERS),
)
# neox_args.py, NeoXArgsTraining and NeoXArgsLogging
_PROGRESS_ROWS = (
    IntegerKey("eval_interval", "training.eval_interval"),
    IntegerKey("eval_iters", "training.eval_iterations"),
    DroppedKey("eval_*", why="06-evaluation"),
    IntegerKey("log_interval", "training.log_interval"),
    IntegerKey("seed", "training.seed"),
    IntegerKey("exit_interval", "training.exit_interval"),
    DroppedKey("log_*", why=LOGGING),
    DroppedKey("tensorboard*", why=LOGGING),
    DroppedKey("use_wandb", why="training.trackers", same_if=OFF),
    DroppedKey("wandb*", why="training.trackers"),
    DroppedKey("*comet*", why="training.trackers"),
    DroppedKey("profile*", why=PROFILE, same_if=OFF),
    DroppedKey("memory_profiling*", why=PROFILE, same_if=OFF),
)
# neox_args.py, NeoXArgsModel: kernels
_KERNEL_ROWS = (
    DroppedKey("*fusion", why=PERFORMANCE),
    DroppedKey("use_flashattn_swiglu", why=PERFORMANCE),
    DroppedKey(
        "te_*",
        why="our trainer uses Transformer Engine where it is installed",
        same_if=OFF,
    ),
    DroppedKey("attention_softmax_in_fp32", why=PERFORMANCE),
    DroppedKey("apply_query_key_layer_scaling", why="never: bf16 does not need it", same_if=OFF),
    DroppedKey("fp16_lm_cross_entropy", why="the loss is computed in 32 bits", same_if=OFF),
)
# deepspeed_args.py, NeoXArgsDeepspeedRunner
_LAUNCH_ROWS = (
    DroppedKey("distributed*backend", why=STARTER),
    DroppedKey("launcher", why=STARTER),
    DroppedKey("hostfile", why=STARTER),
    DroppedKey("use_shared_fs", why="the index of the text is built once, in the run's folder"),
    DroppedKey("include", why=STARTER),
    DroppedKey("master_*", why=STARTER),
    DroppedKey("comment", why=STARTER),
    DroppedKey("no_ssh_check", why=STARTER),
)
# neox_args.py, NeoXArgsTextgen
_GENERATION_ROWS = (
    DroppedKey("text*gen*", why=_GENERATION),
    DroppedKey("maximum_tokens", why=_GENERATION),
    DroppedKey("prompt_end", why=_GENERATION),
    DroppedKey("temperature", why=_GENERATION),
    DroppedKey("top_*", why=_GENERATION),
    DroppedKey("sample_*put_file", why=_GENERATION),
    DroppedKey("num_samples", why=_GENERATION),
)
ROWS = (
    *_MODEL_ROWS,
    *_OPTIMIZER_ROWS,
    *_LAYOUT_ROWS,
    *_DEEPSPEED_ROWS,
    *_RECOMPUTE_ROWS,
    *_TEXT_ROWS,
    *_CHECKPOINT_ROWS,
    *_PROGRESS_ROWS,
    *_KERNEL_ROWS,
    *_LAUNCH_ROWS,
    *_GENERATION_ROWS,
)
DEFAULTS: dict[str, Any] = {
    "optimizer.params.lr": 1e-3,
    "min_lr": 0.0,
    "weight_decay": 0.1,
    "gradient_clipping": 1.0,
    "lr_decay_style": "linear",
    "warmup": 0.01,
    "hidden_dropout": 0.0,
    "log_interval": 100,
    "eval_interval": 1000,
    "eval_iters": 100,
    "seed": 1234,
    "split": "969, 30, 1",
    "checkpoint_activations": False,
}
"""Defaults in GPT-NeoX (neox_args.py, deepspeed_args.py)."""
