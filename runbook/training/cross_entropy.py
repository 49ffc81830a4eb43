"""Cross entropy over a vocabulary cut over tensor-parallel ranks, a block of tokens at a time.

megatron-core's own makes float32 copies of all logits (206 MB for 1,024 tokens of GPT-2's vocabulary) and keeps one for
the backward pass. Here float32 exists for one block only; the gradient takes the place of the logits, which nothing
reads after it. Sums are in float32 whatever the logits are, and the gradient is rounded to their type once. Where the
vocabulary is not cut and the numbers have float32's range, that is done in the forward pass already, which has the
exponentials at hand, for a loss of weight one; the backward pass multiplies by the weight (where that is no power of
two, it rounds once more).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

_BLOCK_BYTES = {"cpu": 2**22, "cuda": 2**28}
"""Float32 of one block: on a CPU what its cache holds, on a GPU enough to keep it busy."""


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor, group: torch.distributed.ProcessGroup) -> torch.Tensor:
    """Loss of each token in float32; `logits` [..., vocabulary of this rank] are used up by the backward pass."""
    return _CrossEntropy.apply(logits, labels, group)  # type: ignore[no-any-return,no-untyped-call]


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, labels: torch.Tensor, group: torch.distributed.ProcessGroup
    ) -> torch.Tensor:
        flat = logits.view(-1, logits.shape[-1])
        if group.size() == 1 and logits.dtype != torch.float16:  # fp16 needs the loss scale before it is rounded
            return _alone(ctx, logits, labels)
        highest = flat.amax(-1).float()
        if group.size() > 1:
            torch.distributed.all_reduce(highest, torch.distributed.ReduceOp.MAX, group)
        sums = torch.empty_like(highest)
        for rows in _blocks(flat):
            sums[rows] = (flat[rows].float() - highest[rows, None]).exp_().sum(-1)
        own = labels.view(-1) - group.rank() * flat.shape[1]
        elsewhere = (own < 0) | (own >= flat.shape[1])
        own = own.masked_fill(elsewhere, 0)
        picked = (flat.gather(1, own[:, None])[:, 0].float() - highest).masked_fill_(elsewhere, 0.0)
        if group.size() > 1:
            both = torch.stack([sums, picked])
            torch.distributed.all_reduce(both, group=group)
            sums, picked = both
        ctx.save_for_backward(logits, own, elsewhere, highest + sums.log())
        return (sums.log() - picked).view(labels.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        if len(ctx.saved_tensors) == 1:
            whole: torch.Tensor = ctx.saved_tensors[0]
            flat, weights = whole.detach().view(-1, whole.shape[-1]), gradients[0].reshape(-1, 1)
            for rows in _blocks(flat):  # all at once, torch would make float32 copies of both factors
                flat[rows].mul_(weights[rows])
            return flat.view(whole.shape), None, None
        logits, own, elsewhere, log_sums = ctx.saved_tensors
        flat, gradient = logits.detach().view(-1, logits.shape[-1]), gradients[0].reshape(-1)
        hit = elsewhere.logical_not().float().neg_()
        for rows in _blocks(flat):
            share = (flat[rows].float() - log_sums[rows, None]).exp_()
            share.scatter_add_(1, own[rows, None], hit[rows, None])
            flat[rows] = share.mul_(gradient[rows, None])
        return flat.view(logits.shape), None, None


def _alone(ctx: Any, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The losses of a vocabulary that is not cut; where a gradient is wanted, it takes the place of the logits now."""
    flat, own = logits.detach().view(-1, logits.shape[-1]), labels.reshape(-1)
    losses = torch.empty(len(own), dtype=torch.float32, device=logits.device)
    for rows in _blocks(flat):
        share = flat[rows].float() if flat.dtype != torch.float32 else flat[rows].clone()
        label = own[rows, None]
        highest = share.amax(-1, keepdim=True)
        share -= highest
        picked = share.gather(1, label)
        sums = share.exp_().sum(-1, keepdim=True)
        losses[rows] = (sums.log() - picked)[:, 0]
        if ctx.needs_input_grad[0]:
            share /= sums
            share.scatter_add_(1, label, torch.full_like(sums, -1.0))
            flat[rows] = share
    if ctx.needs_input_grad[0]:
        ctx.save_for_backward(logits)
    return losses.view(labels.shape)


def _blocks(flat: torch.Tensor) -> Iterator[slice]:
    size = max(1, _BLOCK_BYTES[flat.device.type] // (4 * flat.shape[1]))
    for start in range(0, flat.shape[0], size):
        yield slice(start, start + size)
