"""Keeps copies of the training state in host memory.

A save writes these copies to disk while training continues.

The state on a GPU is copied to pinned memory, at the full rate of the bus and without waiting for
each tensor. Pinning memory for a rank with 1.3B weights (14 bytes per weight, 18 GB) takes seconds,
so the memory is kept for the next save.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from runbook.training.job_output import say
from runbook.training.messages import TrainingMessage
from runbook.training.ranks import cores_of_rank, on_gpu

SLAB_BYTES = 512 * 2**20
"""Size of a slab, which is pinned in one call.

The first slabs are smaller, and a larger tensor gets its own slab.
"""
FIRST_SLAB_BYTES = 64 * 2**20
"""Size of the first slab.

Each later slab is as large as all previous ones together, to pin little memory for a small model.
"""
ALIGNMENT = 512
"""Alignment for each copy in bytes, as in the torch allocators."""
MOST_UNDER_WAY = 2**30
"""How many bytes may be queued for copying before the host waits.

GPU memory used by freed tensors becomes available only after the wait.
"""
MOST_THREADS = 8
PIECE_BYTES = 32 * 2**20

Pin: TypeAlias = Callable[[int, int], bool]
"""A function that pins a number of bytes starting at an address, and returns whether that worked.
"""
Unpin: TypeAlias = Callable[[int], None]
"""A function used to unpin memory before it is freed."""


class HostCopies:
    """Copies in ordinary memory, which is freed together with each copy."""

    def __init__(self) -> None:
        self._under_way = 0

    def begin_save(self) -> None:
        """Release the copies from the previous save. They must have been written by now."""

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy on the host.

        The copy is complete only after `wait`, but the tensor may be freed immediately.
        """
        room = self._room(tensor.shape, tensor.dtype)
        room.copy_(tensor.detach(), non_blocking=True)
        return room

    def has(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is in the memory this object keeps."""
        return False

    def let_go(self, num_bytes: int) -> None:
        """Record that device memory was freed while queued work still uses it.

        Wait if too many bytes are queued.
        """
        self._under_way += num_bytes
        if self._under_way > MOST_UNDER_WAY:
            self.wait()

    def wait(self) -> None:
        """Wait until every copy is complete."""
        self._under_way = 0
        if on_gpu():
            torch.cuda.current_stream().synchronize()

    def _room(self, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype)


class PinnedCopies(HostCopies):
    """Copies in pinned memory, which is kept as long as this object exists."""

    def __init__(self, pin: Pin | None = None, unpin: Unpin | None = None) -> None:
        super().__init__()
        self._pin = pin or _pin_for_cuda
        self._unpin = unpin or _unpin_for_cuda
        self._slabs: list[_Slab] = []

    def begin_save(self) -> None:
        """Mark all memory as reusable."""
        for slab in self._slabs:
            slab.used = 0

    def has(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is one of the copies or a part of one."""
        if tensor.device.type != "cpu":
            return False
        address = tensor.data_ptr()
        return any(slab.address <= address < slab.address + slab.size for slab in self._slabs)

    @property
    def num_bytes(self) -> int:
        """Return the number of bytes of host memory that this object keeps."""
        return sum(slab.size for slab in self._slabs)

    def _room(self, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        count = math.prod(shape)
        if count == 0:
            return torch.empty(shape, dtype=dtype)
        num_bytes = count * dtype.itemsize
        slab = self._slab_for(num_bytes)
        offset = slab.take(num_bytes)
        # The storage is exactly as large as the copy. Otherwise the torch writer would copy the
        # tensor again, as it does for every tensor that is only a part of its storage.
        flat = torch.frombuffer(
            slab.memory,
            dtype=dtype,
            count=count,
            offset=offset,
        )
        return flat.view(shape)

    def _slab_for(self, num_bytes: int) -> _Slab:
        for slab in self._slabs:
            if slab.used + num_bytes <= slab.size:
                return slab

        grown = min(SLAB_BYTES, max(FIRST_SLAB_BYTES, self.num_bytes))
        memory = _touched_memory(max(grown, num_bytes))
        slab = _Slab(memory, _address(memory), len(memory))
        self._slabs.append(slab)
        if self._pin(slab.address, slab.size):
            # When the process ends, the system unpins the memory
            weakref.finalize(slab, self._unpin, slab.address).atexit = False
        elif len(self._slabs) == 1:
            say(TrainingMessage.NOT_PINNED.fill())

        return slab


@dataclass(eq=False)
class _Slab:
    memory: mmap.mmap
    address: int
    size: int
    used: int = 0

    def take(self, num_bytes: int) -> int:
        """Return the offset of the next `num_bytes` free bytes."""
        start = self.used
        self.used += -(-num_bytes // ALIGNMENT) * ALIGNMENT
        return start


def make_host_copies() -> HostCopies:
    """Return pinned copies if this rank uses a GPU, and ordinary copies if it uses a CPU."""
    return PinnedCopies() if on_gpu() else HostCopies()


def _touched_memory(num_bytes: int) -> mmap.mmap:
    """Return new memory with all pages allocated, as huge pages if possible.

    Pinning takes some time for each page.
    """
    size = -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # Child processes do not inherit this memory. If a child shared a page, the next write in the
    # parent would move that page.
    for advice in ("MADV_HUGEPAGE", "MADV_DONTFORK"):
        if hasattr(mmap, advice):
            with contextlib.suppress(OSError):  # The kernel does not support this advice
                memory.madvise(getattr(mmap, advice))

    address = _address(memory)

    def touch(start: int) -> None:
        ctypes.memset(address + start, 0, min(PIECE_BYTES, size - start))

    with ThreadPoolExecutor(min(MOST_THREADS, cores_of_rank())) as threads:
        list(threads.map(touch, range(0, size, PIECE_BYTES)))
    return memory


def _address(memory: mmap.mmap) -> int:
    return torch.frombuffer(memory, dtype=torch.uint8).data_ptr()


# cudaHostRegisterPortable: pinned for every context, as in torch
_PORTABLE = 1


def _pin_for_cuda(address: int, num_bytes: int) -> bool:
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    failed = bool(int(runtime.cudaHostRegister(address, num_bytes, _PORTABLE)))
    if failed:
        # This clears the error. Otherwise CUDA would report it again at the next launch, which did
        # not cause it.
        with contextlib.suppress(RuntimeError):
            torch.zeros(1, device="cuda")

    return not failed


def _unpin_for_cuda(address: int) -> None:
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    runtime.cudaHostUnregister(address)
