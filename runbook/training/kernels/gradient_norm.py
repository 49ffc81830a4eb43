"""Computes the gradient norm with a single wait for the GPU instead of a wait for each weight."""

from typing import Any

import torch


def use_own_norm() -> None:
    """Replace the code that megatron-core uses to compute the norm if Apex is missing.

    That code copies the norm of every weight to the host.
    """
    from megatron.core.optimizer import clip_grads

    if clip_grads.l2_norm_impl.__name__ == "local_multi_tensor_l2_norm":
        clip_grads.l2_norm_impl = _norm_of_all


def _norm_of_all(
    chunk_size: int,
    noop_flag: torch.Tensor,
    tensor_lists: Any,
    per_tensor: bool,
    *_: Any,
) -> tuple[torch.Tensor, None]:
    """Return the norm of all tensors together, on their device.

    The signature is the same as for Apex's function.
    """
    norms = torch._foreach_norm([tensor for tensors in tensor_lists for tensor in tensors])
    return torch.linalg.vector_norm(torch.stack(norms).float()).reshape(1), None
