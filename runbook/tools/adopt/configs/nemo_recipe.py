"""Recipes of NeMo 2, in Python or as the YAML that `nemo_run` exports: trainer.strategy, data, optim.

Both have the same dotted keys: `recipe.trainer.max_steps = 100` and `trainer: max_steps: 100`.
"""

from typing import Any

from runbook.tools.adopt.configs.recipes import recipe_of
from runbook.tools.adopt.configs.rows import (
    FOLDERS,
    LOGGING,
    PERFORMANCE,
    ConfigFormat,
    KeyRow,
    OtherProgram,
    Values,
    chosen,
    decimal,
    integer,
    is_on,
    line_of,
    switch,
    take_path_of_tokenizer,
    text,
    whole_number,
    word,
)
from runbook.tools.adopt.findings import Findings
from runbook.tools.adopt.options import ModelKind

_STRATEGY = "trainer.strategy"
_NO_SUCH_MODEL = "our models have no such part: the training is another one"
_NO_EXPERTS = "our models have no experts"
_ARGUMENT = "pretrain_recipe"
_HELPER = "set_primary_perf_configs"
_STARTER = "the site's launcher starts the processes"
_INTERVAL = "batches; a share of an epoch is none of ours"


def _chunks(value: Any) -> int:
    return 1 if value is None else integer(value)


def _precision(value: Any) -> str:
    word = str(value).lower()
    for sign, precision in (("bf16", "bf16"), ("fp16", "fp16"), ("16", "fp16"), ("32", "fp32")):
        if sign in word:
            return precision
    raise ValueError(value)


def _batches(value: Any) -> int:
    if isinstance(value, float) and value < 1:
        if value:
            raise ValueError(value)
        return 0
    return integer(value)


def _share(value: Any) -> str:
    shares = value if isinstance(value, str) else ",".join(map(str, value))
    return shares.strip("[]").replace(" ", "")


MODEL_ROWS = tuple(
    KeyRow(f"{section}.{name}", key, read, why)
    for section in ("model.config", "model")
    for name, key, read, why in (
        ("num_layers", "training.shape.layers", integer, ""),
        ("hidden_size", "training.shape.hidden", integer, ""),
        ("num_attention_heads", "training.shape.heads", integer, ""),
        ("num_query_groups", "training.shape.kv_heads", integer, ""),
        ("ffn_hidden_size", "training.shape.ffn_hidden", integer, ""),
        (
            "seq_length",
            "training.sequence_length",
            integer,
            "the text's length counts: data.seq_length",
        ),
        ("hidden_dropout", "training.dropout", decimal, ""),
        ("init_method_std", "training.init_std", decimal, ""),
        ("layernorm_epsilon", "model.norm_epsilon", decimal, ""),
        ("rotary_base", "model.rope_base", integer, ""),
        ("share_embeddings_and_output_weights", "model.tied_embeddings", switch, ""),
        ("add_bias_linear", "model.biases", switch, ""),
        ("add_qkv_bias", "model.qkv_biases", switch, ""),
        ("gated_linear_unit", "model.activation", chosen({True: "swiglu", False: "gelu"}), ""),
        (
            "normalization",
            "model.normalization",
            chosen({"layernorm": "layernorm", "rmsnorm": "rmsnorm"}),
            "",
        ),
        (
            "position_embedding_type",
            "model.position_embedding",
            chosen({"rope": "rope", "learned_absolute": "learned"}),
            "",
        ),
        ("vocab_size", "model.vocabulary", integer, ""),
        (
            "recompute_granularity",
            "training.recompute",
            chosen({None: "none", "selective": "selective", "full": "full"}),
            "",
        ),
        ("recompute_method", "training.recompute_method", word, "counts with recompute full only"),
        (
            "recompute_num_layers",
            "training.recompute_num_layers",
            integer,
            "counts with recompute full only",
        ),
        ("enable_cuda_graph", "training.cuda_graphs", switch, ""),
        ("tensor_model_parallel_size", "parallel.tensor", integer, ""),
        ("pipeline_model_parallel_size", "parallel.pipeline", integer, ""),
        ("context_parallel_size", "parallel.context", integer, ""),
        ("virtual_pipeline_model_parallel_size", "parallel.virtual_pipeline", _chunks, ""),
        ("sequence_parallel", "parallel.sequence", switch, "one tensor rank has nothing to cut"),
    )
)
MODEL_DROPS = (
    KeyRow("model.config._target_", "", why="the model's class, which the recipe's name says too"),
    KeyRow("model.*attention_dropout", "", why="training.dropout is one value for both dropouts"),
    KeyRow("model.*num_moe_experts", "", why=_NO_EXPERTS, off=(None, 1), other_model="experts"),
    KeyRow("model.*moe_*", "", why=_NO_EXPERTS, off=(None, False)),
    KeyRow("model.*expert_*", "", why=_NO_EXPERTS, off=(None, 1)),
    KeyRow("model.*window_size", "", why=_NO_SUCH_MODEL, off=(None,)),
    KeyRow("model.*qk_layernorm", "", why=_NO_SUCH_MODEL, off=(False,)),
    KeyRow("model.*scale_factor", "", why="longer sequences than those of the training"),
    KeyRow("model.*rotary_percent", "", why=_NO_SUCH_MODEL, off=(1, 1.0)),
    KeyRow("model.*fp8*", "", why="set training.fp8", off=(None, False)),
    KeyRow("model.*pipeline_dtype", "", why=PERFORMANCE),
    KeyRow("model.*params_dtype", "", why=PERFORMANCE),
    KeyRow(
        "model.*make_vocab_size_divisible_by",
        "",
        why="the vocabulary is padded to a multiple of 128",
    ),
    KeyRow("model.*_target_", "", why="the model's class"),
    KeyRow("model.*.*fusion", "", why=PERFORMANCE),
    KeyRow(
        "model.*account_for_*_in_pipeline_split",
        "",
        why="parallel.first_stage_layers and last_stage_layers",
        off=(False,),
    ),
    KeyRow("model.*tp_comm_overlap", "training.overlap_tensor", switch),
)
_ROWS = (
    KeyRow("recipe", "model"),
    KeyRow("_target_", "", why="the program's own function"),
    KeyRow("_partial_", "", why="the program's own function"),
    *(
        KeyRow(f"{section}{name}", key, read, why)
        for section in (f"{_ARGUMENT}.", f"{_HELPER}.")
        for name, key, read, why in (
            ("num_nodes", "jobs.training.nodes", integer, ""),
            ("num_gpus_per_node", "jobs.training.devices_per_node", integer, ""),
            ("max_steps", "training.iterations", integer, ""),
            ("tensor_parallelism", "parallel.tensor", integer, ""),
            ("pipeline_parallelism", "parallel.pipeline", integer, ""),
            ("context_parallelism", "parallel.context", integer, ""),
            ("virtual_pipeline_parallelism", "parallel.virtual_pipeline", _chunks, ""),
            ("sequence_parallelism", "parallel.sequence", switch, ""),
            ("global_batch_size", "training.global_batch", integer, ""),
            ("micro_batch_size", "training.micro_batch", integer, ""),
            ("seq_length", "training.sequence_length", integer, ""),
            ("warmup_steps", "training.warmup_iterations", integer, ""),
            ("max_lr", "training.learning_rate", decimal, ""),
            ("min_lr", "training.min_learning_rate", decimal, ""),
            ("precision", "training.precision", _precision, ""),
            ("gradient_clip_val", "training.clip_gradient", decimal, ""),
            ("tp_size", "parallel.tensor", integer, ""),
            ("pp_size", "parallel.pipeline", integer, ""),
            ("cp_size", "parallel.context", integer, ""),
            ("vp_size", "parallel.virtual_pipeline", _chunks, ""),
            ("gbs", "training.global_batch", integer, ""),
            ("mbs", "training.micro_batch", integer, ""),
            ("enable_cuda_graphs", "training.cuda_graphs", switch, ""),
        )
    ),
    KeyRow(f"{_HELPER}.ep_size", "", why=_NO_EXPERTS, off=(None, 1)),
    KeyRow(f"{_HELPER}.etp_size", "", why=_NO_EXPERTS, off=(None, 1)),
    KeyRow(f"{_HELPER}.compute_dtype", "", why="fp8: set training.fp8", off=("bf16",)),
    KeyRow(f"{_HELPER}.fp8_recipe", "", why="set training.fp8", off=(None,)),
    KeyRow(f"{_HELPER}.*", "", why=PERFORMANCE, off=(None, False)),
    KeyRow(f"{_ARGUMENT}.dir", "", why=FOLDERS),
    KeyRow(f"{_ARGUMENT}.name", "", why=FOLDERS),
    KeyRow(f"{_ARGUMENT}.performance_mode", "", why=PERFORMANCE),
    KeyRow(f"{_ARGUMENT}.log_every_n_steps", "training.log_interval", integer),
    KeyRow(f"{_ARGUMENT}.fn", "", why="the program's own function"),
    KeyRow("trainer.num_nodes", "jobs.training.nodes", integer),
    KeyRow("trainer.devices", "jobs.training.devices_per_node", integer),
    KeyRow("trainer.max_steps", "training.iterations", integer),
    KeyRow("trainer.val_check_interval", "training.eval_interval", integer, _INTERVAL),
    KeyRow("trainer.limit_val_batches", "training.eval_iterations", _batches, _INTERVAL),
    KeyRow("trainer.limit_test_batches", "", why="there is no test after the training"),
    KeyRow("trainer.num_sanity_val_steps", "", why="the first evaluation is at eval_interval"),
    KeyRow("trainer.log_every_n_steps", "training.log_interval", integer),
    KeyRow("trainer.gradient_clip_val", "training.clip_gradient", decimal),
    KeyRow("trainer.accumulate_grad_batches", "", why="global and micro-batch say it", off=(1,)),
    KeyRow("trainer.max_epochs", "", why="training.iterations says how long"),
    KeyRow("trainer.max_time", "", why="training.exit_duration"),
    KeyRow("trainer.plugins.precision", "training.precision", _precision),
    KeyRow("trainer.plugins._target_", "training.precision", _precision, "no word of a precision"),
    KeyRow(
        "trainer.plugins.grad_reduce_in_fp32",
        "",
        why="gradients are summed in 32 bits",
        off=(True,),
    ),
    KeyRow("trainer.plugins.fp8*", "", why="set training.fp8", off=(None, False)),
    KeyRow("trainer.plugins*", "", why="training.precision says it"),
    KeyRow("trainer.enable_checkpointing", "", why="false: training.save_interval is 0"),
    KeyRow(f"{_STRATEGY}.tensor_model_parallel_size", "parallel.tensor", integer),
    KeyRow(f"{_STRATEGY}.pipeline_model_parallel_size", "parallel.pipeline", integer),
    KeyRow(f"{_STRATEGY}.context_parallel_size", "parallel.context", integer),
    KeyRow(
        f"{_STRATEGY}.virtual_pipeline_model_parallel_size", "parallel.virtual_pipeline", _chunks
    ),
    KeyRow(
        f"{_STRATEGY}.sequence_parallel",
        "parallel.sequence",
        switch,
        "one tensor rank has nothing to cut",
    ),
    KeyRow(f"{_STRATEGY}.expert_*", "", why=_NO_EXPERTS, off=(None, 1)),
    KeyRow(
        f"{_STRATEGY}.account_for_*",
        "",
        why="parallel.first_stage_layers and last_stage_layers",
        off=(False,),
    ),
    KeyRow(f"{_STRATEGY}.ddp.overlap_grad_reduce", "training.overlap_gradients", switch),
    KeyRow(f"{_STRATEGY}.ddp.overlap_param_gather", "training.overlap_weights", switch),
    KeyRow(
        f"{_STRATEGY}.ddp.use_distributed_optimizer",
        "parallel.zero_stage",
        chosen({True: 1, False: 0}),
    ),
    KeyRow(
        f"{_STRATEGY}.ddp.grad_reduce_in_fp32",
        "",
        why="gradients are summed in 32 bits",
        off=(True,),
    ),
    KeyRow(f"{_STRATEGY}.ckpt_async_save", "training.async_save", switch),
    KeyRow(
        f"{_STRATEGY}.fsdp", "", why="the distributed optimizer, with whole weights", off=(None,)
    ),
    KeyRow(f"{_STRATEGY}*", "", why=PERFORMANCE),
    KeyRow("trainer.callbacks*", "", why="code of the program's own"),
    KeyRow("trainer.logger*", "", why=LOGGING),
    KeyRow("trainer.accelerator", "", why=_STARTER),
    KeyRow("trainer.use_distributed_sampler", "", why=_STARTER),
    KeyRow("trainer._target_", "", why="the program's own class"),
    KeyRow("data.seq_length", "training.sequence_length", integer),
    KeyRow("data.global_batch_size", "training.global_batch", integer),
    KeyRow("data.micro_batch_size", "training.micro_batch", integer),
    KeyRow("data.split", "data.split", _share),
    KeyRow("data.seed", "training.seed", integer),
    KeyRow("data.paths*", "", why="set data.folder, or data.blend with one dataset for each"),
    KeyRow("data.tokenizer*", "", why="data.tokenizer names its file"),
    KeyRow("data.num_train_samples", "", why="training.iterations says how long"),
    KeyRow(
        "data.rampup_batch_size",
        "",
        why="training.rampup_start, rampup_increment, rampup_samples",
        off=(None,),
    ),
    KeyRow("data.num_workers", "", why=PERFORMANCE),
    KeyRow("data.pin_memory", "", why=PERFORMANCE),
    KeyRow("data.persistent_workers", "", why=PERFORMANCE),
    KeyRow("data.index_mapping_dir", "", why=FOLDERS),
    KeyRow("data.reset_*", "", why="attention looks over the ends of documents here", off=(False,)),
    KeyRow("data.eod_mask_loss", "", why="the loss counts every token", off=(False,)),
    KeyRow("data._target_", "", why="02-data prepares the text"),
    KeyRow("optim.config.lr", "training.learning_rate", decimal),
    KeyRow("optim.config.weight_decay", "training.weight_decay", decimal),
    KeyRow("optim.config.adam_beta1", "training.adam_beta1", decimal),
    KeyRow("optim.config.adam_beta2", "training.adam_beta2", decimal),
    KeyRow("optim.config.adam_eps", "training.adam_epsilon", decimal),
    KeyRow("optim.config.clip_grad", "training.clip_gradient", decimal),
    KeyRow(
        "optim.config.bf16", "training.precision", chosen({True: "bf16"}), "trainer.plugins says it"
    ),
    KeyRow(
        "optim.config.fp16", "training.precision", chosen({True: "fp16"}), "trainer.plugins says it"
    ),
    KeyRow(
        "optim.config.use_distributed_optimizer", "parallel.zero_stage", chosen({True: 1, False: 0})
    ),
    KeyRow("optim.config.optimizer", "", why="our optimizer is AdamW", off=("adam",)),
    KeyRow("optim.config.*", "", why=PERFORMANCE),
    KeyRow("optim.lr_scheduler.warmup_steps", "training.warmup_iterations", integer),
    KeyRow("optim.lr_scheduler.min_lr", "training.min_learning_rate", decimal),
    KeyRow("optim.lr_scheduler.max_steps", "training.decay_iterations", integer),
    KeyRow(
        "optim.lr_scheduler.constant_steps",
        "",
        why="our schedules stay at the minimum by themselves",
        off=(0,),
    ),
    KeyRow(
        "optim.lr_scheduler._target_",
        "training.schedule",
        chosen({"cosineannealingscheduler": "cosine"}),
        "no schedule of ours",
    ),
    KeyRow("optim.max_lr", "training.learning_rate", decimal),
    KeyRow("optim.min_lr", "training.min_learning_rate", decimal),
    KeyRow("optim.warmup_steps", "training.warmup_iterations", integer),
    KeyRow("optim.clip_grad", "training.clip_gradient", decimal),
    KeyRow("optim.adam_beta*", "", why="set training.adam_beta1 and adam_beta2"),
    KeyRow("optim.*", "", why="the program's own class"),
    KeyRow("log.ckpt.every_n_train_steps", "training.save_interval", integer),
    KeyRow("log.ckpt.save_top_k", "", why="training.keep_checkpoints, by age and not by loss"),
    KeyRow("log.*", "", why=LOGGING),
    KeyRow(
        "resume.restore_config*", "", why="`runbook import` begins with other weights", off=(None,)
    ),
    KeyRow("resume*", "", why="a job that is started again goes on from the run's own checkpoint"),
    KeyRow("tokenizer*", "", why="data.tokenizer names its file"),
    KeyRow("get_comm_overlap_callback_idx*", "", why=PERFORMANCE),
    *MODEL_ROWS,
    *MODEL_DROPS,
)
_DEFAULTS: dict[str, Any] = {
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
_DIFFERENCES = (
    OtherProgram(
        "trainer",
        "Lightning and NeMo around megatron-core, with Transformer Engine's layers",
        "our own trainer around megatron-core; Transformer Engine where it is installed",
    ),
    OtherProgram(
        "values that the file leaves out",
        "the recipe's own",
        "those of NeMo's recipe of 2025-09; another version may have others: export the recipe as YAML and adopt that",
    ),
    OtherProgram(
        "checkpoints",
        "every 15 minutes and the best ten",
        "every training.save_interval steps, the newest training.keep_checkpoints",
    ),
)


def _finish(values: Values, findings: Findings, kind: ModelKind) -> None:
    """Name the model, and compute what several keys say together."""
    take_recipe_model(values, findings)
    if text(values, "data._target_").endswith("MockDataModule") or "data._target_" not in values:
        line = line_of(values, "data._target_")
        findings.take("data.dataset", "mock", line, "MockDataModule: made-up text")
    findings.take(
        "training.schedule",
        "cosine",
        line_of(values, "optim.lr_scheduler._target_"),
        "CosineAnnealing",
        over=False,
    )
    findings.take("training.precision", "bf16", 0, "bf16_mixed is the recipes' default", over=False)
    if "optim.lr_scheduler.min_lr" not in values and "optim.min_lr" not in values:
        peak = findings.value("training.learning_rate", 3e-4)
        findings.take(
            "training.min_learning_rate", 0.1 * peak, 0, "a tenth of the peak", over=False
        )
    if not findings.number("training.eval_iterations"):
        line = line_of(values, "trainer.limit_val_batches")
        findings.take("training.eval_interval", 0, line, "no batches to validate with")
        findings.drop("training.eval_iterations")
    _saves(values, findings)
    name = "data.tokenizer.pretrained_model_name"
    other = "tokenizer.pretrained_model_name"
    take_path_of_tokenizer(findings, name, values.get(name) or values.get(other))
    if findings.number("parallel.virtual_pipeline", 1) <= 1:
        findings.drop("parallel.virtual_pipeline")


def _saves(values: Values, findings: Findings) -> None:
    is_off = "trainer.enable_checkpointing" in values and not is_on(
        values, "trainer.enable_checkpointing"
    )
    has_none = "log.ckpt" in values and values["log.ckpt"].value is None
    if is_off or has_none:
        line = line_of(values, "trainer.enable_checkpointing", "log.ckpt")
        findings.take("training.save_interval", 0, line, "checkpoints are off")
        findings.drop("training.async_save")
    elif not whole_number(values, "log.ckpt.every_n_train_steps"):
        findings.ask("training.save_interval", "steps between checkpoints: NeMo saves by the clock")


def take_recipe_model(values: Values, findings: Findings) -> None:
    """Take the model of the recipe's name, unless the file gives a shape of its own."""
    name = text(values, "recipe")
    line = line_of(values, "recipe")
    recipe = recipe_of(name)
    if findings.number("training.shape.layers"):
        return
    if recipe is None:
        findings.ask(
            "model", f"the model of {name or 'the configuration'}, whose shape it does not say"
        )
        return
    if recipe.model:
        findings.take("model", recipe.model, line, f"recipe {name}")
    for field, size in recipe.shape.items():
        findings.take(f"training.shape.{field}", size, line, f"recipe {name}")
    findings.vocabulary = findings.vocabulary or recipe.vocabulary


NEMO_2 = ConfigFormat(
    program="NeMo 2",
    rows=_ROWS,
    defaults=_DEFAULTS,
    kind={},
    differences=_DIFFERENCES,
    finish=_finish,
    signs=frozenset(
        {
            "trainer.strategy.",
            "optim.config.",
            "trainer.devices",
            "data.global_batch_size",
            "trainer.max_steps",
        }
    ),
)
