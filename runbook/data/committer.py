"""Keeps the .bin in order: gives places, joins waiting parts, hashes as it goes, writes the marks that count."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from pathlib import Path

from runbook.data.inputs import Shard
from runbook.data.marks import Mark, Marks
from runbook.data.options import Output
from runbook.data.shard import Counts
from runbook.errors import DataError

_BLOCK = 4 << 20


class Committer:
    """One for each running prepare(). Shards before `committed` stand in the .bin, hashed and marked."""

    apart = False
    joins = True
    """False: tokens stay in parts, see PartKeeper."""

    def __init__(self, output: Output, shards: list[Shard], choices: str) -> None:
        self._output = output
        self._marks = Marks(output)
        self._shards = shards
        self._fingerprints = [shard.fingerprint(choices) for shard in shards]
        self._hash = hashlib.sha256()
        self._finished: dict[int, Mark] = {}
        self._places: dict[int, tuple[int, int]] = {}
        self._next_place = 0
        self._next_offset = 0
        self._copied = 0
        self.committed = 0
        self.length = 0
        self.totals = Counts()
        self.problems: list[str] = []
        self.spans: list[tuple[int, int, int, int]] = []
        """Offset, bytes, documents and tokens of each committed shard."""

    @property
    def sha256(self) -> str:
        """Of the .bin so far."""
        return self._hash.hexdigest()

    def fingerprint(self, shard: int) -> str:
        """Of a shard's inputs and the choices."""
        return self._fingerprints[shard]

    def resume(self, tell: Callable[[int], None]) -> list[int]:
        """Take over what an earlier run left whole; the numbers of the shards still to do.

        The tokens that are there are read again and compared with the marks' checksums; from the first that differs on,
        nothing is trusted.
        """
        part, final = self._output.bin_part, self._output.bin
        marks = [self._known(shard.number) for shard in self._shards]
        placed = 0
        while placed < len(marks) and (mark := marks[placed]) is not None and mark.commits:
            placed += 1
        if placed and not part.exists() and final.exists():
            final.rename(part)  # the earlier run was ended between its last renames
        part.touch()
        with part.open("rb") as file:
            for mark in marks[:placed]:
                assert mark is not None
                if mark.offset != self.length or not self._read_into_hash(file, mark):
                    break
                self._count(mark)
                tell(self.committed)
        for shard in range(self.committed, len(marks)):
            mark = marks[shard]
            if mark is not None and not mark.commits and self._is_whole(mark):
                self._finished[shard] = mark
            else:
                self._marks.forget(shard)
        self._next_place, self._next_offset = self.committed, self.length
        self._copied = 0
        self._give_places()
        return [number for number in range(self.committed, len(marks)) if number not in self._finished]

    def stream(self, shard: int) -> int | None:
        """Where a shard of unknown size may write, if all before it are placed; see Turns."""
        return self._next_offset if shard == self._next_place else None

    def place(self, shard: int, size: int) -> int | None:
        """Where a finished shard's tokens go, if all before it are placed; see Turns."""
        if shard in self._places:  # its worker died while writing: the same shard gives the same tokens
            offset, known = self._places[shard]
            if known != size:
                raise DataError(
                    f"{self._shards[shard].describe()} gave {known} bytes of tokens first and {size} when it was "
                    "done again: its file changed meanwhile. Run again when nothing writes to the inputs."
                )
            return offset
        if shard != self._next_place:
            return None
        self._places[shard] = (self._next_offset, size)
        self._next_place += 1
        self._next_offset += size
        return self._places[shard][0]

    def finished(self, mark: Mark) -> None:
        """A shard's tokens are written, in the .bin or in a part."""
        self._finished[mark.shard] = mark
        if not mark.waits and mark.shard == self._next_place:  # it was streamed
            self.place(mark.shard, mark.bytes)
        self._give_places()

    @property
    def has_work(self) -> bool:
        """The next shard in order is finished."""
        return self.committed in self._finished

    @property
    def waiting(self) -> list[Mark]:
        """Finished shards that are not committed yet."""
        return list(self._finished.values())

    def step(self) -> bool:
        """Hash, or join, up to a few megabytes of the next shard in order; False where there is nothing to do."""
        if not self.has_work:
            return False
        mark = self._finished[self.committed]
        source = self._marks.path(mark.shard, "tokens") if mark.waits else self._output.bin_part
        with source.open("rb") as file:
            file.seek(self._copied + (0 if mark.waits else mark.offset))
            chunk = file.read(min(_BLOCK, mark.bytes - self._copied))
        if len(chunk) < min(_BLOCK, mark.bytes - self._copied):
            raise DataError(f"{source} is shorter than what was written to it; was it changed? Run again.")
        if mark.waits:
            with self._output.bin_part.open("r+b") as target:
                target.seek(self.length + self._copied)
                target.write(chunk)
        self._hash.update(chunk)
        self._copied += len(chunk)
        if self._copied == mark.bytes:
            self._finish(mark)
        return True

    def _finish(self, mark: Mark) -> None:
        placed = mark.placed(self.length, self.sha256)
        self._marks.write(placed)
        self._marks.path(mark.shard, "tokens").unlink(missing_ok=True)
        del self._finished[mark.shard]
        self._copied = 0
        self._count(placed)

    def _count(self, mark: Mark) -> None:
        self.spans.append((mark.offset, mark.bytes, mark.counts.documents, mark.counts.tokens))
        self.totals.add(mark.counts)
        self.problems += mark.problems[: max(0, 20 - len(self.problems))]
        self.length += mark.bytes
        self.committed += 1

    def _give_places(self) -> None:
        """Finished parts take their places as soon as these are known."""
        while (mark := self._finished.get(self._next_place)) is not None:
            assert mark.waits or mark.offset == self._next_offset, "the same inputs and choices give the same sizes"
            self.place(mark.shard, mark.bytes)

    def _known(self, shard: int) -> Mark | None:
        mark = self._marks.read(shard)
        return mark if mark is not None and mark.fingerprint == self._fingerprints[shard] else None

    def _read_into_hash(self, file: object, mark: Mark) -> bool:
        before, left = self._hash.copy(), mark.bytes
        while left:
            chunk: bytes = file.read(min(_BLOCK, left))  # type: ignore[attr-defined]
            if not chunk:
                break
            self._hash.update(chunk)
            left -= len(chunk)
        if left or self.sha256 != mark.sha256:
            self._hash = before
            return False
        return True

    def _is_whole(self, mark: Mark) -> bool:
        """The tokens of a shard that is finished and not committed are there, in a part or at their place."""
        if not mark.waits:
            return self._stands_in_place(mark)
        path: Path = self._marks.path(mark.shard, "tokens")
        if not path.exists() or path.stat().st_size != mark.bytes:
            return False
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == mark.sha256

    def _stands_in_place(self, mark: Mark) -> bool:
        total, left = 0, mark.bytes
        with self._output.bin_part.open("rb") as file:
            file.seek(mark.offset)
            while left and (chunk := file.read(min(_BLOCK, left))):
                total, left = zlib.crc32(chunk, total), left - len(chunk)
        return not left and total == mark.crc32


class PartKeeper(Committer):
    """For one of several jobs that share the shards: tokens go to parts, which a last run joins."""

    joins = False

    def missing(self, index: int, count: int) -> list[Shard]:
        """This job's share of the shards, without those that any job finished before."""
        share = [shard for shard in self._shards if shard.number % count == index]
        return [shard for shard in share if not self._is_done(shard.number)]

    def stream(self, shard: int) -> int | None:
        """Nothing goes into the .bin."""
        return None

    def place(self, shard: int, size: int) -> int | None:
        """Nothing goes into the .bin."""
        return None

    def finished(self, mark: Mark) -> None:
        """A part and its mark are written."""
        self.totals.add(mark.counts)
        self.committed += 1

    def _is_done(self, shard: int) -> bool:
        mark = self._known(shard)
        if mark is None:
            return False
        path = self._marks.path(shard, "tokens")
        return not mark.waits or (path.exists() and path.stat().st_size == mark.bytes)
