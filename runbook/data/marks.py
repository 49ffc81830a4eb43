"""Done-marks: one small file for each finished shard, whole or not there."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from runbook.data.indexed import Piece
from runbook.data.options import Output
from runbook.data.shard import Counts

_SCHEMA = 2


@dataclass(frozen=True)
class Mark:
    """What a finished shard brought."""

    shard: int
    fingerprint: str
    bytes: int
    """Of tokens."""

    counts: Counts
    piece: Piece
    problems: tuple[str, ...] = ()
    offset: int = -1
    """Where its tokens stand in the .bin; -1: in a part of their own, waiting."""

    sha256: str = ""
    """Of the part where it waits; of the .bin up to and with this shard where it is committed; empty in between."""

    crc32: int = 0
    """Of its own tokens, where they stand in the .bin and are not committed yet."""

    @property
    def waits(self) -> bool:
        """The tokens lie in a part."""
        return self.offset < 0

    @property
    def commits(self) -> bool:
        """All before it are in the .bin as well, and hashed."""
        return self.offset >= 0 and self.sha256 != ""

    def placed(self, offset: int, sha256: str) -> Mark:
        """The mark once the tokens stand in the .bin."""
        return replace(self, offset=offset, sha256=sha256)


class Marks:
    """The folder of marks and parts of one prefix."""

    def __init__(self, output: Output) -> None:
        self.folder = output.parts

    def path(self, shard: int, ending: str) -> Path:
        """A file of a shard: mark, tokens or quarantine."""
        return self.folder / f"{shard:06d}.{ending}"

    def write(self, mark: Mark) -> None:
        """Write a mark whole, by rename."""
        lengths = mark.piece.lengths.astype("<i4").tobytes()
        empty = mark.piece.empty.astype("<i8").tobytes()
        head = {
            "schema": _SCHEMA,
            "shard": mark.shard,
            "fingerprint": mark.fingerprint,
            "bytes": mark.bytes,
            "offset": mark.offset,
            "sha256": mark.sha256,
            "crc32": mark.crc32,
            "counts": vars(mark.counts),
            "problems": mark.problems,
            "arrays": [len(lengths), len(empty), zlib.crc32(empty, zlib.crc32(lengths))],
        }
        target = self.path(mark.shard, "mark")
        part = target.with_name(target.name + ".part")
        with part.open("wb") as file:
            file.write(json.dumps(head).encode() + b"\n" + lengths + empty)
        part.rename(target)

    def read(self, shard: int) -> Mark | None:
        """The mark of a shard; None where there is none, or one that was not written whole (after a power cut)."""
        import numpy as np

        try:
            line, _, arrays = self.path(shard, "mark").read_bytes().partition(b"\n")
            head = json.loads(line)
            num_lengths, num_empty, checksum = head["arrays"]
            if head["schema"] != _SCHEMA or len(arrays) != num_lengths + num_empty or zlib.crc32(arrays) != checksum:
                return None
            lengths = np.frombuffer(arrays[:num_lengths], dtype="<i4")
            empty = np.frombuffer(arrays[num_lengths:], dtype="<i8")
            return Mark(
                shard=head["shard"],
                fingerprint=head["fingerprint"],
                bytes=head["bytes"],
                counts=Counts(**head["counts"]),
                piece=Piece(lengths, empty),
                problems=tuple(head["problems"]),
                offset=head["offset"],
                sha256=head["sha256"],
                crc32=head["crc32"],
            )
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def read_all(self, count: int) -> Iterator[Mark]:
        """The marks of shards 0 to count - 1, which must all be there."""
        for shard in range(count):
            mark = self.read(shard)
            assert mark is not None, f"mark {shard} was there a moment ago"
            yield mark

    def write_quarantine(self, shard: int, lines: list[str]) -> None:
        """Keep what a shard set aside, to be joined at the end."""
        target = self.path(shard, "quarantine")
        if not lines:
            target.unlink(missing_ok=True)
            return
        part = target.with_name(target.name + ".part")
        part.write_text("".join(line + "\n" for line in lines))
        part.rename(target)

    def forget(self, shard: int) -> None:
        """Remove everything of a shard."""
        for ending in ("mark", "tokens", "tokens.part", "quarantine"):
            self.path(shard, ending).unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Bring a file, or a folder's names, safely to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
