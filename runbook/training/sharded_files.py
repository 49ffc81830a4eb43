"""One state of all ranks as a folder in megatron-core's `torch_dist` layout: write it, read it.

megatron-core's own writer forks a process for each file and a manager beside them, which outlive a killed rank and
answer a full disk from afar. The same layout is written here by torch's plain writer, in this process, with fsync.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.core import CheckpointingConfig, CheckpointingException, save_config
from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensor, ShardedTensorFactory, is_main_replica
from megatron.core.dist_checkpointing.strategies.torch import MCoreSavePlanner, mcore_to_pyt_state_dict
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save

from runbook.training.distributed import device, on_first
from runbook.training.errors import TrainingError


def write(state: dict[str, Any], folder: Path) -> None:
    """Write `state` (nested, of sharded tensors and objects) into the empty `folder`, on all ranks together.

    `TrainingError` on all ranks where one could not write, with the system's own words.
    """
    own: dict[str, list[Any]] = {}
    for shard in _written_here(state):
        own.setdefault(shard.unique_key if isinstance(shard, ShardedObject) else shard.key, []).append(shard)
    try:
        save(
            mcore_to_pyt_state_dict(own),
            storage_writer=FileSystemWriter(folder, sync_files=True),
            planner=MCoreSavePlanner(flatten_state_dict=False),
        )
    except CheckpointException as error:  # a BaseException of torch's, which gathers what each rank met
        reasons = sorted({f"{type(reason).__name__}: {reason}" for reason, _ in error.failures.values()})
        raise TrainingError("; ".join(reasons)) from error
    on_first(lambda: _finish(folder))


def size(state: dict[str, Any]) -> int:
    """Bytes of tensors that all ranks together would write."""
    own = sum(shard.data.nbytes for shard in _written_here(state) if isinstance(shard, ShardedTensor))
    total = torch.tensor([own], dtype=torch.int64, device=device())
    torch.distributed.all_reduce(total)
    return int(total)


def read(state: dict[str, Any], folder: Path) -> dict[str, Any]:
    """`state` with the tensors and objects that `folder` holds for this rank."""
    try:
        return dist_checkpointing.load(state, str(folder))  # type: ignore[no-any-return]
    except (CheckpointingException, CheckpointException, KeyError) as error:
        raise TrainingError(f"{folder} does not fit this model: {error}") from error


def _finish(folder: Path) -> None:
    torch.save({}, folder / "common.pt")  # megatron-core wants the file; what others put there is in our metadata.json
    save_config(CheckpointingConfig("torch_dist", 1), str(folder))


def _written_here(state: dict[str, Any]) -> Iterator[Any]:
    return (shard for shard in _shards(state) if is_main_replica(shard.replica_id))


def _shards(node: Any) -> Iterator[Any]:
    if isinstance(node, ShardedTensorFactory):
        yield from _shards(node.build())
    elif isinstance(node, ShardedTensor | ShardedObject):
        yield node
    elif isinstance(node, dict):
        for child in node.values():
            yield from _shards(child)
    elif isinstance(node, list | tuple):
        for child in node:
            yield from _shards(child)
