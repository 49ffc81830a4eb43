"""Writes shards to the .bin in input order. Handles offsets, waiting parts, checksums and resuming.

If the sizes of all earlier shards are known, a finished shard is written directly to its place in
the .bin, so that nothing is written twice. Otherwise the shard waits in a separate file, called its
part.
"""

import hashlib
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from io import BufferedRandom
from typing import Any, BinaryIO

from runbook.core.errors import DataError
from runbook.tokens.messages import TokenMessage
from runbook.tokens.pipeline.parts_folder import PartsFolder, ShardCounts, ShardMark
from runbook.tokens.pipeline.tokenize_options import MOST_REPORTED_RECORDS, TokenFiles
from runbook.tokens.sources.input_files import Shard

_BLOCK = 4 << 20
MEMORY = 64 << 20
"""Maximum number of token bytes to keep in memory for an unfinished shard.

Tokens in a larger shard are written to a file.
"""

TURN_SHARE = 0.25
"""How long a finished shard may wait for its place, as a share of its processing time.

After that time, the tokens are written to a part.
"""


class Placement:
    """Where the tokens from each shard go in the .bin.

    The position is known once the sizes of all earlier shards are known.
    """

    def __init__(self, num_shards: int, joins: bool) -> None:
        """Create the table of sizes. If `joins` is False, no shard is placed in the .bin."""
        self.joins = joins
        self.sizes: Any = [-1] * num_shards

    def share(self) -> None:
        """Move the sizes into memory that worker processes share."""
        # The import is here because it takes 10 ms, and a single worker needs no shared memory.
        from multiprocessing.sharedctypes import RawArray

        self.sizes = RawArray("q", self.sizes)

    def offset(self, shard: int) -> int | None:
        """Return the offset of a shard in the .bin, or None if it is not known yet."""
        before = self.sizes[:shard]
        return sum(before) if self.joins and -1 not in before else None

    def place(
        self,
        shard: Shard,
        size: int,
        wait_seconds: float,
    ) -> int | None:
        """Record the size of a finished shard, and return its offset, or None if it is unknown.

        Wait up to `wait_seconds` for the sizes of the earlier shards.
        """
        earlier_size = self.sizes[shard.number]
        self.sizes[shard.number] = size
        # A worker that died may already have recorded this size.
        if earlier_size not in (-1, size):
            raise DataError(
                TokenMessage.FILE_CHANGED_MEANWHILE,
                describe=shard.describe(),
                earlier_size=earlier_size,
                size=size,
            )

        deadline = time.monotonic() + wait_seconds
        offset = self.offset(shard.number)
        while offset is None and self.joins and time.monotonic() < deadline:
            time.sleep(0.01)
            offset = self.offset(shard.number)

        return offset


class ShardSink:
    """Receives tokens from a shard.

    `finish` moves the tokens to their place, and completes the done marker.
    """

    def __init__(
        self,
        files: TokenFiles,
        shard: Shard,
        placement: Placement,
        *,
        leaves_mark: bool,
        checksum: Any = None,
    ) -> None:
        """Create a sink. If `leaves_mark` is set, the sink itself writes the done marker.

        In this case the next shard starts before this shard is committed. `checksum` covers the
        .bin up to this shard, and is updated with everything that is written.
        """
        self.length = 0
        self._files = files
        self._shard = shard
        self._placement = placement
        self._leaves_mark = leaves_mark
        self._parts = PartsFolder(files)
        self._chunks: list[bytes | memoryview] = []
        self._file: BufferedRandom | None = None
        self._offset = -1
        self._checksum_before = checksum
        self._begin_checksums()
        self._began = time.monotonic()

    def write(self, data: bytes | memoryview) -> None:
        """Append tokens to the shard."""
        if self._file is None and self.length + len(data) > MEMORY:
            is_new = self._placement.sizes[self._shard.number] < 0
            self._open(self._placement.offset(self._shard.number) if is_new else None)

        if self._file is None:
            self._chunks.append(data)
        else:
            self._file.write(data)

        self._add_to_checksums(data)
        self.length += len(data)

    def cut(self, length: int) -> None:
        """Discard all tokens after the first `length` bytes."""
        self.length = length
        if self._file is None:
            self._chunks = [b"".join(self._chunks)[:length]]
            self._begin_checksums()
            self._add_to_checksums(self._chunks[0])
            return

        self._file.seek(max(self._offset, 0))
        self._begin_checksums()
        for chunk in _chunks(self._file, length):
            self._add_to_checksums(chunk)

        if self._offset < 0:
            self._file.truncate(length)

    def _begin_checksums(self) -> None:
        self._crc32 = 0
        before = self._checksum_before
        self.checksum = None if before is None else before.copy()

    def _add_to_checksums(self, data: bytes | memoryview) -> None:
        if self._leaves_mark:
            self._crc32 = zlib.crc32(data, self._crc32)
        if self.checksum is not None:
            self.checksum.update(data)

    def finish(self, mark: ShardMark, quarantine: list[str]) -> ShardMark:
        """Move the tokens to their place, or to a part, and complete the done marker."""
        number = self._shard.number
        if self._file:
            wait_seconds = 0.0
        else:
            wait_seconds = max(0.2, (time.monotonic() - self._began) * TURN_SHARE)

        offset = self._placement.place(self._shard, self.length, wait_seconds)
        (self._file or self._open(offset)).close()
        if quarantine:
            text = "".join(line + "\n" for line in quarantine)
            self._parts.write(number, "quarantine", text.encode())
        else:
            self._parts.path(number, "quarantine").unlink(missing_ok=True)

        if self._offset < 0:
            self._parts.path(number, "tokens.part").rename(self._parts.path(number, "tokens"))
        mark = replace(mark, bytes=self.length, offset=self._offset, crc32=self._crc32)
        if self._leaves_mark:
            self._parts.write_mark(mark)
        return mark

    def close(self) -> None:
        """Close the file and discard tokens from an unfinished shard."""
        if self._file is not None:
            self._file.close()

    def _open(self, offset: int | None) -> BufferedRandom:
        if offset is None:
            self._file = self._parts.path(self._shard.number, "tokens.part").open("w+b")
        else:
            self._offset = offset
            self._file = self._files.bin_part.open("r+b")
            self._file.seek(offset)

        self._file.writelines(self._chunks)
        self._chunks.clear()
        return self._file


def _chunks(file: BinaryIO, length: int) -> Iterator[bytes]:
    """Yield the next `length` bytes of a file in chunks, or fewer if the file ends earlier."""
    while length and (chunk := file.read(min(_BLOCK, length))):
        length -= len(chunk)
        yield chunk


def _crc32(file: BinaryIO, length: int) -> int:
    checksum = 0
    for chunk in _chunks(file, length):
        checksum = zlib.crc32(chunk, checksum)
    return checksum


class Committer:
    """Commits shards to the .bin in order. Each running `prepare` has its own committer.

    The .bin contains all shards with numbers below `committed`, and their checksums and done
    markers have been written.
    """

    joins = True
    """Whether shards are written to the .bin. Otherwise their tokens stay in parts."""

    def __init__(
        self,
        files: TokenFiles,
        shards: list[Shard],
        choices: str,
    ) -> None:
        self._files = files
        self._parts = PartsFolder(files)
        self._shards = shards
        self.hash = hashlib.sha256()  # Checksum over the .bin so far
        # Finished shards that are not yet committed
        self.waiting: dict[int, ShardMark] = {}
        self._copied = 0
        self.fingerprints = [shard.fingerprint(choices) for shard in shards]
        self.placement = Placement(len(shards), self.joins)
        self.committed = 0
        self.length = 0
        self.totals = ShardCounts()
        self.problems: list[str] = []
        # For each committed shard, its entry in the manifest
        self.spans: list[dict[str, int]] = []

    def resume(self, on_commit: Callable[[], None]) -> list[int]:
        """Take over what an earlier run completed.

        Return the numbers of the shards that remain to be done. The tokens on disk are read again
        and compared with the checksums in the done markers. Everything from the first mismatch on
        is discarded.
        """
        marks = [self._known(shard.number) for shard in self._shards]
        self._undo_last_rename(marks)
        self._files.bin_part.touch()
        self._resume_committed(marks, on_commit)
        for shard, mark in enumerate(marks[self.committed :], self.committed):
            if mark is not None and self._can_be_joined(shard, mark):
                self.finished(mark)
            else:
                self._parts.forget(shard)

        shards_left = range(self.committed, len(marks))
        return [number for number in shards_left if number not in self.waiting]

    def _undo_last_rename(self, marks: Sequence[ShardMark | None]) -> None:
        """Rename the .bin back if the earlier run ended between its renames."""
        part = self._files.bin_part
        final = self._files.bin
        first_is_committed = bool(marks) and marks[0] is not None and marks[0].is_committed
        if first_is_committed and final.exists() and not part.exists():
            final.rename(part)

    def _resume_committed(
        self, marks: Sequence[ShardMark | None], on_commit: Callable[[], None]
    ) -> None:
        """Count the shards in the .bin that come before the first mismatch with a done marker."""
        with self._files.bin_part.open("rb") as file:
            for mark in marks:
                if mark is None or not mark.is_committed or not self._agrees(file, mark):
                    return
                self._count(mark)
                on_commit()

    def _can_be_joined(self, shard: int, mark: ShardMark) -> bool:
        """Return whether a finished but uncommitted shard can be used unchanged."""
        # If an earlier shard is tokenized again, for example because a file has changed, later
        # offsets in the .bin may change.
        has_place = mark.waits or mark.offset == self.placement.offset(shard)
        return has_place and not mark.is_committed and self._is_whole(mark)

    def finished(self, mark: ShardMark) -> None:
        """Record that the tokens in a shard have been written to the .bin or to a part."""
        self.waiting[mark.shard] = mark
        self.placement.sizes[mark.shard] = mark.bytes

    def checksum_before(self, shard: Shard) -> Any:
        """Return the .bin checksum before a shard, or None if earlier shards are missing."""
        return self.hash.copy() if self.joins and shard.number == self.committed else None

    def written(self, mark: ShardMark, checksum: Any) -> None:
        """Record that a shard is written. Commit it if the .bin checksum up to its end is known.

        Tokens in a part are hashed when the part is joined to the .bin.
        """
        self.finished(mark)
        if checksum is not None and not mark.waits:
            assert mark.offset == self.length, "the same inputs and choices give the same sizes"
            self.hash = checksum
            self._commit(mark)

    @property
    def has_work(self) -> bool:
        """Return whether the next shard to commit is finished."""
        return self.committed in self.waiting

    def step(self) -> bool:
        """Hash the next few megabytes of the next shard to commit, joining them if in a part.

        Return whether there was one.
        """
        if not self.has_work:
            return False
        mark = self.waiting[self.committed]
        assert mark.waits or mark.offset == self.length, (
            "the same inputs and choices give the same sizes"
        )
        if mark.waits:
            source = self._parts.path(mark.shard, "tokens")
        else:
            source = self._files.bin_part

        size = min(_BLOCK, mark.bytes - self._copied)
        with source.open("rb") as file:
            file.seek(self._copied + max(mark.offset, 0))
            chunk = file.read(size)

        if len(chunk) < size:
            raise DataError(TokenMessage.SHARD_SHORTER, source=source)

        if mark.waits:
            with self._files.bin_part.open("r+b") as target:
                target.seek(self.length + self._copied)
                target.write(chunk)

        self.hash.update(chunk)
        self._copied += size
        if self._copied == mark.bytes:
            self._commit(mark)
        return True

    def _commit(self, mark: ShardMark) -> None:
        committed = replace(mark, offset=self.length, sha256=self.hash.hexdigest())
        self._parts.write_mark(committed)
        self._parts.path(mark.shard, "tokens").unlink(missing_ok=True)
        del self.waiting[mark.shard]
        self._copied = 0
        self._count(committed)

    def _count(self, mark: ShardMark) -> None:
        counts = mark.counts
        self.spans.append(
            {
                "offset": mark.offset,
                "bytes": mark.bytes,
                "documents": counts.documents,
                "tokens": counts.tokens,
            }
        )
        self.totals.add(counts)
        self.placement.sizes[mark.shard] = mark.bytes
        self.length += mark.bytes
        self.problems += mark.problems[: max(0, MOST_REPORTED_RECORDS - len(self.problems))]
        self.committed += 1

    def _known(self, shard: int) -> ShardMark | None:
        mark = self._parts.read(shard)
        if mark is not None and mark.fingerprint == self.fingerprints[shard]:
            return mark
        return None

    def _agrees(self, file: BinaryIO, mark: ShardMark) -> bool:
        """Return whether the .bin, up to the end of a committed shard, matches its checksum."""
        checksum = self.hash.copy()
        for chunk in _chunks(file, mark.bytes):
            checksum.update(chunk)
        agrees = mark.offset == self.length and checksum.hexdigest() == mark.sha256
        if agrees:
            self.hash = checksum
        return agrees

    def _is_whole(self, mark: ShardMark) -> bool:
        """Return whether the tokens in a finished shard are intact, in a part or in the .bin."""
        if mark.waits:
            path = self._parts.path(mark.shard, "tokens")
        else:
            path = self._files.bin_part

        with suppress(FileNotFoundError), path.open("rb") as file:
            file.seek(max(mark.offset, 0))
            return _crc32(file, mark.bytes) == mark.crc32

        return False


class PartCommitter(Committer):
    """Commits shards for one of several jobs that share the work.

    Tokens are written to parts, which a final run joins.
    """

    joins = False

    def missing(self, index: int, count: int) -> list[Shard]:
        """Return the shards for this job, except those that any job has already finished."""
        return [shard for shard in self._shards[index::count] if not self._is_done(shard.number)]

    def finished(self, mark: ShardMark) -> None:
        """Record that a part and its done marker have been written."""
        self.totals.add(mark.counts)
        self.committed += 1

    def _is_done(self, shard: int) -> bool:
        mark = self._known(shard)
        path = self._parts.path(shard, "tokens")
        if mark is None:
            return False
        return not mark.waits or (path.exists() and path.stat().st_size == mark.bytes)
