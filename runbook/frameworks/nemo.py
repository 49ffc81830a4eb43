"""Options for NeMo, which override its configuration through Hydra.

The version is NeMo-Framework-Launcher 23.04, which the AWS document uses.
"""

import re
from itertools import chain

from runbook.core.units import parse_duration
from runbook.frameworks.optimizer_options import NEMO_CLIPPING, NEMO_OPTIMIZER
from runbook.frameworks.option_rows import (
    RAMP_KEYS,
    Option,
    PhaseRun,
    chosen,
    evaluation_batches,
    evaluation_interval,
    fixed,
    one_of,
    ramp,
    text,
    three_shares,
    tokenizer_file,
    truth,
    whole,
    written,
)
from runbook.frameworks.schedules import schedule_reader, schedule_writer
from runbook.plan_file.schema import ModelShape, PhasePlan

NULL = object()
"""This value is written as null for Hydra. None is not written at all."""
_PRECISIONS = {
    "bf16": "bf16",
    "16": "fp16",
    "32": "fp32",
    "bf16-mixed": "bf16",
    "16-mixed": "fp16",
}
_PRECISION_WORDS: dict[str, object] = {"bf16": "bf16", "fp16": 16, "fp32": 32}
"""What NeMo calls each of our number formats."""
_RECOMPUTED = {
    "full": "full",
    "selective": "selective",
    "null": "none",
    "none": "none",
}
_PLAIN = re.compile(r"[A-Za-z0-9_./-]+")


def _nodes(run: PhaseRun) -> int:
    return run.job.nodes


def _devices(run: PhaseRun) -> int:
    return run.job.devices_per_node


def _precision(run: PhaseRun) -> object:
    return _PRECISION_WORDS[run.phase.precision.format]


def _max_time(run: PhaseRun) -> str:
    """Return the time limit as Lightning expects it: days, hours, minutes and seconds."""
    minutes_left = run.phase.limits.exit_duration_seconds // 60
    days, minutes_left = divmod(minutes_left, 24 * 60)
    hours, minutes_left = divmod(minutes_left, 60)
    return f"{days:02d}:{hours:02d}:{minutes_left:02d}:00"


def _read_max_time(text: str) -> int:
    return parse_duration(re.sub(r"^(\d+):(\d+:\d+:\d+)$", r"\1-\2", text))


def _saves(run: PhaseRun) -> bool:
    return run.phase.checkpoint.interval > 0


def _model_parallel_size(run: PhaseRun) -> int:
    return run.phase.parallel.tensor * run.phase.parallel.pipeline


def _virtual(run: PhaseRun) -> object:
    chunks = run.phase.parallel.virtual_pipeline
    return chunks if chunks > 1 else NULL


def _read_virtual(text: str) -> int:
    return 1 if text.lower() in ("null", "none") else whole(text)


def _interleaved(run: PhaseRun) -> object:
    """Return None (write nothing) for an interleaved pipeline, and null for Hydra otherwise.

    The file from NeMo for 175B sets these options, because its pipeline is interleaved. The files
    for smaller sizes, which do not interleave, leave them empty.
    """
    return None if run.phase.parallel.virtual_pipeline > 1 else NULL


def _has_own_epsilon(phase: PhasePlan) -> bool:
    return phase.model.shape.norm_epsilon != 1e-5


def _recompute(run: PhaseRun) -> object:
    if run.phase.recompute == "none":
        return NULL
    return run.phase.recompute


def _recompute_method(run: PhaseRun) -> str:
    if run.phase.recompute == "full":
        return run.phase.tuning.recompute_method
    return "block"


def _recompute_num_layers(run: PhaseRun) -> int:
    if run.phase.recompute != "full":
        return 0
    return run.phase.tuning.recompute_num_layers


def _read_recompute_num_layers(text: str) -> int:
    return max(1, whole(text))


def _read_kv_heads(text: str) -> int:
    """Read the number of query groups. null means one group per head, which is 0 in a run file."""
    return 0 if text.lower() in ("null", "none") else whole(text)


def _fusion(run: PhaseRun) -> object:
    return {"always": True, "never": False}.get(run.phase.tuning.fuse_gradients)


def _read_fusion(text: str) -> str:
    return "always" if truth(text) else "never"


def _half_precision(run: PhaseRun) -> bool:
    return run.phase.precision.format != "fp32"


def _optimizer(run: PhaseRun) -> str:
    if run.phase.parallel.zero_stage:
        return "distributed_fused_adam"
    return "fused_adam"


def _warmup_steps(run: PhaseRun) -> int:
    return run.phase.learning_rate.warmup_samples // run.phase.batch.global_


def _constant_steps(run: PhaseRun) -> int:
    """Return how many steps use the minimum learning rate, after the decay in NeMo has ended.

    If the result is negative, the decay lasts longer than the training.
    """
    decay_steps = run.phase.learning_rate.decay_samples // run.phase.batch.global_
    return run.phase.duration.iterations - decay_steps


def _data_kind(run: PhaseRun) -> str:
    return "mmap" if run.phase.data.train else "mock"


def _data_prefix(run: PhaseRun) -> tuple[object, ...]:
    """Return the weights and prefixes for all training files as one flat sequence."""
    pairs = [(source.weight, source.prefix) for source in run.phase.data.train]
    return tuple(chain(*pairs))


_READ_PRECISION = one_of(_PRECISIONS)
_READ_RECOMPUTE = one_of(_RECOMPUTED)
_READ_ACTIVATION = one_of({"gelu": "gelu", "swiglu": "swiglu", "fast-swiglu": "swiglu"})
_READ_NORMALIZATION = one_of({"layernorm": "layernorm", "rmsnorm": "rmsnorm"})
_READ_POSITIONS = one_of({"learned_absolute": "learned", "rope": "rope"})
_EXIT = "limits.exit_duration_seconds"
_GROUP = "training.recompute_num_layers"
_FUSE = "training.fuse_gradients"
_SCALE = "precision.initial_loss_scale"
_WINDOW = "precision.loss_scale_window"

# Each row has the name in NeMo, our key, how to read and write the value, and when to write it.
_TRAINER = (
    Option("trainer.num_nodes", "jobs.training.nodes", whole, _nodes),
    Option("trainer.devices", "jobs.training.devices_per_node", whole, _devices),
    Option("trainer.precision", "training.precision", _READ_PRECISION, _precision),
    Option("trainer.max_steps", "training.iterations", whole, "duration.iterations"),
    Option("trainer.log_every_n_steps", "training.log_interval", whole, "log.interval"),
    Option("trainer.val_check_interval", "training.eval_interval", whole, evaluation_interval),
    Option("trainer.limit_val_batches", "training.eval_iterations", whole, evaluation_batches),
    Option("trainer.limit_test_batches", write=evaluation_batches),
    NEMO_CLIPPING,
    # The experiment manager uses its own callback to write checkpoints, not the one in Lightning.
    Option("trainer.enable_checkpointing", write=fixed(False)),
    Option(
        "trainer.max_time",
        "training.exit_duration",
        _read_max_time,
        _max_time,
        _EXIT,
    ),
)
_CALLBACK = "exp_manager.checkpoint_callback_params"
_EXPERIMENT = (
    # The file from NeMo refers to base_results_dir here, which only the launcher defines.
    Option("run.results_dir", write="checkpoint.folder"),
    Option("exp_manager.explicit_log_dir", write="checkpoint.folder"),
    Option("exp_manager.wandb_logger_kwargs.name", write="phase"),
    Option("exp_manager.resume_if_exists", write=_saves),
    Option("exp_manager.create_checkpoint_callback", write=_saves),
    Option(f"{_CALLBACK}.save_top_k", "training.keep_checkpoints", whole, "checkpoint.keep"),
    Option(f"{_CALLBACK}.model_parallel_size", write=_model_parallel_size),
)
_MODEL = (
    Option("model.micro_batch_size", "training.micro_batch", whole, "batch.micro"),
    Option("model.global_batch_size", "training.global_batch", whole, "batch.global_"),
    Option("model.tensor_model_parallel_size", "parallel.tensor", whole, "parallel.tensor"),
    Option("model.pipeline_model_parallel_size", "parallel.pipeline", whole, "parallel.pipeline"),
    Option(
        "model.virtual_pipeline_model_parallel_size",
        "parallel.virtual_pipeline",
        _read_virtual,
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
        "model.norm_epsilon",
        float,
        "model.norm_epsilon",
        _has_own_epsilon,
    ),
    Option("model.init_method_std", "training.init_std", float, "model.init_std"),
    Option("model.hidden_dropout", "training.dropout", float, "model.dropout"),
    Option("model.sequence_parallel", "parallel.sequence", truth, "parallel.sequence"),
)
_CHECKPOINTED = "model.activations_checkpoint"
_TUNING = (
    Option(f"{_CHECKPOINTED}_granularity", "training.recompute", _READ_RECOMPUTE, _recompute),
    Option(f"{_CHECKPOINTED}_method", "training.recompute_method", write=_recompute_method),
    Option(
        f"{_CHECKPOINTED}_num_layers", _GROUP, _read_recompute_num_layers, _recompute_num_layers
    ),
    chosen("model.optim.overlap_grad_sync", "training.overlap_gradients", truth),
    Option("model.gradient_accumulation_fusion", _FUSE, _read_fusion, _fusion),
    Option("model.tokenizer.vocab_file", write=tokenizer_file("vocab.json")),
    Option("model.tokenizer.merge_file", write=tokenizer_file("merges.txt")),
    Option("model.native_amp_init_scale", "training.initial_loss_scale", float, _SCALE),
    Option("model.native_amp_growth_interval", "training.loss_scale_window", whole, _WINDOW),
    Option("model.hysteresis", "training.loss_scale_hysteresis", whole, "precision.hysteresis"),
    Option("model.megatron_amp_O2", write=_half_precision),
    Option("model.seed", "training.seed", whole, "seed"),
)
_OPTIMIZER = (
    Option("model.optim.name", write=_optimizer),
    Option("model.optim.lr", "training.learning_rate", float, "learning_rate.peak"),
    *NEMO_OPTIMIZER,
    Option(
        "model.optim.sched.name",
        "training.schedule",
        schedule_reader("nemo"),
        schedule_writer("nemo"),
    ),
    Option("model.optim.sched.warmup_steps", "training.warmup_iterations", whole, _warmup_steps),
    Option("model.optim.sched.constant_steps", write=_constant_steps),
    Option(
        "model.optim.sched.min_lr", "training.min_learning_rate", float, "learning_rate.minimum"
    ),
    Option(
        "model.rampup_batch_size",
        RAMP_KEYS,
        whole,
        ramp,
        "batch.ramp.start",
    ),
    Option("model.num_micro_batches_with_partial_activation_checkpoints", write=_interleaved),
    Option("model.activations_checkpoint_layers_per_pipeline", write=_interleaved),
)
_DATA = (
    Option("model.data.data_impl", write=_data_kind),
    Option("model.data.splits_string", "data.split", three_shares, "data.split"),
    Option("model.data.seq_length", "training.sequence_length", whole, "model.sequence_length"),
    Option("model.data.index_mapping_dir", write="data.cache"),
    Option("model.data.data_prefix", write=_data_prefix),
)
OPTIONS = (*_TRAINER, *_EXPERIMENT, *_MODEL, *_TUNING, *_OPTIMIZER, *_DATA)
_ONLY_READ = (
    Option("cluster.nodes", "jobs.training.nodes", whole),
    Option("model.num_query_groups", "training.shape.kv_heads", _read_kv_heads),
    Option("model.activation", "model.activation", _READ_ACTIVATION),
    Option("model.normalization", "model.normalization", _READ_NORMALIZATION),
    Option("model.bias", "model.biases", truth),
    Option("model.share_embeddings_and_output_weights", "model.tied_embeddings", truth),
    Option("model.position_embedding_type", "model.position_embedding", _READ_POSITIONS),
    Option("model.rotary_base", "model.rope_base", float),
)
"""An option for the launcher, and options for properties that models in the document lack."""
READ = {option.name.lstrip("+"): option for option in (*OPTIONS, *_ONLY_READ) if option.read}
"""The overrides that may be passed to NeMo or its launcher, by name."""
_KIND = {
    "tied_embeddings": True,
    "position_embedding": "learned",
    "normalization": "layernorm",
    "activation": "gelu",
    "biases": True,
    "qkv_biases": False,
}
"""The model type used in files from the document.

NeMo 23.04 is pinned, and no option here changes the type.
"""


def other_kind(shape: ModelShape) -> list[str]:
    """Return the model properties that no option here can write, as `field=value`."""
    properties = []
    for name, usual in _KIND.items():
        value = getattr(shape, name)
        if value != usual:
            properties.append(f"{name}={value}")
    if shape.kv_heads != shape.heads:
        properties.append(f"kv_heads={shape.kv_heads}")
    return properties


def arguments(run: PhaseRun) -> list[str]:
    """Return the overrides to pass to megatron_gpt_pretraining.py.

    Options from the site replace ours. The base is the configuration file in the image, which is
    not edited. Every value expected by the file from the launcher is passed as an override. In the
    script from the document, each of the eight ranks rewrites the file instead.
    """
    site_options = run.settings.site.frameworks["nemo"].options
    of_hydra = ("config-name", "config-path")
    values = written(OPTIONS, run)
    for name, value in site_options.items():
        if name not in of_hydra:
            values[name] = value

    hydra_words = []
    for name in of_hydra:
        if name in site_options:
            hydra_words.append(f"--{name}={site_options[name]}")

    overrides = [f"{name}={hydra_text(value)}" for name, value in values.items()]
    return hydra_words + overrides


def hydra_text(value: object) -> str:
    r"""Return a value as Hydra parses it, quoted if it is more than a plain word.

    >>> hydra_text("a/b.json"), hydra_text("949,50,1"), hydra_text("it's")
    ('a/b.json', "'949,50,1'", "'it\\'s'")
    >>> hydra_text(NULL), hydra_text(True), hydra_text((1.0, "x y"))
    ('null', 'True', "[1.0,'x y']")
    """
    if value is NULL:
        return "null"
    if isinstance(value, tuple):
        return "[" + ",".join(map(hydra_text, value)) + "]"
    if isinstance(value, bool | int | float):
        return text(value)
    word = str(value)
    if _PLAIN.fullmatch(word) and word.lower() not in ("null", "true", "false", "nan", "inf"):
        return word
    return "'" + word.replace("\\", "\\\\").replace("'", "\\'") + "'"
