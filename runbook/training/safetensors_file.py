"""Read and write .safetensors: eight bytes of length, a JSON header, then the numbers. It cannot hold code."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy
import torch

from runbook.training.errors import RefusedError

_TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}
_LARGEST_HEADER = 10**8


def write(path: Path, shapes: dict[str, tuple[int, ...]], tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Write float32 tensors one by one, in the order of `shapes`, beside the file's place, and rename."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in shapes.items():
        size = 4 * int(numpy.prod(shape))
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    part = path.with_name(path.name + ".part")
    with part.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for (name, tensor), expected in zip(tensors, shapes, strict=True):
            assert name == expected and tuple(tensor.shape) == shapes[name], name
            stream.write(tensor.to(torch.float32).contiguous().numpy().tobytes())
    part.rename(path)


def read(path: Path) -> dict[str, torch.Tensor]:
    """All tensors of a file, in float32; `RefusedError` where it is none."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if not 2 <= length <= min(size, _LARGEST_HEADER):
            raise RefusedError(f"{path} is no safetensors file: its header would have {length} of {size} bytes")
        try:
            header = json.loads(stream.read(length))
        except (ValueError, RecursionError) as error:
            raise RefusedError(f"{path} is no safetensors file: its header is not JSON ({error})") from None
    if not isinstance(header, dict):
        raise RefusedError(f"{path} is no safetensors file: its header is no table of tensors")
    whole = torch.from_numpy(numpy.memmap(path, numpy.uint8, "c", 8 + length)) if size > 8 + length else torch.empty(0)
    found = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        try:
            start, stop = entry["data_offsets"]
            kind = _TYPES.get(entry["dtype"])
            if kind is None or not 0 <= start <= stop <= size - 8 - length:
                raise RefusedError(
                    f"{path}: {name} is {entry['dtype']} up to byte {stop}: unknown, or the file is cut short"
                )
            found[name] = whole[start:stop].clone().view(kind).view(entry["shape"]).float()
        except (TypeError, KeyError, ValueError, RuntimeError) as error:
            raise RefusedError(f"{path} is no safetensors file: {name} is described as {entry!r} ({error})") from None
    return found
