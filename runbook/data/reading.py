"""Files to blocks of whole lines: plain, zstd, gzip or xz, streaming, with every kind of damage noticed."""

from __future__ import annotations

import gzip
import io
import lzma
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from runbook.data.inputs import Segment, kind_of
from runbook.data.xz import XzStream
from runbook.errors import DataError

BLOCK = 256 << 10
"""Text parsed and encoded at once: it and its ids stay in the core's cache (a fifth faster than 4 MiB)."""

RAW_BLOCK = 4 << 20
"""Read from the file at once: network filesystems like large reads."""


class BrokenFileError(DataError):
    """A file that cannot be read to its end, or changed meanwhile: none of it may be used."""

    def __init__(self, path: str, offset: int, reason: str, remedy: str) -> None:
        super().__init__(f"{path}: {reason} (at byte {offset} of its text). {remedy}")
        self.path = path
        self.offset = offset
        self.reason = reason


EMPTY = "it is empty: a download, or a compression, that failed?"
AGAIN = "Fetch the file again and compare its checksum; or leave such files out with --bad-records skip."


@contextmanager
def opened(segment: Segment) -> Iterator[IO[bytes]]:
    """The decompressed bytes of a segment's file; it must be the file that was planned, now and at the end."""
    path = Path(segment.path)
    if segment.size == 0:
        raise BrokenFileError(segment.path, 0, EMPTY, AGAIN)
    try:
        raw = path.open("rb", buffering=0)
    except FileNotFoundError:
        raise BrokenFileError(segment.path, 0, "it was there when the work was planned, and is gone", AGAIN) from None
    except OSError as error:
        raise BrokenFileError(segment.path, 0, f"it cannot be opened: {error.strerror}", AGAIN) from None
    _, compression = kind_of(path)
    with io.BufferedReader(raw, RAW_BLOCK) as file:
        _refuse_change(path, segment)
        with _decompressed(cast("IO[bytes]", file), compression) as stream:
            yield stream
        _refuse_change(path, segment)


def _refuse_change(path: Path, segment: Segment) -> None:
    try:
        now = path.stat()
    except FileNotFoundError:
        raise BrokenFileError(segment.path, 0, "it vanished while it was read", AGAIN) from None
    if (now.st_size, now.st_mtime_ns) != (segment.size, segment.mtime_ns):
        reason = f"it changed since the work was planned ({segment.size} bytes then, {now.st_size} now)"
        raise BrokenFileError(segment.path, 0, reason, "Let no other program write to it, and run again.")


def _decompressed(file: IO[bytes], compression: str) -> IO[bytes]:
    if compression == ".zst":
        return cast("IO[bytes]", _zstd().ZstdFile(file, "rb"))
    if compression == ".gz":
        return cast("IO[bytes]", gzip.GzipFile(fileobj=file, mode="rb"))
    if compression == ".xz":
        return cast("IO[bytes]", io.BufferedReader(XzStream(file), BLOCK))
    return file


def _zstd() -> Any:
    """The module of Python 3.14, or its backport: both raise on a truncated frame, as python-zstandard does not."""
    try:
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
    except ImportError:
        raise DataError("a .zst file needs the package backports.zstd: pip install 'gpt3-runbook[data]'") from None
    return zstd


def damage() -> tuple[type[BaseException], ...]:
    """What the decompressors raise on bytes that are cut, flipped or of another kind."""
    errors: tuple[type[BaseException], ...] = (EOFError, OSError, zlib.error, lzma.LZMAError)
    try:
        return (*errors, _zstd().ZstdError)
    except DataError:
        return errors


def explain_damage(segment: Segment, error: BaseException, offset: int) -> BrokenFileError:
    """A decompressor's error as ours, with a guess at what the file is instead, from its first bytes."""
    reason = str(error) or type(error).__name__
    if isinstance(error, EOFError):
        reason = "it is cut off: " + reason
    elif isinstance(error, OSError) and error.errno is not None:
        reason = f"reading failed: {error.strerror}"
    try:
        with Path(segment.path).open("rb") as file:
            head = file.read(40)
    except OSError:
        head = b""
    if head.lstrip()[:1] in (b"<", b"{"):
        reason += f"; it begins with {head!r}: an error page or plain text saved under this name?"
    return BrokenFileError(segment.path, offset, reason, AGAIN)


def blocks(segment: Segment) -> Iterator[tuple[int, bytes | bytearray | memoryview]]:
    """Blocks of whole lines, each with the offset of its first byte in the file's text.

    Memory is one block, or the longest line. The last line may lack its newline.
    """
    position = 0
    errors = damage()
    read_to = [0]
    with opened(segment) as stream:
        try:
            if segment.start > 0:
                position = _skip_to_line(stream, segment.start)
            end = segment.end if segment.end < segment.size else None
            yield from _whole_lines(stream, position, end, read_to)
        except errors as error:
            if isinstance(error, BrokenFileError):
                raise
            raise explain_damage(segment, error, read_to[0]) from error
        if segment.whole and not read_to[0]:
            raise BrokenFileError(segment.path, 0, EMPTY, AGAIN)


def _whole_lines(
    stream: IO[bytes], position: int, end: int | None, reached: list[int]
) -> Iterator[tuple[int, bytes | bytearray | memoryview]]:
    """Blocks of the lines that begin at `position` and later, but before `end`; `reached` says how far was read."""
    if end is not None and position >= end:
        return
    carried = bytearray()
    while chunk := stream.read(BLOCK):
        read_to = position + len(carried) + len(chunk)
        reached[0] = read_to
        if end is not None and read_to >= end:
            stop = chunk.find(b"\n", max(0, len(chunk) - 1 - (read_to - end)))
            if stop >= 0:
                carried += memoryview(chunk)[: stop + 1]
                break
        last = chunk.rfind(b"\n") + 1
        if last == 0:
            carried += chunk
            continue
        view = memoryview(chunk)
        if carried:
            carried += view[:last]
            ready = [carried]  # handed over, not kept: a huge line must not stay here while it is encoded
            start, position = position, position + len(carried)
            carried = bytearray(view[last:])
            del chunk, view
            yield start, ready.pop()
        else:
            yield position, view[:last]
            position += last
            carried = bytearray(view[last:])
    if carried:
        ready = [carried]
        del carried
        yield position, ready.pop()


def _skip_to_line(stream: IO[bytes], start: int) -> int:
    """Go to the first line that begins at `start` or later; where it begins."""
    stream.seek(start - 1)
    position = start - 1
    while chunk := stream.read(BLOCK):
        found = chunk.find(b"\n")
        if found >= 0:
            stream.seek(position + found + 1)
            return position + found + 1
        position += len(chunk)
    return position


def whole_text(segment: Segment) -> bytearray:
    """All bytes of a file, for a .txt file, which is one document."""
    errors = damage()
    chunks = bytearray()
    with opened(segment) as stream:
        try:
            while chunk := stream.read(BLOCK):
                chunks += chunk
        except errors as error:
            if isinstance(error, BrokenFileError):
                raise
            raise explain_damage(segment, error, len(chunks)) from error
    if not chunks:
        raise BrokenFileError(segment.path, 0, EMPTY, AGAIN)
    return chunks


def line_number(segment: Segment, offset: int) -> int:
    """Number, from 1, of the line at an offset of a file's text; reads the file up to there, so for errors only."""
    lines = 1
    with opened(segment) as stream:
        while offset > 0 and (chunk := stream.read(min(BLOCK, offset))):
            lines += chunk.count(b"\n")
            offset -= len(chunk)
    return lines
