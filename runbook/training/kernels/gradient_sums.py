"""Decides which code adds a weight gradient to the megatron-core float32 sum.

The module also decides which value autograd receives instead.
"""

from typing import Any

import torch


def sums_in_place(parameter: Any) -> bool:
    """Return whether the code that computes a gradient also adds it to the float32 sum."""
    return bool(getattr(parameter, "sums_in_place", False))


def gradient_after_sum(parameter: Any) -> torch.Tensor | None:
    """Return the value for autograd if the gradient is already in the float32 sum.

    If gradients are reduced during the backward pass, a hook in megatron-core starts each
    reduction. The hook runs only if autograd receives a tensor, but it does not read the values in
    it.
    """
    if not getattr(parameter, "needs_hook", False):
        return None
    parameter.grad_added_to_main_grad = True
    return torch.empty_like(parameter)
