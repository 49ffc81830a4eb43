"""Megatron Bridge: its YAML (overrides or whole configurations) and recipes in Python, `cfg.train.train_iters = 100`."""

from typing import Any

from runbook.tools.adopt.configs.nemo_recipe import MODEL_DROPS, MODEL_ROWS, take_recipe_model
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
    line_of,
    switch,
    take_path_of_tokenizer,
    text,
    word,
)
from runbook.tools.adopt.findings import Findings
from runbook.tools.adopt.options import ModelKind

_NO_EXPERTS = "our models have no experts"
_PARTS_OF_TARGET = "the program's own class"


def _precision(value: Any) -> str:
    word = str(value).lower()
    for sign, precision in (("bf16", "bf16"), ("fp16", "fp16"), ("32", "fp32")):
        if sign in word:
            return precision

    raise ValueError(value)


_ROWS = (
    KeyRow("recipe", "model"),
    *MODEL_ROWS,
    *MODEL_DROPS,
    KeyRow("model.*", "", why=PERFORMANCE, off=(None, False)),
    KeyRow("train.train_iters", "training.iterations", integer),
    KeyRow("train.train_samples", "training.samples", integer),
    KeyRow("train.global_batch_size", "training.global_batch", integer),
    KeyRow("train.micro_batch_size", "training.micro_batch", integer),
    KeyRow(
        "train.rampup_batch_size",
        "",
        why="training.rampup_start, rampup_increment, rampup_samples",
        off=(None,),
    ),
    KeyRow("train.eval_interval", "training.eval_interval", integer),
    KeyRow("train.eval_iters", "training.eval_iterations", integer),
    KeyRow("validation.eval_interval", "training.eval_interval", integer),
    KeyRow("validation.eval_iters", "training.eval_iterations", integer),
    KeyRow("validation.*", "", why="02-data holds text out by data.split", off=(None, False)),
    KeyRow("train.manual_gc_interval", "training.gc_interval", integer),
    KeyRow("train.manual_gc*", "", why="goes with training.gc_interval"),
    KeyRow("train.exit_interval", "training.exit_interval", integer),
    KeyRow(
        "train.exit_duration_in_mins",
        "",
        why="the job saves and ends before its time limit",
        off=(None,),
    ),
    KeyRow("train.exit_signal*", "", why="a job that is asked to stop saves and ends"),
    KeyRow("train.skip_train", "", why="the training is what the run is for", off=(False,)),
    KeyRow("train.*", "", why=PERFORMANCE, off=(None, False)),
    KeyRow("optimizer.lr", "training.learning_rate", decimal),
    KeyRow("optimizer.min_lr", "training.min_learning_rate", decimal),
    KeyRow("optimizer.weight_decay", "training.weight_decay", decimal),
    KeyRow("optimizer.adam_beta1", "training.adam_beta1", decimal),
    KeyRow("optimizer.adam_beta2", "training.adam_beta2", decimal),
    KeyRow("optimizer.adam_eps", "training.adam_epsilon", decimal),
    KeyRow("optimizer.clip_grad", "training.clip_gradient", decimal),
    KeyRow("optimizer.optimizer", "", why="our optimizer is AdamW", off=("adam",)),
    KeyRow(
        "optimizer.use_distributed_optimizer", "parallel.zero_stage", chosen({True: 1, False: 0})
    ),
    KeyRow(
        "optimizer.bf16", "training.precision", chosen({True: "bf16"}), "mixed_precision says it"
    ),
    KeyRow(
        "optimizer.fp16", "training.precision", chosen({True: "fp16"}), "mixed_precision says it"
    ),
    KeyRow("optimizer.*", "", why=PERFORMANCE, off=(None, False)),
    KeyRow("scheduler.lr_warmup_iters", "training.warmup_iterations", integer),
    KeyRow("scheduler.lr_warmup_samples", "training.warmup_samples", integer),
    KeyRow("scheduler.lr_warmup_fraction", "training.warmup_fraction", decimal),
    KeyRow("scheduler.lr_decay_iters", "training.decay_iterations", integer),
    KeyRow("scheduler.lr_decay_samples", "training.decay_samples", integer),
    KeyRow(
        "scheduler.lr_decay_style",
        "training.schedule",
        chosen({"cosine": "cosine", "linear": "linear", "constant": "constant", "wsd": "wsd"}),
    ),
    KeyRow(
        "scheduler.lr_wsd_decay_style",
        "training.wsd_decay_style",
        word,
        "counts with schedule wsd only",
    ),
    KeyRow("scheduler.*", "", why="computed from the others"),
    KeyRow("ddp.overlap_grad_reduce", "training.overlap_gradients", switch),
    KeyRow("ddp.overlap_param_gather", "training.overlap_weights", switch),
    KeyRow("ddp.use_distributed_optimizer", "parallel.zero_stage", chosen({True: 1, False: 0})),
    KeyRow("ddp.use_*fsdp", "", why="the distributed optimizer, with whole weights", off=(False,)),
    KeyRow("ddp.*", "", why=PERFORMANCE),
    KeyRow("dataset.seq_length", "training.sequence_length", integer),
    KeyRow("dataset.sequence_length", "training.sequence_length", integer),
    KeyRow("dataset.split", "data.split", word),
    KeyRow("dataset.data_path", "data.folder", word),
    KeyRow(
        "dataset.blend*",
        "",
        why="set data.folder, or data.blend with one dataset for each",
        off=(None,),
    ),
    KeyRow("dataset.random_seed", "", why="one seed for weights and text: training.seed"),
    KeyRow("dataset.eod_mask_loss", "", why="the loss counts every token", off=(False,)),
    KeyRow(
        "dataset.reset_*", "", why="attention looks over the ends of documents here", off=(False,)
    ),
    KeyRow("dataset.*", "", why="02-data prepares the text"),
    KeyRow("rng.seed", "training.seed", integer),
    KeyRow("rng.*", "", why=PERFORMANCE, off=(None, False)),
    KeyRow("logger.log_interval", "training.log_interval", integer),
    KeyRow("logger.*", "", why=LOGGING),
    KeyRow("checkpoint.save_interval", "training.save_interval", integer),
    KeyRow("checkpoint.async_save", "training.async_save", switch),
    KeyRow(
        "checkpoint.pretrained_checkpoint",
        "",
        why="`runbook import` begins with other weights",
        off=(None,),
    ),
    KeyRow("checkpoint.*", "", why=FOLDERS),
    KeyRow("mixed_precision", "training.precision", _precision),
    KeyRow(
        "mixed_precision.bf16",
        "training.precision",
        chosen({True: "bf16"}),
        "counts where it is on",
    ),
    KeyRow(
        "mixed_precision.fp16",
        "training.precision",
        chosen({True: "fp16"}),
        "counts where it is on",
    ),
    KeyRow("mixed_precision.fp8", "", why="set training.fp8", off=(None, False)),
    KeyRow("mixed_precision.fp8*", "", why="goes with training.fp8"),
    KeyRow("mixed_precision.*", "", why="training.precision says it"),
    KeyRow("comm_overlap.tp_comm_overlap", "training.overlap_tensor", switch),
    KeyRow("comm_overlap*", "", why=PERFORMANCE, off=(None,)),
    KeyRow("tokenizer.*", "", why="data.tokenizer names its file"),
    KeyRow(
        "dist.distributed_timeout_minutes",
        "training.process_group_timeout",
        lambda minutes: 60 * integer(minutes),
    ),
    KeyRow("dist*", "", why="the site's launcher starts the processes"),
    KeyRow("profiling*", "", why=PROFILE, off=(None,)),
    KeyRow("ft*", "", why="jobs.training.restarts and spares", off=(None,)),
    KeyRow("straggler*", "", why="an alarm names slow ranks", off=(None,)),
    KeyRow("nvrx_straggler*", "", why="an alarm names slow ranks", off=(None,)),
    KeyRow("rerun_state_machine*", "", why="training.replay_interval", off=(None,)),
    KeyRow("peft*", "", why="fine-tuning is not what a run does", off=(None,)),
    KeyRow("inprocess_restart*", "", why="jobs.training.restarts and spares", off=(None,)),
    KeyRow("tensor_inspect*", "", why=LOGGING, off=(None,)),
    KeyRow("env_vars*", "", why="the site's file has variables", off=(None,)),
    *(
        KeyRow(f"pretrain_recipe.{name}", key, read)
        for name, key, read in (
            ("train_iters", "training.iterations", integer),
            ("global_batch_size", "training.global_batch", integer),
            ("micro_batch_size", "training.micro_batch", integer),
            ("seq_length", "training.sequence_length", integer),
            ("lr", "training.learning_rate", decimal),
            ("min_lr", "training.min_learning_rate", decimal),
            ("lr_warmup_iters", "training.warmup_iterations", integer),
            ("lr_decay_iters", "training.decay_iterations", integer),
            ("eval_interval", "training.eval_interval", integer),
            ("save_interval", "training.save_interval", integer),
            ("tensor_model_parallel_size", "parallel.tensor", integer),
            ("pipeline_model_parallel_size", "parallel.pipeline", integer),
            ("context_parallel_size", "parallel.context", integer),
            ("sequence_parallel", "parallel.sequence", switch),
            ("precision_config", "training.precision", _precision),
        )
    ),
    KeyRow(
        "pretrain_recipe.virtual_pipeline_model_parallel_size",
        "parallel.virtual_pipeline",
        lambda value: 1 if value is None else integer(value),
    ),
    KeyRow("pretrain_recipe.expert_*", "", why=_NO_EXPERTS, off=(None, 1)),
    KeyRow("pretrain_recipe.name", "", why=FOLDERS),
    KeyRow("pretrain_recipe.dir", "", why=FOLDERS),
    KeyRow("pretrain_recipe.mock", "", why="set data.dataset", off=(True,)),
    KeyRow("pretrain_recipe.*data_path*", "", why="set data.folder, or data.blend", off=(None,)),
    KeyRow("pretrain_recipe.pipeline_dtype", "", why=PERFORMANCE),
    KeyRow("pretrain_recipe.comm_overlap_config", "", why=PERFORMANCE, off=(None,)),
    KeyRow(
        "pretrain_recipe.use_megatron_fsdp",
        "",
        why="the distributed optimizer, with whole weights",
        off=(False, None),
    ),
    KeyRow("_target_", "", why=_PARTS_OF_TARGET),
)
_DEFAULTS: dict[str, Any] = {
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
"""What the recipes have in common (recipes/common.py, _pretrain_common)."""
_DIFFERENCES = (
    OtherProgram(
        "trainer",
        "Megatron Bridge around megatron-core, with Transformer Engine's layers",
        "our own trainer around megatron-core; Transformer Engine where it is installed",
    ),
    OtherProgram(
        "values that the file leaves out",
        "the recipe's own",
        "those that Bridge's recipes have in common (2026-08), and one tensor, pipeline and context rank: adopt the whole "
        "configuration that Bridge prints or saves (run_config.yaml), which leaves nothing out",
    ),
)


def _finish(values: Values, findings: Findings, kind: ModelKind) -> None:
    """Name the model, and compute what several keys say together."""
    take_recipe_model(values, findings)
    if not any(name in values for name in ("dataset.data_path", "dataset.blend")) or (
        "dataset.blend" in values and values["dataset.blend"].value is None
    ):
        findings.take(
            "data.dataset", "mock", line_of(values, "dataset.blend"), "no blend: made-up text"
        )

    validation = (
        "validation.eval_interval"
        if "validation.eval_interval" in values
        else "train.eval_interval"
    )
    if validation not in values:
        findings.take("training.eval_interval", 500, 0, "the recipes' common part")
        findings.take(
            "training.eval_iterations",
            32,
            0,
            "the recipes' common part",
            over=False,
        )

    findings.take(
        "training.precision",
        "bf16",
        0,
        "bf16_mixed is the recipes' default",
        over=False,
    )
    name = "tokenizer.tokenizer_model"
    kind_of_tokenizer = text(values, "tokenizer.tokenizer_type")
    if kind_of_tokenizer != "GPT2BPETokenizer":
        take_path_of_tokenizer(findings, name, values.get(name))
    if "jobs.training.nodes" not in findings.carried:
        findings.ask("jobs.training.nodes", "how many nodes: the command that starts it says so")
    if findings.number("parallel.virtual_pipeline", 1) <= 1:
        findings.drop("parallel.virtual_pipeline")


MEGATRON_BRIDGE = ConfigFormat(
    program="Megatron Bridge",
    rows=_ROWS,
    defaults=_DEFAULTS,
    kind={},
    differences=_DIFFERENCES,
    finish=_finish,
    signs=frozenset(
        {
            "train.train_iters",
            "train.global_batch_size",
            "scheduler.",
            "dataset.seq_length",
            "model.seq_length",
            "checkpoint.save_interval",
            "logger.",
            "rng.seed",
            "train.micro_batch_size",
        }
    ),
)
