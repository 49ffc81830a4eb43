"""First weights: each number follows from the seed, the weight's name and its place; a rank draws its own alone.

A counter-based generator (Philox, numpy's, whose stream is the same in every version) is put at the places of a rank's
slice. So every layout starts from the very weights that one process starts from, and their losses can be compared digit
by digit.
"""

import hashlib
import math
from typing import Any, TypeAlias

import numpy as np
import torch
from megatron.core.dist_checkpointing.mapping import ShardedTensor

from runbook.plan_file.schema import PlannedModel
from runbook.training.engines.engine import Shards, each_shard

Numbers: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]

PANEL = 64
"""A matrix is cut into panels of so many columns, whose numbers follow one another row by row: a slice of rows and one
of columns are both long runs of them. A rank whose slice ends within a panel draws the whole width of that panel."""
ROWS = 512
"""So many rows of a panel are drawn at a time, in arrays that stay in the processor's cache."""
_NUMBERS_A_STEP = 8
"""Of the counter, which gives four times 64 bits, and two numbers from each."""


def fill_first_weights(shards: Shards, model: PlannedModel, seed: int) -> None:
    """Write first weights by GPT-2's rule: normal numbers, smaller by depth in what adds to the residual stream."""
    with torch.no_grad():
        for shard in each_shard(shards):
            if not isinstance(shard, ShardedTensor):
                continue
            if shard.key.endswith("bias"):
                shard.data.zero_()
            elif "norm" in shard.key:
                shard.data.fill_(1.0)
            else:
                deep = shard.key.endswith(("linear_proj.weight", "linear_fc2.weight"))
                std = model.init_std / math.sqrt(2 * model.layers) if deep else model.init_std
                _fill_normal(shard, std, seed)


def _fill_normal(shard: ShardedTensor, std: float, seed: int) -> None:
    """Draw this rank's part of a matrix, panel by panel."""
    (top, left), (height, width) = shard.global_offset, shard.data.shape
    digest = hashlib.sha256(f"{seed}/{shard.key}".encode()).digest()
    philox = np.random.Philox(key=np.frombuffer(digest[:16], "<u8").astype(np.uint64))
    place = 0
    for panel in range(left // PANEL, -(-(left + width) // PANEL)):
        first, last = max(left, panel * PANEL), min(left + width, (panel + 1) * PANEL)
        for row in range(0, height, ROWS):
            rows = min(ROWS, height - row)
            wanted = (panel << 64) + (top + row) * PANEL // _NUMBERS_A_STEP
            philox.advance(wanted - place)
            drawn = _normal_numbers(philox, rows * PANEL, std).reshape(rows, PANEL)
            place = wanted + rows * PANEL // _NUMBERS_A_STEP
            part = torch.from_numpy(drawn[:, first - panel * PANEL : last - panel * PANEL])
            shard.data[row : row + rows, first - left : last - left].copy_(part)


def _normal_numbers(philox: np.random.Philox, count: int, std: float) -> Numbers:
    """Box and Muller's transform: the halves of 64 bits are a radius and an angle, and give two normal numbers."""
    halves, single = philox.random_raw(count // 2).view(np.uint32), np.float32
    radius = np.multiply(halves[0::2], single(2.0**-32), dtype=single, casting="unsafe")
    radius += single(2.0**-33)  # above 0, and 1 at most
    np.log(radius, out=radius)
    radius *= single(-2 * std * std)
    np.sqrt(radius, out=radius)
    angle = np.multiply(halves[1::2], single(2.0**-31 * np.pi), dtype=single, casting="unsafe")
    drawn = np.empty(count, single)
    np.multiply(radius, np.cos(angle), out=drawn[0::2])
    np.multiply(radius, np.sin(angle, out=angle), out=drawn[1::2])
    return drawn
