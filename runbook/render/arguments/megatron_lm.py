"""Megatron-LM's own option names (NVIDIA/Megatron-LM e958b2ca, of the Azure document)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runbook.params import Settings
from runbook.params.schema import Attention, Framework
from runbook.render.arguments.options import Options, common, data, outputs

ATTENTION = {Attention.AUTO: "auto", Attention.FLASH_2: "flash", Attention.FLASH_1: "flash", Attention.PLAIN: "unfused"}
"""Megatron-LM names no version of flash attention; Transformer Engine has its own."""


def arguments(settings: Settings, spec: Mapping[str, Any]) -> list[str]:
    """The options after pretrain_gpt.py."""
    model, parallel, training = spec["model"], spec["parallel"], settings.run.training
    options = common(settings, spec)
    if parallel["virtual_pipeline"] > 1:
        stages = parallel["pipeline"] * parallel["virtual_pipeline"]
        options.add("--num-layers-per-virtual-pipeline-stage", model["layers"] // stages)
    if parallel["context"] > 1:
        options.add("--context-parallel-size", parallel["context"])
    options.flag("--use-distributed-optimizer", parallel["zero_stage"] >= 1)
    if model["kv_heads"] != model["heads"]:
        options.add("--group-query-attention")
        options.add("--num-query-groups", model["kv_heads"])
    if model["position_embedding"] == "rope":
        options.add("--position-embedding-type", "rope")
    if model["normalization"] == "rmsnorm":
        options.add("--normalization", "RMSNorm")
    options.add("--attention-backend", ATTENTION.get(training.attention, "auto"))
    _recompute(options, spec)
    data(options, settings, spec)
    options.add("--data-cache-path", spec["data"]["cache"])
    options.flag("--mock-data", spec["data"]["mock"])
    outputs(options, spec)
    options.add("--ckpt-format", "torch_dist")
    options.add("--log-throughput")
    options.document(settings.site.frameworks[Framework.MEGATRON_LM].options)
    return options.words()


def _recompute(options: Options, spec: Mapping[str, Any]) -> None:
    if spec["recompute"] == "none":
        return
    options.add("--recompute-granularity", spec["recompute"])
    if spec["recompute"] == "full":
        options.add("--recompute-method", "uniform")
        options.add("--recompute-num-layers", 1)
