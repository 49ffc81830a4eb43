"""Manages PREFIX.parts, the folder for locks, done markers and parts while a run is unfinished."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import json
import logging
import os
import platform
import shutil
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runbook.core.errors import HeldError
from runbook.tokens.messages import TokenMessage
from runbook.tokens.pipeline.tokenize_options import Counts, TokenFiles

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from runbook.tokens.indexed_files import IndexPiece


_log = logging.getLogger(__name__)
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)
_MARK_SCHEMA = 5
STAGES = ("read", "parse", "encode", "write")
WORKERS_SECONDS = 30.0
REMOVAL_SECONDS = 2.0
"""How long a starting array job waits for another job that removes the unused folder."""


class _Lock(Enum):
    """What happened when we tried to lock a file."""

    HELD = auto()
    HELD_BY_OTHERS = auto()
    UNSUPPORTED = auto()


@contextlib.contextmanager
def hold_prefix(files: TokenFiles) -> Iterator[None]:
    """Lock the prefix exclusively. `HeldError` names the process that holds the lock."""
    with flocked(files.parts / "lock", fcntl.LOCK_EX, f"is tokenizing to {files.base}"):
        holder_text = (
            f"is the run whose workers still write to {files.parts} after {WORKERS_SECONDS:.0f} s"
        )
        with flocked(
            files.parts / "workers.lock", fcntl.LOCK_EX, holder_text, wait_seconds=WORKERS_SECONDS
        ):
            # Running workers also hold a lock. Workers from a killed run end within milliseconds.
            pass

        yield


@contextlib.contextmanager
def hold_share(files: TokenFiles, name: str) -> Iterator[None]:
    """Share the prefix with other jobs in an array, and lock one share of the work exclusively."""
    holder_text = f"is tokenizing to {files.base}"
    with (
        flocked(files.parts / "lock", fcntl.LOCK_SH, holder_text, wait_seconds=REMOVAL_SECONDS),
        flocked(files.parts / f"{name}.lock", fcntl.LOCK_EX, holder_text),
    ):
        yield


def remove_unused(files: TokenFiles) -> None:
    """Remove the parts folder if it has no finished shard and no run is working in it."""
    if not files.parts.exists() or PartsFolder(files).has_finished_shards:
        return
    holder_text = f"is removing {files.parts}"
    with (
        contextlib.suppress(HeldError, OSError),
        flocked(files.parts / "lock", fcntl.LOCK_EX, holder_text) as is_locked,
        flocked(files.parts / "workers.lock", fcntl.LOCK_EX, holder_text),
    ):
        # Another job may have finished a shard before the folder was locked. Without locks, it is
        # unknown whether another job is working in the folder.
        if is_locked and not PartsFolder(files).has_finished_shards:
            shutil.rmtree(files.parts, ignore_errors=True)


@contextlib.contextmanager
def flocked(
    path: Path,
    kind: int,
    holder_text: str,
    *,
    wait_seconds: float = 0.0,
) -> Iterator[bool]:
    """Lock a file with flock. `HeldError` names the process that holds the lock, and its activity.

    Yield whether the file is locked, which it is not if its file system does not support locks.

    flock is used instead of `core.locks`, because jobs in an array share the lock on a prefix, and
    because the kernel releases locks held by a killed process on every machine.
    """
    deadline = time.monotonic() + wait_seconds
    is_there = False
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+") as file:
            lock = _try_lock(file.fileno(), kind, path.parent)
            if lock is _Lock.HELD_BY_OTHERS:
                if time.monotonic() < deadline:
                    time.sleep(0.05)
                    continue

                file.seek(0)
                owner = file.read(100).strip() or "(one of several jobs)"
                raise HeldError(TokenMessage.PARTS_HELD, owner=owner, holder_text=holder_text)

            with contextlib.suppress(FileNotFoundError):
                is_there = os.path.samestat(path.stat(), os.fstat(file.fileno()))
            if not is_there:
                # The previous holder has finished and removed the folder, so the new file must be
                # locked.
                continue

            # More than one process may share the lock, so the file must not still name an earlier
            # holder.
            file.truncate(0)
            if kind == fcntl.LOCK_EX:
                file.write(f"{os.getpid()} on {platform.node()}\n")
                file.flush()

            yield lock is _Lock.HELD
            return


def _try_lock(descriptor: int, kind: int, folder: Path) -> _Lock:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return _Lock.HELD_BY_OTHERS
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        _log.warning(
            "%s: this file system does not support locks; make sure that only one run writes to it",
            folder,
        )
        return _Lock.UNSUPPORTED

    return _Lock.HELD


@dataclass(kw_only=True)
class ShardCounts(Counts):
    """Counts for a shard, which can be added to those for other shards."""

    input_bytes: int = 0
    sources: dict[str, dict[str, int]] = field(default_factory=dict)
    """Counts of documents, text_bytes and tokens by source."""
    dropped_sources: dict[str, int] = field(default_factory=dict)
    """Number of documents left out, by source."""
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))
    piece_bytes: int = 0
    """Size in bytes of the piece that is being encoded from a huge document, or 0."""

    def add(self, counts: ShardCounts) -> None:
        """Add the counts for another shard to these."""
        for name, value in vars(counts).items():
            setattr(self, name, _sum(getattr(self, name), value))


def _sum(first: Any, second: Any) -> Any:
    """Add two numbers, two lists by element, or two dictionaries by key."""
    if isinstance(first, dict):
        sums = dict(first)
        for key, value in second.items():
            sums[key] = _sum(first[key], value) if key in first else value
        return sums

    if isinstance(first, list):
        return [x + y for x, y in itertools.zip_longest(first, second, fillvalue=0)]
    return first + second


@dataclass(frozen=True)
class ShardMark:
    """Done marker for a finished shard."""

    shard: int
    fingerprint: str
    counts: ShardCounts
    lengths: NDArray[np.int32]
    """Sequence lengths, in tokens."""
    empty: NDArray[np.int64]
    """Which documents in the shard are empty: their numbers in ascending order."""
    problems: tuple[str, ...]
    bytes: int = 0
    """Size of the tokens in bytes."""
    offset: int = -1
    """Where the tokens begin in the .bin, or -1 if they are still in a separate part.
    """
    crc32: int = 0
    """Checksum over the tokens until the shard is committed."""
    sha256: str = ""
    """Checksum over the .bin up to the end of this shard, once it is committed."""

    @property
    def waits(self) -> bool:
        """Return whether the tokens are still in a part."""
        return self.offset < 0

    @property
    def is_committed(self) -> bool:
        """Return whether the .bin contains this shard and all earlier shards, with a checksum."""
        return self.sha256 != ""


class PartsFolder:
    """The folder for done markers and parts that belong to a prefix."""

    def __init__(self, files: TokenFiles) -> None:
        self.folder = files.parts

    @property
    def has_finished_shards(self) -> bool:
        """Return whether the folder contains a done marker for any shard."""
        return any(self.folder.glob("*.mark"))

    def path(self, shard: int, ending: str) -> Path:
        """Return the path to the done marker, tokens or quarantine for a shard."""
        return self.folder / f"{shard:06d}.{ending}"

    def write(
        self,
        shard: int,
        ending: str,
        content: bytes,
    ) -> None:
        """Write a small file for a shard atomically, by renaming.

        The file is not synced to disk, because this would take time for every shard.
        """
        part = self.path(shard, f"{ending}.part")
        part.write_bytes(content)
        part.rename(self.path(shard, ending))

    def write_mark(self, mark: ShardMark) -> None:
        """Write a done marker: a line of JSON, followed by the index arrays for the shard."""
        arrays = mark.lengths.astype("<i4").tobytes() + mark.empty.astype("<i8").tobytes()
        head = vars(mark) | {
            "counts": vars(mark.counts),
            "lengths": len(mark.lengths),
            "empty": zlib.crc32(arrays),
        }
        head["schema"] = _MARK_SCHEMA
        self.write(mark.shard, "mark", json.dumps(head).encode() + b"\n" + arrays)

    def read(self, shard: int) -> ShardMark | None:
        """Return the done marker for a shard.

        Return None if the marker is missing, or incomplete after a power failure.
        """
        import numpy as np

        try:
            line, _, arrays = self.path(shard, "mark").read_bytes().partition(b"\n")
            head = json.loads(line)
            if head.pop("schema") != _MARK_SCHEMA or zlib.crc32(arrays) != head["empty"]:
                return None
            end = 4 * head["lengths"]
            head |= {"counts": ShardCounts(**head["counts"]), "problems": tuple(head["problems"])}
            head |= {
                "lengths": np.frombuffer(arrays[:end], "<i4"),
                "empty": np.frombuffer(arrays[end:], "<i8"),
            }
            return ShardMark(**head)
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def pieces(self, count: int) -> Iterator[IndexPiece]:
        """Yield the index pieces for shards 0 to count - 1.

        Each of these shards must have a done marker.
        """
        for mark in map(self.read, range(count)):
            assert mark is not None, "each done marker existed a moment ago"
            yield mark.lengths, mark.empty

    def forget(self, shard: int) -> None:
        """Remove all files for a shard from the folder."""
        for ending in ("mark", "tokens", "tokens.part", "quarantine"):
            self.path(shard, ending).unlink(missing_ok=True)
