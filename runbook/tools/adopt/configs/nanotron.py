"""nanotron's YAML files: general, model, optimizer, parallelism, tokens and data_stages.

Read from huggingface/nanotron (src/nanotron/config) and the files of its users.
"""

from typing import Any

from runbook.tools.adopt.configs.rows import (
    FOLDERS,
    LOGGING,
    PERFORMANCE,
    PROFILE,
    TOKENIZER_FILE,
    ConfigFormat,
    KeyRow,
    OtherProgram,
    Values,
    chosen,
    decimal,
    integer,
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

_MODEL = "model.model_config"
_SCHEDULE = "optimizer.learning_rate_scheduler"
_NO_EXPERTS = "our models have no experts"
_NO_SUCH_MODEL = "our models have no such part: the training is another one"

_ROWS = (
    KeyRow(f"{_MODEL}.num_hidden_layers", "training.shape.layers", integer),
    KeyRow(f"{_MODEL}.hidden_size", "training.shape.hidden", integer),
    KeyRow(f"{_MODEL}.num_attention_heads", "training.shape.heads", integer),
    KeyRow(f"{_MODEL}.num_key_value_heads", "training.shape.kv_heads", integer),
    KeyRow(f"{_MODEL}.intermediate_size", "training.shape.ffn_hidden", integer),
    KeyRow(
        f"{_MODEL}.hidden_act", "model.activation", chosen({"silu": "swiglu", "swiglu": "swiglu"})
    ),
    KeyRow(f"{_MODEL}.rms_norm_eps", "model.norm_epsilon", decimal),
    KeyRow(f"{_MODEL}.rope_theta", "model.rope_base", integer),
    KeyRow(f"{_MODEL}.tie_word_embeddings", "model.tied_embeddings", switch),
    KeyRow(f"{_MODEL}.attention_bias", "model.qkv_biases", switch),
    KeyRow(f"{_MODEL}.vocab_size", "model.vocabulary", integer),
    KeyRow(f"{_MODEL}.max_position_embeddings", "", why="rotary angles have no table of positions"),
    KeyRow(f"{_MODEL}.rope_scaling*", "", why=_NO_SUCH_MODEL, off=(None, {})),
    KeyRow(f"{_MODEL}.no_rope_layer", "", why=_NO_SUCH_MODEL, off=(None,)),
    KeyRow(f"{_MODEL}.sliding_window_size", "", why=_NO_SUCH_MODEL, off=(None,)),
    KeyRow(
        f"{_MODEL}.moe_config.num_experts",
        "",
        why=_NO_EXPERTS,
        off=(None, 0, 1),
        other_model="experts",
    ),
    KeyRow(f"{_MODEL}.moe_config*", "", why=_NO_EXPERTS, off=(None, False)),
    KeyRow(f"{_MODEL}.z_loss_enabled", "", why=_NO_SUCH_MODEL, off=(False,)),
    KeyRow(f"{_MODEL}.z_loss_coefficient", "", why="counts with z_loss_enabled only"),
    KeyRow(
        f"{_MODEL}._use_doc_masking",
        "",
        why="attention looks over the ends of documents here",
        off=(False,),
    ),
    KeyRow(f"{_MODEL}._*", "", why=PERFORMANCE),
    KeyRow(f"{_MODEL}.is_llama_config", "", why="the model's kind", off=(True,)),
    KeyRow(f"{_MODEL}.is_qwen2_config", "", why="the model's kind", off=(True,)),
    KeyRow(f"{_MODEL}.is_*", "", why=_NO_SUCH_MODEL, off=(False,)),
    KeyRow(f"{_MODEL}.initializer_range", "", why="model.init_method.std is the one in use"),
    KeyRow(f"{_MODEL}.rope_interleaved", "", why="the order of a weight's columns", off=(False,)),
    KeyRow(f"{_MODEL}.pretraining_tp", "", why=PERFORMANCE, off=(1,)),
    KeyRow(f"{_MODEL}.use_cache", "", why="for generating text only"),
    KeyRow(f"{_MODEL}.*_token_id", "", why="the tokenizer's file says it"),
    KeyRow(f"{_MODEL}.flex_attention_mask", "", why=_NO_SUCH_MODEL, off=(None,)),
    KeyRow("model.init_method.std", "training.init_std", decimal),
    KeyRow(
        "model.init_method.scaling_method",
        "",
        why="output matrices are scaled by the number of layers",
        off=("NUM_LAYERS",),
    ),
    KeyRow("model.init_method.path", "", why="`runbook import` begins with other weights"),
    KeyRow("model.init_method.*", "", why=_NO_SUCH_MODEL),
    KeyRow(
        "model.dtype",
        "training.precision",
        chosen({"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}),
    ),
    KeyRow(
        "model.make_vocab_size_divisible_by",
        "",
        why="the vocabulary is padded to a multiple of 128",
    ),
    KeyRow("model.ddp_bucket_cap_mb", "", why=PERFORMANCE),
    KeyRow("optimizer.optimizer_factory.adam_beta1", "training.adam_beta1", decimal),
    KeyRow("optimizer.optimizer_factory.adam_beta2", "training.adam_beta2", decimal),
    KeyRow("optimizer.optimizer_factory.adam_eps", "training.adam_epsilon", decimal),
    KeyRow(
        "optimizer.optimizer_factory.name", "", why="our optimizer is AdamW", off=("adamW", "adamw")
    ),
    KeyRow("optimizer.optimizer_factory.torch_adam_is_fused", "", why=PERFORMANCE),
    KeyRow("optimizer.adam_beta1", "training.adam_beta1", decimal),
    KeyRow("optimizer.adam_beta2", "training.adam_beta2", decimal),
    KeyRow("optimizer.adam_eps", "training.adam_epsilon", decimal),
    KeyRow("optimizer.torch_adam_is_fused", "", why=PERFORMANCE),
    KeyRow("optimizer.weight_decay", "training.weight_decay", decimal),
    KeyRow(
        "optimizer.weight_decay_exclude_named_params",
        "",
        why="weight decay leaves out norms and biases only",
        off=([], None),
    ),
    KeyRow("optimizer.clip_grad", "training.clip_gradient", decimal),
    KeyRow(
        "optimizer.zero_stage", "parallel.zero_stage", integer, "0 and 1 are what our trainer has"
    ),
    KeyRow(
        "optimizer.accumulate_grad_in_fp32", "", why="gradients are summed in 32 bits", off=(True,)
    ),
    KeyRow(f"{_SCHEDULE}.learning_rate", "training.learning_rate", decimal),
    KeyRow(f"{_SCHEDULE}.lr_warmup_steps", "training.warmup_iterations", integer),
    KeyRow(f"{_SCHEDULE}.lr_warmup_style", "", why="the warm-up is linear", off=("linear",)),
    KeyRow(
        f"{_SCHEDULE}.lr_decay_style",
        "training.schedule",
        word,
        "stays at the peak first: schedule wsd",
    ),
    KeyRow(
        f"{_SCHEDULE}.lr_decay_steps",
        "training.decay_iterations",
        integer,
        "counted from the end of the warm-up there, from the first step here",
    ),
    KeyRow(
        f"{_SCHEDULE}.lr_decay_starting_step",
        "",
        why="counts in training.decay_iterations and wsd_decay_fraction",
        off=(None,),
    ),
    KeyRow(f"{_SCHEDULE}.min_decay_lr", "training.min_learning_rate", decimal),
    KeyRow("parallelism.tp", "parallel.tensor", integer),
    KeyRow("parallelism.pp", "parallel.pipeline", integer),
    KeyRow(
        "parallelism.dp",
        "",
        why="jobs.training.nodes has the devices; what is left is data parallel",
    ),
    KeyRow("parallelism.context_parallel_size", "parallel.context", integer),
    KeyRow("parallelism.expert_parallel_size", "", why=_NO_EXPERTS, off=(1,)),
    KeyRow(
        "parallelism.tp_mode",
        "parallel.sequence",
        chosen({"reduce_scatter": True, "all_reduce": False}),
        "one tensor rank has nothing to cut",
    ),
    KeyRow(
        "parallelism.pp_engine",
        "",
        why="stages run one forward, one backward pass (1F1B)",
        off=("1f1b",),
    ),
    KeyRow(
        "parallelism.recompute_layer", "training.recompute", chosen({True: "full", False: "none"})
    ),
    KeyRow("parallelism.tp_*", "", why=PERFORMANCE),
    KeyRow("tokens.sequence_length", "training.sequence_length", integer),
    KeyRow("tokens.train_steps", "training.iterations", integer),
    KeyRow("tokens.micro_batch_size", "training.micro_batch", integer),
    KeyRow(
        "tokens.batch_accumulation_per_replica",
        "",
        why="micro-batch x replicas x accumulation: training.global_batch",
    ),
    KeyRow(
        "tokens.val_check_interval", "training.eval_interval", lambda value: max(0, integer(value))
    ),
    KeyRow("tokens.limit_val_batches", "training.eval_iterations", integer, "nothing is evaluated"),
    KeyRow("tokens.limit_test_batches", "", why="there is no test after the training", off=(0,)),
    KeyRow("general.seed", "training.seed", integer),
    KeyRow("general.*", "", why=LOGGING),
    KeyRow("data_stages.0.data.seed", "", why="one seed for weights and text: training.seed"),
    KeyRow("data_stages.0.data.num_loading_workers", "", why=PERFORMANCE),
    KeyRow("data_stages.0.data.dataset.text_column_name", "data.text_key", word),
    KeyRow("data_stages.0.data.dataset", "data.dataset", chosen({None: "mock"})),
    KeyRow(
        "data_stages.0.data.dataset.dataset_folder",
        "",
        why="set data.folder, or data.blend with one dataset for each folder",
    ),
    KeyRow(
        "data_stages.0.data.dataset.dataset_weights",
        "",
        why="set data.blend",
        off=(None, [1], [1.0]),
    ),
    KeyRow(
        "data_stages.0.data.dataset.*", "", why="02-data prepares text of its own: data.dataset"
    ),
    KeyRow("data.dataset.text_column_name", "data.text_key", word),
    KeyRow("data.dataset*", "", why="02-data prepares text of its own: data.dataset"),
    KeyRow("data.seed", "", why="one seed for weights and text: training.seed"),
    KeyRow("data.num_loading_workers", "", why=PERFORMANCE),
    KeyRow("doremi.*", "", why="weights of texts are fixed: data.blend", off=(None,)),
    KeyRow("parallelism.moe_layer_recompute", "", why=_NO_EXPERTS, off=(False,)),
    KeyRow("data_stages.0.*", "", why="the one stage that is read"),
    KeyRow("data_stages.*", "", why="one text for the whole training: later stages are left out"),
    KeyRow("checkpoints.checkpoint_interval", "training.save_interval", integer),
    KeyRow(
        "checkpoints.resume_checkpoint_path",
        "",
        why="`runbook import` begins with other weights",
        off=(None,),
    ),
    KeyRow("checkpoints.*", "", why=FOLDERS),
    KeyRow("tokenizer.tokenizer_name_or_path", "data.tokenizer", word, TOKENIZER_FILE),
    KeyRow("tokenizer.*", "", why="the tokenizer's file says it", off=(None,)),
    KeyRow("logging.iteration_step_info_interval", "training.log_interval", integer),
    KeyRow("logging.*", "", why=LOGGING),
    KeyRow("metrics_logging*", "", why=LOGGING),
    KeyRow("profiler*", "", why=PROFILE, off=(None,)),
    KeyRow("lighteval*", "", why="06-evaluation", off=(None,)),
    KeyRow("s3_upload*", "", why=FOLDERS, off=(None,)),
)
_DEFAULTS: dict[str, Any] = {
    f"{_SCHEDULE}.lr_decay_style": "linear",
    "optimizer.zero_stage": 0,
    "tokens.limit_val_batches": 0,
}
_KIND: ModelKind = {
    "activation": "swiglu",
    "tied_embeddings": False,
    "biases": False,
    "position_embedding": "rope",
    "normalization": "rmsnorm",
    "norm_epsilon": 1e-6,
}
_DIFFERENCES = (
    OtherProgram(
        "text",
        "Nanosets or a dataset of the hub, shuffled by nanotron",
        "token files that 02-data writes, in the order of Megatron's index",
    ),
    OtherProgram(
        "gradients",
        "accumulated over micro-batches of each replica",
        "the same number of sequences in a step, summed in another order",
    ),
    OtherProgram(
        "initial weights",
        "model.init_method",
        "a normal distribution of training.init_std, output matrices by the number of layers",
    ),
    OtherProgram(
        "last steps of the schedule",
        "after lr_decay_steps the rate stays at min_decay_lr",
        "the same, counted from the first step",
    ),
)


def _finish(values: Values, findings: Findings, kind: ModelKind) -> None:
    """Compute the batch, the devices and the schedule."""
    _devices(values, findings)
    _schedule(values, findings)
    take_path_of_tokenizer(
        findings,
        "tokenizer.tokenizer_name_or_path",
        values.get("tokenizer.tokenizer_name_or_path"),
    )
    stages = {name.split(".")[1] for name in values if name.startswith("data_stages.")}
    if len(stages) > 1:
        line = line_of(values, "data_stages.1.name", "data_stages.1.start_training_step")
        why = "a run has one text: train the stages one after the other, or set data.blend"
        findings.leave(line, f"data_stages: {len(stages)} stages", why)
    if not findings.number("training.eval_iterations"):
        source = "no batches to validate with"
        findings.take(
            "training.eval_interval", 0, line_of(values, "tokens.limit_val_batches"), source
        )
        findings.drop("training.eval_iterations")


def _devices(values: Values, findings: Findings) -> None:
    """Compute nodes from dp x tp x pp, and the global batch from micro-batch x dp x accumulation."""
    replicas = whole_number(values, "parallelism.dp", 1)
    context = findings.number("parallel.context", 1)
    world = replicas * findings.model_parallel * context
    devices = findings.devices_per_node
    line = line_of(values, "parallelism.dp")
    source = f"dp {replicas} x tp x pp = {world} devices"
    findings.take("jobs.training.nodes", max(1, -(-world // devices)), line, source)
    if world < devices:
        findings.take("jobs.training.devices_per_node", world, line, source)
    steps = whole_number(values, "tokens.batch_accumulation_per_replica", 1)
    micro_batch = findings.number("training.micro_batch", 1)
    batch_line = line_of(values, "tokens.batch_accumulation_per_replica")
    source = f"{micro_batch} micro x {replicas} replicas x {steps} steps"
    findings.take("training.global_batch", micro_batch * replicas * steps, batch_line, source)


def _schedule(values: Values, findings: Findings) -> None:
    """Take nanotron's schedule: decay after the warm-up, or after a stable part."""
    style = text(values, f"{_SCHEDULE}.lr_decay_style") or "linear"
    line = line_of(values, f"{_SCHEDULE}.lr_decay_style")
    warmup = whole_number(values, f"{_SCHEDULE}.lr_warmup_steps")
    start = whole_number(values, f"{_SCHEDULE}.lr_decay_starting_step", warmup)
    steps = whole_number(values, "tokens.train_steps")
    length = whole_number(values, f"{_SCHEDULE}.lr_decay_steps", max(0, steps - start))
    if style == "1-sqrt":
        findings.leave(
            line,
            "lr_decay_style 1-sqrt",
            "our schedules fall linearly, as a cosine or exponentially",
        )
    style = "linear" if style == "1-sqrt" else style
    if start > warmup and length > 0:
        end = start + length
        findings.take("training.schedule", "wsd", line, "lr_decay_starting_step after the warm-up")
        findings.take("training.wsd_decay_style", style, line, "lr_decay_style")
        findings.take(
            "training.wsd_decay_fraction", length / end, line, "lr_decay_steps / its last step"
        )
        findings.take(
            "training.decay_iterations", end, line, "lr_decay_starting_step + lr_decay_steps"
        )
        return
    findings.take("training.schedule", style, line, "lr_decay_style")
    if length > 0:
        source = "lr_decay_steps, and the warm-up before them"
        findings.take("training.decay_iterations", warmup + length, line, source)
    if not number(values, f"{_SCHEDULE}.min_decay_lr"):
        peak = findings.value("training.learning_rate", 0.0)
        source = "nanotron's default: the peak itself"
        if f"{_SCHEDULE}.min_decay_lr" not in values:
            findings.take("training.min_learning_rate", peak, 0, source)


NANOTRON = ConfigFormat(
    program="nanotron",
    rows=_ROWS,
    defaults=_DEFAULTS,
    kind=_KIND,
    differences=_DIFFERENCES,
    finish=_finish,
    signs=frozenset(
        {
            "general.",
            "data_stages.",
            "parallelism.",
            "tokens.",
            "model.model_config.",
            "optimizer.learning_rate_scheduler.",
        }
    ),
)
