"""Triton kernels for the bias and the GELU or SwiGLU between the two matmuls of an MLP.

A pass over the activations is memory-bound, so each kernel reads its inputs once. The backward pass
also sums the bias gradient. Each program sums a block of rows in float32 and in a fixed order, so
the result is reproducible.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from runbook.training.kernels.sums import add_partials

_ROWS = 16
"""Number of rows in a tile."""
_COLUMNS = 256
"""Number of columns in a tile.

At 16 bits per number, a tile row takes 512 bytes, so memory is read in full cache lines.
"""
_WARPS = 8
_ROW_BLOCKS = 32
"""Number of programs along the rows in the backward pass.

Each program writes one partial sum for the bias gradient.
"""


def bias_gelu(values: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Return the GELU (tanh form) for `values + bias` over the last dimension."""
    return _Activation.apply(values, bias, False)  # type: ignore[no-any-return]


def bias_swiglu(values: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Return `silu(first half) * second half` for `values + bias`, over the last dimension."""
    return _Activation.apply(values, bias, True)  # type: ignore[no-any-return]


class _Activation(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        values: torch.Tensor,
        bias: torch.Tensor | None,
        gated: bool,
    ) -> torch.Tensor:
        values = values.contiguous()
        width = values.shape[-1] // 2 if gated else values.shape[-1]
        rows = values.numel() // values.shape[-1]
        result = values.new_empty(*values.shape[:-1], width)
        grid = (triton.cdiv(rows, _ROWS), triton.cdiv(width, _COLUMNS))
        _activation_forward[grid](
            values,
            bias,
            result,
            rows,
            width,
            bias is not None,
            gated,
            _ROWS,
            _COLUMNS,
            num_warps=_WARPS,
        )
        ctx.save_for_backward(values, bias)
        ctx.gated = gated
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        values, bias = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        width = gradient.shape[-1]
        rows = gradient.numel() // width
        of_values = torch.empty_like(values)
        is_biased = bias is not None
        partial = torch.empty(
            1,
            _ROW_BLOCKS,
            values.shape[-1],
            dtype=torch.float32,
            device=values.device,
        )
        grid = (_ROW_BLOCKS, triton.cdiv(width, _COLUMNS))
        tiles = triton.cdiv(triton.cdiv(rows, _ROW_BLOCKS), _ROWS)
        _activation_backward[grid](
            gradient,
            values,
            bias,
            of_values,
            partial,
            rows,
            width,
            tiles,
            is_biased,
            ctx.gated,
            _ROWS,
            _COLUMNS,
            num_warps=_WARPS,
        )
        of_bias = add_partials(partial, [bias])[0] if is_biased else None
        return of_values, of_bias, None


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _activation_forward(
    values,
    bias,
    result,
    rows,
    width,
    is_biased: tl.constexpr,
    gated: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < rows)[:, None] & (column < width)[None, :]
    stride = 2 * width if gated else width
    offset = row.to(tl.int64)[:, None] * stride + column[None, :]
    x = tl.load(values + offset, mask=inside, other=0.0).to(tl.float32)
    if is_biased:
        x += tl.load(bias + column, mask=column < width, other=0.0).to(tl.float32)[None, :]
    if gated:
        gate = tl.load(values + offset + width, mask=inside, other=0.0).to(tl.float32)
        if is_biased:
            gate += tl.load(bias + width + column, mask=column < width, other=0.0).to(tl.float32)[
                None, :
            ]

        y = x * _sigmoid(x) * gate
    else:
        # (1 + tanh(z)) / 2 is the sigmoid of 2 z.
        y = x * _sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))

    out = row.to(tl.int64)[:, None] * width + column[None, :]
    tl.store(result + out, y.to(result.dtype.element_ty), mask=inside)


@triton.jit
def _activation_backward(
    gradient,
    values,
    bias,
    of_values,
    partial,
    rows,
    width,
    tiles,
    is_biased: tl.constexpr,
    gated: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    block = tl.program_id(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    in_width = column < width
    stride = 2 * width if gated else width
    if is_biased:
        own_bias = tl.load(bias + column, mask=in_width, other=0.0).to(tl.float32)[None, :]
        if gated:
            gate_bias = tl.load(bias + width + column, mask=in_width, other=0.0).to(tl.float32)[
                None, :
            ]

    total = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
    gate_total = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
    for tile in range(tiles):
        row = (block * tiles + tile) * ROWS + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & in_width[None, :]
        offset = row.to(tl.int64)[:, None] * stride + column[None, :]
        out = row.to(tl.int64)[:, None] * width + column[None, :]
        d = tl.load(gradient + out, mask=inside, other=0.0).to(tl.float32)
        x = tl.load(values + offset, mask=inside, other=0.0).to(tl.float32)
        if is_biased:
            x += own_bias
        if gated:
            gate = tl.load(values + offset + width, mask=inside, other=0.0).to(tl.float32)
            if is_biased:
                gate += gate_bias
            share = _sigmoid(x)
            of_x = d * gate * share * (1.0 + x * (1.0 - share))
            of_gate = d * x * share
            tl.store(
                of_values + offset + width, of_gate.to(of_values.dtype.element_ty), mask=inside
            )
            gate_total += of_gate
        else:
            share = _sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
            slope = 1.5957691216057308 * (1.0 + 0.134145 * x * x)
            of_x = d * share * (1.0 + x * (1.0 - share) * slope)

        tl.store(of_values + offset, of_x.to(of_values.dtype.element_ty), mask=inside)
        total += of_x

    if is_biased:
        tl.store(partial + block * stride + column, tl.sum(total, axis=0), mask=in_width)
        if gated:
            tl.store(
                partial + block * stride + width + column,
                tl.sum(gate_total, axis=0),
                mask=in_width,
            )
