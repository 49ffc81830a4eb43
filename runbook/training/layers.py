"""What a transformer layer is made of: Transformer Engine's parts where it is there, else megatron-core's and ours."""

from __future__ import annotations

import copy
import os
from typing import Any

import torch
from megatron.core.models.gpt import gpt_layer_specs
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig

from runbook.training.attention import CausalAttention

SWITCH = "RUNBOOK_TRANSFORMER_ENGINE"
"""Environment: 0 leaves Transformer Engine aside where it is installed."""


def takes_transformer_engine(engine: str) -> bool:
    """Whether layers are made of Transformer Engine's parts: it is installed, and has a GPU to run on.

    Under DeepSpeed they are megatron-core's own, whose weights it gathers and lets go one module at a time.
    """
    there = torch.cuda.is_available() and gpt_layer_specs.HAVE_TE
    return engine == "megatron-core" and there and os.environ.get(SWITCH, "1") != "0"


def layers(config: TransformerConfig, chunk: int | None, engine: str) -> Any:
    """The layers of this rank's `chunk` of the model, as GPTModel takes them."""
    if takes_transformer_engine(engine):
        return gpt_layer_specs.get_gpt_layer_with_transformer_engine_spec()
    layer = _without_transformer_engine(config)
    return TransformerBlockSubmodules(
        layer_specs=[layer] * get_num_layers_to_build(config, vp_stage=chunk), layer_norm=Norm
    )


def _without_transformer_engine(config: TransformerConfig) -> ModuleSpec:
    """megatron-core's own layer, with our core attention and norms in it."""
    layer = copy.deepcopy(gpt_layer_specs.get_gpt_layer_local_spec(normalization=config.normalization))
    parts = layer.submodules
    parts.self_attention.submodules.core_attention = CausalAttention
    parts.input_layernorm = parts.pre_mlp_layernorm = Norm
    return layer


class Norm:
    """torch's LayerNorm or RMSNorm; megatron-core's own wrapper of them refuses sequence parallelism.

    A norm looks at one token at a time, so a part of the sequence is all it needs. Its weights are the same on all
    tensor-parallel ranks and see other tokens on each: marked, their gradients are added up over these ranks.
    """

    def __new__(cls, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_: Any) -> Any:
        """The norm itself."""
        kind = torch.nn.RMSNorm if config.normalization == "RMSNorm" else torch.nn.LayerNorm
        norm = kind(hidden_size, eps=eps)
        for weight in norm.parameters():
            weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
        return norm
