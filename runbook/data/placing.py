"""Where a shard's tokens go: straight into the .bin when it is their turn, else into a part that waits.

Shards stand in the .bin in the order of the input. A shard that is finished when all before it have a known size is
written to its place at once, so that nothing is written twice; one that is not waits in a part of its own.
"""

from __future__ import annotations

import hashlib
import zlib
from io import BufferedRandom
from typing import Protocol

from runbook.data.indexed import Piece
from runbook.data.marks import Mark, Marks
from runbook.data.options import Output
from runbook.data.shard import Result

_BLOCK = 4 << 20
MEMORY = 64 << 20
"""Tokens of an unfinished shard that are kept in memory; more go to a file."""


class Turns(Protocol):
    """Says where in the .bin a shard may write; asked by workers, answered by the one process that knows the order."""

    apart: bool
    """Asked from another process, which begins its next shard before this one is committed: it leaves a mark itself."""

    def stream(self, shard: int) -> int | None:
        """Where a shard of unknown size may begin to write; None: not now."""
        ...

    def place(self, shard: int, size: int) -> int | None:
        """Where a finished shard's tokens go; None: its turn does not come soon."""
        ...


class ShardSink:
    """Takes a shard's tokens; at the end `finish` makes the mark."""

    def __init__(self, shard: int, output: Output, turns: Turns) -> None:
        self.length = 0
        self._shard = shard
        self._output = output
        self._turns = turns
        self._marks = Marks(output)
        self._chunks: list[bytes] = []
        self._file: BufferedRandom | None = None
        self._offset = -1
        self._crc32 = 0
        self._cut = False

    def write(self, data: bytes) -> None:
        """Append."""
        if self._file is None and self.length + len(data) > MEMORY:
            offset = self._turns.stream(self._shard)
            self._open(offset)
        if self._file is None:
            self._chunks.append(data)
        else:
            self._file.write(data)
        if self._turns.apart:
            self._crc32 = zlib.crc32(data, self._crc32)
        self.length += len(data)

    def cut(self, length: int) -> None:
        """Forget all but the first `length` bytes."""
        self._cut = True
        if self._file is not None:
            self._file.seek(max(self._offset, 0) + length)
            if self._offset < 0:
                self._file.truncate()
        else:
            kept = b"".join(self._chunks)[:length]
            self._chunks = [kept]
        self.length = length

    def finish(self, fingerprint: str, result: Result) -> Mark:
        """Bring the tokens to their place, or to a part with a mark of its own."""
        if self._file is None:
            self._open(self._turns.place(self._shard, self.length))
        self._marks.write_quarantine(self._shard, result.quarantine)
        crc32 = self._own_sum()
        sha256 = self._close()
        mark = Mark(
            shard=self._shard,
            fingerprint=fingerprint,
            bytes=self.length,
            counts=result.counts,
            piece=Piece(result.piece.lengths, result.piece.empty),
            problems=tuple(result.problems),
            offset=self._offset,
            sha256=sha256,
            crc32=crc32,
        )
        if mark.waits or self._turns.apart:
            self._marks.write(mark)
        return mark

    def abandon(self) -> None:
        """Close without keeping anything."""
        if self._file is not None:
            self._file.close()

    def _open(self, offset: int | None) -> None:
        if offset is None:
            self._file = self._marks.path(self._shard, "tokens.part").open("w+b")
        else:
            self._offset = offset
            self._file = self._output.bin_part.open("r+b")
            self._file.seek(offset)
        for chunk in self._chunks:
            self._file.write(chunk)
        self._chunks.clear()

    def _own_sum(self) -> int:
        """Checksum of the tokens written; read again where some were taken back."""
        assert self._file is not None
        self._file.flush()
        if not self._cut or not self._turns.apart:
            return self._crc32
        self._file.seek(max(self._offset, 0))
        total, left = 0, self.length
        while left and (chunk := self._file.read(min(left, _BLOCK))):
            total, left = zlib.crc32(chunk, total), left - len(chunk)
        return total

    def _close(self) -> str:
        """Close the file; for a part, its checksum, and its rename from .part."""
        assert self._file is not None
        with self._file as file:
            if self._offset >= 0:
                return ""
            file.seek(0)
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        self._marks.path(self._shard, "tokens.part").rename(self._marks.path(self._shard, "tokens"))
        return sha256
