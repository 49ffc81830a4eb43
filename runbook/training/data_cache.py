"""Verifies the cached sample order (data.cache) with checksums at every start.

megatron-core identifies a cached order only by its file name. If a number in it changes, different
samples are used with no warning. If the whole index is constant, training repeats one sample until
its loss is 0. So rank 0 writes `checksums.json` next to the files it builds. At the next start it
compares every file with its checksum, and rebuilds the files that differ. Each checkpoint also
stores the checksums, to rule out training in a different order.

Rank 0 reads the cache once at each start, on one core. It reads 1 to 2 GB per second if the
processor computes SHA-256 in hardware, and a third of that if not. The cache takes up 12 to 20
bytes per sample, and 4 bytes per document and epoch: 2 to 3 GB for 300 billion tokens in sequences
of 2,048.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import numpy

from runbook.plan_file.errors import RefusedError
from runbook.plan_file.sample_order_file import (
    CHECKSUMS,
    CachedFile,
    checksums_text,
    read_checksums,
)
from runbook.training.checkpoints.folders import sha256
from runbook.training.messages import TrainingMessage


class CacheFault(Enum):
    """The reason why a cached file is rebuilt."""

    UNFINISHED = "unfinished"
    OLDER = "older than the token files"
    NO_CHECKSUM = "without a checksum"
    CHANGED = "changed after it was built"


@dataclass(frozen=True)
class CacheCheck:
    """The faults found in the cache at this start, and the current checksums."""

    faults: Mapping[str, CacheFault] = field(default_factory=dict)
    """Files removed and rebuilt."""
    checksums: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of each file. Empty if nothing is cached (mock data)."""

    @property
    def changed(self) -> list[str]:
        """Return the files that have changed since they were built."""
        return sorted(name for name, fault in self.faults.items() if fault is CacheFault.CHANGED)


@dataclass(frozen=True)
class _Verified:
    """A file that has been compared with its checksum at this start."""

    changed_at: int
    """Modification time in nanoseconds. If the file was modified later, it is read again."""
    file: CachedFile


class CacheFolder:
    """The cache folder at a start.

    The trainer calls `remove_faulty` before megatron-core builds the cache, and `seal` afterwards.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.faults: dict[str, CacheFault] = {}
        self._verified: dict[str, _Verified] = {}

    def remove_faulty(self, indexes: Sequence[Path]) -> None:
        """Remove the cached files that must not be read, and record the reasons.

        `indexes` are the .idx files for the text. An order older than one of these files was made
        from a different text.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RefusedError(
                TrainingMessage.CACHE_NOT_MADE, folder=self.folder, error=error
            ) from error

        # ctime is checked too, since a file moved or copied here may keep an earlier mtime.
        states = [path.stat() for path in indexes if path.exists()]
        newest = max((max(state.st_mtime_ns, state.st_ctime_ns) for state in states), default=0)
        checksums = read_checksums(self.folder)
        for path in self._arrays():
            built = checksums.get(path.name)
            changed_at = path.stat().st_mtime_ns
            fault = _fault(path, newest, built)
            if fault:
                self.faults[path.name] = fault
                path.unlink()
            elif built:
                self._verified[path.name] = _Verified(changed_at, built)

    def seal(self) -> dict[str, str]:
        """Write checksums.json for the files that exist now, and return their checksums."""
        files = {path.name: self._as_built(path) for path in self._arrays()}
        if files != read_checksums(self.folder):
            part = self.folder / f"{CHECKSUMS}.part"
            with part.open("w", encoding="utf-8") as stream:
                stream.write(checksums_text(files))
                stream.flush()
                os.fsync(stream.fileno())

            part.rename(self.folder / CHECKSUMS)

        return {name: file.sha256 for name, file in files.items()}

    def _as_built(self, path: Path) -> CachedFile:
        state = path.stat()
        verified = self._verified.get(path.name)
        if verified and verified.changed_at == state.st_mtime_ns:
            return verified.file
        return CachedFile(state.st_size, sha256(path))

    def _arrays(self) -> list[Path]:
        return sorted(self.folder.glob("*.npy"))


def other_order(saved: Mapping[str, str], planned: Mapping[str, str]) -> list[str]:
    """Return the files that have changed since a checkpoint was saved.

    A longer training run uses different file names and starts with the same samples, so its files
    are not compared.
    """
    return sorted(name for name, digest in saved.items() if planned.get(name, digest) != digest)


def _fault(path: Path, newest_text: int, built: CachedFile | None) -> CacheFault | None:
    """Return why a cached file must not be read, or None if it was built from this text."""
    try:
        numpy.load(path, mmap_mode="r")
    except (ValueError, OSError):
        return CacheFault.UNFINISHED

    state = path.stat()
    if state.st_mtime_ns < newest_text:
        return CacheFault.OLDER
    if built is None:
        return CacheFault.NO_CHECKSUM
    if state.st_size != built.bytes or sha256(path) != built.sha256:
        return CacheFault.CHANGED
    return None
