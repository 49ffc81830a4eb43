"""Writes the `torch_dist` layout with the plain torch writer, and reads it but runs no code in it.

The megatron-core writer forks a manager and a process for each file. These processes outlive a
killed rank, and they report a full disk only indirectly. Here the plain torch writer writes the
same layout in this process, with fsync.

To get any part of a stored tensor, the torch reader loads the whole tensor into memory.
`StoredShards` reads only the bytes in a range. So each rank needs memory only for its own part, and
the replicas together read each number once.

torch writes `.metadata` in a `torch_dist` folder as a pickle. Only the classes that describe
tensors may be unpickled here; a checkpoint that names any other class is refused. Other content in
files from Megatron-LM (enums in arguments, plans for writing) is replaced with inert objects.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import io
import math
import os
import pickle
import re
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple, TypeAlias

import torch
from megatron.core.dist_checkpointing.core import CheckpointingConfig, save_config
from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensor, is_main_replica
from megatron.core.dist_checkpointing.strategies.torch import (
    MCoreSavePlanner,
    mcore_to_pyt_state_dict,
)
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.utils import _create_file_view

from runbook.plan_file.errors import RefusedError
from runbook.training.checkpoints import folders
from runbook.training.engines.engine import Shard, State, each_shard
from runbook.training.host_copies import HostCopies
from runbook.training.messages import TrainingMessage
from runbook.training.process_groups import (
    gather_on_first_rank,
    reduce_number,
    run_on_all_ranks,
    run_on_first_rank,
)
from runbook.training.ranks import on_gpu

WrittenShards: TypeAlias = tuple[list[Any], dict[str, str]]
"""What a rank has written: torch metadata with tensor positions, and the sha256 of each file."""


class ShardWriter:
    """Writes a training state into a checkpoint folder.

    Once a writer exists, the ranks have agreed on which rank writes what, but nothing is on disk
    yet.

    `prepare` and `finish` are called on all ranks together. `write` is called between them. It does
    not communicate with other ranks, so a separate thread may call it.
    """

    def __init__(
        self,
        state: State,
        folder: Path,
        *,
        copies: HostCopies | None = None,
        read: Callable[[str], torch.Tensor] | None = None,
    ) -> None:
        """Prepare to write `state` into the empty `folder`.

        If the state is copied, training may change it immediately. If the state has only the shape
        of a tensor, `read` is called to get the data for its key at the time of writing.
        """
        self.folder = folder
        shards_by_key = _shards_by_key(state)
        tensors = []
        for shards in shards_by_key.values():
            tensors += [shard for shard in shards if isinstance(shard, ShardedTensor)]

        # This must come before the copying, which removes the data from all shards.
        keys_without_data = {shard.key for shard in tensors if shard.data.is_meta}
        num_bytes = sum(shard.data.nbytes for shard in tensors)
        host_copies = {} if copies is None else _copy_to_host(tensors, copies)
        self._num_files, self._num_threads = _files_and_threads(num_bytes, is_read=read is not None)
        # If torch made the copies, it would wait for the CUDA stream used for training after every
        # 10 MB, and each wait could take as long as a step.
        self._writer = FileSystemWriter(folder, sync_files=True, per_thread_copy_ahead=0)
        self._sums = _sum_while_writing(self._writer)
        self._planner = MCoreSavePlanner(flatten_state_dict=False)
        self._planner.lookup_object = _lookup(
            self._planner.lookup_object, host_copies, keys_without_data, read
        )
        self._metadata: Any = None
        self._plan = self._agree_on_plan(shards_by_key)

    def _agree_on_plan(self, shards_by_key: dict[str, list[Any]]) -> Any:
        """Return the plan for this rank, which lists the tensors and objects it writes.

        If more than one rank has a tensor, rank 0 assigns the tensor to one of them.
        """
        is_first = torch.distributed.get_rank() == 0
        writer = self._writer
        planner = self._planner

        def local_plan() -> Any:
            state = mcore_to_pyt_state_dict(shards_by_key)
            planner.set_up_planner(state, writer.storage_meta(), is_coordinator=is_first)
            writer.set_up_storage_writer(is_first)
            return writer.prepare_local_plan(planner.create_local_plan())

        local_plans = gather_on_first_rank(run_on_all_ranks(local_plan))

        def plan_of_each_rank() -> list[Any] | None:
            if not is_first:
                return None
            agreed, self._metadata = planner.create_global_plan(local_plans)
            return writer.prepare_global_plan(agreed)

        # All ranks call this, so that an error on rank 0 is raised everywhere.
        plans = run_on_all_ranks(plan_of_each_rank)
        received: list[Any] = [None]
        torch.distributed.scatter_object_list(received, plans)
        return planner.finish_plan(received[0])

    def write(self) -> WrittenShards:
        """Write the files for this rank with fsync, one thread per file, and hash them."""
        items_by_file = filesystem._split_by_size_and_type(self._num_files, self._plan.items)
        parts = [part for part in enumerate(items_by_file) if part[1]]
        results = []
        # With threads started by torch, all errors but the first would be lost.
        with ThreadPoolExecutor(self._num_threads) as threads:
            run = threads.map if len(parts) > 1 else map
            for written in run(self._write_file, parts):
                results += written

        names = sorted({result.storage_data.relative_path for result in results})
        return results, {name: self._sums[name].hexdigest() for name in names}

    def _write_file(self, part: tuple[int, list[Any]]) -> list[Any]:
        number, items = part
        if number:
            prefix = f"{self._plan.storage_data.prefix}{number}_"
        else:
            prefix = self._plan.storage_data.prefix

        plan = replace(self._plan, items=items, storage_data=filesystem._StoragePrefix(prefix))
        return self._writer.write_data(plan, self._planner).wait()

    def finish(self, written: WrittenShards) -> dict[str, str]:
        """Collect the descriptions of the files from all ranks.

        Return the checksums of all files, by name.
        """
        parts = gather_on_first_rank(written)

        def describe() -> dict[str, str]:
            self._writer.finish(self._metadata, [results for results, _ in parts])
            # megatron-core requires this file. The usual content of common.pt is in our
            # metadata.json.
            torch.save({}, self.folder / "common.pt")
            save_config(CheckpointingConfig("torch_dist", 1), str(self.folder))
            sums = {}
            for _, digests in parts:
                for name, digest in digests.items():
                    sums[name] = digest

            others = sorted(path.name for path in self.folder.iterdir() if path.name not in sums)
            return sums | {name: folders.sha256(self.folder / name) for name in others}

        return run_on_first_rank(describe)


FILE_BYTES = 2**30
MOST_FILES = 4
"""Maximum number of files a rank on a GPU writes.

On a GPU, a rank uses one more file and thread for every `FILE_BYTES` of data, up to this maximum.

On a CPU, a rank writes one file, since the cores are busy computing. If weights are read during the
save, torch keeps all weights for a file in memory, so imported weights are spread over as many
files as needed.
"""


Place: TypeAlias = tuple[str, tuple[int, ...]]
"""A part of a tensor, identified by tensor name and offset."""


def _shards_by_key(state: State) -> dict[str, list[Shard]]:
    """Return this rank's part of `state` in the form the megatron-core planner expects."""
    shards: dict[str, list[Shard]] = {}
    for shard in _shards_written_here(state):
        # Objects from different ranks share a key and differ in their position.
        if isinstance(shard, ShardedObject):
            key = shard.unique_key
        else:
            key = shard.key

        shards.setdefault(key, []).append(shard)

    return shards


def _files_and_threads(num_bytes: int, *, is_read: bool) -> tuple[int, int]:
    """Return the number of files this rank writes, and the number of threads.

    On a CPU the other ranks use the cores, so each rank writes one file.
    """
    num_files = 1 + num_bytes // FILE_BYTES
    if is_read:
        # The files are written one at a time, to keep only one imported weight in memory
        return num_files, 1

    if not on_gpu():
        return 1, 1
    num_files = min(MOST_FILES, num_files)
    return num_files, num_files


def _lookup(
    find: Callable[[Any], Any],
    host_copies: Mapping[Place, torch.Tensor],
    keys_without_data: Collection[str],
    read: Callable[[str], torch.Tensor] | None,
) -> Callable[[Any], Any]:
    """Return a function the writer can call to get the data for an item.

    The data is read from imported weights, or taken from a host copy or from the state.
    """

    def look_up(index: Any) -> Any:
        if read is not None and index.fqn in keys_without_data:
            return read(index.fqn)
        position = (index.fqn, tuple(index.offset or ()))
        if position in host_copies:
            return host_copies[position]
        return find(index)

    return look_up


def _copy_to_host(shards: list[ShardedTensor], copies: HostCopies) -> dict[Place, torch.Tensor]:
    """Return host copies of the tensors in shards, and leave only the shapes in the shards.

    A state gathered from a GPU is already on the host. torch would mark pinned tensors as pinned in
    the metadata, and megatron-core cannot load such a checkpoint.
    """
    host = {}
    for shard in shards:
        if copies.has(shard.data):
            copy = shard.data
        else:
            copy = copies.copy(shard.data)

        shape = (1,) * shard.prepend_axis_num + tuple(shard.local_shape)
        host[shard.key, tuple(shard.global_offset)] = copy.view(shape)
        shard.data = torch.empty_like(
            shard.data, device="meta", memory_format=torch.contiguous_format
        )

    copies.wait()
    return host


def _sum_while_writing(writer: FileSystemWriter) -> dict[str, Any]:
    """Return the sha256 for every file the writer will write, by name.

    The files are written sequentially, and the checksums are complete once all files are written.
    """
    sums: dict[str, Any] = {}
    create = writer.fs.create_stream

    @contextlib.contextmanager
    def create_stream(path: Any, mode: str) -> Iterator[Any]:
        with create(path, mode) as stream:
            digest = hashlib.sha256()
            write = stream.write

            def summed(content: Any) -> Any:
                digest.update(content)
                return write(content)

            stream.write = summed
            sums[Path(path).name] = digest
            yield stream

    writer.fs.create_stream = create_stream  # type: ignore[method-assign]
    return sums


def state_bytes(state: State) -> int:
    """Return the number of tensor bytes all ranks together will write."""
    rank_bytes = 0
    for shard in _shards_written_here(state):
        if isinstance(shard, ShardedTensor):
            rank_bytes += shard.data.nbytes

    return reduce_number(rank_bytes)


def open_shards(checkpoint: folders.CheckpointFolder) -> StoredShards:
    """Return the shards of a verified checkpoint.

    Rank 0 reads the shard metadata and sends it to the other ranks.
    """
    folder = checkpoint.folder / folders.SHARDS
    return StoredShards(
        folder, run_on_first_rank(lambda: check_shards(folder, checkpoint.shards()))
    )


PIECE_BYTES = 16 * 2**20
"""Largest number of bytes from a file that are in host memory at a time while a tensor is loaded.

This is a power of two, to match file system blocks.
"""

READ_ERRORS = (
    RuntimeError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    OSError,
    EOFError,
    AssertionError,
    ArithmeticError,
    MemoryError,
    pickle.UnpicklingError,
    zipfile.BadZipFile,
)
"""Errors raised by torch when a file does not match its metadata."""


class Box(NamedTuple):
    """A rectangle in a matrix. A vector counts as a matrix with one column."""

    top: int
    left: int
    height: int
    width: int

    @classmethod
    def of(cls, offsets: Sequence[int], sizes: Sequence[int]) -> Box:
        """Return the rectangle a part of a tensor covers.

        >>> Box.of((4, 0), (2, 8)), Box.of((4,), (2,))
        (Box(top=4, left=0, height=2, width=8), Box(top=4, left=0, height=2, width=1))
        """
        top, left, *_ = (*offsets, 0)
        height, width, *_ = (*sizes, 1)
        return cls(top, left, height, width)

    def overlap(self, other: Box) -> Box:
        """Return the overlap of both boxes.

        The result has a height or width of 0 if the boxes do not overlap.
        """
        top = max(self.top, other.top)
        left = max(self.left, other.left)
        bottom = min(self.top + self.height, other.top + other.height)
        right = min(self.left + self.width, other.left + other.width)
        return Box(top, left, max(0, bottom - top), max(0, right - left))

    def flat_range(self, start: int, stop: int) -> Iterator[Box]:
        """Yield the rectangles that cover a range of numbers, counted row by row.

        Up to three rectangles cover the range: part of a row, whole rows, and part of a row.

        >>> [tuple(box) for box in Box(10, 2, 5, 4).flat_range(3, 13)]
        [(10, 5, 1, 1), (11, 2, 2, 4), (13, 2, 1, 1)]
        """
        while start < stop:
            row, column = divmod(start, self.width)
            rows = 0 if column else (stop - start) // self.width
            if rows:
                width = self.width
            else:
                width = min(self.width - column, stop - start)

            yield Box(self.top + row, self.left + column, max(1, rows), width)
            start += max(1, rows) * width


@dataclass(frozen=True)
class StoredShards:
    """The tensors and objects in a checkpoint, which are read in parts."""

    folder: Path
    description: metadata.Metadata

    def read(
        self,
        shard: Shard,
        start: int,
        into: torch.Tensor,
    ) -> None:
        """Fill `into` from this rank's part of a stored tensor, beginning at element `start`."""
        first = 0
        # The parts of a tensor that comes from a factory are stored one after another
        for piece in each_shard(shard):
            last = first + piece.data.numel()
            low = max(start, first)
            high = min(start + into.numel(), last)
            if low < high:
                self._read_range(piece, low - first, into[low - start : high - start])
            first = last

    def read_whole(self, key: str) -> torch.Tensor:
        """Return one complete tensor."""
        described = self.description.state_dict_metadata[key]
        whole = torch.empty(described.size, dtype=described.properties.dtype)  # type: ignore[union-attr]
        self._read_range(ShardedTensor.from_rank_offsets(key, whole), 0, whole.view(-1))
        return whole

    def read_object(self, key: str) -> Any:
        """Return an object. Raise `RefusedError` if it contains more than data."""
        ((_, storage),) = self._places_of(key)
        with self._open(key, storage) as (_, item):
            try:
                # The object is wrapped in a list, as in megatron-core
                (content,) = torch.load(item, map_location="cpu", weights_only=True)
                return content
            except pickle.UnpicklingError as error:
                raise RefusedError(
                    TrainingMessage.ENTRY_MORE_THAN_DATA, key=key, error=error
                ) from error

    def _read_range(
        self,
        piece: ShardedTensor,
        start: int,
        into: torch.Tensor,
    ) -> None:
        """Fill `into` with the elements of the flattened `piece`, beginning at position `start`.

        A piece of optimizer state is a flat range in a matrix. The range consists of up to three
        boxes: part of a row, whole rows, and part of a row. A checkpoint with a different layout
        stores the matrix in different chunks, so each box is filled from the chunks it overlaps.
        """
        described: Any = self.description.state_dict_metadata.get(piece.key)
        stored_size = tuple(getattr(described, "size", ()))
        planned_size = tuple(piece.global_shape)
        if stored_size != planned_size or len(stored_size) > 2:
            if stored_size:
                fault = f"is {stored_size}, not {planned_size}"
            else:
                fault = "is missing"

            raise RefusedError(
                TrainingMessage.CHECKPOINT_DOES_NOT_FIT,
                folder=self.folder,
                key=piece.key,
                fault=fault,
            )

        dtype = described.properties.dtype
        chunk_sizes = {chunk.offsets: chunk.sizes for chunk in described.chunks}
        boxes = Box.of(piece.global_offset, piece.local_shape).flat_range(
            start, start + into.numel()
        )
        targets = _views_of_boxes(into, boxes)
        num_filled = 0
        for index, storage in self._places_of(piece.key):
            chunk = Box.of(index.offset or (), chunk_sizes.get(index.offset, (0, 0)))
            copies = _overlaps(targets, chunk)
            if not copies:
                continue

            with self._open(piece.key, storage) as (stream, item):
                data_start = storage.offset + _data_offset(item, storage.length, chunk, dtype)
                for overlap, target in copies:
                    _copy(
                        stream,
                        data_start,
                        chunk,
                        overlap,
                        dtype,
                        target,
                    )
                    num_filled += target.numel()

        if num_filled != into.numel():
            raise RefusedError(TrainingMessage.PART_MISSING, folder=self.folder, key=piece.key)

    def _places_of(self, key: str) -> list[tuple[metadata.MetadataIndex, Any]]:
        if key not in self._places:
            raise RefusedError(TrainingMessage.TENSOR_MISSING, folder=self.folder, key=key)
        return self._places[key]

    @functools.cached_property
    def _places(self) -> dict[str, list[tuple[metadata.MetadataIndex, Any]]]:
        places: dict[str, list[tuple[metadata.MetadataIndex, Any]]] = {}
        for index, storage in self.description.storage_data.items():
            places.setdefault(index.fqn, []).append((index, storage))
        return places

    @contextlib.contextmanager
    def _open(self, key: str, storage: Any) -> Iterator[tuple[BinaryIO, Any]]:
        """Open the file that contains an item; yield it, and a view of only the item."""
        path = self.folder / storage.relative_path
        try:
            folders.require_file(path)
            with path.open("rb") as stream:
                yield stream, _create_file_view(stream, storage.offset, storage.length)
        except READ_ERRORS as error:
            reason = f"{type(error).__name__}: {error}"
            raise RefusedError(
                TrainingMessage.TENSOR_NOT_READABLE, path=path, key=key, reason=reason
            ) from error


def _views_of_boxes(flat: torch.Tensor, boxes: Iterable[Box]) -> list[tuple[Box, torch.Tensor]]:
    """Return each box with its part of `flat`, which contains the boxes one after another."""
    views = []
    start = 0
    for box in boxes:
        stop = start + box.height * box.width
        views.append((box, flat[start:stop].view(box.height, box.width)))
        start = stop

    return views


def _overlaps(
    targets: Iterable[tuple[Box, torch.Tensor]], chunk: Box
) -> list[tuple[Box, torch.Tensor]]:
    """Return the box where each target overlaps a stored chunk, and that part of the target."""
    overlaps = []
    for box, view in targets:
        overlap = box.overlap(chunk)
        if overlap.height == 0 or overlap.width == 0:
            continue

        first_row = overlap.top - box.top
        first_column = overlap.left - box.left
        part = view[
            first_row : first_row + overlap.height, first_column : first_column + overlap.width
        ]
        overlaps.append((overlap, part))

    return overlaps


def _data_offset(
    item: Any,
    item_bytes: int,
    chunk: Box,
    dtype: torch.dtype,
) -> int:
    """Return the byte offset in a saved file at which the row-major elements of a tensor begin."""
    like = torch.load(item, map_location="meta", weights_only=True)
    item.seek(0)
    offset: int = torch._C.PyTorchFileReader(item).get_record_offset("data/0")  # type: ignore[attr-defined]
    described = (chunk.height, chunk.width)
    if (
        like.dtype != dtype
        or _without_ones(like.shape) != _without_ones(described)
        or not like.is_contiguous()
        or like.storage_offset()
    ):
        raise ValueError(
            f"it is {tuple(like.shape)} of {like.dtype}, but described as {described} of {dtype}"
        )

    if offset + like.numel() * dtype.itemsize > item_bytes:
        raise ValueError(f"it has {item_bytes} bytes, too few for {tuple(like.shape)} of {dtype}")
    return offset


def _without_ones(lengths: Iterable[int]) -> list[int]:
    """Drop all dimensions of size 1 from a shape.

    megatron-core adds such a dimension in front of the weights in each layer.
    """
    return [length for length in lengths if length != 1]


def _copy(
    stream: BinaryIO,
    data_start: int,
    chunk: Box,
    overlap: Box,
    dtype: torch.dtype,
    target: torch.Tensor,
) -> None:
    """Copy a box out of a stored chunk. The elements in the chunk begin at byte `data_start`.

    Rows are staged in blocks in host memory. If the layouts differ, a row is only a part of a
    stored row, and one GPU copy per row would take longer to start than to move the bytes. The GPU
    copies from a pinned block while the next block is read, and torch reuses the memory after the
    copy.
    """
    row_bytes = overlap.width * dtype.itemsize
    rows_per_piece = max(1, PIECE_BYTES // row_bytes)
    for first in range(0, overlap.height, rows_per_piece):
        height = min(rows_per_piece, overlap.height - first)
        piece = torch.empty(height, overlap.width, dtype=dtype, pin_memory=target.is_cuda)
        row = overlap.top - chunk.top + first
        column = overlap.left - chunk.left
        first_number = row * chunk.width + column
        # Whole rows are contiguous in the file. Parts of rows are read one by one.
        runs = [piece] if overlap.width == chunk.width else piece.unbind()
        for index, run in enumerate(runs):
            number = first_number + index * chunk.width
            stream.seek(data_start + number * dtype.itemsize)
            read_bytes(stream, run)

        target[first : first + height].copy_(piece, non_blocking=True)


def read_bytes(stream: BinaryIO, into: torch.Tensor) -> None:
    """Fill a tensor from a file."""
    if stream.readinto(into.view(-1).view(torch.uint8).numpy()) != into.nbytes:  # type: ignore[attr-defined]
        raise EOFError("the file ends inside this tensor")


def _shards_written_here(state: State) -> Iterator[Shard]:
    return (shard for shard in each_shard(state) if is_main_replica(shard.replica_id))


_KINDS: tuple[Any, ...] = (
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
_CLASSES: dict[tuple[str, str], Any] = {
    (kind.__module__, kind.__qualname__): kind for kind in _KINDS
}
_CLASSES |= {
    ("collections", "OrderedDict"): dict,
    ("builtins", "set"): set,
    ("builtins", "slice"): slice,
}
_CLASSES |= {
    (module, name): PurePosixPath
    for module in ("pathlib", "pathlib._local")
    for name in ("PosixPath", "PurePosixPath", "WindowsPath")
}


_NOT_NEEDED = (
    "megatron.",
    "torch.",
    "numpy.",
    "transformer_engine.",
    "pathlib.",
    "signal.",
    "enum.",
    "types.SimpleNamespace",
    "_io.BytesIO",
)
"""Classes and functions in files from Megatron-LM that do not describe tensors.

Placeholders replace them, so none of them is called.
"""


class Placeholder:
    """An object that replaces an unneeded object in a pickle.

    Its methods do nothing.
    """

    def __init__(self, *_: object) -> None: ...

    def __setstate__(self, _: object) -> None: ...


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _CLASSES:
            return _CLASSES[module, name]
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if f"{module}.{name}".startswith(_NOT_NEEDED):
            return Placeholder
        raise RefusedError(TrainingMessage.METADATA_RUNS_CODE, module=module, name=name)


class _BoundedReads:
    """A stream that refuses reads beyond the end, since a pickle may ask for 2^40 bytes."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._size = os.fstat(stream.fileno()).st_size
        self.readline = stream.readline

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes."""
        self._check(size)
        return self._stream.read(size)

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes into a buffer."""
        self._check(len(buffer))
        return self._stream.readinto(buffer)  # type: ignore[attr-defined,no-any-return]

    def _check(self, size: int) -> None:
        if size > self._size:
            raise EOFError(f"it requests {size:,} bytes, but the file has only {self._size:,}")


def check_shards(folder: Path, files: Collection[str] | None = None) -> metadata.Metadata:
    """Return the content of `.metadata`.

    Raise `RefusedError` if it contains more than data, points outside the folder, or names a file
    missing from `files` (if given).
    """
    try:
        folders.require_file(folder / ".metadata")
        with (folder / ".metadata").open("rb") as stream:
            description = _Unpickler(_BoundedReads(stream)).load()
    except READ_ERRORS as error:
        raise RefusedError(
            TrainingMessage.METADATA_NOT_READABLE, name=type(error).__name__, error=error
        ) from error

    if not isinstance(description, metadata.Metadata):
        raise RefusedError(TrainingMessage.NOT_TORCHS_METADATA, name=type(description).__name__)

    _check_shard_files(folder, description, files)
    _check_tensor_sizes(folder, description)
    read_common(folder, description)
    return description


COMMON_FILE = "common.pt"
COMMON_STATE = "common_state"
"""Since 0.19, megatron-core stores everything except the tensors in an object with this name."""
MAX_COMMON_BYTES = 256 * 2**20
"""Largest object read into memory. Arguments and counters take up a few kilobytes."""


def read_common(folder: Path, description: metadata.Metadata) -> Any:
    """Return everything in a checkpoint except its tensors.

    Raise `RefusedError` if this part is missing or contains more than data.
    """
    if (folder / COMMON_FILE).exists():
        return read_pickle(folder / COMMON_FILE)
    for index, storage in description.storage_data.items():
        if index.fqn.partition("/")[0] == COMMON_STATE:
            (content,) = read_pickle(_bytes_of(folder, storage), name=folder / COMMON_STATE)
            return content

    raise RefusedError(
        TrainingMessage.NO_COMMON_STATE,
        folder=folder,
        common_file=COMMON_FILE,
        common_state=COMMON_STATE,
    )


def _bytes_of(folder: Path, storage: Any) -> io.BytesIO:
    """Read one small object from a shard file, as bytes."""
    path = folder / storage.relative_path
    if storage.length > MAX_COMMON_BYTES:
        raise RefusedError(
            TrainingMessage.COMMON_STATE_TOO_LARGE,
            path=path,
            common_state=COMMON_STATE,
            length=storage.length,
        )

    folders.require_file(path)
    with path.open("rb") as stream:
        stream.seek(storage.offset)
        return io.BytesIO(stream.read(storage.length))


def read_pickle(source: Path | io.BytesIO, *, name: Path | None = None) -> Any:
    """Load a file written by `torch.save`, and map the tensors to the file.

    Raise `RefusedError` if the file contains more than data. If the source is bytes, error messages
    show `name` as the file name.
    """
    path = source if isinstance(source, Path) else name
    if isinstance(source, Path) and source.exists() and not source.is_file():
        raise RefusedError(TrainingMessage.NOT_A_PLAIN_FILE, source=source)
    registered = torch.serialization.get_safe_globals()
    # megatron-core registers its own classes, which torch would then instantiate
    torch.serialization.clear_safe_globals()
    try:
        is_zip = zipfile.is_zipfile(source)
        names: list[str] = []
        if is_zip:
            _refuse_compressed(source, path)
            _rewind(source)
            names = torch.serialization.get_unsafe_globals_in_checkpoint(source)

        _rewind(source)
        allowed = [(Placeholder, name) for name in names if name.startswith(_NOT_NEEDED)]
        with torch.serialization.safe_globals([argparse.Namespace, *allowed]):
            in_file = is_zip and isinstance(source, Path)
            return torch.load(
                source,
                map_location="cpu",
                weights_only=True,
                mmap=in_file,
            )
    except pickle.UnpicklingError as error:
        named = re.search(r"GLOBAL ([\w.]+)", str(error))
        if named:
            reason = f"it asks for {named[1]}"
        else:
            reason = "its pickle has steps that data does not need"

        raise RefusedError(TrainingMessage.MORE_THAN_DATA, path=path, reason=reason) from error
    except READ_ERRORS as error:
        raise RefusedError(
            TrainingMessage.STATE_NOT_READABLE,
            path=path,
            name=type(error).__name__,
            error=str(error)[:200],
        ) from error
    finally:
        torch.serialization.add_safe_globals(registered)


def _refuse_compressed(source: Path | io.BytesIO, path: Path | None) -> None:
    """Raise `RefusedError` for an archive with compressed entries.

    A few compressed kilobytes can unpack to gigabytes, and `torch.save` does not compress entries.
    """
    with zipfile.ZipFile(source) as archive:
        for entry in archive.infolist():
            if entry.compress_type != zipfile.ZIP_STORED or entry.file_size > entry.compress_size:
                raise RefusedError(
                    TrainingMessage.COMPRESSED_PART, path=path, filename=entry.filename[:100]
                )


def _rewind(source: Path | io.BytesIO) -> None:
    if isinstance(source, io.BytesIO):
        source.seek(0)


def _check_shard_files(
    folder: Path, description: metadata.Metadata, files: Collection[str] | None
) -> None:
    """Raise `RefusedError` unless all shards and `.metadata` are verified files in the folder."""
    storage_by_tensor = description.storage_data
    if not _is_map_of_storage(storage_by_tensor):
        raise RefusedError(TrainingMessage.NO_STORAGE_NAMED, folder=folder / ".metadata")

    names = {str(storage.relative_path) for storage in storage_by_tensor.values()}
    for name in sorted({".metadata", *names}):
        if PurePosixPath(name).name != name:
            raise RefusedError(
                TrainingMessage.FILE_OUTSIDE_FOLDER, folder=folder / ".metadata", name=name
            )

        if files is not None and name not in files:
            raise RefusedError(TrainingMessage.NO_CHECKSUM, folder=folder / name)

    for storage in storage_by_tensor.values():
        _check_range(folder, storage)


def _is_map_of_storage(content: object) -> bool:
    if not isinstance(content, dict):
        return False
    return all(isinstance(storage, filesystem._StorageInfo) for storage in content.values())


def _check_range(folder: Path, storage: Any) -> None:
    """Raise `RefusedError` if a tensor begins or ends outside the file."""
    numbers = (storage.offset, storage.length)
    path = folder / str(storage.relative_path)
    size = path.stat().st_size if path.is_file() else None
    are_numbers = all(type(number) is int and number >= 0 for number in numbers)
    if not are_numbers or (size is not None and sum(numbers) > size):
        raise RefusedError(
            TrainingMessage.TENSOR_OUTSIDE_FILE,
            path=path,
            offset=storage.offset,
            length=storage.length,
            size=size,
        )


def _check_tensor_sizes(folder: Path, description: metadata.Metadata) -> None:
    """Raise `RefusedError` if an entry is not a tensor, or if it is larger than all files together.

    Otherwise, a damaged description could request more memory than the machine has.
    """
    folder_bytes = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    for name, tensor in description.state_dict_metadata.items():
        if isinstance(tensor, metadata.BytesStorageMetadata):
            continue

        num_bytes = _described_bytes(tensor)
        if num_bytes is None:
            problem = "something other than a tensor"
        elif num_bytes > folder_bytes:
            problem = f"{num_bytes:,} bytes, but the folder contains only {folder_bytes:,}"
        else:
            continue

        raise RefusedError(
            TrainingMessage.TENSOR_DESCRIPTION,
            folder=folder / ".metadata",
            name=name,
            problem=problem,
        )


def _described_bytes(tensor: metadata.TensorStorageMetadata) -> int | None:
    """Return the size in bytes of the tensor an entry describes, or None if it describes none."""
    try:
        num_bytes = math.prod(tensor.size) * tensor.properties.dtype.itemsize
        lengths = [*tensor.size]
        for chunk in tensor.chunks:
            lengths += [*chunk.offsets, *chunk.sizes]
    except (AttributeError, TypeError, OverflowError):
        return None

    # isinstance accepts `True` as an int, but `True` is not a length.
    is_shape = all(type(length) is int and length >= 0 for length in lengths)
    return num_bytes if is_shape else None
