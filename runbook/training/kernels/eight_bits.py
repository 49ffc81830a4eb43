"""8-bit matmuls without Transformer Engine, for `training.fp8: tensorwise`.

The forward matmul in a layer and the matmul for its input gradient use 8-bit factors (e4m3, but
e5m2 for gradients). Each factor is scaled by its current largest absolute value. Weight gradients
are computed in bf16 and summed in float32, as without fp8. With 8 bits, the factors in this third
matmul would have to be transposed in memory, and it needs the precision most. Attention, norms,
embedding and head stay in bf16.
"""

from typing import Any

import torch
import triton
import triton.language as tl

WEIGHTS = torch.float8_e4m3fn
GRADIENTS = torch.float8_e5m2
_HIGHEST = {WEIGHTS: 448.0, GRADIENTS: 57344.0}
_DIVISOR = 16
"""In cuBLAS, the sizes of 8-bit factors must be multiples of this number."""
_PARTS = 1024
"""Number of programs used to find the largest absolute value.

Each program searches one part of the tensor.
"""
_BLOCK = 2048


def fits(*sizes: int) -> bool:
    """Return whether a matmul with these sizes can be computed in 8 bits."""
    return all(size % _DIVISOR == 0 for size in sizes)


def product(values: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Return `values @ weight.t() + bias` in bf16, computed from 8-bit factors."""
    factor, scale = in_8_bits(values, WEIGHTS)
    weight_in_8_bits = _weight_in_8_bits(weight)
    return torch._scaled_mm(
        factor,
        weight_in_8_bits.matrix.t(),
        scale_a=scale,
        scale_b=weight_in_8_bits.scale,
        bias=bias,
        out_dtype=torch.bfloat16,
        use_fast_accum=True,
    )


def product_of_gradient(gradient: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return `gradient @ weight` in bf16, computed from 8-bit factors.

    cuBLAS accumulates in full precision, as needed for gradients.
    """
    factor, scale = in_8_bits(gradient, GRADIENTS)
    weight_in_8_bits = _weight_in_8_bits(weight)
    return torch._scaled_mm(
        factor,
        weight_in_8_bits.transposed.t(),
        scale_a=scale,
        scale_b=weight_in_8_bits.scale,
        out_dtype=torch.bfloat16,
        use_fast_accum=False,
    )


_passes = 0
"""Number of passes over the model so far. Weights do not change within a pass."""


def begin_pass() -> None:
    """Make the next pass over the model convert every weight to 8 bits again.

    Optimizers and checkpoints write to `weight.data`, and torch does not count these changes to a
    tensor. So the code that runs the model reports when the weights may have changed.
    """
    global _passes
    _passes += 1


class _WeightIn8Bits:
    """A weight in both 8-bit forms needed for matmuls, valid for a single pass over the model."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.of_pass = _passes
        self.matrix, self.scale = in_8_bits(weight, WEIGHTS)
        # The 8-bit matmul requires the summed dimension to be the last one in memory, which is not
        # the case for `gradient @ weight`.
        self.transposed = self.matrix.view(torch.uint8).t().contiguous().view(WEIGHTS)


def _weight_in_8_bits(weight: Any) -> _WeightIn8Bits:
    cached: _WeightIn8Bits | None = getattr(weight, "in_8_bits", None)
    if cached is None or cached.of_pass != _passes:
        cached = weight.in_8_bits = _WeightIn8Bits(weight.detach())
    return cached


def in_8_bits(values: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `values` in 8 bits, and the float32 scale needed to restore them."""
    values = values.contiguous()
    count = values.numel()
    blocks = triton.cdiv(count, _BLOCK)
    parts = min(_PARTS, blocks)
    highest = torch.empty(parts, dtype=torch.float32, device=values.device)
    blocks_per_part = triton.cdiv(blocks, parts)
    _largest[(parts,)](
        values,
        highest,
        count,
        blocks_per_part,
        BLOCK=_BLOCK,
    )
    result = torch.empty(values.shape, dtype=dtype, device=values.device)
    scale = torch.empty((), dtype=torch.float32, device=values.device)
    _cast[(blocks,)](
        values,
        highest,
        result,
        scale,
        count,
        parts,
        _HIGHEST[dtype],
        PARTS=_PARTS,
        BLOCK=_BLOCK,
    )
    return result, scale


@triton.jit
def _largest(
    values,
    highest,
    count,
    blocks_per_part,
    BLOCK: tl.constexpr,
):
    part = tl.program_id(0)
    start = part.to(tl.int64) * blocks_per_part * BLOCK
    largest = tl.zeros([BLOCK], dtype=tl.float32)
    for block in range(blocks_per_part):
        offset = start + block * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(values + offset, mask=offset < count, other=0.0).to(tl.float32)
        largest = tl.maximum(largest, tl.abs(x))

    tl.store(highest + part, tl.max(largest, axis=0))


@triton.jit
def _cast(
    values,
    highest,
    result,
    scale,
    count,
    parts,
    allowed_max,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    # A tensor of zeros stays zero, because the scale has a lower limit that avoids a division by
    # zero.
    part = tl.arange(0, PARTS)
    largest = tl.max(tl.load(highest + part, mask=part < parts, other=0.0), axis=0)
    largest = tl.maximum(largest, 1e-12)
    offset = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(values + offset, mask=offset < count, other=0.0).to(tl.float32)
    # The rounded quotient may exceed the largest number in the format, so it is clamped.
    x = tl.minimum(tl.maximum(x * (allowed_max / largest), -allowed_max), allowed_max)
    tl.store(result + offset, x.to(result.dtype.element_ty), mask=offset < count)
    if tl.program_id(0) == 0:
        tl.store(scale, largest / allowed_max)
