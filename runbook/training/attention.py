"""Core attention on torch's scaled_dot_product_attention, in place of megatron-core's whole score matrix."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import torch
from megatron.core.tensor_parallel import get_cuda_rng_tracker
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig

from runbook.training.blocked_attention import blocked_attention, pays


class CausalAttention(MegatronModule):  # type: ignore[misc]
    """Causal attention of the heads on this tensor-parallel rank; takes and gives what DotProductAttention does.

    Queries and keys come as [sequence, batch, heads, head size]; the result is [sequence, batch, heads x head size].
    """

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        attn_mask_type: AttnMaskType,
        attention_type: str,
        attention_dropout: float | None = None,
        softmax_scale: float | None = None,
        **_: Any,
    ) -> None:
        super().__init__(config=config)
        if attn_mask_type != AttnMaskType.causal:
            raise ValueError(f"layer {layer_number}: only causal attention is computed here, not {attn_mask_type}")
        self.dropout = config.attention_dropout if attention_dropout is None else attention_dropout
        self.scale = softmax_scale or 1.0 / math.sqrt(config.kv_channels)
        self.grouped = config.num_query_groups != config.num_attention_heads

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """Attend; a mask that is passed is not looked at, since the causal one is meant."""
        # [s, b, h, d] -> [b, h, s, d]: views only, the kernels take any stride over heads and sequence.
        query, key, value = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
        if self.training and self.dropout:
            # Where sequences are cut, the whole block is in that fork already; a second one would begin it anew, and
            # the masks of scores and hidden states would be the same random numbers.
            with contextlib.nullcontext() if self.config.sequence_parallel else get_cuda_rng_tracker().fork():
                mixed = self._attend(query, key, value, self.dropout)
        else:
            mixed = self._attend(query, key, value, 0.0)
        batch, heads, sequence, size = mixed.shape
        return mixed.permute(2, 0, 1, 3).reshape(sequence, batch, heads * size)

    def _attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout: float) -> torch.Tensor:
        if pays(query, key, dropout):
            return blocked_attention(query, key, value, self.scale)
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, dropout_p=dropout, is_causal=True, scale=self.scale, enable_gqa=self.grouped
        )
