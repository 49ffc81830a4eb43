"""Options for Megatron-LM and Megatron-DeepSpeed, and the DeepSpeed configuration file.

Megatron-LM is NVIDIA/Megatron-LM e958b2ca, which the Azure document uses. Megatron-DeepSpeed is the
repository from Microsoft, or one of its forks for LUMI and ALCF.
"""

import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from runbook.core.errors import ParamsError
from runbook.frameworks.messages import FrameworkMessage
from runbook.frameworks.optimizer_options import MEGATRON_OPTIMIZER
from runbook.frameworks.option_rows import (
    RAMP_KEYS,
    Option,
    PhaseRun,
    Reader,
    chosen,
    evaluation_batches,
    evaluation_interval,
    fixed,
    flag,
    minutes,
    one_of,
    ramp,
    text,
    three_shares,
    tokenizer_file,
    whole,
    written,
)
from runbook.frameworks.schedules import schedule_reader, schedule_writer
from runbook.params import Settings
from runbook.plan_file.deepspeed import deepspeed_config
from runbook.plan_file.json_records import value_at
from runbook.plan_file.phase_names import FULL
from runbook.plan_file.schema import PhasePlan, Source

OWN_DEEPSPEED = "deepspeed.json"
"""Name of the DeepSpeed configuration file in job folders for our own trainer."""
Condition = Callable[[PhasePlan], bool]
"""A condition under which an option is written for a phase."""


def deepspeed_name(settings: Settings, phase: PhasePlan) -> str:
    """Return the path to the DeepSpeed file, relative to the run folder, where jobs run.

    The name includes a content digest, so that different jobs never share a file, and a
    changed job never reads the old file.
    """
    digest = hashlib.sha256(deepspeed_file(settings, phase).encode()).hexdigest()
    return f"deepspeed/{phase.phase}-zero{phase.parallel.zero_stage}-{digest[:12]}.json"


def deepspeed_file(settings: Settings, phase: PhasePlan) -> str:
    """Return the text for the DeepSpeed file: batch, ZeRO stage, precision, and site additions.

    For our own engine, the content is exactly what plan.json passes to DeepSpeed.
    """
    if phase.deepspeed:
        return json.dumps(phase.deepspeed, indent=2) + "\n"
    content = deepspeed_config(phase, offload=settings.run.training.offload)
    extra = settings.site.frameworks["megatron-deepspeed"].deepspeed
    return json.dumps(_merged(content, extra), indent=2) + "\n"


def _merged(content: dict[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return `content` with `extra` merged into it, section by section."""
    result = dict(content)
    for key, value in extra.items():
        section = result.get(key)
        if isinstance(section, dict) and isinstance(value, Mapping):
            result[key] = _merged(section, value)
        else:
            result[key] = value

    return result


def _counts_tokens(run: PhaseRun) -> bool:
    """Return whether lengths in this phase are written in tokens.

    This is the case if the run specifies its length in tokens and the framework is
    Megatron-DeepSpeed, because no other framework accepts tokens.
    """
    is_training = run.phase.phase == FULL
    return (
        is_training and bool(run.training.tokens) and run.training.framework == "megatron-deepspeed"
    )


def _unit(run: PhaseRun) -> str:
    """Return the unit used for lengths in a phase: iters, samples or tokens.

    Megatron does not accept mixed units, so all lengths are in iterations if each is a whole number
    of iterations, and otherwise in samples.
    """
    phase = run.phase
    if _counts_tokens(run):
        return "tokens"
    lengths_in_samples = (
        phase.duration.samples,
        phase.learning_rate.warmup_samples,
        phase.learning_rate.decay_samples,
        phase.learning_rate.wsd_decay_samples,
    )
    whole_steps = all(samples % phase.batch.global_ == 0 for samples in lengths_in_samples)
    if whole_steps and not run.training.samples and not phase.batch.ramp.start:
        return "iters"
    return "samples"


def _in(unit: str, path: str) -> Callable[[PhaseRun], int | None]:
    """Return a writer to convert the samples at `path` in the plan to `unit`.

    The writer returns None if the phase uses a different unit.
    """

    def write(run: PhaseRun) -> int | None:
        if _unit(run) != unit:
            return None
        samples: int = value_at(run.phase, path)
        if unit == "iters":
            return samples // run.phase.batch.global_
        if unit == "tokens":
            return samples * run.phase.model.shape.sequence_length
        return samples

    return write


def _train_samples(run: PhaseRun) -> int | None:
    """Return the training length in samples, or None if the phase counts in iterations.

    Samples are needed even if the length is in tokens, because Megatron-DeepSpeed uses them to
    compute the number of iterations, and stops at whichever length it reaches first.
    """
    return None if _unit(run) == "iters" else run.phase.duration.samples


def _train_tokens(run: PhaseRun) -> int | None:
    return run.training.tokens if _unit(run) == "tokens" else None


def _warmup_tokens(run: PhaseRun) -> int | None:
    """Return the warm-up in tokens, as the run specifies it, not rounded to whole samples."""
    tokens = _in("tokens", _WARMUP)(run)
    return tokens and (run.training.warmup_tokens or tokens)


def _kind(text: str) -> str:
    return text.lower().replace("learned_absolute", "learned")


def _attention(run: PhaseRun) -> str:
    return run.training.attention


def _backend(run: PhaseRun) -> str:
    return _BACKENDS.get(run.training.attention, "auto")


def _is(path: str, *values: object) -> Condition:
    """Return the condition that the plan for a phase has one of `values` at `path`."""
    return lambda phase: value_at(phase, path) in values


def _is_not(path: str, usual: object) -> Condition:
    """Return the condition that the plan for a phase has a value other than `usual` at `path`."""
    return lambda phase: value_at(phase, path) != usual


def _both(first: Condition, second: Condition) -> Condition:
    return lambda phase: first(phase) and second(phase)


_FP16 = _is("precision.format", "fp16")
_ROTARY = _is("model.position_embedding", "rope")
_IN_8_BITS = _is_not("precision.fp8", "none")
_OWN_EPSILON = _is_not("model.norm_epsilon", 1e-5)
_RMS = _is("model.normalization", "rmsnorm")
_ONE_STAGE = _is("parallel.pipeline", 1)
_CUTS_CONTEXT = _is_not("parallel.context", 1)
_OWN_BASE = _both(_ROTARY, _is_not("model.rope_base", 10_000))
_RECOMPUTES = _is("recompute", "selective", "full")
_RECOMPUTES_ALL = _is("recompute", "full")
_RECOMPUTES_GROUPS = _both(_RECOMPUTES_ALL, _is_not("tuning.recompute_num_layers", 1))


def _grouped(phase: PhasePlan) -> bool:
    return phase.model.shape.kv_heads != phase.model.shape.heads


def _has_own_ffn(phase: PhasePlan) -> bool:
    """Return whether the feed-forward width differs from the default in Megatron."""
    return phase.model.shape.ffn_hidden != 4 * phase.model.shape.hidden


def _is_interleaved(phase: PhasePlan) -> bool:
    return phase.parallel.virtual_pipeline > 1


def _one_text(phase: PhasePlan) -> bool:
    """Return whether each token file is split, which is the case if no whole file is held out."""
    return bool(phase.data.train) and not phase.data.held_out


def _no_qkv_biases(run: PhaseRun) -> None:
    raise ParamsError(FrameworkMessage.QKV_BIASES_ALONE, model_name=run.phase.model.name)


def _recipe(run: PhaseRun) -> str:
    if run.phase.precision.fp8 == "blockwise":
        raise ParamsError(FrameworkMessage.NO_BLOCKWISE_FP8)

    return run.phase.precision.fp8


def _timeout_minutes(run: PhaseRun) -> int:
    return max(1, round(run.phase.limits.process_group_timeout_seconds / 60))


def _exit_minutes(run: PhaseRun) -> int:
    return max(1, run.phase.limits.exit_duration_seconds // 60)


def _save_interval(run: PhaseRun) -> int:
    """Return how many steps lie between two saves.

    Without an interval, training saves once, at its end.
    """
    return run.phase.checkpoint.interval or run.phase.duration.iterations


def _layers_per_chunk(run: PhaseRun) -> int:
    parallel = run.phase.parallel
    return run.phase.model.shape.layers // (parallel.pipeline * parallel.virtual_pipeline)


def _shares_states(run: PhaseRun) -> int:
    """Return 1 for any ZeRO stage above 0. Megatron-LM only has its distributed optimizer."""
    return min(1, run.phase.parallel.zero_stage)


def _dataset(run: PhaseRun) -> str:
    return "mock" if run.phase.data.mock else ""


def _offload(run: PhaseRun) -> bool:
    return run.training.offload


def _reduces_in_bf16(run: PhaseRun) -> bool:
    return run.training.reduce_in_bf16


def _fuses_loss(run: PhaseRun) -> str | None:
    """Return the option value used to turn on loss fusion, which both implementations need."""
    return None if run.training.loss_fusion == "auto" else _NATIVE_LOSS


def _loss_implementation(run: PhaseRun) -> str | None:
    """Return the fused loss to request, or None for the default or an unfused loss."""
    implementation = run.training.loss_fusion
    return None if implementation in ("auto", _NATIVE_LOSS) else implementation


def _deepspeed_path(run: PhaseRun) -> str:
    return deepspeed_name(run.settings, run.phase)


def _always(
    name: str, ours: str, when: str | Callable[[PhasePlan], object] | None = None
) -> Option:
    """Return a row for a flag that has no value and does not depend on the run file.

    The flag is written in all phases, or in the phases for which `when` is true.
    """
    return Option(
        name,
        write=fixed(True),
        when=when,
        ours=ours,
    )


def _length(
    name: str,
    key: str,
    unit: str,
    path: str,
) -> Option:
    """Return the option for a length, which is passed only if the phase uses this unit."""
    return Option(name, key, whole, _in(unit, path))


def _loss_scaling(
    name: str,
    key: str,
    read: Reader,
    field: str,
    *,
    usual: float | None = None,
) -> Option:
    """Return a row for a loss-scaling option, which only fp16 uses.

    The option is not written if the plan has the `usual` value.
    """
    path = f"precision.{field}"
    when = _FP16 if usual is None else _both(_FP16, _is_not(path, usual))
    return Option(
        name,
        key,
        read,
        path,
        when,
    )


def _weighted(use: str) -> Callable[[PhaseRun], tuple[object, ...] | None]:
    """Return a writer for the weights and prefixes of the train, validation or test files.

    A single file is written without a weight. If there are no files, the option is not written.
    """

    def write(run: PhaseRun) -> tuple[object, ...] | None:
        sources: tuple[Source, ...] = getattr(run.phase.data, use)
        if len(sources) == 1:
            return (sources[0].prefix,)
        pairs = [(source.weight, source.prefix) for source in sources]
        return tuple(itertools.chain(*pairs)) or None

    return write


_WARMUP = "learning_rate.warmup_samples"
_DECAY = "learning_rate.decay_samples"
_WSD_DECAY = "learning_rate.wsd_decay_samples"
_WSD_STYLE = "learning_rate.wsd_decay_style"
_RECOMPUTED = one_of({"full": "full", "selective": "selective"})
_BACKENDS = {
    "auto": "auto",
    "flash2": "flash",
    "flash1": "flash",
    "plain": "unfused",
}
"""Attention backend in Megatron-LM to use for each value of training.attention.

The two versions of flash attention share a backend, because Megatron-LM does not choose between
them, and Transformer Engine has its own.
"""
_READ_BACKENDS = one_of(
    {"auto": "auto", "flash": "flash2", "unfused": "plain", "fused": "auto", "local": "plain"}
)
_HELD_OUT = "data.held_out, or data.split"
_VOCABULARY = "GPT-2's vocab.json is shipped"
_MERGES = "GPT-2's merges.txt is shipped"
_OWN_FOLDERS = (
    "every run has its own folders, and the smoke test and the training run never share one"
)
_OWN_CHECKPOINT = "a job that is started again continues from the run's own checkpoint"
_OWN_CONFIG = "written from the run file, with a different name for each job"
_NO_PIPELINE = "given where parallel.pipeline is 1, unless the site leaves it out"
_NATIVE_LOSS = "native"
_WITH_RECOMPUTE = "goes with training.recompute"
_PINNED = "the default of the pinned commit"
_TIMEOUT = "training.process_group_timeout"
_GROUP = "training.recompute_num_layers"
_GROUP_SIZE = "tuning.recompute_num_layers"
_EXIT = "limits.exit_interval"
_SAVES = "checkpoint.saves"

# Each row has the upstream name, our key, how to read and write the value, and when to write it.
_MODEL = (
    Option("num-layers", "training.shape.layers", whole, "model.layers"),
    Option("hidden-size", "training.shape.hidden", whole, "model.hidden"),
    Option("num-attention-heads", "training.shape.heads", whole, "model.heads"),
    Option(
        "ffn-hidden-size",
        "training.shape.ffn_hidden",
        whole,
        "model.ffn_hidden",
        _has_own_ffn,
    ),
    Option("seq-length", "training.sequence_length", whole, "model.sequence_length"),
    Option("max-position-embeddings", "training.shape.positions", whole, "model.positions"),
    flag("swiglu", "model.activation", means="swiglu"),
    flag("disable-bias-linear", "model.biases", means=False),
    flag("untie-embeddings-and-output-weights", "model.tied_embeddings", means=False),
    Option("tensor-model-parallel-size", "parallel.tensor", whole, "parallel.tensor"),
    Option("pipeline-model-parallel-size", "parallel.pipeline", whole, "parallel.pipeline"),
    flag("sequence-parallel", "parallel.sequence"),
    flag("no-gradient-accumulation-fusion", "training.fuse_gradients", means="never"),
)
_TRAINING = (
    Option("micro-batch-size", "training.micro_batch", whole, "batch.micro"),
    Option("global-batch-size", "training.global_batch", whole, "batch.global_"),
    Option(
        "rampup-batch-size",
        RAMP_KEYS,
        whole,
        ramp,
        "batch.ramp.start",
    ),
    _length("train-iters", "training.iterations", "iters", "duration.samples"),
    Option("train-samples", "training.samples", whole, _train_samples),
    Option("lr", "training.learning_rate", float, "learning_rate.peak"),
    Option("min-lr", "training.min_learning_rate", float, "learning_rate.minimum"),
    Option(
        "lr-decay-style",
        "training.schedule",
        schedule_reader("megatron-lm"),
        schedule_writer("megatron-lm"),
    ),
    _length("lr-decay-iters", "training.decay_iterations", "iters", _DECAY),
    _length("lr-decay-samples", "training.decay_samples", "samples", _DECAY),
    _length("lr-warmup-iters", "training.warmup_iterations", "iters", _WARMUP),
    _length("lr-warmup-samples", "training.warmup_samples", "samples", _WARMUP),
    *MEGATRON_OPTIMIZER,
    flag("fp16", "training.precision", "precision.format", means="fp16"),
    flag("bf16", "training.precision", "precision.format", means="bf16"),
    _loss_scaling("initial-loss-scale", "training.initial_loss_scale", float, "initial_loss_scale"),
    _loss_scaling("loss-scale-window", "training.loss_scale_window", whole, "loss_scale_window"),
    _loss_scaling("hysteresis", "training.loss_scale_hysteresis", whole, "hysteresis"),
    _loss_scaling(
        "loss-scale",
        "training.static_loss_scale",
        float,
        "static_loss_scale",
        usual=0,
    ),
    _loss_scaling(
        "min-loss-scale",
        "training.min_loss_scale",
        float,
        "minimum_loss_scale",
        usual=1,
    ),
    Option("init-method-std", "training.init_std", float, "model.init_std"),
    Option("hidden-dropout", "training.dropout", float, "model.dropout"),
    Option("attention-dropout", write="model.dropout"),
    Option("seed", "training.seed", whole, "seed"),
    Option("distributed-timeout-minutes", _TIMEOUT, minutes, _timeout_minutes),
)
_DATA = (
    Option("train-data-path", write=_weighted("train"), when="data.held_out"),
    Option("valid-data-path", write=_weighted("validation"), ours=_HELD_OUT),
    Option("test-data-path", write=_weighted("test"), ours=_HELD_OUT),
    Option("data-path", write=_weighted("train"), when=_one_text),
    Option(
        "split",
        "data.split",
        three_shares,
        "data.split",
        _one_text,
    ),
    Option("tokenizer-type", write=fixed("GPT2BPETokenizer")),
    Option("vocab-file", write=tokenizer_file("vocab.json"), ours=_VOCABULARY),
    Option("merge-file", write=tokenizer_file("merges.txt"), ours=_MERGES),
)
_CACHE = Option("data-cache-path", write="data.cache", ours="a folder of the run's own")
# If training saves no checkpoints, --save is left out, because these programs save at the end
# whenever it is given.
_OUTPUTS = (
    Option("log-interval", "training.log_interval", whole, "log.interval"),
    Option("eval-interval", "training.eval_interval", whole, evaluation_interval),
    Option("eval-iters", "training.eval_iterations", whole, evaluation_batches),
    Option(
        "save-interval",
        "training.save_interval",
        whole,
        _save_interval,
        _SAVES,
    ),
    Option(
        "save",
        write="checkpoint.folder",
        when=_SAVES,
        ours=_OWN_FOLDERS,
    ),
    Option(
        "load",
        write="checkpoint.folder",
        when=_SAVES,
        ours=_OWN_CHECKPOINT,
    ),
    Option("tensorboard-dir", write="log.tensorboard", ours="written into the run's folder"),
    # When asked to stop, the program saves a checkpoint and exits.
    _always("exit-signal-handler", "always given"),
    Option(
        "exit-interval",
        "training.exit_interval",
        whole,
        _EXIT,
        _EXIT,
    ),
    Option("exit-duration-in-mins", write=_exit_minutes, when="limits.exit_duration_seconds"),
)

_LM_LAYOUT = (
    Option("num-layers-per-virtual-pipeline-stage", write=_layers_per_chunk, when=_is_interleaved),
    Option(
        "context-parallel-size",
        "parallel.context",
        whole,
        "parallel.context",
        _CUTS_CONTEXT,
    ),
    Option("use-distributed-optimizer", "parallel.zero_stage", write=_shares_states, means=1),
)
_LM_MODEL = (
    _always("group-query-attention", "goes with training.shape.kv_heads", _grouped),
    Option(
        "num-query-groups",
        "training.shape.kv_heads",
        whole,
        "model.kv_heads",
        _grouped,
    ),
    Option(
        "position-embedding-type",
        "model.position_embedding",
        _kind,
        "model.position_embedding",
        _ROTARY,
    ),
    Option(
        "rotary-base",
        "model.rope_base",
        whole,
        "model.rope_base",
        _OWN_BASE,
    ),
    Option(
        "normalization",
        "model.normalization",
        _kind,
        fixed("RMSNorm"),
        _RMS,
    ),
    Option(
        "norm-epsilon",
        "model.norm_epsilon",
        float,
        "model.norm_epsilon",
        _OWN_EPSILON,
    ),
    flag("add-qkv-bias", "model.qkv_biases"),
)
_LM_SCHEDULE = (
    Option(
        "lr-wsd-decay-style",
        "training.wsd_decay_style",
        str,
        _WSD_STYLE,
        _WSD_DECAY,
    ),
    Option("lr-wsd-decay-iters", write=_in("iters", _WSD_DECAY), when=_WSD_DECAY),
    Option("lr-wsd-decay-samples", write=_in("samples", _WSD_DECAY), when=_WSD_DECAY),
)
_LM_TUNING = (
    Option("attention-backend", "training.attention", _READ_BACKENDS, _backend),
    Option(
        "recompute-granularity",
        "training.recompute",
        _RECOMPUTED,
        "recompute",
        _RECOMPUTES,
    ),
    Option(
        "recompute-method",
        "training.recompute_method",
        str,
        "tuning.recompute_method",
        _RECOMPUTES_ALL,
    ),
    Option(
        "recompute-num-layers",
        _GROUP,
        whole,
        _GROUP_SIZE,
        _RECOMPUTES_ALL,
    ),
    chosen("decoder-first-pipeline-num-layers", "parallel.first_stage_layers", whole),
    chosen("decoder-last-pipeline-num-layers", "parallel.last_stage_layers", whole),
    flag("overlap-grad-reduce", "training.overlap_gradients"),
    flag("overlap-param-gather", "training.overlap_weights"),
    Option(
        "grad-reduce-in-bf16",
        "training.reduce_in_bf16",
        write=_reduces_in_bf16,
        means=True,
    ),
    Option(
        "cross-entropy-loss-fusion",
        "training.loss_fusion",
        write=_fuses_loss,
        means=_NATIVE_LOSS,
    ),
    Option(
        "cross-entropy-fusion-impl",
        "training.loss_fusion",
        str,
        _loss_implementation,
    ),
    flag("tp-comm-overlap", "training.overlap_tensor"),
    flag("enable-cuda-graph", "training.cuda_graphs"),
    Option(
        "fp8-format",
        write=fixed("hybrid"),
        when=_IN_8_BITS,
        ours="goes with training.fp8",
    ),
    Option(
        "fp8-recipe",
        "training.fp8",
        str,
        _recipe,
        _IN_8_BITS,
    ),
    flag("no-overlap-p2p-communication", "training.overlap_pipeline", means="never"),
    _always("manual-gc", "goes with training.gc_interval", "tuning.gc_interval"),
    chosen("manual-gc-interval", "training.gc_interval", whole),
)
MEGATRON_LM = (
    *_MODEL,
    *_TRAINING,
    *_LM_LAYOUT,
    *_LM_MODEL,
    *_LM_SCHEDULE,
    *_LM_TUNING,
    *_DATA,
    _CACHE,
    Option("mock-data", "data.dataset", write=_dataset, means="mock"),
    *_OUTPUTS,
    Option("ckpt-format", write=fixed("torch_dist"), ours="torch_dist is always given"),
    _always("log-throughput", "always given"),
)

_DEEPSPEED_LENGTHS = (
    Option("train-tokens", "training.tokens", whole, _train_tokens),
    _length("lr-decay-tokens", "training.decay_tokens", "tokens", _DECAY),
    Option("lr-warmup-tokens", "training.warmup_tokens", whole, _warmup_tokens),
)
_DEEPSPEED_MODEL = (
    Option(
        "ds-sequence-parallel-size",
        "parallel.context",
        whole,
        "parallel.context",
        _CUTS_CONTEXT,
    ),
    Option(
        "num-key-value-heads",
        "training.shape.kv_heads",
        whole,
        "model.kv_heads",
        _grouped,
    ),
    flag("use-rotary-position-embeddings", "model.position_embedding", means="rope"),
    Option(
        "rotary-position-embeddings-theta",
        "model.rope_base",
        whole,
        "model.rope_base",
        _OWN_BASE,
    ),
    Option(
        "normalization",
        "model.normalization",
        _kind,
        "model.normalization",
        _RMS,
    ),
    Option(
        "layernorm-epsilon",
        "model.norm_epsilon",
        float,
        "model.norm_epsilon",
        _OWN_EPSILON,
    ),
    Option("add-qkv-bias", write=_no_qkv_biases, when="model.qkv_biases"),
    Option(
        "use-flash-attn-v1",
        "training.attention",
        None,
        _attention,
        means="flash1",
    ),
    Option(
        "use-flash-attn-v2",
        "training.attention",
        None,
        _attention,
        means="flash2",
    ),
    Option(
        "use-flash-attn-triton",
        "training.attention",
        None,
        _attention,
        means="flash-triton",
    ),
)
_DEEPSPEED_ENGINE = (
    # The scheduler uses the values of these options, not those in the checkpoint, so that the
    # length can be changed.
    _always("override-opt_param-scheduler", "always given"),
    _always("deepspeed", "given by the framework megatron-deepspeed"),
    Option("deepspeed_config", write=_deepspeed_path, ours=_OWN_CONFIG),
    Option("zero-stage", "parallel.zero_stage", whole, "parallel.zero_stage"),
    _always("no-pipeline-parallel", _NO_PIPELINE, _ONE_STAGE),
    Option(
        "checkpoint-activations",
        "training.recompute",
        None,
        fixed("full"),
        _RECOMPUTES,
        means="full",
    ),
    Option(
        "checkpoint-num-layers",
        _GROUP,
        whole,
        _GROUP_SIZE,
        _RECOMPUTES_GROUPS,
    ),
    _always("deepspeed-activation-checkpointing", _WITH_RECOMPUTE, _RECOMPUTES),
    Option(
        "cpu-optimizer",
        "training.offload",
        None,
        _offload,
        means=True,
    ),
)
MEGATRON_DEEPSPEED = (
    *_MODEL,
    *_TRAINING,
    *_DEEPSPEED_LENGTHS,
    *_DEEPSPEED_MODEL,
    *_DATA,
    Option("data-impl", write=fixed("mmap"), ours="mmap is always given"),
    _CACHE,
    *_OUTPUTS,
    *_DEEPSPEED_ENGINE,
)

_ONLY_READ = (
    Option("encoder-seq-length", "training.sequence_length", whole),
    Option("model-parallel-size", "parallel.tensor", whole),
    Option("num-virtual-stages-per-pipeline-rank", "parallel.virtual_pipeline", whole),
    Option("batch-size", "training.micro_batch", whole),
    Option("lr-warmup-fraction", "training.warmup_fraction", float),
    Option("recompute-activations", "training.recompute", means="selective"),
    Option("use-flash-attn", "training.attention", means="flash1"),
    Option("async-save", "training.async_save", means=True),
    Option("tensorboard-log-interval", ours="given by the site's options"),
    Option("deepspeed-mpi", ours="ranks come from the launcher"),
    Option("distributed-backend", ours="nccl on GPUs, gloo on a CPU"),
    Option("use-mcore-models", ours=_PINNED),
    Option("transformer-impl", ours=_PINNED),
    Option("attention-softmax-in-fp32", ours="the pinned commit decides"),
)
"""Older option names, and options that have no effect here."""


def _by_name(*tables: Iterable[Option]) -> dict[str, Option]:
    """Return the options to read, by name with dashes.

    If two rows have the same name, the first row with a key or a built-in behavior is used.

    >>> _by_name([Option("zero_stage", "parallel.zero_stage", int)])["zero-stage"].key
    'parallel.zero_stage'
    """
    options: dict[str, Option] = {}
    for option in itertools.chain(*tables):
        if option.key or option.ours:
            options.setdefault(option.name.replace("_", "-"), option)

    return options


OPTIONS = _by_name(MEGATRON_LM, MEGATRON_DEEPSPEED, _ONLY_READ)
"""The options that a command line for either framework may contain, by name with dashes."""


def arguments(run: PhaseRun) -> list[str]:
    """Return the options to pass to the training script.

    Options from the document for the site replace ours, and `false` removes an option.
    """
    framework = run.training.framework
    if framework == "megatron-deepspeed":
        values = written(MEGATRON_DEEPSPEED, run)
    else:
        values = written(MEGATRON_LM, run)

    for name, value in run.settings.site.frameworks[framework].options.items():
        if name == "no-pipeline-parallel" and run.phase.parallel.zero_stage > 1:
            # The document runs even a single stage in the pipeline engine, which supports ZeRO 0
            # and 1.
            continue

        if value is False:
            values.pop(name, None)
        else:
            values[name] = value

    return _command_line(values)


def _command_line(values: Mapping[str, object]) -> list[str]:
    """Return option names with dashes, each followed by the words for its value."""
    command_line = list[str]()
    for name, value in values.items():
        command_line += [f"--{name}", *texts(value)]
    return command_line


def texts(value: object) -> list[str]:
    """Return the words to put after an option name, or no words if the option has no value."""
    if value is True:
        return []
    parts = value if isinstance(value, tuple) else (value,)
    return [text(part) for part in parts]
