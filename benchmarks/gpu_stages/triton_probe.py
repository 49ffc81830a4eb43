"""One Triton kernel, to see whether Triton builds and launches kernels on this machine."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _add_kernel(left, right, out, count, BLOCK: tl.constexpr):  # noqa: ANN001, ANN202
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = places < count
    total = tl.load(left + places, mask=inside) + tl.load(right + places, mask=inside)
    tl.store(out + places, total, mask=inside)


def largest_error(device: torch.device, count: int = 100_003) -> float:
    """Return the largest error in a kernel that adds two vectors, compared with torch."""
    left = torch.randn(count, device=device)
    right = torch.randn(count, device=device)
    out = torch.full_like(left, float("nan"))
    block = 1024
    _add_kernel[(triton.cdiv(count, block),)](left, right, out, count, BLOCK=block)
    return float((out - (left + right)).abs().max())
