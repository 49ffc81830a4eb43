"""Input files as blocks of whole lines: plain, zstd, gzip or xz, with every kind of damage noticed."""

import gzip
import io
import lzma
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from runbook.core.errors import DataError
from runbook.tokens.sources.input_files import Segment, kind_of, text_estimate

BLOCK = 256 << 10
"""Text parsed and encoded at once: it and its ids stay in the core's cache (a fifth faster than 4 MiB)."""
HUGE = 16 << 20
"""Bytes of a line, or of a text file, from which on it is read in pieces."""
RAW_BLOCK = 4 << 20
"""Read from the file at once: network filesystems like large reads."""
XZ_BLOCK = 128 << 10
EMPTY = "it is empty: a download, or a compression, that failed?"
AGAIN = "Fetch the file again and compare its checksum; or leave such files out with --bad-records skip."


class _XzStream(io.RawIOBase):
    """Decompresses one xz stream after the other; zero bytes between them are padding.

    Python's own LZMAFile takes a damaged beginning of a second stream for the end of the file and says nothing, so that
    the rest of the text would be lost.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._decoder = lzma.LZMADecompressor(lzma.FORMAT_AUTO)
        self._position = 0

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fill some of the buffer; 0 only at the end of a whole file."""
        while True:
            data = b""
            if self._decoder.eof:
                data = self._decoder.unused_data.lstrip(b"\0")
                while not data and (chunk := self._file.read(XZ_BLOCK)):
                    data = chunk.lstrip(b"\0")
                if not data:
                    return 0
                self._decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ)
            elif self._decoder.needs_input and not (data := self._file.read(XZ_BLOCK)):
                raise EOFError("the file ends inside a compressed stream")
            if text := self._decoder.decompress(data, len(buffer)):
                buffer[: len(text)] = text
                self._position += len(text)
                return len(text)


class BrokenFileError(DataError):
    """A file that cannot be read to its end, or changed meanwhile: none of it may be used."""

    def __init__(self, path: str, offset: int, reason: str, remedy: str) -> None:
        super().__init__(path, offset, reason, remedy)  # what it is made of again where it crosses to another process
        self.path, self.offset, self.reason, self.remedy = path, offset, reason, remedy

    def __str__(self) -> str:
        return f"{self.path}: {self.reason} (at byte {self.offset} of its text). {self.remedy}"


@contextmanager
def open_segment(segment: Segment) -> Iterator[IO[bytes]]:
    """The decompressed bytes of a segment's file; it must be the file that was planned, now and at the end.

    Raises:
        BrokenFileError: the file is empty, missing, damaged, or another one.
    """
    path = Path(segment.path)
    if segment.size == 0:
        raise BrokenFileError(segment.path, 0, EMPTY, AGAIN)
    try:
        raw = path.open("rb", buffering=0)
    except OSError as error:
        reason = f"it cannot be opened: {error.strerror}"
        if isinstance(error, FileNotFoundError):
            reason = "it was there when the work was planned, and is gone"
        raise BrokenFileError(segment.path, 0, reason, AGAIN) from None
    with io.BufferedReader(raw, RAW_BLOCK) as file:
        _refuse_change(path, segment)
        with _decompressed(file, kind_of(path)[1]) as stream:
            try:
                yield stream
            except decompression_errors() as error:
                raise _explained(segment, error, stream.tell()) from error
        _refuse_change(path, segment)


def _refuse_change(path: Path, segment: Segment) -> None:
    try:
        now = path.stat()
    except FileNotFoundError:
        raise BrokenFileError(segment.path, 0, "it vanished while it was read", AGAIN) from None
    if (now.st_size, now.st_mtime_ns) != (segment.size, segment.mtime_ns):
        reason = f"it changed since the work was planned ({segment.size} bytes then, {now.st_size} now)"
        raise BrokenFileError(segment.path, 0, reason, "Let no other program write to it, and run again.")


def _decompressed(file: Any, compression: str) -> Any:
    match compression:
        case ".zst":
            return _zstd().ZstdFile(file, "rb")
        case ".gz":
            return gzip.GzipFile(fileobj=file, mode="rb")
        case ".xz":
            return io.BufferedReader(_XzStream(file), BLOCK)
    return file


def expansion(segment: Segment) -> float:
    """Bytes of text in a byte of a file, by its first megabytes; what `input_files` estimates for Parquet."""
    kind, compression = kind_of(Path(segment.path))
    if not compression:
        return text_estimate(segment) / (segment.end - segment.start) if kind == ".parquet" else 1.0
    with Path(segment.path).open("rb", buffering=0) as raw, _decompressed(raw, compression) as stream:
        length = 0
        while length < RAW_BLOCK and (chunk := stream.read(BLOCK)):
            length += len(chunk)
        return length / raw.tell()


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


def decompression_errors() -> tuple[type[BaseException], ...]:
    """What the decompressors raise on bytes that are cut, flipped or of another kind."""
    errors: tuple[type[BaseException], ...] = (EOFError, OSError, zlib.error, lzma.LZMAError)
    try:
        return (*errors, _zstd().ZstdError)
    except DataError:
        return errors


def _explained(segment: Segment, error: BaseException, offset: int) -> BrokenFileError:
    """A decompressor's error as ours, with a guess at what the file is instead, from its first bytes."""
    reason = str(error) or type(error).__name__
    if isinstance(error, EOFError):
        reason = "it is cut off: " + reason
    elif isinstance(error, OSError) and error.errno is not None:
        reason = f"reading failed: {error.strerror}"
    with suppress(OSError), Path(segment.path).open("rb") as file:
        if (head := file.read(40)).lstrip()[:1] in (b"<", b"{"):
            reason += f"; it begins with {head!r}: an error page or plain text saved under this name?"
    return BrokenFileError(segment.path, offset, reason, AGAIN)


def read_blocks(segment: Segment) -> Iterator[tuple[int, bytearray]]:
    """Blocks of whole lines, each with the offset of its first byte in the file's text; a huge line is one by itself.

    Memory is one block, or the longest line. The last line may lack its newline.
    """
    with open_segment(segment) as stream:
        if segment.start > 0:  # to the first line that begins there or later
            stream.seek(segment.start - 1)
            stream.readline()
        if (position := stream.tell()) < segment.end or segment.end == segment.size:
            yield from _whole_lines(stream, position, segment.end if segment.end < segment.size else sys.maxsize)
        if segment.whole and not stream.tell():
            raise BrokenFileError(segment.path, 0, EMPTY, AGAIN)


def _whole_lines(stream: IO[bytes], position: int, end: int) -> Iterator[tuple[int, bytearray]]:
    """Blocks of the lines that begin at `position` and later, but before `end`."""
    carried, is_last = bytearray(), False
    while not is_last and (chunk := stream.read(BLOCK)):
        beyond = position + len(carried) + len(chunk) - end
        if beyond >= 0 and (stop := chunk.find(b"\n", max(0, len(chunk) - 1 - beyond)) + 1):
            chunk, is_last = chunk[:stop], True
        start = 0
        for stop in (chunk.find(b"\n") + 1 if len(carried) > HUGE else 0, chunk.rfind(b"\n") + 1):
            if stop > start:
                carried += memoryview(chunk)[start:stop]
                ready = [carried]  # handed over, not kept: a huge line must not stay here while it is encoded
                before, start, position = position, stop, position + len(carried)
                carried = bytearray()
                yield before, ready.pop()
        carried += memoryview(chunk)[start:]
    if carried:
        ready = [carried]
        del carried
        yield position, ready.pop()


def line_number(segment: Segment, offset: int) -> int:
    """Number, from 1, of the line at an offset of a file's text; reads the file up to there, so for errors only."""
    lines = 1
    with open_segment(segment) as stream:
        while offset > 0 and (chunk := stream.read(min(BLOCK, offset))):
            lines += chunk.count(b"\n")
            offset -= len(chunk)
    return lines
