"""One state of all ranks as a folder in megatron-core's `torch_dist` layout: write it, read it.

megatron-core's own writer forks a process for each file and a manager beside them, which outlive a killed rank and
answer a full disk from afar. The same layout is written here by torch's plain writer, in this process, with fsync.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.core import CheckpointingConfig, CheckpointingException, save_config
from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensor, ShardedTensorFactory, is_main_replica
from megatron.core.dist_checkpointing.strategies.torch import MCoreSavePlanner, mcore_to_pyt_state_dict
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter

from runbook.training import checkpoints, safe_reading
from runbook.training.distributed import device, on_first, together
from runbook.training.errors import TrainingError


class Writing:
    """A state that is ready to be written: what every rank writes is agreed on, and nothing is on disk yet.

    `prepare` and `finish` are called on all ranks together; `write` between them needs no other rank, so that another
    thread may do it.
    """

    def __init__(self, state: dict[str, Any], folder: Path, *, copied: bool) -> None:
        """Prepare to write `state` (nested, of sharded tensors and objects) into the empty `folder`.

        Where `copied`, the tensors are copied to the host first, and training may change them at once.
        """
        self.folder = folder
        own: dict[str, list[Any]] = {}
        for shard in _written_here(state):
            if copied and isinstance(shard, ShardedTensor):
                shard.data = shard.data.detach().to("cpu", copy=True)
            own.setdefault(shard.unique_key if isinstance(shard, ShardedObject) else shard.key, []).append(shard)
        self._writer = FileSystemWriter(folder, sync_files=True)
        self._planner = MCoreSavePlanner(flatten_state_dict=False)
        self._metadata: Any = None
        self._plan = self._agree(mcore_to_pyt_state_dict(own))

    def _agree(self, state: dict[str, Any]) -> Any:
        first, ranks = torch.distributed.get_rank() == 0, torch.distributed.get_world_size()
        writer, planner = self._writer, self._planner

        def local() -> Any:
            planner.set_up_planner(state_dict=state, storage_meta=writer.storage_meta(), is_coordinator=first)
            writer.set_up_storage_writer(first)
            return writer.prepare_local_plan(planner.create_local_plan())

        plans: list[Any] | None = [None] * ranks if first else None
        torch.distributed.gather_object(together(local), plans)

        def whole() -> list[Any]:
            agreed, self._metadata = planner.create_global_plan(plans)
            return writer.prepare_global_plan(agreed)

        everyone = together(lambda: whole() if first else [None] * ranks)
        own: list[Any] = [None]
        torch.distributed.scatter_object_list(own, everyone if first else None)
        return planner.finish_plan(own[0])

    def write(self) -> Written:
        """Write this rank's files, with fsync, and read them back for their checksums."""
        pending = self._writer.write_data(self._plan, self._planner)
        pending.wait()
        results = pending.value()
        names = sorted({result.storage_data.relative_path for result in results})
        return Written(results, {name: checkpoints.sha256(self.folder / name) for name in names})

    def finish(self, written: Written) -> dict[str, str]:
        """Describe what all ranks wrote; the checksums of all files, by name."""
        first, ranks = torch.distributed.get_rank() == 0, torch.distributed.get_world_size()
        parts: list[Any] | None = [None] * ranks if first else None
        torch.distributed.gather_object(written, parts)

        def describe() -> dict[str, str]:
            assert parts is not None
            self._writer.finish(self._metadata, [part.results for part in parts])
            # megatron-core wants this file; what others put there is in our metadata.json.
            torch.save({}, self.folder / "common.pt")
            save_config(CheckpointingConfig("torch_dist", 1), str(self.folder))
            sums = {name: digest for part in parts for name, digest in part.sums.items()}
            others = sorted(path.name for path in self.folder.iterdir() if path.name not in sums)
            return sums | {name: checkpoints.sha256(self.folder / name) for name in others}

        return on_first(describe)


@dataclass(frozen=True)
class Written:
    """What one rank wrote: torch's own notes of where each tensor lies, and the sha256 of each file."""

    results: list[Any]
    sums: dict[str, str]


def size(state: dict[str, Any]) -> int:
    """Bytes of tensors that all ranks together would write."""
    own = sum(shard.data.nbytes for shard in _written_here(state) if isinstance(shard, ShardedTensor))
    total = torch.tensor([own], dtype=torch.int64, device=device())
    torch.distributed.all_reduce(total)
    return int(total)


def read(state: dict[str, Any], folder: Path) -> dict[str, Any]:
    """`state` with the tensors and objects that `folder` holds for this rank."""
    on_first(lambda: safe_reading.check(folder))
    try:
        with safe_reading.only_data():
            return dist_checkpointing.load(state, str(folder))  # type: ignore[no-any-return]
    except (CheckpointingException, CheckpointException, KeyError) as error:
        raise TrainingError(f"{folder} does not fit this model: {error}") from error


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
