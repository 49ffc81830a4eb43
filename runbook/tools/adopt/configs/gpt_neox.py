"""GPT-NeoX's YAML files: num_layers, optimizer.params.lr, zero_optimization. Several of them make one configuration.

Read from EleutherAI/gpt-neox (megatron/neox_arguments/neox_args.py, configs/).
"""

from typing import Any

from runbook.tools.adopt.configs.rows import (
    FOLDERS,
    LOGGING,
    PERFORMANCE,
    PROFILE,
    ConfigFormat,
    KeyRow,
    OtherProgram,
    Values,
    chosen,
    decimal,
    integer,
    is_on,
    line_of,
    number,
    switch,
    take_path_of_tokenizer,
    text,
    whole_number,
    word,
)
from runbook.tools.adopt.findings import Findings
from runbook.tools.adopt.options import ModelKind

_NO_SUCH_MODEL = "our models have no such part: the training is another one"
_BUCKETS = "DeepSpeed's buffers: our trainer has its own"
_STARTER = "the site's launcher starts the processes"
_NO_EXPERTS = "our models have no experts"


def _betas(place: int) -> Any:
    def read(value: Any) -> float:
        return float(value[place])

    return read


def _pair(value: Any) -> list[float]:
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError(value)
    return [decimal(item) for item in value]


_ROWS = (
    KeyRow("num_layers", "training.shape.layers", integer),
    KeyRow("hidden_size", "training.shape.hidden", integer),
    KeyRow("num_attention_heads", "training.shape.heads", integer),
    KeyRow("num_kv_heads", "training.shape.kv_heads", integer),
    KeyRow(
        "intermediate_size",
        "training.shape.ffn_hidden",
        integer,
        "a gated block there has a third of it",
    ),
    KeyRow("seq_length", "training.sequence_length", integer),
    KeyRow(
        "max_position_embeddings",
        "training.shape.positions",
        integer,
        "rotary angles have no table of positions",
    ),
    KeyRow(
        "norm",
        "model.normalization",
        chosen(
            {
                "layernorm": "layernorm",
                "rmsnorm": "rmsnorm",
                "te_rmsnorm": "rmsnorm",
                "te_layernorm": "layernorm",
            }
        ),
    ),
    KeyRow("layernorm_epsilon", "model.norm_epsilon", decimal, "counts with its own norm only"),
    KeyRow("rms_norm_epsilon", "model.norm_epsilon", decimal, "counts with its own norm only"),
    KeyRow("pos_emb", "model.position_embedding", chosen({"rotary": "rope", "learned": "learned"})),
    KeyRow("rotary_emb_base", "model.rope_base", integer),
    KeyRow("rotary_pct", "", why=f"rotates a share of each head: {_NO_SUCH_MODEL}", off=(1, 1.0)),
    KeyRow(
        "activation",
        "model.activation",
        chosen({"gelu": "gelu", "swiglu": "swiglu", "silu": "swiglu"}),
    ),
    KeyRow("no_weight_tying", "model.tied_embeddings", chosen({True: False, False: True})),
    KeyRow("use_bias_in_attn_linear", "model.biases", switch),
    KeyRow(
        "use_bias_in_mlp",
        "model.biases",
        switch,
        "one switch for all matrices: use_bias_in_attn_linear",
    ),
    KeyRow("use_bias_in_norms", "", why="a LayerNorm has biases here, an RMSNorm has none"),
    KeyRow(
        "gpt_j_residual",
        "",
        why=f"attention and feed-forward side by side: {_NO_SUCH_MODEL}",
        off=(False,),
    ),
    KeyRow("gpt_j_tied", "", why=_NO_SUCH_MODEL, off=(False,)),
    KeyRow("use_qk_layernorm", "", why=_NO_SUCH_MODEL, off=(False,)),
    KeyRow("sliding_window_width", "", why=_NO_SUCH_MODEL, off=(None,)),
    KeyRow("moe_num_experts", "", why=_NO_EXPERTS, off=(1, None), other_model="experts"),
    KeyRow("moe_*", "", why=_NO_EXPERTS, off=(1, None, False)),
    KeyRow("expert_*", "", why=_NO_EXPERTS, off=(1, None, False)),
    KeyRow(
        "mlp_type",
        "model.activation",
        chosen({"regular": "gelu", "llama": "swiglu"}),
        "`activation` says more",
    ),
    KeyRow("use_mup", "", why=_NO_SUCH_MODEL, off=(False,)),
    KeyRow("mup_*", "", why="counts with use_mup only"),
    KeyRow("attention_config", "", why="one kernel for all layers: training.attention"),
    KeyRow("sparsity_config*", "", why=_NO_SUCH_MODEL),
    KeyRow("mlp_multiple_of", "", why="counts in training.shape.ffn_hidden"),
    KeyRow("make_vocab_size_divisible_by", "", why="the vocabulary is padded to a multiple of 128"),
    KeyRow("init_method", "", why="a normal distribution of training.init_std", off=("normal",)),
    KeyRow(
        "output_layer_init_method",
        "",
        why="output matrices by the number of layers",
        off=("scaled_normal",),
    ),
    KeyRow("init_method_std", "training.init_std", decimal),
    KeyRow(
        "output_layer_parallelism", "", why="the output matrix is cut by columns", off=("column",)
    ),
    KeyRow("attention_dropout", "", why="training.dropout is one value for both dropouts"),
    KeyRow("hidden_dropout", "training.dropout", decimal),
    KeyRow("optimizer.type", "", why="our optimizer is AdamW", off=("Adam", "adam", "AdamW")),
    KeyRow("optimizer.params.lr", "training.learning_rate", decimal),
    KeyRow("optimizer.params.betas", "training.adam_beta1 training.adam_beta2", _pair),
    KeyRow("optimizer.params.eps", "training.adam_epsilon", decimal),
    KeyRow("optimizer.params.weight_decay", "training.weight_decay", decimal),
    KeyRow("lr", "training.learning_rate", decimal),
    KeyRow("min_lr", "training.min_learning_rate", decimal),
    KeyRow("weight_decay", "training.weight_decay", decimal),
    KeyRow("gradient_clipping", "training.clip_gradient", decimal),
    KeyRow("clip_grad", "training.clip_gradient", decimal),
    KeyRow("train_iters", "training.iterations", integer),
    KeyRow("train_epochs", "", why="set training.iterations, or training.tokens"),
    KeyRow("lr_decay_iters", "training.decay_iterations", integer),
    KeyRow("lr_decay_fraction", "", why="x train_iters: training.decay_iterations"),
    KeyRow("lr_decay_style", "training.schedule", word),
    KeyRow(
        "warmup",
        "training.warmup_fraction",
        decimal,
        "1 is the whole training: training.warmup_iterations",
    ),
    KeyRow("override_lr_scheduler", "", why="training.resume_changed", off=(False,)),
    KeyRow("use_checkpoint_lr_scheduler", "", why="training.resume_changed", off=(False,)),
    KeyRow("pipe_parallel_size", "parallel.pipeline", lambda value: max(1, integer(value))),
    KeyRow("model_parallel_size", "parallel.tensor", integer),
    KeyRow("sequence_parallel", "parallel.sequence", switch),
    KeyRow("context_parallel_size", "parallel.context", integer),
    KeyRow("pipe_partition_method", "", why="stages have as many layers each"),
    KeyRow("train_micro_batch_size_per_gpu", "training.micro_batch", integer),
    KeyRow("batch_size", "training.micro_batch", integer),
    KeyRow("train_batch_size", "training.global_batch", integer),
    KeyRow(
        "gradient_accumulation_steps",
        "gas",
        integer,
        "micro-batch x replicas x steps: training.global_batch",
    ),
    KeyRow("gas", "gas", integer, "micro-batch x replicas x steps: training.global_batch"),
    KeyRow("global_num_gpus", "", why="jobs.training.nodes has the devices", off=(None,)),
    KeyRow("zero_optimization.stage", "parallel.zero_stage", integer, "more than 1 is DeepSpeed's"),
    KeyRow("zero_optimization.cpu_offload", "training.offload", switch),
    KeyRow("zero_optimization.overlap_comm", "training.overlap_gradients", switch),
    KeyRow("zero_optimization.*", "", why=_BUCKETS),
    KeyRow("zero_allow_untested_optimizer", "", why=_BUCKETS),
    KeyRow(
        "fp16.enabled",
        "training.precision",
        chosen({True: "fp16", False: "fp32"}),
        "`precision` or `bf16` says more",
    ),
    KeyRow("fp16.type", "training.precision", chosen({"bfloat16": "bf16", "fp16": "fp16"})),
    KeyRow(
        "fp16.fp16",
        "training.precision",
        chosen({True: "fp16", False: "fp32"}),
        "`precision` or `bf16` says more",
    ),
    KeyRow("fp16.loss_scale", "training.static_loss_scale", decimal, "fp16 only"),
    KeyRow("fp16.loss_scale_window", "training.loss_scale_window", integer, "fp16 only"),
    KeyRow("fp16.hysteresis", "training.loss_scale_hysteresis", integer, "fp16 only"),
    KeyRow("fp16.min_loss_scale", "training.min_loss_scale", decimal, "fp16 only"),
    KeyRow(
        "fp16.initial_scale_power",
        "training.initial_loss_scale",
        lambda power: 2.0 ** integer(power),
        "fp16 only",
    ),
    KeyRow("fp16.*", "", why="fp16 only"),
    KeyRow(
        "bf16.enabled",
        "training.precision",
        chosen({True: "bf16", False: "fp32"}),
        "`precision` says more",
    ),
    KeyRow(
        "precision",
        "training.precision",
        chosen({"bfloat16": "bf16", "fp16": "fp16", "fp32": "fp32"}),
    ),
    KeyRow("data_types.grad_accum_dtype", "", why="gradients are summed in 32 bits", off=("fp32",)),
    KeyRow("fp32_allreduce", "", why="gradients are summed in 32 bits", off=(True,)),
    KeyRow("checkpoint_activations", "training.recompute", chosen({True: "full", False: "none"})),
    KeyRow(
        "checkpoint_num_layers",
        "training.recompute_num_layers",
        integer,
        "counts with recompute full only",
    ),
    KeyRow(
        "partition_activations",
        "",
        why="what is kept of a layer is not cut over the tensor ranks",
        off=(False,),
    ),
    KeyRow("synchronize_each_layer", "", why=PERFORMANCE),
    KeyRow("contiguous_checkpointing", "", why=PERFORMANCE),
    KeyRow("checkpoint_in_cpu", "", why="activations stay on the device", off=(False,)),
    KeyRow("activation_checkpointing.*", "", why="goes with training.recompute"),
    KeyRow("data_path", "data.folder", word),
    KeyRow("train_data_paths", "", why="set data.folder, or data.blend with one dataset for each"),
    KeyRow("valid*data*paths", "", why="list the files of the dataset, and set data.held_out"),
    KeyRow("test*data*paths", "", why="list the files of the dataset, and set data.held_out"),
    KeyRow("*data*weights", "", why="set data.blend"),
    KeyRow("label_data_paths", "", why=_NO_SUCH_MODEL),
    KeyRow("split", "data.split", lambda value: word(value).replace(" ", "")),
    KeyRow("vocab_file", "data.tokenizer", word, "GPT-2's vocabulary and merges are shipped"),
    KeyRow("merge*file", "", why="GPT-2's merges are shipped; tokenizer.json has its own"),
    KeyRow("tokenizer_type", "", why="data.tokenizer names its file"),
    KeyRow("data_impl", "", why="token files are read by mmap", off=("mmap",)),
    KeyRow("pack_impl", "", why="documents are packed", off=("packed",)),
    KeyRow("weight_by_num_documents", "", why="set data.blend", off=(False,)),
    KeyRow("weighted_sampler_alpha", "", why="set data.blend"),
    KeyRow("num_workers", "", why=PERFORMANCE),
    KeyRow("mmap_warmup", "", why=PERFORMANCE),
    KeyRow(
        "checkpoint_factor",
        "training.save_interval",
        integer,
        "a share or a logarithm: set training.save_interval",
    ),
    KeyRow(
        "checkpoint-factor",
        "training.save_interval",
        integer,
        "a share or a logarithm: set training.save_interval",
    ),
    KeyRow("save_interval", "training.save_interval", integer),
    KeyRow("checkpoint_scale", "", why="saves are evenly spaced", off=("linear",)),
    KeyRow("extra_save_iters", "", why="saves are evenly spaced"),
    KeyRow("keep_last_n_checkpoints", "training.keep_checkpoints", integer),
    KeyRow("checkpoint*", "", why="a checkpoint is verified by its checksums"),
    KeyRow("finetune", "", why="`runbook import` begins with other weights", off=(False,)),
    KeyRow("no_*_optim", "", why="a checkpoint has everything", off=(False,)),
    KeyRow("no_*_rng", "", why="a checkpoint has everything", off=(False,)),
    KeyRow("save", "", why=FOLDERS),
    KeyRow("load", "", why="a job that is started again goes on from the run's own checkpoint"),
    KeyRow("s3_*", "", why=FOLDERS),
    KeyRow("eval_interval", "training.eval_interval", integer),
    KeyRow("eval_iters", "training.eval_iterations", integer),
    KeyRow("eval_*", "", why="06-evaluation"),
    KeyRow("log_interval", "training.log_interval", integer),
    KeyRow("seed", "training.seed", integer),
    KeyRow("exit_interval", "training.exit_interval", integer),
    KeyRow("steps_per_print", "", why=LOGGING),
    KeyRow("wall_clock_breakdown", "", why=LOGGING),
    KeyRow("log_*", "", why=LOGGING),
    KeyRow("comms_logger*", "", why=LOGGING),
    KeyRow("log-*", "", why=LOGGING),
    KeyRow("tensorboard*", "", why=LOGGING),
    KeyRow("use_wandb", "", why="training.trackers", off=(False,)),
    KeyRow("wandb*", "", why="training.trackers"),
    KeyRow("*comet*", "", why="training.trackers"),
    KeyRow("flops_profiler*", "", why=PROFILE),
    KeyRow("profile*", "", why=PROFILE, off=(False,)),
    KeyRow("memory_profiling*", "", why=PROFILE, off=(False,)),
    KeyRow("*fusion", "", why=PERFORMANCE),
    KeyRow("use_flashattn_swiglu", "", why=PERFORMANCE),
    KeyRow(
        "te_*", "", why="our trainer has Transformer Engine where it is installed", off=(False,)
    ),
    KeyRow("attention_softmax_in_fp32", "", why=PERFORMANCE),
    KeyRow("apply_query_key_layer_scaling", "", why="never: bf16 needs it not", off=(False,)),
    KeyRow("fp16_lm_cross_entropy", "", why="the loss is computed in 32 bits", off=(False,)),
    KeyRow("distributed*backend", "", why=_STARTER),
    KeyRow("launcher", "", why=_STARTER),
    KeyRow("deepspeed_*", "", why=_STARTER),
    KeyRow("hostfile", "", why=_STARTER),
    KeyRow("include", "", why=_STARTER),
    KeyRow("master_*", "", why=_STARTER),
    KeyRow("num_gpus", "", why="jobs.training.nodes has the devices"),
    KeyRow("num_nodes", "jobs.training.nodes", integer),
    KeyRow("comment", "", why=_STARTER),
    KeyRow("no_ssh_check", "", why=_STARTER),
    KeyRow("text*gen*", "", why="for generating text only"),
    KeyRow("maximum_tokens", "", why="for generating text only"),
    KeyRow("prompt_end", "", why="for generating text only"),
    KeyRow("temperature", "", why="for generating text only"),
    KeyRow("top_*", "", why="for generating text only"),
    KeyRow("sample_*put_file", "", why="for generating text only"),
    KeyRow("num_samples", "", why="for generating text only"),
)
_DEFAULTS: dict[str, Any] = {
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
_KIND: ModelKind = {
    "activation": "gelu",
    "tied_embeddings": True,
    "biases": True,
    "position_embedding": "learned",
    "normalization": "layernorm",
}
_DIFFERENCES = (
    OtherProgram(
        "engine",
        "DeepSpeed, with ZeRO's stage and buffers",
        "megatron-core; training.engine: deepspeed trains the same model to the same losses",
    ),
    OtherProgram(
        "initial weights",
        "init_method and output_layer_init_method, often small_init and wang_init",
        "a normal distribution of training.init_std, output matrices by the number of layers",
    ),
    OtherProgram(
        "tokenizer",
        "the vocabulary of tokenizer_type",
        "data.tokenizer; the model's vocabulary is the one of its entry in params/models.yaml",
    ),
)


def _finish(values: Values, findings: Findings, kind: ModelKind) -> None:
    """Compute what several keys say together: precision, widths, batch and the tokenizer."""
    _precision(values, findings)
    _widths(values, findings, kind)
    _schedule(values, findings)
    _tokenizer(values, findings)
    if findings.number("parallel.zero_stage") > 1:
        line = line_of(values, "zero_optimization.stage")
        findings.take("parallel.zero_stage", 1, line, "stages 2 and 3 are DeepSpeed's")
    if text(values, "pos_emb") not in ("", "rotary", "learned"):
        line = line_of(values, "pos_emb")
        findings.leave(line, f"pos_emb {text(values, 'pos_emb')}", _NO_SUCH_MODEL)
    if "train_batch_size" not in values:
        micro_batch = findings.number("training.micro_batch", 1)
        if "global_num_gpus" not in values and "num_nodes" not in values:
            findings.ask(
                "jobs.training.nodes",
                "how many nodes: deepy.py takes all of the hostfile or the job",
            )
        findings.take(
            "gas",
            findings.number("gas", 1),
            line_of(values, "gradient_accumulation_steps"),
            f"{micro_batch} micro",
        )
    if not isinstance(
        values["checkpoint_factor"].value if "checkpoint_factor" in values else 1, int
    ):
        findings.drop("training.save_interval")


def _precision(values: Values, findings: Findings) -> None:
    """Take the precision that `precision`, `bf16` or `fp16` says, in this order."""
    name, precision = "", "fp32"
    if text(values, "precision"):
        name = "precision"
        precision = {"bfloat16": "bf16"}.get(text(values, name), text(values, name))
    elif is_on(values, "bf16.enabled"):
        name, precision = "bf16.enabled", "bf16"
    elif text(values, "fp16.type") == "bfloat16":
        name, precision = "fp16.type", "bf16"
    elif is_on(values, "fp16.enabled"):
        name, precision = "fp16.enabled", "fp16"
    findings.take(
        "training.precision", precision, line_of(values, name), name or "no precision is given"
    )
    if precision != "fp16":
        findings.drop(
            "training.static_loss_scale",
            "training.loss_scale_window",
            "training.loss_scale_hysteresis",
            "training.min_loss_scale",
            "training.initial_loss_scale",
        )


def _widths(values: Values, findings: Findings, kind: ModelKind) -> None:
    """Compute the width of a gated feed-forward block, and drop positions that rotary angles have not."""
    if kind["position_embedding"] == "rope":
        findings.drop("training.shape.positions")
    if kind["activation"] == "swiglu":
        hidden = findings.number("training.shape.hidden")
        width = findings.number("training.shape.ffn_hidden", 4 * hidden)
        multiple = max(1, whole_number(values, "mlp_multiple_of", 1))
        third = int(width * 2 / 3) // 2
        line = line_of(values, "intermediate_size", "activation")
        source = f"a third of {width}, up to a multiple of {multiple}"
        findings.take("training.shape.ffn_hidden", -(-third // multiple) * multiple, line, source)
    if kind["normalization"] == "rmsnorm":
        kind["norm_epsilon"] = number(values, "rms_norm_epsilon", 1e-8)
    else:
        kind["norm_epsilon"] = number(values, "layernorm_epsilon", 1e-5)


def _schedule(values: Values, findings: Findings) -> None:
    iterations = findings.number("training.iterations")
    share = number(values, "lr_decay_fraction")
    if share and iterations and "lr_decay_iters" not in values:
        line = line_of(values, "lr_decay_fraction")
        findings.take(
            "training.decay_iterations",
            int(share * iterations),
            line,
            "lr_decay_fraction x train_iters",
        )
    style = text(values, "lr_decay_style")
    if style == "exponential":
        line = line_of(values, "lr_decay_style")
        findings.take(
            "training.schedule", "cosine", line, "our schedules fall linearly or as a cosine"
        )


def _tokenizer(values: Values, findings: Findings) -> None:
    kind = text(values, "tokenizer_type") or text(values, "tokenizer_type")
    name = "vocab_file" if "vocab_file" in values else "vocab-file"
    if kind in ("", "GPT2BPETokenizer"):
        findings.take(
            "data.tokenizer", "gpt2", line_of(values, "tokenizer_type", name), "GPT-2's tokenizer"
        )
    else:
        findings.drop("data.tokenizer")
        take_path_of_tokenizer(findings, name, values.get(name))


GPT_NEOX = ConfigFormat(
    program="GPT-NeoX",
    rows=_ROWS,
    defaults=_DEFAULTS,
    kind=_KIND,
    differences=_DIFFERENCES,
    finish=_finish,
    signs=frozenset(
        {
            "pipe_parallel_size",
            "pipe-parallel-size",
            "model_parallel_size",
            "model-parallel-size",
            "train_micro_batch_size_per_gpu",
            "no_weight_tying",
            "zero_optimization.",
            "checkpoint_factor",
            "checkpoint-factor",
            "data_path",
            "train_data_paths",
            "train-data-paths",
            "num_layers",
            "pos_emb",
            "merge_file",
            "merge-file",
            "tokenizer_type",
            "fp16.",
        }
    ),
)
