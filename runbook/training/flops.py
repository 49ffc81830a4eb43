"""Floating-point operations of a step, counted as Megatron-LM does with attention over all pairs of tokens."""

from __future__ import annotations

from runbook.training.spec import Model

CONVENTION = "megatron-full"


def flops_per_token(model: Model) -> float:
    """Forward and backward pass of one token; for a GPT-3 shape 72 l h^2 (1 + s/6h + V/12lh).

    Recomputed activations are not counted.
    """
    h, s = model.hidden, model.sequence_length
    key_value = 2 * h * (h // model.heads * model.kv_heads)
    matrices = 3 if model.activation == "swiglu" else 2
    layer = 2 * h * h + key_value + 2 * s * h + matrices * h * model.ffn_hidden
    return 6.0 * (model.layers * layer + h * model.padded_vocabulary)
