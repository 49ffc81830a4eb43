"""Runs megatron-core transformer layers with few passes over memory between the matmuls.

Modules, weight names and communication are still those of megatron-core. Only the forward functions
for norms, MLPs and whole layers are replaced. Values added to the residual stream are normalized in
the same pass. With dropout, a layer keeps the forward function from megatron-core, and thus the
same random numbers.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from megatron.core.transformer.mlp import MLP
from megatron.core.transformer.transformer_layer import TransformerLayer

from runbook.training.kernels import activation, norm


def use_fused_layers(model: Any) -> None:
    """Replace the forward functions of all layers and norms in a GPTModel."""
    for module in model.modules():
        forward = _fused_forward(module)
        if forward is not None:
            module.forward = forward
            module.sums_gradients = True


def _fused_forward(module: Any) -> Callable[..., Any] | None:
    """Return the replacement for the forward function in a module, or None if there is none."""
    if isinstance(module, torch.nn.LayerNorm | torch.nn.RMSNorm):
        return functools.partial(_normalize, module)
    if isinstance(module, MLP):
        return functools.partial(_mlp, module)
    if isinstance(module, TransformerLayer):
        return functools.partial(_layer, module, module.forward)
    return None


def _normalize(
    module: Any,
    values: torch.Tensor,
    added_bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
) -> Any:
    """Return the norm of `values`.

    With a residual stream, add `values` to the stream, and return the norm of this sum and the sum
    itself. The module itself is called, to gather sharded weights first.
    """
    bias = getattr(module, "bias", None)
    if residual is None:
        return norm.normalize(values, module.weight, bias, module.eps)
    return norm.add_and_normalize(
        values,
        added_bias,
        residual,
        module.weight,
        bias,
        module.eps,
    )


def _mlp(
    module: Any,
    values: torch.Tensor,
    *_: Any,
    **__: Any,
) -> tuple[torch.Tensor, Any]:
    """Compute both matmuls in an MLP, with the bias and the activation between them in one pass."""
    inner, bias = module.linear_fc1(values)
    activate = activation.bias_swiglu if module.config.gated_linear_unit else activation.bias_gelu
    output: tuple[torch.Tensor, Any] = module.linear_fc2(activate(inner, bias))
    return output


def _layer(
    layer: Any,
    own_forward: Any,
    hidden_states: torch.Tensor,
    attention_mask: Any = None,
    **options: Any,
) -> tuple[torch.Tensor, Any]:
    """Return the residual stream after this layer, and the cross-attention context.

    A GPT has no cross-attention.
    """
    if layer.training and layer.hidden_dropout:
        return own_forward(  # type: ignore[no-any-return]
            hidden_states, attention_mask=attention_mask, **options
        )

    normal = layer.input_layernorm(hidden_states)
    attended, bias = layer.self_attention(
        normal, attention_mask=attention_mask, rotary_pos_emb=options.get("rotary_pos_emb")
    )
    normal, hidden_states = layer.pre_mlp_layernorm(attended, bias, hidden_states)
    output, bias = layer.mlp(normal)
    return norm.add(output, bias, hidden_states), None
