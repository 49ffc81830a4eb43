"""Finds the input files, cuts them into shards, and reads their text in blocks.

Files may be uncompressed or compressed with zstd, gzip or xz. Cut or damaged compressed files are
detected, and so are files that change while they are read.
"""

import functools
import hashlib
import io
import itertools
import lzma
import math
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import IO, Any

from runbook.core.errors import DataError
from runbook.core.files import natural_key
from runbook.tokens.messages import TokenMessage

LINES = (".jsonl", ".ndjson", ".json")
COMPRESSIONS = (".zst", ".gz", ".xz")
KINDS = (*LINES, ".txt", ".parquet")
SHOWN_ENDINGS = 8
"""How many file endings a message about unread files lists.

A folder may contain thousands: `part-00000`, or `corpus.00000`.
"""
MAX_SHARDS = 20_000
MANY_SHARDS = 48
"""A small input is cut into about this many shards, none of which is smaller than SMALL_SHARD.

If each worker has multiple shards, all workers finish at about the same time.
"""
SMALL_SHARD = 4_000_000
SAMPLE = 4096
"""Size in bytes of each of the three samples from a file."""
MOST_SAMPLED = 1000
"""If there are more files than this, their sizes and dates are compared, but no samples.

Opening all files can take minutes on a network file system.
"""
_EXPANSION = {
    ".zst": 3.0,
    ".gz": 3.0,
    ".xz": 3.5,
    ".parquet": 2.5,
}
"""How many bytes of text a file has per byte on disk, used for estimates.

The ratios were measured with English text, compressed at the usual levels.
"""


@dataclass(frozen=True)
class Segment:
    """The lines in a file that begin in [start, end), or all lines if the file cannot be cut."""

    path: str
    start: int
    end: int
    size: int
    mtime_ns: int
    sample: int = 0
    """The `content_sample`, which reveals changes to the text that keep the size and date.

    The value is 0 if no sample was taken.
    """

    @property
    def whole(self) -> bool:
        """Return whether this segment is the whole file."""
        return self.start == 0 and self.end == self.size


@dataclass(frozen=True)
class Shard:
    """A unit of work, which is either finished or not, never half finished."""

    number: int
    segments: tuple[Segment, ...]

    @property
    def bytes(self) -> int:
        """Return how many bytes the shard has in its files."""
        return sum(segment.end - segment.start for segment in self.segments)

    def fingerprint(self, choices: str) -> str:
        """Return a fingerprint that changes if any of the shard files or any option changes."""
        content = repr([astuple(segment) for segment in self.segments]) + choices
        return hashlib.sha256(content.encode()).hexdigest()

    def describe(self) -> str:
        """Return a description of the shard files, for error messages."""
        first = self.segments[0]
        cut = "" if first.whole else f" (bytes {first.start} to {first.end})"
        further_files = ""
        if len(self.segments) > 1:
            further_files = f" and {len(self.segments) - 1} more files"
        return f"shard {self.number}: {first.path}{cut}{further_files}"


def kind_of(path: Path) -> tuple[str, str]:
    """Return the content type and the compression that a file name suggests.

    >>> kind_of(Path("a/b.jsonl.zst")), kind_of(Path("b.txt")), kind_of(Path("b.json.gz"))
    (('.jsonl', '.zst'), ('.txt', ''), ('.jsonl', '.gz'))
    """
    name = path.name.lower()
    compression = next((ending for ending in COMPRESSIONS if name.endswith(ending)), "")
    kind = next((ending for ending in KINDS if name.removesuffix(compression).endswith(ending)), "")
    if not kind or (kind == ".parquet" and compression):
        raise DataError(
            TokenMessage.UNKNOWN_KIND_OF_FILE,
            path=path,
            kinds=", ".join(KINDS),
            compressions=", ".join(COMPRESSIONS),
        )

    return (".jsonl" if kind in LINES else kind), compression


def find_inputs(inputs: Sequence[Path], pattern: str = "*") -> list[Path]:
    """Return the input files that these files and folders contain, in the given order.

    Files in a folder come in natural order.

    A folder contributes all .jsonl, .ndjson, .txt and .parquet files below it (including compressed
    files) that match `pattern`. Files named .json must be given explicitly, because manifests are
    also .json files. So must files whose name, or whose folder name, begins with a dot: JupyterLab
    keeps another copy of each opened file in .ipynb_checkpoints, and macOS adds ._NAME to each
    file. A missing file is an error; no other file is skipped.
    """
    files: list[Path] = []
    for path in inputs:
        if path.is_dir():
            files += _in_folder(path, pattern)
        elif path.exists():
            kind_of(path)
            files.append(path)
        else:
            raise DataError(TokenMessage.INPUT_MISSING, path=path)

    if not files:
        raise DataError(TokenMessage.NO_INPUT)
    times = Counter(str(file.resolve()) for file in files)
    doubled = [path for path, count in times.items() if count > 1]
    if doubled:
        raise DataError(TokenMessage.INPUT_NAMED_TWICE, doubled=", ".join(doubled[:5]))

    return files


def _in_folder(folder: Path, pattern: str) -> list[Path]:
    files = []
    root = folder.resolve()
    for path in sorted(folder.rglob(pattern), key=natural_key):
        if not (path.is_file() or path.is_symlink()) or not says_its_kind(path):
            continue
        if _is_hidden(path.relative_to(folder)):
            continue
        if not path.resolve().is_relative_to(root):
            raise DataError(
                TokenMessage.INPUT_LEAVES_FOLDER, path=path, folder=folder, resolve=path.resolve()
            )

        if not path.exists():
            raise DataError(TokenMessage.LINK_TO_NOTHING, path=path)
        files.append(path)

    if not files:
        raise DataError(
            TokenMessage.NOTHING_MATCHES,
            folder=folder,
            kinds=", ".join(kind for kind in KINDS if kind != ".json"),
            compressions=", ".join(COMPRESSIONS),
            pattern=pattern,
            unread=unread_text([folder], pattern),
        )

    return files


def unread_text(inputs: Iterable[Path], pattern: str = "*") -> str:
    """Return which files in these folders are not read, by file ending.

    The most frequent endings come first. Return an empty string if all files are read. Otherwise,
    text in a format that is not read would be missing without a trace.
    """
    texts = []
    for folder in filter(Path.is_dir, inputs):
        endings = Counter(
            path.suffix or path.name
            for path in folder.rglob(pattern)
            if _is_unread(path, path.relative_to(folder))
        )
        ranked = sorted(endings.items(), key=lambda item: (-item[1], item[0]))
        counts = [f"{count:,} {ending}" for ending, count in ranked[:SHOWN_ENDINGS]]
        num_others = sum(count for _, count in ranked[SHOWN_ENDINGS:])
        if num_others:
            counts.append(f"{num_others:,} others")
        if counts:
            texts.append(TokenMessage.FILES_NOT_READ.fill(folder=folder, endings=", ".join(counts)))

    return "\n".join(texts)


def _is_unread(path: Path, place: Path) -> bool:
    return path.is_file() and not _is_hidden(place) and not says_its_kind(path)


def _is_hidden(path: Path) -> bool:
    """Return whether the name of a file, or of a folder above it, begins with a dot."""
    return any(part.startswith(".") for part in path.parts)


def says_its_kind(path: Path) -> bool:
    """Return whether a file name shows that it is a text file.

    Names that end in .json do not count, because manifests also end in .json.
    """
    with suppress(DataError):
        return kind_of(path)[0] != ".jsonl" or ".json" not in map(str.lower, path.suffixes)
    return False


def path_inside(folder: Path, name: str) -> Path:
    """Return the path of a listed file inside a folder.

    Raise an error if the file name leads out of the folder.

    >>> path_inside(Path("/data"), "../etc")
    Traceback (most recent call last):
    ...
    runbook.core.errors.DataError: '../etc' leads out of the folder /data; a listed file must lie below it: correct the list
    """
    parts = Path(name).parts
    path = folder / name
    if not parts or Path(name).is_absolute() or ".." in parts or "\\" in name or "\x00" in name:
        raise DataError(TokenMessage.LISTED_FILE_OUTSIDE, name=name, folder=folder)

    if not path.parent.resolve().is_relative_to(folder.resolve()):
        raise DataError(TokenMessage.LISTED_FILE_OUTSIDE_BY_LINK, name=name, folder=folder)

    return path


def whole_files(files: Iterable[Path], *, empty: bool = False) -> list[Segment]:
    """Return each file as a single segment.

    An empty file is an error, unless `empty` is set, in which case the reader decides.
    """
    files = list(files)
    segments = []
    for path in files:
        try:
            status = path.stat()
            sample = content_sample(path) if len(files) <= MOST_SAMPLED else 0
        except OSError as error:
            raise DataError(
                TokenMessage.INPUT_NOT_READABLE, path=path, reason=error.strerror
            ) from None

        if status.st_size == 0 and not empty:
            raise DataError(TokenMessage.INPUT_EMPTY, path=path)

        segments.append(
            Segment(
                str(path.resolve()),
                0,
                status.st_size,
                status.st_size,
                status.st_mtime_ns,
                sample,
            )
        )

    return segments


def cut_shards(files: Iterable[Path], most_bytes: int, *, empty: bool = False) -> list[Shard]:
    """Cut files into shards with at most about `most_bytes` of text, in file order.

    Small files are combined, and large files are cut at newlines.

    A compressed file is never cut. The same files give the same shards for any number of workers.
    """
    segments = whole_files(files, empty=empty)
    total = int(sum(map(text_estimate, segments)))
    shard_bytes = max(min(most_bytes, max(SMALL_SHARD, total // MANY_SHARDS)), total // MAX_SHARDS)
    groups: list[list[Segment]] = []
    weight = math.inf
    for piece in itertools.chain.from_iterable(
        _pieces(segment, shard_bytes) for segment in segments
    ):
        weight += text_estimate(piece)
        if weight > shard_bytes:
            groups.append([])
            weight = text_estimate(piece)

        groups[-1].append(piece)

    return [Shard(number, tuple(group)) for number, group in enumerate(groups)]


def text_estimate(segment: Segment) -> float:
    """Estimate how many bytes of text a segment has."""
    return (segment.end - segment.start) * text_per_byte(Path(segment.path))


def text_per_byte(path: Path) -> float:
    """Return how many bytes of text a file has per byte on disk, according to its name.

    >>> text_per_byte(Path("a.jsonl")), text_per_byte(Path("a.jsonl.zst"))
    (1.0, 3.0)
    """
    kind, compression = kind_of(path)
    return _EXPANSION.get(compression or kind, 1.0)


def content_sample(path: Path) -> int:
    """Return a checksum over the beginning, the middle and the end of a file.

    A different text of the same size almost always has a different checksum.
    """
    checksum = 0
    size = path.stat().st_size
    with path.open("rb", buffering=0) as file:
        for offset in (0, (size - SAMPLE) // 2, size - SAMPLE):
            file.seek(max(0, offset))
            checksum = zlib.crc32(file.read(SAMPLE), checksum)

    return checksum


def _pieces(segment: Segment, shard_bytes: int) -> list[Segment]:
    if kind_of(Path(segment.path)) != (".jsonl", "") or segment.size <= shard_bytes * 3 // 2:
        return [segment]
    count = -(-segment.size // shard_bytes)
    borders = [segment.size * number // count for number in range(count + 1)]
    return [replace(segment, start=start, end=end) for start, end in itertools.pairwise(borders)]


BLOCK = 2 << 20
"""Number of bytes of text to parse and encode at a time.

Every call to the encoder or to numpy has a fixed cost. On Zen 4, 2 MiB took 7 % less CPU time
than 768 KiB, and 4 MiB took no less than 2 MiB (medians of five alternating runs at load 5).
On Zen 5, 4 MiB took a tenth more than 768 KiB; 2 MiB were not measured there.
"""
HUGE = 16 << 20
"""Lines or text files with at least this many bytes are read in pieces."""
MAX_RECORD_BYTES = 256 << 20
"""Limit for a record in bytes. A longer record is not read as a document.

A 3 GB line may need only 91 kB on disk when compressed.
"""
HEAD_BYTES = 200
"""Number of bytes to keep from an overlong record, for messages and the quarantine."""
RAW_BLOCK = 4 << 20
"""Number of bytes to read from a compressed file at a time.

Network file systems prefer large reads.
"""
SMALL_BUFFER = 64 << 10
"""Buffer size for plain text. Larger reads go directly into the block."""
XZ_BLOCK = 128 << 10


class _XzStream(io.RawIOBase):
    """Decompresses one xz stream after another; zero bytes between them are padding.

    If a second stream begins with damage, LZMAFile in Python mistakes it for the end of the file
    and reports no error, so the rest of the text would be lost.
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
        """Fill part of the buffer, and return how many bytes were filled.

        Return 0 only at the end of a complete file.
        """
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

            text = self._decoder.decompress(data, len(buffer))
            if text:
                buffer[: len(text)] = text
                self._position += len(text)
                return len(text)


class BrokenFileError(DataError):
    """A file cannot be read completely or has changed, so none of its content may be used."""

    def __init__(
        self,
        path: str,
        offset: int,
        reason: str,
        remedy: str,
    ) -> None:
        super().__init__(
            TokenMessage.BROKEN_FILE, path=path, reason=reason, offset=offset, remedy=remedy
        )
        self.path = path
        self.offset = offset
        self.reason = reason
        self.remedy = remedy

    def __reduce__(self) -> tuple[type["BrokenFileError"], tuple[str, int, str, str]]:
        """Return the arguments that another process rebuilds this error from."""
        return type(self), (self.path, self.offset, self.reason, self.remedy)


@contextmanager
def open_segment(segment: Segment) -> Iterator[IO[bytes]]:
    """Yield the decompressed file that a segment is in.

    The file must not have changed since it was planned. This is checked before and after it is
    read.

    Raises:
        BrokenFileError: the file is empty, missing, damaged, or differs from the planned file.
    """
    path = Path(segment.path)
    if segment.size == 0:
        raise BrokenFileError(
            segment.path, 0, TokenMessage.EMPTY_FILE.fill(), TokenMessage.FETCH_AGAIN.fill()
        )
    try:
        _refuse_change(path, segment)
        raw = path.open("rb", buffering=0)
    except OSError as error:
        raise BrokenFileError(
            segment.path,
            0,
            f"it cannot be opened: {error.strerror}",
            TokenMessage.FETCH_AGAIN.fill(),
        ) from None

    kind, compression = kind_of(path)
    is_plain_text = not compression and kind != ".parquet"
    buffer_bytes = SMALL_BUFFER if is_plain_text else RAW_BLOCK
    with (
        io.BufferedReader(raw, buffer_bytes) as file,
        _decompressed(file, compression) as stream,
    ):
        try:
            yield stream
        except decompression_errors() as error:
            raise _explained(segment, error, stream.tell()) from error

    _refuse_change(path, segment)


def _refuse_change(path: Path, segment: Segment) -> None:
    try:
        current = path.stat()
    except FileNotFoundError:
        raise BrokenFileError(
            segment.path, 0, TokenMessage.VANISHED.fill(), TokenMessage.FETCH_AGAIN.fill()
        ) from None

    if (current.st_size, current.st_mtime_ns) != (segment.size, segment.mtime_ns):
        reason = TokenMessage.CHANGED_SINCE_PLANNED.fill(
            size=segment.size, current_size=current.st_size
        )
        raise BrokenFileError(segment.path, 0, reason, TokenMessage.LET_NOTHING_WRITE.fill())


def _decompressed(file: Any, compression: str) -> Any:
    match compression:
        case ".zst":
            # This file does its own buffering. A second buffer would copy the text once more.
            return _zstd().ZstdFile(file, "rb")
        case ".gz":
            import gzip

            return gzip.GzipFile(fileobj=file, mode="rb")
        case ".xz":
            return io.BufferedReader(_XzStream(file), BLOCK)

    return file


def expansion(segment: Segment) -> float:
    """Measure how many bytes of text there are per byte in a file, using its first megabytes.

    For Parquet, return an estimate instead.
    """
    kind, compression = kind_of(Path(segment.path))
    if not compression:
        if kind == ".parquet":
            return text_estimate(segment) / (segment.end - segment.start)
        return 1.0

    with (
        Path(segment.path).open("rb", buffering=0) as raw,
        _decompressed(raw, compression) as stream,
    ):
        length = 0
        while length < RAW_BLOCK and (chunk := stream.read(BLOCK)):
            length += len(chunk)
        return length / raw.tell()


def _zstd() -> Any:
    """Return the zstd module from Python 3.14, or its backport.

    Both modules raise an error for a truncated frame, unlike python-zstandard.
    """
    try:
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
    except ImportError:
        raise DataError(TokenMessage.ZSTD_MISSING) from None

    return zstd


def decompression_errors() -> tuple[type[BaseException], ...]:
    """Return the errors that decompressors raise for truncated, corrupt or unrelated data."""
    errors: tuple[type[BaseException], ...] = (EOFError, OSError, zlib.error, lzma.LZMAError)
    try:
        return (*errors, _zstd().ZstdError)
    except DataError:
        return errors


def _explained(segment: Segment, error: BaseException, offset: int) -> BrokenFileError:
    """Convert an error from a decompressor to one of our errors.

    The message names the file type that the first bytes suggest.
    """
    reason = str(error) or type(error).__name__
    if isinstance(error, EOFError):
        reason = TokenMessage.CUT_OFF.fill(error=reason)
    elif isinstance(error, OSError) and error.errno is not None:
        reason = f"reading failed: {error.strerror}"

    with suppress(OSError), Path(segment.path).open("rb") as file:
        if (head := file.read(40)).lstrip()[:1] in (b"<", b"{"):
            reason = TokenMessage.PERHAPS_AN_ERROR_PAGE.fill(reason=reason, head=head)

    return BrokenFileError(segment.path, offset, reason, TokenMessage.FETCH_AGAIN.fill())


class LongRecord(bytearray):
    """The beginning of a record that exceeds the limit.

    `length` is how many bytes the whole record has.
    """

    def __init__(self, head: bytes | bytearray, length: int) -> None:
        super().__init__(head)
        self.length = length


def read_blocks(
    segment: Segment, max_record_bytes: int = MAX_RECORD_BYTES
) -> Iterator[tuple[int, bytearray]]:
    """Yield blocks of complete lines, each with the offset where it begins in the text.

    A huge line becomes a separate block.

    This needs memory for one block, or for the longest line up to the limit. For a longer line,
    only its beginning is yielded, as a `LongRecord`. The last line may lack its newline.
    """
    with open_segment(segment) as stream:
        # Skip to the first line that begins at the segment start or later.
        if segment.start > 0:
            stream.seek(segment.start - 1)
            while (piece := stream.readline(BLOCK)) and not piece.endswith(b"\n"):
                pass

        position = stream.tell()
        if position < segment.end or segment.end == segment.size:
            end = segment.end if segment.end < segment.size else sys.maxsize
            yield from _whole_lines(stream, position, end, max_record_bytes)

        if segment.whole and not stream.tell():
            raise BrokenFileError(
                segment.path, 0, TokenMessage.EMPTY_FILE.fill(), TokenMessage.FETCH_AGAIN.fill()
            )


def _whole_lines(
    stream: IO[bytes],
    position: int,
    end: int,
    max_record_bytes: int,
) -> Iterator[tuple[int, bytearray]]:
    """Yield blocks with the lines that begin at `position` or later, but before `end`."""
    carried = bytearray()
    is_last = False
    while not is_last:
        num_carried = len(carried)
        if not _append_text(stream, carried):
            break

        beyond = position + len(carried) - end
        if beyond >= 0:
            stop = carried.find(b"\n", max(num_carried, len(carried) - 1 - beyond)) + 1
            if stop:
                del carried[stop:]
                is_last = True

        stops = [carried.rfind(b"\n", num_carried) + 1]
        if num_carried > HUGE:
            stops.insert(0, carried.find(b"\n", num_carried) + 1)
        before = position
        for stop in stops:
            if before + stop > position:
                # Yield the line without keeping a reference, so that a huge line can be freed while
                # it is encoded.
                ready = [carried]
                carried = _cut_off(carried, before + stop - position)
                start = position
                position = before + stop
                yield start, ready.pop()

        if len(carried) > max_record_bytes:
            record = _skip_record(stream, carried)
            carried = bytearray()
            yield position, record
            position += record.length
            is_last = position >= end

    if carried:
        ready = [carried]
        del carried
        yield position, ready.pop()


def _append_text(stream: IO[bytes], text: bytearray) -> int:
    """Append at most a block from a stream, and return how many bytes were read (0 at the end).

    The bytes are read without an intermediate copy, because a copy would take a fifth of the
    reading time.
    """
    length = len(text)
    text += _zeros(BLOCK)
    with memoryview(text) as view, view[length:] as space:
        num_read: int = stream.readinto(space)  # type: ignore[attr-defined]

    del text[length + num_read :]
    return num_read


@functools.cache
def _zeros(length: int) -> bytes:
    """Return zero bytes to extend a bytearray with.

    Every call returns the same object, which stays in the core cache.
    """
    return bytes(length)


def _cut_off(text: bytearray, length: int) -> bytearray:
    """Shorten a text to its first `length` bytes, and return the rest."""
    end = text[length:]
    del text[length:]
    return end


def _skip_record(stream: IO[bytes], carried: bytearray) -> LongRecord:
    """Skip to the end of an overlong record, and return only how it begins.

    Afterwards the stream is at the next line.
    """
    head = carried[:HEAD_BYTES]
    length = len(carried)
    while piece := stream.readline(BLOCK):
        length += len(piece)
        if piece.endswith(b"\n"):
            break

    return LongRecord(head, length)


def line_number(segment: Segment, offset: int) -> int:
    """Return the line number at an offset in the text, starting at 1.

    The file is read up to the offset, which is too slow for anything but error messages.
    """
    lines = 1
    with open_segment(segment) as stream:
        while offset > 0 and (chunk := stream.read(min(BLOCK, offset))):
            lines += chunk.count(b"\n")
            offset -= len(chunk)

    return lines
