"""Products of float32 matrices by oneDNN, on a CPU whose AVX-512 units torch's own library for them leaves unused.

torch multiplies float32 by MKL, which takes its AVX2 code on processors that Intel did not make: 105 GFLOP/s of a Zen 5
core, where oneDNN, which torch has on board for 16-bit numbers, reaches 200 to 250 in all three products of a layer
(torch 2.13, 2026-11-22). Sums are float32 in both. Attention stays with torch's flash kernel, which multiplies by MKL.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch

OUTPUTS = 2048
"""Of a layer, whose weights get their gradient in one product."""

DEPTH = 256
"""Numbers that are added up in one go: so a product is off by 3e-7 of its norm, as MKL's is.

oneDNN takes a thousand and is off by 6e-7, enough for Adam to move one of a million weights 1.1e-5 away from a plain
program's in its first step. It costs 2 to 3 % of a step of the 12 x 512 model.
"""

_CPU_INFO = Path("/proc/cpuinfo")


@functools.cache
def pays() -> bool:
    """Whether oneDNN is the faster one here: torch has both, AVX-512 is used, and Intel is not the maker."""
    both = torch.backends.mkl.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")  # type: ignore[no-untyped-call]
    if torch.cuda.is_available() or not both or torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    return _CPU_INFO.is_file() and "GenuineIntel" not in _CPU_INFO.read_text(encoding="utf-8", errors="replace")


def use_in(model: Any) -> None:
    """Let megatron-core's linear layers in a float32 model multiply by oneDNN, where that is faster.

    A layer that brings together a cut sequence is left as it is.
    """
    if not pays():
        return
    for module in model.modules():
        if hasattr(module, "_forward_impl") and not module.sequence_parallel:
            module._forward_impl = _linear


def product(left: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`left @ right + bias` of two float32 matrices.

    Where more numbers are added up than there are sums in a row, they are taken `DEPTH` at a time; elsewhere the copies
    of the result, of all logits perhaps, would cost more than the digit is worth.
    """
    depth = left.shape[1]
    if depth <= max(DEPTH, right.shape[1] - 1):
        return _product(left, right, bias)
    result = _product(left[:, :DEPTH].contiguous(), right[:DEPTH], bias)
    for start in range(DEPTH, depth, DEPTH):
        some = slice(start, start + DEPTH)
        result = _product(left[:, some].contiguous(), right[some], None, result)
    return result


def _product(
    left: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | None = None, more: torch.Tensor | None = None
) -> torch.Tensor:
    """`left @ right + bias`, or `left @ right + more`, in one call of oneDNN."""
    if not (right.is_contiguous() or right.t().is_contiguous()):  # oneDNN would take a hundred times as long
        right = right.contiguous()
    multiply = torch.ops.mkldnn._linear_pointwise
    if more is None:
        return multiply(left, right.t(), bias, "none", [], "")  # type: ignore[no-any-return]
    return multiply.binary(left, more, right.t(), None, "add")  # type: ignore[no-any-return]


def _linear(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    allreduce_dgrad: bool,
    tp_group: torch.distributed.ProcessGroup | None,
    **_: Any,
) -> torch.Tensor:
    """What megatron-core's layers call, in their words; what is left out are its means for GPUs."""
    rows = input.reshape(-1, input.shape[-1])
    result: torch.Tensor = _Linear.apply(rows, weight, bias, tp_group if allreduce_dgrad else None)  # type: ignore[no-untyped-call]
    return result.view(*input.shape[:-1], weight.shape[0])


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        values: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        group: torch.distributed.ProcessGroup | None,
    ) -> torch.Tensor:
        ctx.save_for_backward(values, weight)
        ctx.group, ctx.biased = group, bias is not None
        return product(values, weight.t(), bias)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        values, weight = ctx.saved_tensors
        gradient = gradients[0]
        of_values = product(gradient, weight)
        # The sum over the tensor-parallel ranks is under way while the weight's gradient is computed.
        sum_ = torch.distributed.all_reduce(of_values, group=ctx.group, async_op=True) if ctx.group else None
        of_weight = _of_weight(gradient, values)
        of_bias = gradient.sum(0) if ctx.biased else None
        if sum_ is not None:
            sum_.wait()
        return of_values, of_weight, of_bias, None


def _of_weight(gradient: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """`gradient.t() @ values`; of a factor that is cut out or turned, oneDNN needs a copy.

    Where the values are the smaller factor, they are copied once, and the gradient (of all logits, it may be) piece by
    piece, so that no second one exists.
    """
    outputs = gradient.shape[1]
    if outputs <= values.shape[1]:
        return _product(gradient.t(), values)
    turned, of_weight = values.t().contiguous(), torch.empty(outputs, values.shape[1], dtype=values.dtype)
    for start in range(0, outputs, OUTPUTS):
        some = slice(start, start + OUTPUTS)
        of_weight[some] = _product(turned, gradient[:, some]).t()
    return of_weight
