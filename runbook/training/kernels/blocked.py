"""Attention and cross entropy, computed in blocks.

The torch flash kernel for CPUs computes 16-bit attention in float32 tiles. Here the attention from
a block of queries to all keys up to the end of the block consists of two plain matmuls, which
oneDNN computes in bf16. This takes about half as long as the flash kernel, forward and backward (8
heads of 64, 1,024 tokens: 26 ms instead of 55 ms on one Zen 5 core; 2,048 tokens: 162 ms instead of
263 ms; torch 2.13, 2026-11-21). In float32, the flash kernel is just as fast and is used instead.
Only the inputs and the output are kept for the backward pass, which recomputes the probabilities of
each block.

The megatron-core cross entropy creates float32 copies of all logits (206 MB for 1,024 tokens and
the GPT-2 vocabulary), and keeps one copy for the backward pass. Here only one block of logits is in
float32 at a time. The gradient overwrites the logits, which are not read again. Sums are in float32
for logits in any number format, and the gradient is rounded to that format once. If the vocabulary
is not sharded and the format has the same range as float32, the forward pass already computes the
gradient for a loss with weight 1, because it has already computed the exponentials. The backward
pass then multiplies by the actual weight, so the gradient is rounded once more unless the weight is
a power of two.
"""

from typing import Any

import torch

from runbook.training.cpu import slices

NUM_BLOCKS = 4


def blocked_is_faster(query: torch.Tensor, key: torch.Tensor, dropout: float) -> bool:
    """Return whether blocked attention is faster for these tensors than torch attention."""
    on_cpu = query.device.type == "cpu" and query.dtype in (torch.bfloat16, torch.float16)
    return on_cpu and not dropout and query.shape == key.shape and query.shape[2] % NUM_BLOCKS == 0


def blocked_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """Return causal attention for tensors [batch, heads, sequence, size]."""
    return _BlockedAttention.apply(query, key, value, scale)  # type: ignore[no-any-return,no-untyped-call]


class _BlockedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        query = query.contiguous()
        key = key.contiguous()
        value = value.contiguous()
        mixed = torch.empty_like(query)
        for rows in slices(query.shape[2], query.shape[2] // NUM_BLOCKS):
            # Keys that at least one of these queries attends to
            visible = slice(rows.stop)
            scaled = query[:, :, rows] * scale
            share = _probabilities(scaled, key[:, :, visible], rows)
            mixed[:, :, rows] = share @ value[:, :, visible]

        ctx.save_for_backward(query, key, value)
        ctx.scale = scale
        return mixed

    @staticmethod
    def backward(
        ctx: Any, *gradients: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, None]:
        query, key, value = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        of_query = torch.empty_like(query)
        of_key = torch.zeros_like(key)
        of_value = torch.zeros_like(value)
        for rows in slices(query.shape[2], query.shape[2] // NUM_BLOCKS):
            visible = slice(rows.stop)
            scaled = query[:, :, rows] * ctx.scale
            row_gradient = gradient[:, :, rows]
            share = _probabilities(scaled, key[:, :, visible], rows)
            of_value[:, :, visible] += share.transpose(-1, -2) @ row_gradient
            of_share = row_gradient @ value[:, :, visible].transpose(-1, -2)
            of_score = torch._softmax_backward_data(of_share, share, -1, share.dtype)
            of_query[:, :, rows] = (of_score @ key[:, :, visible]).mul_(ctx.scale)
            of_key[:, :, visible] += of_score.transpose(-1, -2) @ scaled

        return of_query, of_key, of_value, None


def _probabilities(query: torch.Tensor, key: torch.Tensor, rows: slice) -> torch.Tensor:
    scores = query @ key.transpose(-1, -2)
    size = rows.stop - rows.start
    future = torch.full((size, size), float("-inf"), dtype=query.dtype).triu_(1)
    scores[..., rows] += future
    return scores.softmax(-1)


_BLOCK_BYTES = {"cpu": 2**22, "cuda": 2**28}
"""How many bytes the float32 numbers in a block take.

A block fits into the cache on a CPU, or is large enough to keep a GPU busy.
"""


def cross_entropy(
    logits: torch.Tensor,
    labels: torch.Tensor,
    group: torch.distributed.ProcessGroup,
    *,
    vocabulary: int = 0,
) -> torch.Tensor:
    """Return the loss for each token in float32.

    `logits` [..., vocabulary on this rank] are overwritten by the end of the backward pass.

    Logits at index `vocabulary` and above are padding and are ignored. A `vocabulary` of 0 means no
    padding.
    """
    padding = logits.shape[-1] * (group.rank() + 1) - vocabulary if vocabulary else 0
    if padding > 0:
        logits.detach()[..., -padding:] = float("-inf")
    return _CrossEntropy.apply(logits, labels, group)  # type: ignore[no-any-return,no-untyped-call]


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: torch.Tensor,
        labels: torch.Tensor,
        group: torch.distributed.ProcessGroup,
    ) -> torch.Tensor:
        flat = logits.view(-1, logits.shape[-1])
        # In fp16, the loss scale must be applied before rounding.
        if group.size() == 1 and logits.dtype != torch.float16:
            return _uncut_losses(ctx, logits, labels)
        highest = flat.amax(-1).float()
        if group.size() > 1:
            torch.distributed.all_reduce(highest, torch.distributed.ReduceOp.MAX, group)
        sums = torch.empty_like(highest)
        for rows in _token_blocks(flat):
            sums[rows] = _less(flat[rows], highest[rows, None]).exp_().sum(-1)
        own_labels = labels.view(-1) - group.rank() * flat.shape[1]
        elsewhere = (own_labels < 0) | (own_labels >= flat.shape[1])
        own_labels = own_labels.masked_fill(elsewhere, 0)
        picked = (flat.gather(1, own_labels[:, None])[:, 0].float() - highest).masked_fill_(
            elsewhere, 0.0
        )
        if group.size() > 1:
            both = torch.stack([sums, picked])
            torch.distributed.all_reduce(both, group=group)
            sums, picked = both

        ctx.save_for_backward(logits, own_labels, elsewhere, highest + sums.log())
        return (sums.log() - picked).view(labels.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        if len(ctx.saved_tensors) == 1:
            whole: torch.Tensor = ctx.saved_tensors[0]
            flat = whole.detach().view(-1, whole.shape[-1])
            weights = gradients[0].reshape(-1, 1)
            # The product is computed in blocks. Otherwise, torch would create complete float32
            # copies of both factors.
            for rows in _token_blocks(flat):
                flat[rows].mul_(weights[rows])
            return flat.view(whole.shape), None, None

        logits, own_labels, elsewhere, log_sums = ctx.saved_tensors
        flat = logits.detach().view(-1, logits.shape[-1])
        gradient = gradients[0].reshape(-1)
        hit = elsewhere.logical_not().float().neg_()
        for rows in _token_blocks(flat):
            share = _less(flat[rows], log_sums[rows, None]).exp_()
            share.scatter_add_(1, own_labels[rows, None], hit[rows, None])
            flat[rows] = share.mul_(gradient[rows, None])
            del share  # Free this memory before the next block is allocated

        return flat.view(logits.shape), None, None


def _uncut_losses(ctx: Any, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the losses for an unsharded vocabulary.

    If a gradient is needed, it is computed at the same time and overwrites the logits.
    """
    flat = logits.detach().view(-1, logits.shape[-1])
    flat_labels = labels.reshape(-1)
    losses = torch.empty(len(flat_labels), dtype=torch.float32, device=logits.device)
    for rows in _token_blocks(flat):
        share = flat[rows].float() if flat.dtype != torch.float32 else flat[rows].clone()
        label = flat_labels[rows, None]
        highest = share.amax(-1, keepdim=True)
        share -= highest
        picked = share.gather(1, label)
        sums = share.exp_().sum(-1, keepdim=True)
        losses[rows] = (sums.log() - picked)[:, 0]
        if ctx.needs_input_grad[0]:
            share /= sums
            share.scatter_add_(1, label, torch.full_like(sums, -1.0))
            flat[rows] = share

        del share  # Free this memory before the next block is allocated

    if ctx.needs_input_grad[0]:
        ctx.save_for_backward(logits)
    return losses.view(labels.shape)


def _less(scores: torch.Tensor, amount: torch.Tensor) -> torch.Tensor:
    """Return `scores - amount` in float32, using one block of new memory."""
    if scores.dtype == torch.float32:
        return torch.sub(scores, amount)
    return scores.float().sub_(amount)


def _token_blocks(flat: torch.Tensor) -> list[slice]:
    block_bytes = _BLOCK_BYTES["cpu" if flat.device.type == "cpu" else "cuda"]
    return slices(flat.shape[0], max(1, block_bytes // (4 * flat.shape[1])))
