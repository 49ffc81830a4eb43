"""First weights that depend on the seed and on nothing else: not on ranks, layout, engine or device.

Each weight is drawn whole, in float32 on the CPU, from a generator seeded by the run's seed and the weight's own name
(with its layer's number); a rank then keeps its slice. So TP 2, PP 2 and DP 2 start from the very weights that one
process starts from, and their losses can be compared digit by digit.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from typing import Any

import torch

from runbook.training.spec import Model


def fill(sharded: Any, model: Model, seed: int) -> None:
    """Write the first weights into the tensors of a model's sharded state dict."""
    with torch.no_grad():
        for shard in _shards(sharded):
            _fill_shard(shard, model, seed)


def _shards(node: Any) -> Iterator[Any]:
    from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory

    if isinstance(node, ShardedTensorFactory):
        yield from _shards(node.build())
    elif isinstance(node, ShardedTensor):
        yield node
    elif isinstance(node, dict):
        for child in node.values():
            yield from _shards(child)
    elif isinstance(node, list | tuple):
        for child in node:
            yield from _shards(child)


def _fill_shard(shard: Any, model: Model, seed: int) -> None:
    whole = first_weight(shard.key, shard.global_shape, model, seed)
    region = tuple(
        slice(start, start + length) for start, length in zip(shard.global_offset, shard.data.shape, strict=True)
    )
    shard.data.copy_(whole[region])


def first_weight(key: str, shape: tuple[int, ...], model: Model, seed: int) -> torch.Tensor:
    """The whole first value of one weight: GPT-2's rule, with what adds to the residual stream scaled by depth."""
    if key.endswith("bias"):
        return torch.zeros(shape)
    if "norm" in key:
        return torch.ones(shape)
    deep = key.endswith(("linear_proj.weight", "linear_fc2.weight"))
    std = model.init_std / math.sqrt(2 * model.layers) if deep else model.init_std
    digest = hashlib.sha256(f"{seed}/{key}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    return torch.empty(shape).normal_(0.0, std, generator=generator)
