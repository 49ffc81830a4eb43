"""Megatron-LM's and Megatron-DeepSpeed's options as keys of a run file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from runbook.adopt.findings import Findings, minutes, one_of, whole
from runbook.adopt.marks import Word
from runbook.adopt.texts import data_path
from runbook.params.catalogue import Checkout

Reader = Callable[[str], Any]
NEVER_MINUTES = 100_000
"""A time limit beyond this (69 days) means none."""

_SCHEDULES = one_of({"cosine": "cosine", "linear": "linear", "constant": "constant"})
_KEYS: dict[str, tuple[str, Reader]] = {
    "num-layers": ("training.shape.layers", whole),
    "hidden-size": ("training.shape.hidden", whole),
    "num-attention-heads": ("training.shape.heads", whole),
    "num-query-groups": ("training.shape.kv_heads", whole),
    "num-key-value-heads": ("training.shape.kv_heads", whole),
    "ffn-hidden-size": ("training.shape.ffn_hidden", whole),
    "max-position-embeddings": ("training.shape.positions", whole),
    "seq-length": ("training.sequence_length", whole),
    "encoder-seq-length": ("training.sequence_length", whole),
    "tensor-model-parallel-size": ("parallel.tensor", whole),
    "model-parallel-size": ("parallel.tensor", whole),
    "pipeline-model-parallel-size": ("parallel.pipeline", whole),
    "context-parallel-size": ("parallel.context", whole),
    "ds-sequence-parallel-size": ("parallel.context", whole),
    "zero-stage": ("parallel.zero_stage", whole),
    "num-virtual-stages-per-pipeline-rank": ("parallel.virtual_pipeline", whole),
    "micro-batch-size": ("training.micro_batch", whole),
    "batch-size": ("training.micro_batch", whole),
    "global-batch-size": ("training.global_batch", whole),
    "train-iters": ("training.iterations", whole),
    "train-samples": ("training.samples", whole),
    "train-tokens": ("training.tokens", whole),
    "lr": ("training.learning_rate", float),
    "min-lr": ("training.min_learning_rate", float),
    "lr-decay-style": ("training.schedule", _SCHEDULES),
    "lr-warmup-iters": ("training.warmup_iterations", whole),
    "lr-warmup-samples": ("training.warmup_samples", whole),
    "lr-warmup-tokens": ("training.warmup_tokens", whole),
    "lr-warmup-fraction": ("training.warmup_fraction", float),
    "lr-decay-iters": ("training.decay_iterations", whole),
    "lr-decay-samples": ("training.decay_samples", whole),
    "lr-decay-tokens": ("training.decay_tokens", whole),
    "adam-beta1": ("training.adam_beta1", float),
    "adam-beta2": ("training.adam_beta2", float),
    "adam-eps": ("training.adam_epsilon", float),
    "weight-decay": ("training.weight_decay", float),
    "clip-grad": ("training.clip_gradient", float),
    "hidden-dropout": ("training.dropout", float),
    "init-method-std": ("training.init_std", float),
    "recompute-granularity": ("training.recompute", one_of({"full": "full", "selective": "selective"})),
    "attention-backend": (
        "training.attention",
        one_of({"auto": "auto", "flash": "flash2", "unfused": "plain", "fused": "auto", "local": "plain"}),
    ),
    "initial-loss-scale": ("training.initial_loss_scale", float),
    "loss-scale-window": ("training.loss_scale_window", whole),
    "loss-scale": ("training.static_loss_scale", float),
    "min-loss-scale": ("training.min_loss_scale", float),
    "hysteresis": ("training.loss_scale_hysteresis", whole),
    "log-interval": ("training.log_interval", whole),
    "save-interval": ("training.save_interval", whole),
    "eval-interval": ("training.eval_interval", whole),
    "eval-iters": ("training.eval_iterations", whole),
    "distributed-timeout-minutes": ("training.process_group_timeout", minutes),
    "seed": ("training.seed", whole),
    "split": ("data.split", str),
}
_FLAGS: dict[str, tuple[str, Any]] = {
    "fp16": ("training.precision", "fp16"),
    "bf16": ("training.precision", "bf16"),
    "sequence-parallel": ("parallel.sequence", True),
    "use-distributed-optimizer": ("parallel.zero_stage", 1),
    "checkpoint-activations": ("training.recompute", "full"),
    "recompute-activations": ("training.recompute", "selective"),
    "use-flash-attn": ("training.attention", "flash1"),
    "use-flash-attn-v1": ("training.attention", "flash1"),
    "use-flash-attn-v2": ("training.attention", "flash2"),
    "use-flash-attn-triton": ("training.attention", "flash-triton"),
    "cpu-optimizer": ("training.offload", True),
    "mock-data": ("data.dataset", "mock"),
    "async-save": ("training.async_save", True),
}
OURS = {
    "save": "every run has folders of its own; the smoke test and the training never share one",
    "load": "a job that is started again goes on from the run's own checkpoint",
    "tensorboard-dir": "written into the run's folder",
    "tensorboard-log-interval": "given by the site's options",
    "data-cache-path": "a folder of the run's own",
    "vocab-file": "GPT-2's vocab.json is shipped",
    "merge-file": "GPT-2's merges.txt is shipped",
    "deepspeed": "given by the framework megatron-deepspeed",
    "deepspeed-config": "written from the run file, with a name of its own for each job",
    "deepspeed-mpi": "ranks come from the launcher",
    "deepspeed-activation-checkpointing": "goes with training.recompute",
    "no-pipeline-parallel": "given where parallel.pipeline is 1",
    "override-opt-param-scheduler": "always given",
    "distributed-backend": "nccl on GPUs, gloo on a CPU",
    "data-impl": "mmap is always given",
    "ckpt-format": "torch_dist is always given",
    "checkpoint-num-layers": "goes with training.recompute: full",
    "recompute-method": "goes with training.recompute: full",
    "recompute-num-layers": "goes with training.recompute: full",
    "group-query-attention": "goes with training.shape.kv_heads",
    "log-throughput": "always given",
    "exit-signal-handler": "always given",
    "use-mcore-models": "the default of the pinned commit",
    "transformer-impl": "the default of the pinned commit",
    "attention-softmax-in-fp32": "the pinned commit decides",
}
SHAPE_FLAGS = {
    "swiglu": ("activation", "swiglu"),
    "untie-embeddings-and-output-weights": ("tied_embeddings", False),
    "disable-bias-linear": ("biases", False),
    "use-rotary-position-embeddings": ("position_embedding", "rope"),
}
SHAPE_WORDS = {"position-embedding-type": "position_embedding", "normalization": "normalization"}


def pairs(words: Sequence[Word]) -> Iterator[tuple[Word, str, list[Word]]]:
    """Each option with its name in one spelling and what follows it.

    >>> [(name, [value.text for value in values]) for _, name, values in pairs([Word("--zero_stage=1", 3)])]
    [('zero-stage', ['1'])]
    """
    place = 0
    while place < len(words):
        word = words[place]
        place += 1
        if not word.text.startswith("--"):
            yield word, "", []
            continue
        name, equals, value = word.text[2:].partition("=")
        values = [Word(value, word.line)] if equals else []
        while not equals and place < len(words) and not words[place].text.startswith("--"):
            values.append(words[place])
            place += 1
        yield word, name.replace("_", "-"), values


def take_options(words: Sequence[Word], findings: Findings) -> dict[str, Any]:
    """Keys of the options that have one; returns the model's kind (activation, normalization ...) as far as given."""
    kind: dict[str, Any] = {}
    for word, name, values in pairs(words):
        source = f"--{name}"
        if name in _KEYS and values:
            key, read = _KEYS[name]
            findings.read(key, values[0], source, read)
        elif name in _FLAGS:
            key, value = _FLAGS[name]
            findings.take(key, value, word.line, source)
        elif name in SHAPE_FLAGS:
            field, value = SHAPE_FLAGS[name]
            kind[field] = value
        elif name in SHAPE_WORDS and values:
            kind[SHAPE_WORDS[name]] = values[0].text.lower().replace("learned_absolute", "learned")
        elif name in _SPECIAL and values:
            _SPECIAL[name](values, findings)
        elif name in OURS:
            findings.does(word.line, source, OURS[name])
        elif not name:
            findings.leave(word.line, word.shown, "a word for the training program that no option takes")
        else:
            text = " ".join([source, *(value.shown for value in values[:4])])
            findings.leave(word.line, text, "no key of the run file has it")
    return kind


def covered_by(checkout: Checkout | None, findings: Findings, framework: str, site: str) -> None:
    """Options that the site gives to its framework already are carried; the others may be written there."""
    given = {name.replace("_", "-") for name in checkout.options} if checkout else set()
    kept = []
    for one in findings.left:
        name = one.text.split()[0].removeprefix("--")
        if one.why != "no key of the run file has it":
            kept.append(one)
        elif name in given:
            findings.does(one.line, one.text, f"params/sites/{site}.yaml gives it to {framework}")
        else:
            where = f"write it under frameworks.{framework}.options of params/sites/{site}.yaml"
            kept.append(type(one)(one.line, one.text, f"no key of the run file has it: {where}"))
    findings.left[:] = kept


def _exit_duration(values: Sequence[Word], findings: Findings) -> None:
    try:
        limit = float(values[0].text)
    except ValueError:
        findings.leave(values[0].line, f"--exit-duration-in-mins {values[0].shown}", "set training.exit_duration")
        return
    if limit >= NEVER_MINUTES:
        findings.does(values[0].line, f"--exit-duration-in-mins {values[0].shown}", "so long means never: the default")
    else:
        findings.take("training.exit_duration", round(limit * 60), values[0].line, "--exit-duration-in-mins")


def _layers_per_stage(values: Sequence[Word], findings: Findings) -> None:
    layers, pipeline = findings.number("training.shape.layers"), findings.number("parallel.pipeline", 1)
    per_stage = values[0].text
    if pipeline == 1:
        text = f"--num-layers-per-virtual-pipeline-stage {values[0].shown}"
        findings.does(values[0].line, text, "one stage has no chunks")
    elif per_stage.isdigit() and layers and int(per_stage) and layers % (pipeline * int(per_stage)) == 0:
        chunks = layers // (pipeline * int(per_stage))
        findings.take("parallel.virtual_pipeline", chunks, values[0].line, "--num-layers-per-virtual-pipeline-stage")
    else:
        text = f"--num-layers-per-virtual-pipeline-stage {values[0].shown}"
        findings.leave(values[0].line, text, "set parallel.virtual_pipeline: layers / pipeline / layers a chunk")


def _attention_dropout(values: Sequence[Word], findings: Findings) -> None:
    dropout = findings.value("training.dropout")
    try:
        own = float(values[0].text)
    except ValueError:
        own = -1.0
    if own == dropout or (dropout is None and own >= 0):
        findings.take("training.dropout", own, values[0].line, "--attention-dropout")
    else:
        text = f"--attention-dropout {values[0].shown}"
        findings.leave(values[0].line, text, "training.dropout is one value for both dropouts")


def _rampup(values: Sequence[Word], findings: Findings) -> None:
    """Three numbers: the first batch, by how much it grows, over how many samples."""
    keys = ("training.rampup_start", "training.rampup_increment", "training.rampup_samples")
    if len(values) < len(keys):
        findings.leave(values[0].line, f"--rampup-batch-size {values[0].shown}", "takes three numbers")
        return
    for key, word in zip(keys, values, strict=False):
        findings.read(key, word, "--rampup-batch-size", whole)


def _tokenizer(values: Sequence[Word], findings: Findings) -> None:
    if values[0].text == "GPT2BPETokenizer":
        findings.does(values[0].line, "--tokenizer-type GPT2BPETokenizer", "data.tokenizer: gpt2 is the default")
    else:
        findings.leave(values[0].line, f"--tokenizer-type {values[0].shown}", "name its file in data.tokenizer")


_SPECIAL: dict[str, Callable[[Sequence[Word], Findings], None]] = {
    "exit-duration-in-mins": _exit_duration,
    "num-layers-per-virtual-pipeline-stage": _layers_per_stage,
    "attention-dropout": _attention_dropout,
    "rampup-batch-size": _rampup,
    "tokenizer-type": _tokenizer,
    "data-path": data_path,
    "train-data-path": data_path,
    "valid-data-path": lambda values, findings: findings.does(
        values[0].line, "--valid-data-path", "data.held_out, or data.split"
    ),
    "test-data-path": lambda values, findings: findings.does(
        values[0].line, "--test-data-path", "data.held_out, or data.split"
    ),
}
