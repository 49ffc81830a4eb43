"""The `torch_dist` layout: written by torch's plain writer, read without running code from it.

megatron-core's own writer forks a process for each file and a manager, which outlive a killed rank and
answer a full disk from afar. The same layout is written here by torch's plain writer, in this process, with fsync.

torch writes `.metadata` of a `torch_dist` folder as a pickle and reads it with `pickle.load`; it reads the objects
among the shards with `weights_only=False`. Both are answered here while a checkpoint is read: only the classes that
describe tensors are known, and a checkpoint that asks for another one is refused with its name.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import pickle
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, TypeAlias
from unittest import mock

import torch
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.core import CheckpointingConfig, CheckpointingException, save_config
from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensor, is_main_replica
from megatron.core.dist_checkpointing.strategies.torch import MCoreSavePlanner, mcore_to_pyt_state_dict
from torch.distributed.checkpoint import _nested_dict, filesystem, metadata
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter

from runbook.plan_file.errors import RefusedError, TrainingError
from runbook.training.checkpoints import folders
from runbook.training.engines.engine import LoadedState, Shard, State, each_shard
from runbook.training.process_groups import device, gather_on_first_rank, run_on_all_ranks, run_on_first_rank

WrittenShards: TypeAlias = tuple[list[Any], dict[str, str]]
"""What a rank wrote: torch's own notes of where each tensor is, and the sha256 of each file."""


class ShardWriter:
    """A state that is ready to be written: what every rank writes is agreed on, and nothing is on disk yet.

    `prepare` and `finish` are called on all ranks together; `write` between them needs no other rank, so that another
    thread may do it.
    """

    def __init__(self, state: State, folder: Path, *, copied: bool) -> None:
        """Prepare to write `state` into the empty `folder`; where `copied`, training may change it at once."""
        self.folder = folder
        own: dict[str, list[Any]] = {}
        for shard in _shards_written_here(state):
            if copied and isinstance(shard, ShardedTensor):
                shard.data = shard.data.detach().to("cpu", copy=True)
            own.setdefault(shard.unique_key if isinstance(shard, ShardedObject) else shard.key, []).append(shard)
        self._writer = FileSystemWriter(folder, sync_files=True)
        self._planner = MCoreSavePlanner(flatten_state_dict=False)
        self._metadata: Any = None
        first, writer, planner = torch.distributed.get_rank() == 0, self._writer, self._planner

        def local() -> Any:
            planner.set_up_planner(mcore_to_pyt_state_dict(own), writer.storage_meta(), is_coordinator=first)
            writer.set_up_storage_writer(first)
            return writer.prepare_local_plan(planner.create_local_plan())

        plans = gather_on_first_rank(run_on_all_ranks(local))

        def whole() -> list[Any]:
            agreed, self._metadata = planner.create_global_plan(plans)
            return writer.prepare_global_plan(agreed)

        everyone = run_on_all_ranks(lambda: whole() if first else None)
        received: list[Any] = [None]
        torch.distributed.scatter_object_list(received, everyone)
        self._plan = planner.finish_plan(received[0])

    def write(self) -> WrittenShards:
        """Write this rank's files, with fsync, and read them back for their checksums."""
        pending = self._writer.write_data(self._plan, self._planner)
        pending.wait()
        results = pending.value()
        names = sorted({result.storage_data.relative_path for result in results})
        return results, {name: folders.sha256(self.folder / name) for name in names}

    def finish(self, written: WrittenShards) -> dict[str, str]:
        """Describe what all ranks wrote; the checksums of all files, by name."""
        parts = gather_on_first_rank(written)

        def describe() -> dict[str, str]:
            self._writer.finish(self._metadata, [results for results, _ in parts])
            # megatron-core wants this file; what others put there is in our metadata.json.
            torch.save({}, self.folder / "common.pt")
            save_config(CheckpointingConfig("torch_dist", 1), str(self.folder))
            sums = {name: digest for _, digests in parts for name, digest in digests.items()}
            others = sorted(path.name for path in self.folder.iterdir() if path.name not in sums)
            return sums | {name: folders.sha256(self.folder / name) for name in others}

        return run_on_first_rank(describe)


def state_bytes(state: State) -> int:
    """Bytes of tensors that all ranks together would write."""
    own = sum(shard.data.nbytes for shard in _shards_written_here(state) if isinstance(shard, ShardedTensor))
    total = torch.tensor([own], dtype=torch.int64, device=device())
    torch.distributed.all_reduce(total)
    return int(total)


def read_shards(state: State, checkpoint: folders.CheckpointFolder) -> LoadedState:
    """`state` with the tensors and objects that a verified checkpoint holds for this rank."""
    folder = checkpoint.folder / folders.SHARDS

    def check() -> None:
        check_shards(folder, checkpoint.shards())

    run_on_first_rank(check)
    try:
        with reading_data_only():
            return dist_checkpointing.load(state, str(folder))  # type: ignore[no-any-return]
    except (CheckpointingException, CheckpointException, KeyError) as error:
        raise TrainingError(f"{folder} does not fit this model: {error}") from error


def _shards_written_here(state: State) -> Iterator[Shard]:
    return (shard for shard in each_shard(state) if is_main_replica(shard.replica_id))


_CLASSES: dict[tuple[str, str], Any] = {
    (kind.__module__, kind.__qualname__): kind
    for kind in (
        metadata.Metadata,
        metadata.MetadataIndex,
        metadata.StorageMeta,
        metadata.TensorStorageMetadata,
        metadata.BytesStorageMetadata,
        metadata.ChunkStorageMetadata,
        metadata.TensorProperties,
        metadata._MEM_FORMAT_ENCODING,
        filesystem._StorageInfo,
        filesystem._StoragePrefix,
        torch.Size,
        torch.serialization._get_layout,
    )
} | {("collections", "OrderedDict"): dict, ("builtins", "set"): set, ("builtins", "slice"): slice}
_CLASSES |= {
    (module, name): PurePosixPath
    for module in ("pathlib", "pathlib._local")
    for name in ("PosixPath", "PurePosixPath", "WindowsPath")
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        known = _CLASSES.get((module, name))
        if known is None and module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            known = getattr(torch, name)
        if known is None:
            raise RefusedError(
                f"the checkpoint's .metadata asks for {module}.{name}, which describes no tensor: it may be made to "
                f"run code, and is not read. Take another checkpoint, and ask where this one comes from"
            )
        return known


def read_metadata(stream: BinaryIO) -> metadata.Metadata:
    """What a `.metadata` file says; `RefusedError` where it names anything but descriptions of tensors."""
    try:
        description = _Unpickler(stream).load()
    except (pickle.UnpicklingError, EOFError, AttributeError, TypeError, ValueError, IndexError, KeyError) as error:
        raise TrainingError(f"the checkpoint's .metadata cannot be read: {type(error).__name__}: {error}") from error
    if not isinstance(description, metadata.Metadata):
        raise TrainingError(
            f"the checkpoint's .metadata holds {type(description).__name__}, not torch's description of one"
        )
    return description


def check_shards(folder: Path, files: Collection[str]) -> metadata.Metadata:
    """What `.metadata` says; refuse what is more than data, leads elsewhere, or is not in `files`."""
    with (folder / ".metadata").open("rb") as stream:
        description = read_metadata(stream)
    _check_shard_files(folder, description, files)
    _check_tensor_sizes(folder, description)
    common = folder / "common.pt"
    try:
        torch.load(common, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise RefusedError(
            f"{common} is more than data, and is not read: {error}. Take another checkpoint, and ask where this one "
            f"comes from"
        ) from error
    except (OSError, RuntimeError, EOFError, ValueError, KeyError, AttributeError) as error:
        raise TrainingError(f"{common} cannot be read: {type(error).__name__}: {error}") from error
    return description


def _check_shard_files(folder: Path, description: metadata.Metadata, files: Collection[str]) -> None:
    """Every shard is a file in the folder whose checksum was compared, and `.metadata` is one itself."""
    places = description.storage_data
    if not isinstance(places, dict) or not all(isinstance(place, filesystem._StorageInfo) for place in places.values()):
        raise RefusedError(f"{folder / '.metadata'} does not say in which file each tensor is")
    for name in sorted({".metadata", *(str(place.relative_path) for place in places.values())}):
        if PurePosixPath(name).name != name:
            raise RefusedError(
                f"{folder / '.metadata'} names the file {name!r}, which is not in its folder: it is not read. Take "
                "another checkpoint, and ask where this one comes from"
            )
        if name not in files:
            raise RefusedError(
                f"{folder / name} has no checksum in the checkpoint's metadata.json, so nobody can say whether it is "
                "whole: it is not read"
            )


def _check_tensor_sizes(folder: Path, description: metadata.Metadata) -> None:
    """Every tensor is described as one, and is not larger than the files it is said to be in."""
    folder_bytes = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    for name, tensor in description.state_dict_metadata.items():
        if isinstance(tensor, metadata.BytesStorageMetadata):
            continue
        try:
            num_bytes = math.prod(tensor.size) * tensor.properties.dtype.itemsize
            is_shape = all(isinstance(length, int) and length >= 0 for length in tensor.size)
        except (AttributeError, TypeError):
            is_shape, num_bytes = False, 0
        if not is_shape or num_bytes > folder_bytes:
            raise RefusedError(
                f"{folder / '.metadata'} describes {name!r} as "
                + (f"{num_bytes:,} bytes, and the folder holds {folder_bytes:,}" if is_shape else "no tensor")
            )


@contextlib.contextmanager
def reading_data_only() -> Iterator[None]:
    """Let torch's reader of sharded checkpoints read data alone, for as long as this lasts."""
    # megatron-core reads common.pt in torch's own default way, which an environment variable may have set to run code.
    os.environ.pop("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", None)
    reading = mock.patch.object(filesystem.FileSystemReader, "read_metadata", _read_metadata)
    with reading, mock.patch.object(DefaultLoadPlanner, "load_bytes", _load_bytes):
        yield


def _read_metadata(self: filesystem.FileSystemReader, *_: Any, **options: Any) -> metadata.Metadata:
    with self.fs.create_stream(self._get_metadata_path(options.get("rank")), "rb") as stream:
        description = read_metadata(stream)  # type: ignore[arg-type]
    if getattr(description, "storage_meta", None) is None:
        description.storage_meta = metadata.StorageMeta()
    description.storage_meta.load_id = self.load_id  # type: ignore[union-attr]
    return description


def _load_bytes(self: DefaultLoadPlanner, read_item: Any, value: io.BytesIO) -> None:
    name = read_item.dest_index.fqn
    try:
        content = torch.load(value, weights_only=True)
    except pickle.UnpicklingError as error:
        raise RefusedError(f"{name!r} in the checkpoint is more than data, and is not read: {error}") from error
    if self.flatten_state_dict:
        _nested_dict.set_element(self.original_state_dict, self.mappings[name], content)  # type: ignore[attr-defined]
    else:
        self.state_dict[name] = content
