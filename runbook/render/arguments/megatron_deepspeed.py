"""Megatron-DeepSpeed's own option names (Microsoft's, and the LUMI and ALCF forks of it)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runbook.params import Settings
from runbook.params.schema import Attention, Framework
from runbook.render.arguments.options import Options, common, data, outputs
from runbook.render.deepspeed_file import deepspeed_name

ATTENTION = {
    Attention.FLASH_1: "--use-flash-attn-v1",
    Attention.FLASH_2: "--use-flash-attn-v2",
    Attention.FLASH_TRITON: "--use-flash-attn-triton",
}


def arguments(settings: Settings, spec: Mapping[str, Any]) -> list[str]:
    """The options after the training script; the DeepSpeed file has a name of its own for each job."""
    model, parallel, training = spec["model"], spec["parallel"], settings.run.training
    options = common(settings, spec)
    _tokens(options, settings, spec)
    if parallel["context"] > 1:
        options.add("--ds-sequence-parallel-size", parallel["context"])
    if model["kv_heads"] != model["heads"]:
        options.add("--num-key-value-heads", model["kv_heads"])
    options.flag("--use-rotary-position-embeddings", model["position_embedding"] == "rope")
    if model["normalization"] == "rmsnorm":
        options.add("--normalization", "rmsnorm")
    if training.attention in ATTENTION:
        options.add(ATTENTION[training.attention])
    data(options, settings, spec)
    options.add("--data-impl", "mmap")
    options.add("--data-cache-path", spec["data"]["cache"])
    outputs(options, spec)
    # The scheduler's numbers come from this list, not from the checkpoint: a changed length is then possible.
    options.add("--override-opt_param-scheduler")
    options.add("--deepspeed")
    options.add("--deepspeed_config", deepspeed_name(settings, spec))
    options.add("--zero-stage", parallel["zero_stage"])
    options.flag("--no-pipeline-parallel", parallel["pipeline"] == 1)
    if spec["recompute"] != "none":
        options.add("--checkpoint-activations")
        options.add("--deepspeed-activation-checkpointing")
    options.flag("--cpu-optimizer", training.offload)
    options.document(settings.site.frameworks[Framework.MEGATRON_DEEPSPEED].options)
    return options.words()


def _tokens(options: Options, settings: Settings, spec: Mapping[str, Any]) -> None:
    """Length and schedule in tokens, where the run gives its length in tokens: then all three are in tokens."""
    if not settings.run.training.tokens or spec["phase"] != "04-training":
        return
    length, rate = spec["model"]["sequence_length"], spec["learning_rate"]
    options.document({f"{name}-{unit}": False for name in ("lr-decay", "lr-warmup") for unit in ("iters", "samples")})
    options.document({"train-iters": False})
    options.add("--train-samples", spec["duration"]["samples"])
    options.add("--train-tokens", settings.run.training.tokens)
    options.add("--lr-decay-tokens", rate["decay_samples"] * length)
    options.add("--lr-warmup-tokens", settings.run.training.warmup_tokens or rate["warmup_samples"] * length)
