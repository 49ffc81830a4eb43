"""Reading checkpoints that may be anybody's: what is pickled in them may name data, and never runs code.

torch writes `.metadata` of a `torch_dist` folder as a pickle and reads it with `pickle.load`; it reads the objects
among the shards with `weights_only=False`. Both are answered here while a checkpoint is read: only the classes that
describe tensors are known, and a checkpoint that asks for another one is refused with its name.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import torch
from torch.distributed.checkpoint import _nested_dict, filesystem, metadata
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner

from runbook.training.errors import RefusedError, TrainingError

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
_CLASSES |= {("pathlib", name): PurePosixPath for name in ("PosixPath", "PurePosixPath", "WindowsPath")}
_CLASSES |= {("pathlib._local", name): PurePosixPath for name in ("PosixPath", "PurePosixPath", "WindowsPath")}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        found = _CLASSES.get((module, name))
        if found is None and module == "torch":
            found = getattr(torch, name, None) if name.isidentifier() else None
            found = found if isinstance(found, torch.dtype) else None
        if found is None:
            raise RefusedError(
                f"the checkpoint's .metadata asks for {module}.{name}, which describes no tensor: it may be made to "
                f"run code, and is not read. Take another checkpoint, and ask where this one comes from"
            )
        return found


def read_metadata(stream: BinaryIO) -> metadata.Metadata:
    """What a `.metadata` file says; `RefusedError` where it names anything but descriptions of tensors."""
    try:
        found = _Unpickler(stream).load()
    except (pickle.UnpicklingError, EOFError, AttributeError, TypeError, ValueError, IndexError, KeyError) as error:
        raise TrainingError(f"the checkpoint's .metadata cannot be read: {type(error).__name__}: {error}") from error
    if not isinstance(found, metadata.Metadata):
        raise TrainingError(f"the checkpoint's .metadata holds {type(found).__name__}, not torch's description of one")
    return found


def check(folder: Path) -> None:
    """Refuse a `torch_dist` folder whose `.metadata` or `common.pt` is more than data."""
    with (folder / ".metadata").open("rb") as stream:
        read_metadata(stream)
    common = folder / "common.pt"
    if not common.exists():
        return
    try:
        torch.load(common, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise RefusedError(
            f"{common} is more than data, and is not read: {error}. Take another checkpoint, and ask where this one "
            f"comes from"
        ) from error
    except (RuntimeError, EOFError, ValueError, KeyError, AttributeError) as error:
        raise TrainingError(f"{common} cannot be read: {type(error).__name__}: {error}") from error


@contextlib.contextmanager
def only_data() -> Iterator[None]:
    """Let torch's reader of sharded checkpoints read data alone, for as long as this lasts."""
    # megatron-core reads common.pt in torch's own default way, which somebody may have told to run code again.
    os.environ.pop("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", None)
    reader, loader = filesystem.FileSystemReader.read_metadata, DefaultLoadPlanner.load_bytes
    filesystem.FileSystemReader.read_metadata = _read_metadata  # type: ignore[method-assign]
    DefaultLoadPlanner.load_bytes = _load_bytes  # type: ignore[method-assign]
    try:
        yield
    finally:
        filesystem.FileSystemReader.read_metadata = reader  # type: ignore[method-assign]
        DefaultLoadPlanner.load_bytes = loader  # type: ignore[method-assign]


def _read_metadata(self: filesystem.FileSystemReader, *_: Any, **options: Any) -> metadata.Metadata:
    with self.fs.create_stream(self._get_metadata_path(options.get("rank")), "rb") as stream:
        found = read_metadata(stream)  # type: ignore[arg-type]
    if getattr(found, "storage_meta", None) is None:
        found.storage_meta = metadata.StorageMeta()
    found.storage_meta.load_id = self.load_id  # type: ignore[union-attr]
    return found


def _load_bytes(self: DefaultLoadPlanner, read_item: Any, value: io.BytesIO) -> None:
    name = read_item.dest_index.fqn
    try:
        content = torch.load(value, weights_only=True)
    except pickle.UnpicklingError as error:
        raise RefusedError(f"{name!r} in the checkpoint is more than data, and is not read: {error}") from error
    if self.flatten_state_dict:
        _nested_dict.set_element(  # type: ignore[attr-defined]
            self.original_state_dict, self.mappings[name], content
        )
    else:
        self.state_dict[name] = content
