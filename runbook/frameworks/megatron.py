"""Options of Megatron-LM and Megatron-DeepSpeed, and DeepSpeed's configuration file.

Megatron-LM is NVIDIA/Megatron-LM e958b2ca, of the Azure document; Megatron-DeepSpeed is Microsoft's, and the LUMI and
ALCF forks of it.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any

from runbook.core.errors import ParamsError
from runbook.frameworks.options import (
    RAMP_KEYS,
    Option,
    PhaseRun,
    chosen,
    minutes,
    one_of,
    text,
    whole,
    written,
)
from runbook.params import Settings
from runbook.plan_file.deepspeed import deepspeed_config
from runbook.plan_file.schema import PhasePlan, Source

OWN_DEEPSPEED = "deepspeed.json"
"""Name of the file in the folder of a job of our own trainer."""
Condition = Callable[[PhasePlan], bool]


def deepspeed_name(settings: Settings, phase: PhasePlan) -> str:
    """Path of the file relative to the run's folder, where jobs work.

    It ends with a digest of the content: jobs that differ never share a file, and a changed one never reads the old.
    """
    digest = hashlib.sha256(deepspeed_file(settings, phase).encode()).hexdigest()
    return f"deepspeed/{phase.phase}-zero{phase.parallel.zero_stage}-{digest[:12]}.json"


def deepspeed_file(settings: Settings, phase: PhasePlan) -> str:
    """The file's text: batch, ZeRO stage, precision, and what the site's document adds.

    For our own engine it is what plan.json hands to it, word for word.
    """
    if phase.deepspeed:
        return json.dumps(phase.deepspeed, indent=2) + "\n"
    content = deepspeed_config(phase, offload=settings.run.training.offload)
    extra = settings.site.frameworks["megatron-deepspeed"].deepspeed
    return json.dumps(_merged(content, extra), indent=2) + "\n"


def _merged(content: dict[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """One mapping laid over another, sections within sections."""
    result = dict(content)
    for key, value in extra.items():
        inner = result.get(key)
        result[key] = (
            _merged(inner, value)
            if isinstance(inner, dict) and isinstance(value, Mapping)
            else value
        )
    return result


def _unit(run: PhaseRun) -> str:
    """Megatron takes no mixture: all in iterations where all are whole numbers of them, else in samples.

    Megatron-DeepSpeed counts in tokens where the run gives its length in tokens.
    """
    phase = run.phase
    training = run.training
    if (
        training.tokens
        and phase.phase == "04-training"
        and training.framework == "megatron-deepspeed"
    ):
        return "tokens"
    counts = (
        phase.duration.samples,
        phase.learning_rate.warmup_samples,
        phase.learning_rate.decay_samples,
    )
    whole_steps = all(count % phase.batch.global_ == 0 for count in counts)
    if whole_steps and not training.samples and not phase.batch.ramp.start:
        return "iters"
    return "samples"


def _in(unit: str, samples: str) -> Callable[[PhaseRun], int | None]:
    """A number of samples of the plan in this unit; nothing where the phase counts in another."""

    def write(run: PhaseRun) -> int | None:
        count: int = attrgetter(samples)(run.phase)
        in_units = {
            "iters": count // run.phase.batch.global_,
            "tokens": count * run.phase.model.sequence_length,
        }
        return in_units.get(unit, count) if _unit(run) == unit else None

    return write


def _train_samples(run: PhaseRun) -> int | None:
    """Return the length in samples, or None where the phase counts in iterations.

    A length in tokens needs it too: Megatron-DeepSpeed makes its number of iterations from the samples, and ends at
    whichever of the two lengths comes first.
    """
    return None if _unit(run) == "iters" else run.phase.duration.samples


def _train_tokens(run: PhaseRun) -> int | None:
    return run.training.tokens if _unit(run) == "tokens" else None


def _warmup_tokens(run: PhaseRun) -> int | None:
    counted = _in("tokens", "learning_rate.warmup_samples")(run)
    return counted and (run.training.warmup_tokens or counted)


def _kind(text: str) -> str:
    return text.lower().replace("learned_absolute", "learned")


def _attention(run: PhaseRun) -> str:
    return run.training.attention


def _is(path: str, *values: object) -> Condition:
    """The phases whose plan has one of these values there."""
    return lambda phase: attrgetter(path)(phase) in values


def _is_not(path: str, usual: object) -> Condition:
    """The phases whose plan has another value there."""
    return lambda phase: attrgetter(path)(phase) != usual


def _both(one: Condition, other: Condition) -> Condition:
    return lambda phase: one(phase) and other(phase)


_FP16 = _is("precision.format", "fp16")
_STATIC_SCALE = _both(_FP16, _is_not("precision.static_loss_scale", 0))
_LEAST_SCALE = _both(_FP16, _is_not("precision.minimum_loss_scale", 1))
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
    return phase.model.kv_heads != phase.model.heads


def _no_qkv_biases(run: PhaseRun) -> None:
    raise ParamsError(
        f"model {run.phase.model.name}: Megatron-DeepSpeed gives biases to all matrices or to none, not to those of "
        "queries, keys and values alone. Choose a model without qkv_biases, or training.framework=runbook."
    )


def _recipe(run: PhaseRun) -> str:
    if run.phase.precision.fp8 == "blockwise":
        raise ParamsError(
            "training.fp8=blockwise: Megatron-LM's pinned commit has delayed, tensorwise and mxfp8."
        )
    return run.phase.precision.fp8


def _one_text(phase: PhasePlan) -> bool:
    """Whether the split divides each token file, because no whole file is held out."""
    return bool(phase.data.train) and not phase.data.held_out


def _always(
    name: str, ours: str, when: str | Callable[[PhasePlan], object] | None = None
) -> Option:
    """An option without a value that is given whatever the run file says, in all phases or those of `when`."""
    return Option(name, write=lambda run: True, when=when, ours=ours)


def _three_shares(text: str) -> str:
    """Megatron's --split with all three shares; it takes one or two as well.

    >>> _three_shares("'98, 2'"), _three_shares("949,50,1")
    ('98,2,0', '949,50,1')
    """
    shares = [share.strip() for share in re.split(r"[,/]", text.strip("'\" "))]
    numbers = [float(share) for share in shares]
    if not 0 < len(numbers) <= 3:
        raise ValueError(text)
    return ",".join([*shares, "0", "0"][:3])


def _weighted(sources: tuple[Source, ...]) -> tuple[object, ...] | None:
    """Weight and prefix of each file, in turn; a single file goes without a weight."""
    if len(sources) == 1:
        return (sources[0].prefix,)
    return tuple(word for source in sources for word in (source.weight, source.prefix)) or None


_SCHEDULES = one_of({name: name for name in ("cosine", "linear", "constant")})
_RECOMPUTED = one_of({"full": "full", "selective": "selective"})
_BACKENDS = {"auto": "auto", "flash2": "flash", "flash1": "flash", "plain": "unfused"}
"""Megatron-LM names no version of flash attention; Transformer Engine has its own."""
_READ_BACKENDS = one_of(
    {"auto": "auto", "flash": "flash2", "unfused": "plain", "fused": "auto", "local": "plain"}
)
_HELD_OUT = "data.held_out, or data.split"
_OWN_FOLDERS = "every run has folders of its own; the smoke test and the training never share one"
_OWN_CHECKPOINT = "a job that is started again goes on from the run's own checkpoint"
_PINNED = "the default of the pinned commit"

_MODEL = (
    Option("num-layers", "training.shape.layers", whole, "model.layers"),
    Option("hidden-size", "training.shape.hidden", whole, "model.hidden"),
    Option("num-attention-heads", "training.shape.heads", whole, "model.heads"),
    Option(
        "ffn-hidden-size",
        "training.shape.ffn_hidden",
        whole,
        "model.ffn_hidden",
        when=lambda phase: phase.model.ffn_hidden != 4 * phase.model.hidden,
    ),
    Option("seq-length", "training.sequence_length", whole, "model.sequence_length"),
    Option("max-position-embeddings", "training.shape.positions", whole, "model.positions"),
    Option("swiglu", "model.activation", None, "model.activation", means="swiglu"),
    Option("disable-bias-linear", "model.biases", None, "model.biases", means=False),
    Option(
        "untie-embeddings-and-output-weights",
        "model.tied_embeddings",
        None,
        "model.tied_embeddings",
        means=False,
    ),
    Option("tensor-model-parallel-size", "parallel.tensor", whole, "parallel.tensor"),
    Option("pipeline-model-parallel-size", "parallel.pipeline", whole, "parallel.pipeline"),
    Option("sequence-parallel", "parallel.sequence", None, "parallel.sequence", means=True),
    Option(
        "no-gradient-accumulation-fusion",
        "training.fuse_gradients",
        None,
        "tuning.fuse_gradients",
        means="never",
    ),
)
_TRAINING = (
    Option("micro-batch-size", "training.micro_batch", whole, "batch.micro"),
    Option("global-batch-size", "training.global_batch", whole, "batch.global_"),
    Option("rampup-batch-size", RAMP_KEYS, whole, lambda run: run.ramp, "batch.ramp.start"),
    Option("train-iters", "training.iterations", whole, _in("iters", "duration.samples")),
    Option("train-samples", "training.samples", whole, _train_samples),
    Option("lr", "training.learning_rate", float, "learning_rate.peak"),
    Option("min-lr", "training.min_learning_rate", float, "learning_rate.minimum"),
    Option("lr-decay-style", "training.schedule", _SCHEDULES, "learning_rate.schedule"),
    Option(
        "lr-decay-iters",
        "training.decay_iterations",
        whole,
        _in("iters", "learning_rate.decay_samples"),
    ),
    Option(
        "lr-decay-samples",
        "training.decay_samples",
        whole,
        _in("samples", "learning_rate.decay_samples"),
    ),
    Option(
        "lr-warmup-iters",
        "training.warmup_iterations",
        whole,
        _in("iters", "learning_rate.warmup_samples"),
    ),
    Option(
        "lr-warmup-samples",
        "training.warmup_samples",
        whole,
        _in("samples", "learning_rate.warmup_samples"),
    ),
    Option("adam-beta1", "training.adam_beta1", float, "optimizer.beta1"),
    Option("adam-beta2", "training.adam_beta2", float, "optimizer.beta2"),
    Option("adam-eps", "training.adam_epsilon", float, "optimizer.epsilon"),
    Option("weight-decay", "training.weight_decay", float, "optimizer.weight_decay"),
    Option("clip-grad", "training.clip_gradient", float, "optimizer.clip_gradient"),
    Option("fp16", "training.precision", None, "precision.format", means="fp16"),
    Option("bf16", "training.precision", None, "precision.format", means="bf16"),
    Option(
        "initial-loss-scale",
        "training.initial_loss_scale",
        float,
        "precision.initial_loss_scale",
        _FP16,
    ),
    Option(
        "loss-scale-window",
        "training.loss_scale_window",
        whole,
        "precision.loss_scale_window",
        _FP16,
    ),
    Option("hysteresis", "training.loss_scale_hysteresis", whole, "precision.hysteresis", _FP16),
    Option(
        "loss-scale",
        "training.static_loss_scale",
        float,
        "precision.static_loss_scale",
        _STATIC_SCALE,
    ),
    Option(
        "min-loss-scale",
        "training.min_loss_scale",
        float,
        "precision.minimum_loss_scale",
        _LEAST_SCALE,
    ),
    Option("init-method-std", "training.init_std", float, "model.init_std"),
    Option("hidden-dropout", "training.dropout", float, "model.dropout"),
    Option("attention-dropout", write="model.dropout"),
    Option("seed", "training.seed", whole, "seed"),
    Option(
        "distributed-timeout-minutes",
        "training.process_group_timeout",
        minutes,
        lambda run: max(1, round(run.phase.limits.process_group_timeout_seconds / 60)),
    ),
)
_DATA = (
    Option(
        "train-data-path", write=lambda run: _weighted(run.phase.data.train), when="data.held_out"
    ),
    Option(
        "valid-data-path", write=lambda run: _weighted(run.phase.data.validation), ours=_HELD_OUT
    ),
    Option("test-data-path", write=lambda run: _weighted(run.phase.data.test), ours=_HELD_OUT),
    Option("data-path", write=lambda run: _weighted(run.phase.data.train), when=_one_text),
    Option("split", "data.split", _three_shares, "data.split", _one_text),
    Option("tokenizer-type", write=lambda run: "GPT2BPETokenizer"),
    Option(
        "vocab-file",
        write=lambda run: run.tokenizer_file("vocab.json"),
        ours="GPT-2's vocab.json is shipped",
    ),
    Option(
        "merge-file",
        write=lambda run: run.tokenizer_file("merges.txt"),
        ours="GPT-2's merges.txt is shipped",
    ),
)
_CACHE = Option("data-cache-path", write="data.cache", ours="a folder of the run's own")
# A training that saves nothing gets no folder: these programs save at their end wherever --save is given.
_OUTPUTS = (
    Option("log-interval", "training.log_interval", whole, "log.interval"),
    Option("eval-interval", "training.eval_interval", whole, lambda run: run.evaluation_interval),
    Option("eval-iters", "training.eval_iterations", whole, lambda run: run.evaluation_batches),
    Option(
        "save-interval",
        "training.save_interval",
        whole,
        lambda run: run.phase.checkpoint.interval or run.phase.duration.iterations,
        "checkpoint.saves",
    ),
    Option("save", write="checkpoint.folder", when="checkpoint.saves", ours=_OWN_FOLDERS),
    Option("load", write="checkpoint.folder", when="checkpoint.saves", ours=_OWN_CHECKPOINT),
    Option("tensorboard-dir", write="log.tensorboard", ours="written into the run's folder"),
    _always("exit-signal-handler", "always given"),  # asked to stop, it saves and ends
    Option(
        "exit-interval",
        "training.exit_interval",
        whole,
        "limits.exit_interval",
        "limits.exit_interval",
    ),
    Option(
        "exit-duration-in-mins",
        write=lambda run: max(1, run.phase.limits.exit_duration_seconds // 60),
        when="limits.exit_duration_seconds",
    ),
)

_GROUP = "training.recompute_num_layers"
MEGATRON_LM = (
    *_MODEL,
    *_TRAINING,
    Option(
        "num-layers-per-virtual-pipeline-stage",
        write=lambda run: (
            run.phase.model.layers
            // (run.phase.parallel.pipeline * run.phase.parallel.virtual_pipeline)
        ),
        when=lambda phase: phase.parallel.virtual_pipeline > 1,
    ),
    Option("context-parallel-size", "parallel.context", whole, "parallel.context", _CUTS_CONTEXT),
    Option(
        "use-distributed-optimizer",
        "parallel.zero_stage",
        write=lambda run: min(1, run.phase.parallel.zero_stage),
        means=1,
    ),
    _always("group-query-attention", "goes with training.shape.kv_heads", _grouped),
    Option("num-query-groups", "training.shape.kv_heads", whole, "model.kv_heads", _grouped),
    Option(
        "position-embedding-type",
        "model.position_embedding",
        _kind,
        "model.position_embedding",
        _ROTARY,
    ),
    Option("rotary-base", "model.rope_base", whole, "model.rope_base", _OWN_BASE),
    Option("normalization", "model.normalization", _kind, lambda run: "RMSNorm", _RMS),
    Option("norm-epsilon", "model.norm_epsilon", float, "model.norm_epsilon", _OWN_EPSILON),
    Option("add-qkv-bias", "model.qkv_biases", None, "model.qkv_biases", means=True),
    Option(
        "attention-backend",
        "training.attention",
        _READ_BACKENDS,
        lambda run: _BACKENDS.get(_attention(run), "auto"),
    ),
    Option("recompute-granularity", "training.recompute", _RECOMPUTED, "recompute", _RECOMPUTES),
    Option(
        "recompute-method",
        "training.recompute_method",
        str,
        "tuning.recompute_method",
        _RECOMPUTES_ALL,
    ),
    Option("recompute-num-layers", _GROUP, whole, "tuning.recompute_num_layers", _RECOMPUTES_ALL),
    chosen("decoder-first-pipeline-num-layers", "parallel.first_stage_layers", whole),
    chosen("decoder-last-pipeline-num-layers", "parallel.last_stage_layers", whole),
    Option(
        "overlap-grad-reduce",
        "training.overlap_gradients",
        None,
        "tuning.overlap_gradients",
        means=True,
    ),
    Option(
        "overlap-param-gather",
        "training.overlap_weights",
        None,
        "tuning.overlap_weights",
        means=True,
    ),
    Option("tp-comm-overlap", "training.overlap_tensor", None, "tuning.overlap_tensor", means=True),
    Option("enable-cuda-graph", "training.cuda_graphs", None, "tuning.cuda_graphs", means=True),
    Option(
        "fp8-format", write=lambda run: "hybrid", when=_IN_8_BITS, ours="goes with training.fp8"
    ),
    Option("fp8-recipe", "training.fp8", str, _recipe, _IN_8_BITS),
    Option(
        "no-overlap-p2p-communication",
        "training.overlap_pipeline",
        None,
        "tuning.overlap_pipeline",
        means="never",
    ),
    _always("manual-gc", "goes with training.gc_interval", "tuning.gc_interval"),
    chosen("manual-gc-interval", "training.gc_interval", whole),
    *_DATA,
    _CACHE,
    Option(
        "mock-data",
        "data.dataset",
        write=lambda run: "mock" if run.phase.data.mock else "",
        means="mock",
    ),
    *_OUTPUTS,
    Option("ckpt-format", write=lambda run: "torch_dist", ours="torch_dist is always given"),
    _always("log-throughput", "always given"),
)

MEGATRON_DEEPSPEED = (
    *_MODEL,
    *_TRAINING,
    Option("train-tokens", "training.tokens", whole, _train_tokens),
    Option(
        "lr-decay-tokens",
        "training.decay_tokens",
        whole,
        _in("tokens", "learning_rate.decay_samples"),
    ),
    Option("lr-warmup-tokens", "training.warmup_tokens", whole, _warmup_tokens),
    Option(
        "ds-sequence-parallel-size", "parallel.context", whole, "parallel.context", _CUTS_CONTEXT
    ),
    Option("num-key-value-heads", "training.shape.kv_heads", whole, "model.kv_heads", _grouped),
    Option(
        "use-rotary-position-embeddings",
        "model.position_embedding",
        None,
        "model.position_embedding",
        means="rope",
    ),
    Option(
        "rotary-position-embeddings-theta", "model.rope_base", whole, "model.rope_base", _OWN_BASE
    ),
    Option("normalization", "model.normalization", _kind, "model.normalization", _RMS),
    Option("layernorm-epsilon", "model.norm_epsilon", float, "model.norm_epsilon", _OWN_EPSILON),
    Option("add-qkv-bias", write=_no_qkv_biases, when="model.qkv_biases"),
    Option("use-flash-attn-v1", "training.attention", None, _attention, means="flash1"),
    Option("use-flash-attn-v2", "training.attention", None, _attention, means="flash2"),
    Option("use-flash-attn-triton", "training.attention", None, _attention, means="flash-triton"),
    *_DATA,
    Option("data-impl", write=lambda run: "mmap", ours="mmap is always given"),
    _CACHE,
    *_OUTPUTS,
    # The scheduler's numbers come from this list, not from the checkpoint: a changed length is then possible.
    _always("override-opt_param-scheduler", "always given"),
    _always("deepspeed", "given by the framework megatron-deepspeed"),
    Option(
        "deepspeed_config",
        write=lambda run: deepspeed_name(run.settings, run.phase),
        ours="written from the run file, with a name of its own for each job",
    ),
    Option("zero-stage", "parallel.zero_stage", whole, "parallel.zero_stage"),
    _always(
        "no-pipeline-parallel",
        "given where parallel.pipeline is 1, unless the site leaves it out",
        _ONE_STAGE,
    ),
    Option(
        "checkpoint-activations",
        "training.recompute",
        None,
        lambda run: "full",
        _RECOMPUTES,
        means="full",
    ),
    Option(
        "checkpoint-num-layers", _GROUP, whole, "tuning.recompute_num_layers", _RECOMPUTES_GROUPS
    ),
    _always("deepspeed-activation-checkpointing", "goes with training.recompute", _RECOMPUTES),
    Option("cpu-optimizer", "training.offload", None, lambda run: run.training.offload, means=True),
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
"""Older names, and options that change nothing here."""


def _by_name(*tables: Iterable[Option]) -> dict[str, Option]:
    """Options to read, by name in one spelling (dashes); of two with one name the first that says more than its name.

    >>> _by_name([Option("zero_stage", "parallel.zero_stage", int)])["zero-stage"].key
    'parallel.zero_stage'
    """
    options: dict[str, Option] = {}
    for option in (option for table in tables for option in table):
        if option.key or option.ours:
            options.setdefault(option.name.replace("_", "-"), option)
    return options


OPTIONS = _by_name(MEGATRON_LM, MEGATRON_DEEPSPEED, _ONLY_READ)
"""What a command line of either may say, by name with dashes."""


def arguments(run: PhaseRun) -> list[str]:
    """The options after the training script; those of the site's document replace ours, and `false` takes one out."""
    framework = run.training.framework
    values = written(MEGATRON_DEEPSPEED if framework == "megatron-deepspeed" else MEGATRON_LM, run)
    for name, value in run.settings.site.frameworks[framework].options.items():
        if name == "no-pipeline-parallel" and run.phase.parallel.zero_stage > 1:
            continue  # the document runs a single stage in the pipeline engine, which takes ZeRO 0 and 1 only
        if value is False:
            values.pop(name, None)
        else:
            values[name] = value
    return [word for name, value in values.items() for word in (f"--{name}", *_words(value))]


def _words(value: object) -> list[str]:
    if value is True:
        return []
    return [text(part) for part in value] if isinstance(value, tuple) else [text(value)]
