"""Triton kernels to add block output and bias to the residual stream, and normalize it.

The sum and its norm are computed in one pass over memory, both forward and backward. The sum is
rounded to the number format of the stream before it is normalized, as if both were computed
separately. Gradients for the norm weights and the bias are summed in float32, in a fixed order.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from runbook.training.kernels.sums import add_partials, column_sum

_PROGRAMS = 528
"""Number of programs in the backward pass, which is four per streaming multiprocessor on an H100.

Each program sums the gradients in its rows.
"""


def normalize(
    values: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    epsilon: float,
) -> torch.Tensor:
    """Compute LayerNorm over the last dimension, or RMSNorm if the norm has no bias."""
    return _Norm.apply(values, None, None, weight, bias, epsilon)[0]  # type: ignore[no-any-return]


def add_and_normalize(
    values: torch.Tensor,
    added_bias: torch.Tensor | None,
    residual: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    epsilon: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the norm of `values + added_bias + residual`, and the sum itself."""
    return _Norm.apply(values, added_bias, residual, weight, bias, epsilon)  # type: ignore[no-any-return]


def add(
    values: torch.Tensor,
    added_bias: torch.Tensor | None,
    residual: torch.Tensor,
) -> torch.Tensor:
    """Return `values + added_bias + residual`."""
    return _Add.apply(values, added_bias, residual)  # type: ignore[no-any-return]


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        values: torch.Tensor,
        added_bias: torch.Tensor | None,
        residual: torch.Tensor | None,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        epsilon: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        values = values.contiguous()
        width = values.shape[-1]
        rows = values.numel() // width
        adds = residual is not None
        if residual is not None:
            residual = residual.contiguous()
        total = torch.empty_like(values) if adds else values
        result = torch.empty_like(values)
        mean = torch.empty(rows, dtype=torch.float32, device=values.device)
        scale = torch.empty_like(mean)
        _norm_forward[(rows,)](
            values,
            added_bias,
            residual,
            total,
            weight,
            bias,
            result,
            mean,
            scale,
            width,
            epsilon,
            adds,
            added_bias is not None,
            bias is not None,
            **_block(width),
        )
        ctx.save_for_backward(
            total,
            weight,
            bias,
            added_bias,
            mean,
            scale,
        )
        ctx.adds = adds
        if not adds:
            # A sum not computed here has no separate gradient.
            ctx.mark_non_differentiable(mean)
            return result, mean

        return result, total

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        total, weight, bias, added_bias, mean, scale = ctx.saved_tensors
        of_result = gradients[0].contiguous()
        of_total = gradients[1].contiguous() if ctx.adds else None
        width = total.shape[-1]
        rows = total.numel() // width
        of_values = torch.empty_like(total)
        programs = min(_PROGRAMS, rows)
        sums = torch.empty(3, programs, width, dtype=torch.float32, device=total.device)
        _norm_backward[(programs,)](
            of_result,
            of_total,
            total,
            weight,
            mean,
            scale,
            of_values,
            sums,
            rows,
            width,
            triton.cdiv(rows, programs),
            programs * width,
            ctx.adds,
            added_bias is not None,
            bias is not None,
            **_block(width),
        )
        of_weight, of_bias, of_added = add_partials(sums, [weight, bias, added_bias])
        return of_values, of_added, of_values if ctx.adds else None, of_weight, of_bias, None


class _Add(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        values: torch.Tensor,
        added_bias: torch.Tensor | None,
        residual: torch.Tensor,
    ) -> torch.Tensor:
        values = values.contiguous()
        residual = residual.contiguous()
        width = values.shape[-1]
        result = torch.empty_like(values)
        ctx.save_for_backward(added_bias)
        block = _block(width)
        _residual_sum[(values.numel() // width,)](
            values,
            added_bias,
            residual,
            result,
            width,
            added_bias is not None,
            **block,
        )
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (added_bias,) = ctx.saved_tensors
        gradient = gradients[0]
        of_bias = None if added_bias is None else column_sum(gradient, added_bias)
        return gradient, of_bias, gradient


def _block(width: int) -> dict[str, int]:
    """Return the launch options for rows with this width.

    One program processes a row, and each thread gets at least eight numbers.
    """
    size = triton.next_power_of_2(width)
    return {"BLOCK": size, "num_warps": min(32, max(1, size // 256))}


@triton.jit
def _norm_forward(
    values,
    added_bias,
    residual,
    total,
    weight,
    bias,
    result,
    mean_of,
    scale_of,
    width,
    epsilon,
    adds: tl.constexpr,
    adds_bias: tl.constexpr,
    is_layer_norm: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    x = tl.load(values + row * width + column, mask=inside, other=0.0).to(tl.float32)
    if adds:
        if adds_bias:
            x += tl.load(added_bias + column, mask=inside, other=0.0).to(tl.float32)
        x += tl.load(residual + row * width + column, mask=inside, other=0.0).to(tl.float32)
        rounded = x.to(total.dtype.element_ty)
        tl.store(total + row * width + column, rounded, mask=inside)
        x = rounded.to(tl.float32)

    mean = 0.0
    if is_layer_norm:
        mean = tl.sum(x, axis=0) / width
    centered = tl.where(inside, x - mean, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centered * centered, axis=0) / width + epsilon)
    y = centered * scale * tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    if is_layer_norm:
        y += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(mean_of + row, mean)

    tl.store(scale_of + row, scale)
    tl.store(result + row * width + column, y.to(result.dtype.element_ty), mask=inside)


@triton.jit
def _norm_backward(
    of_result,
    of_total,
    total,
    weight,
    mean_of,
    scale_of,
    of_values,
    sums,
    rows,
    width,
    rows_each,
    sums_stride,
    adds: tl.constexpr,
    adds_bias: tl.constexpr,
    is_layer_norm: tl.constexpr,
    BLOCK: tl.constexpr,
):
    program = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < width
    factor = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    of_weight = tl.zeros([BLOCK], dtype=tl.float32)
    of_bias = tl.zeros([BLOCK], dtype=tl.float32)
    of_added = tl.zeros([BLOCK], dtype=tl.float32)
    for step in range(rows_each):
        row = (program * rows_each + step).to(tl.int64)
        row_inside = inside & (row < rows)
        offset = row * width + column
        d = tl.load(of_result + offset, mask=row_inside, other=0.0).to(tl.float32)
        x = tl.load(total + offset, mask=row_inside, other=0.0).to(tl.float32)
        scale = tl.load(scale_of + row, mask=row < rows, other=0.0)
        if is_layer_norm:
            x = x - tl.load(mean_of + row, mask=row < rows, other=0.0)
        normal = tl.where(row_inside, x * scale, 0.0)
        scaled = d * factor
        along = tl.sum(normal * scaled, axis=0) / width
        shift = 0.0
        if is_layer_norm:
            shift = tl.sum(scaled, axis=0) / width
        of_x = (scaled - shift - normal * along) * scale
        if adds:
            of_x += tl.load(of_total + offset, mask=row_inside, other=0.0).to(tl.float32)
        tl.store(of_values + offset, of_x.to(of_values.dtype.element_ty), mask=row_inside)
        of_weight += d * normal
        if is_layer_norm:
            of_bias += d
        if adds_bias:
            of_added += tl.where(row_inside, of_x, 0.0)

    own_sums = sums + program * width + column
    tl.store(own_sums, of_weight, mask=inside)
    if is_layer_norm:
        tl.store(own_sums + sums_stride, of_bias, mask=inside)
    if adds_bias:
        tl.store(own_sums + 2 * sums_stride, of_added, mask=inside)


@triton.jit
def _residual_sum(
    values,
    added_bias,
    residual,
    result,
    width,
    adds_bias: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    x = tl.load(values + row * width + column, mask=inside, other=0.0).to(tl.float32)
    if adds_bias:
        x += tl.load(added_bias + column, mask=inside, other=0.0).to(tl.float32)
    x += tl.load(residual + row * width + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(result + row * width + column, x.to(result.dtype.element_ty), mask=inside)
