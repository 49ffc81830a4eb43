"""Computes the cross entropy and its gradient in one Triton kernel each.

The vocabulary may be sharded over ranks.

The forward pass reads the logits once and keeps two numbers per token. The backward pass overwrites
the logits with the gradient, because they are not read again. Sums are in float32.
"""

from typing import Any

import torch
import triton
import triton.language as tl

_BLOCK = 4096
"""Number of logits a program reads at a time."""
_WARPS = 8


def cross_entropy(
    logits: torch.Tensor,
    labels: torch.Tensor,
    group: Any,
    *,
    vocabulary: int = 0,
) -> torch.Tensor:
    """Return the loss for each token in float32.

    `logits` [..., vocabulary on this rank] are overwritten by the end of the backward pass.

    Logits at index `vocabulary` and above are padding and are ignored. A `vocabulary` of 0 means no
    padding.
    """
    return _CrossEntropy.apply(logits, labels, group, vocabulary)  # type: ignore[no-any-return]


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: torch.Tensor,
        labels: torch.Tensor,
        group: Any,
        vocabulary: int,
    ) -> torch.Tensor:
        logits = logits.contiguous()
        width = logits.shape[-1]
        rows = logits.numel() // width
        first = width * group.rank()
        # Number of logits on this rank used for tokens. The rest is vocabulary padding
        num_words = min(width, max(0, vocabulary - first)) if vocabulary else width
        own_labels = labels.reshape(-1) - first
        highest, sums, picked = torch.empty(
            3,
            rows,
            dtype=torch.float32,
            device=logits.device,
        ).unbind(0)
        _loss_forward[(rows,)](
            logits,
            own_labels,
            highest,
            sums,
            picked,
            width,
            num_words,
            BLOCK=_BLOCK,
            num_warps=_WARPS,
        )
        if group.size() > 1:
            own_highest = highest.clone()
            torch.distributed.all_reduce(highest, torch.distributed.ReduceOp.MAX, group=group)
            both = torch.stack([sums * torch.exp(own_highest - highest), picked])
            torch.distributed.all_reduce(both, group=group)
            sums, picked = both

        normalizer = highest + torch.log(sums)
        ctx.save_for_backward(logits, own_labels, normalizer)
        ctx.words = num_words
        return (normalizer - picked).view(labels.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        logits, own_labels, normalizer = ctx.saved_tensors
        flat = logits.detach()
        width = flat.shape[-1]
        weights = gradients[0].reshape(-1).float().contiguous()
        grid = (flat.numel() // width, triton.cdiv(width, _BLOCK))
        _loss_backward[grid](
            flat,
            own_labels,
            normalizer,
            weights,
            width,
            ctx.words,
            BLOCK=_BLOCK,
            num_warps=_WARPS,
        )
        return flat, None, None, None


@triton.jit
def _loss_forward(
    logits,
    labels,
    highest_of,
    sum_of,
    picked_of,
    width,
    num_words,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    start = logits + row * width
    # The most negative float32 is used instead of minus infinity, since infinity minus infinity is
    # NaN.
    highest = tl.full([BLOCK], -3.0e38, dtype=tl.float32)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for first in range(0, num_words, BLOCK):
        column = first + tl.arange(0, BLOCK)
        x = tl.load(start + column, mask=column < num_words, other=-3.0e38).to(tl.float32)
        higher = tl.maximum(highest, x)
        total = total * tl.exp(highest - higher) + tl.where(
            column < num_words, tl.exp(x - higher), 0.0
        )
        highest = higher

    top = tl.max(highest, axis=0)
    tl.store(highest_of + row, top)
    tl.store(sum_of + row, tl.sum(total * tl.exp(highest - top), axis=0))
    label = tl.load(labels + row)
    is_here = (label >= 0) & (label < num_words)
    picked = tl.load(start + label, mask=is_here, other=0.0).to(tl.float32)
    tl.store(picked_of + row, picked)


@triton.jit
def _loss_backward(
    logits,
    labels,
    normalizer_of,
    weights,
    width,
    num_words,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    pointer = logits + row * width + column
    inside = column < width
    x = tl.load(pointer, mask=inside, other=0.0).to(tl.float32)
    share = tl.exp(x - tl.load(normalizer_of + row))
    share -= tl.where(column == tl.load(labels + row), 1.0, 0.0)
    share = tl.where(column < num_words, share * tl.load(weights + row), 0.0)
    tl.store(pointer, share.to(logits.dtype.element_ty), mask=inside)
