"""Options of NeMo (NeMo-Framework-Launcher 23.04, of the AWS document): Hydra overrides of its configuration."""

import re

from runbook.core.units import parse_duration
from runbook.frameworks.options import (
    RAMP_KEYS,
    Option,
    PhaseRun,
    chosen,
    one_of,
    text,
    truth,
    whole,
    written,
)

NULL = object()
"""Written as Hydra's null; None is not written."""
_SCHEDULES = {
    "cosine": "CosineAnnealing",
    "linear": "PolynomialDecayAnnealing",
    "constant": "WarmupHoldPolicy",
}
_PRECISIONS = {"bf16": "bf16", "16": "fp16", "32": "fp32", "bf16-mixed": "bf16", "16-mixed": "fp16"}
_RECOMPUTED = {"full": "full", "selective": "selective", "null": "none", "none": "none"}
_PLAIN = re.compile(r"[A-Za-z0-9_./-]+")


def _precision(run: PhaseRun) -> object:
    return {"bf16": "bf16", "fp16": 16, "fp32": 32}[run.phase.precision.format]


def _max_time(run: PhaseRun) -> str:
    seconds = run.phase.limits.exit_duration_seconds
    return f"{seconds // 86400:02d}:{seconds % 86400 // 3600:02d}:{seconds % 3600 // 60:02d}:00"


def _read_max_time(text: str) -> int:
    return parse_duration(re.sub(r"^(\d+):(\d+:\d+:\d+)$", r"\1-\2", text))


def _constant_steps(run: PhaseRun) -> int:
    """NeMo decays until max_steps less these, and stays at the minimum; below 0, the decay outlasts the training."""
    return (
        run.phase.duration.iterations
        - run.phase.learning_rate.decay_samples // run.phase.batch.global_
    )


def _virtual(run: PhaseRun) -> object:
    chunks = run.phase.parallel.virtual_pipeline
    return chunks if chunks > 1 else NULL


def _interleaved(run: PhaseRun) -> object:
    """NeMo's 175B sets these for its interleaved pipeline; its smaller sizes, which have none, leave them empty."""
    return None if run.phase.parallel.virtual_pipeline > 1 else NULL


def _fusion(run: PhaseRun) -> object:
    return {"always": True, "never": False}.get(run.phase.tuning.fuse_gradients)


def _read_fusion(text: str) -> str:
    return "always" if truth(text) else "never"


def _recompute(run: PhaseRun) -> object:
    return NULL if run.phase.recompute == "none" else run.phase.recompute


OPTIONS = (
    Option("trainer.num_nodes", "jobs.training.nodes", whole, lambda run: run.job.nodes),
    Option(
        "trainer.devices",
        "jobs.training.devices_per_node",
        whole,
        lambda run: run.job.devices_per_node,
    ),
    Option("trainer.precision", "training.precision", one_of(_PRECISIONS), _precision),
    Option("trainer.max_steps", "training.iterations", whole, "duration.iterations"),
    Option("trainer.log_every_n_steps", "training.log_interval", whole, "log.interval"),
    Option(
        "trainer.val_check_interval",
        "training.eval_interval",
        whole,
        lambda run: run.evaluation_interval,
    ),
    Option(
        "trainer.limit_val_batches",
        "training.eval_iterations",
        whole,
        lambda run: run.evaluation_batches,
    ),
    Option("trainer.limit_test_batches", write=lambda run: run.evaluation_batches),
    Option("trainer.gradient_clip_val", "training.clip_gradient", float, "optimizer.clip_gradient"),
    # The experiment manager's callback saves, not Lightning's.
    Option("trainer.enable_checkpointing", write=lambda run: False),
    Option(
        "trainer.max_time",
        "training.exit_duration",
        _read_max_time,
        _max_time,
        "limits.exit_duration_seconds",
    ),
    # The launcher's base_results_dir, which NeMo's file puts in here, is not known to a program started alone.
    Option("run.results_dir", write="checkpoint.folder"),
    Option("exp_manager.explicit_log_dir", write="checkpoint.folder"),
    Option("exp_manager.wandb_logger_kwargs.name", write="phase"),
    Option("exp_manager.resume_if_exists", write=lambda run: run.phase.checkpoint.interval > 0),
    Option(
        "exp_manager.create_checkpoint_callback",
        write=lambda run: run.phase.checkpoint.interval > 0,
    ),
    Option(
        "exp_manager.checkpoint_callback_params.save_top_k",
        "training.keep_checkpoints",
        whole,
        "checkpoint.keep",
    ),
    Option(
        "exp_manager.checkpoint_callback_params.model_parallel_size",
        write=lambda run: run.phase.parallel.tensor * run.phase.parallel.pipeline,
    ),
    Option("model.micro_batch_size", "training.micro_batch", whole, "batch.micro"),
    Option("model.global_batch_size", "training.global_batch", whole, "batch.global_"),
    Option("model.tensor_model_parallel_size", "parallel.tensor", whole, "parallel.tensor"),
    Option("model.pipeline_model_parallel_size", "parallel.pipeline", whole, "parallel.pipeline"),
    Option(
        "model.virtual_pipeline_model_parallel_size",
        "parallel.virtual_pipeline",
        lambda text: 1 if text.lower() in ("null", "none") else whole(text),
        _virtual,
    ),
    Option("model.encoder_seq_length", "training.sequence_length", whole, "model.sequence_length"),
    Option("model.max_position_embeddings", "training.shape.positions", whole, "model.positions"),
    Option("model.num_layers", "training.shape.layers", whole, "model.layers"),
    Option("model.hidden_size", "training.shape.hidden", whole, "model.hidden"),
    Option("model.ffn_hidden_size", "training.shape.ffn_hidden", whole, "model.ffn_hidden"),
    Option("model.num_attention_heads", "training.shape.heads", whole, "model.heads"),
    Option(
        "model.layernorm_epsilon",
        write="model.norm_epsilon",
        when=lambda phase: phase.model.norm_epsilon != 1e-5,
    ),
    Option("model.init_method_std", "training.init_std", float, "model.init_std"),
    Option("model.hidden_dropout", "training.dropout", float, "model.dropout"),
    Option("model.sequence_parallel", "parallel.sequence", truth, "parallel.sequence"),
    Option(
        "model.activations_checkpoint_granularity",
        "training.recompute",
        one_of(_RECOMPUTED),
        _recompute,
    ),
    Option(
        "model.activations_checkpoint_method",
        "training.recompute_method",
        write=lambda run: (
            run.phase.tuning.recompute_method if run.phase.recompute == "full" else "block"
        ),
    ),
    Option(
        "model.activations_checkpoint_num_layers",
        "training.recompute_num_layers",
        lambda text: max(1, whole(text)),
        lambda run: run.phase.tuning.recompute_num_layers if run.phase.recompute == "full" else 0,
    ),
    chosen("model.optim.overlap_grad_sync", "training.overlap_gradients", truth),
    Option("model.gradient_accumulation_fusion", "training.fuse_gradients", _read_fusion, _fusion),
    Option("model.tokenizer.vocab_file", write=lambda run: run.tokenizer_file("vocab.json")),
    Option("model.tokenizer.merge_file", write=lambda run: run.tokenizer_file("merges.txt")),
    Option(
        "model.native_amp_init_scale",
        "training.initial_loss_scale",
        float,
        "precision.initial_loss_scale",
    ),
    Option(
        "model.native_amp_growth_interval",
        "training.loss_scale_window",
        whole,
        "precision.loss_scale_window",
    ),
    Option("model.hysteresis", "training.loss_scale_hysteresis", whole, "precision.hysteresis"),
    Option("model.megatron_amp_O2", write=lambda run: run.phase.precision.format != "fp32"),
    Option("model.seed", "training.seed", whole, "seed"),
    Option(
        "model.optim.name",
        write=lambda run: (
            "distributed_fused_adam" if run.phase.parallel.zero_stage else "fused_adam"
        ),
    ),
    Option("model.optim.lr", "training.learning_rate", float, "learning_rate.peak"),
    Option("model.optim.weight_decay", "training.weight_decay", float, "optimizer.weight_decay"),
    Option(
        "model.optim.betas",
        "training.adam_beta1 training.adam_beta2",
        float,
        lambda run: (run.phase.optimizer.beta1, run.phase.optimizer.beta2),
    ),
    Option(
        "model.optim.sched.name",
        "training.schedule",
        one_of({name.lower(): schedule for schedule, name in _SCHEDULES.items()}),
        lambda run: _SCHEDULES[run.phase.learning_rate.schedule],
    ),
    Option(
        "model.optim.sched.warmup_steps",
        "training.warmup_iterations",
        whole,
        lambda run: run.phase.learning_rate.warmup_samples // run.phase.batch.global_,
    ),
    Option("model.optim.sched.constant_steps", write=_constant_steps),
    Option(
        "model.optim.sched.min_lr", "training.min_learning_rate", float, "learning_rate.minimum"
    ),
    Option("model.rampup_batch_size", RAMP_KEYS, whole, lambda run: run.ramp, "batch.ramp.start"),
    Option("model.num_micro_batches_with_partial_activation_checkpoints", write=_interleaved),
    Option("model.activations_checkpoint_layers_per_pipeline", write=_interleaved),
    Option("model.data.data_impl", write=lambda run: "mmap" if run.phase.data.train else "mock"),
    Option("model.data.splits_string", "data.split", str, "data.split"),
    Option("model.data.seq_length", "training.sequence_length", whole, "model.sequence_length"),
    Option("model.data.index_mapping_dir", write="data.cache"),
    Option(
        "model.data.data_prefix",
        write=lambda run: tuple(
            word for source in run.phase.data.train for word in (source.weight, source.prefix)
        ),
    ),
)
READ = {option.name: option for option in OPTIONS if option.read} | {
    "cluster.nodes": Option("cluster.nodes", "jobs.training.nodes", whole)
}
"""What an override of NeMo or its launcher may say, by name."""


def arguments(run: PhaseRun) -> list[str]:
    """Overrides after megatron_gpt_pretraining.py.

    The image's own file is the base and is not edited: every value that it takes from the launcher is given here, where
    the document's script had each of eight ranks rewrite the file.
    """
    given = run.settings.site.frameworks["nemo"].options
    hydra = {"config-path", "config-name"}
    values = written(OPTIONS, run) | {
        name: value for name, value in given.items() if name not in hydra
    }
    words = [f"--{name}={given[name]}" for name in sorted(hydra & given.keys())]
    return words + [f"{name}={_hydra(value)}" for name, value in values.items()]


def _hydra(value: object) -> str:
    r"""A value in Hydra's grammar: quoted wherever it is more than a plain word.

    >>> _hydra("a/b.json"), _hydra("949,50,1"), _hydra(NULL), _hydra(True), _hydra((1.0, "x y")), _hydra("it's")
    ('a/b.json', "'949,50,1'", 'null', 'True', "[1.0,'x y']", "'it\\'s'")
    """
    if value is NULL:
        return "null"
    if isinstance(value, tuple):
        return "[" + ",".join(map(_hydra, value)) + "]"
    if isinstance(value, bool | int | float):
        return text(value)
    word = str(value)
    if _PLAIN.fullmatch(word) and word.lower() not in ("null", "true", "false", "nan", "inf"):
        return word
    return "'" + word.replace("\\", "\\\\").replace("'", "\\'") + "'"
