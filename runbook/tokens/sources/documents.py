"""Reads documents from blocks of lines. A block is parsed in a single call or line by line.

When a block is parsed line by line, each bad record is reported with the reason.
"""

import codecs
import contextlib
import io
import json
import operator
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runbook.core.errors import DataError
from runbook.tokens.messages import TokenMessage
from runbook.tokens.sources.input_files import (
    BLOCK,
    HEAD_BYTES,
    HUGE,
    MAX_RECORD_BYTES,
    BrokenFileError,
    LongRecord,
    Segment,
    kind_of,
    open_segment,
    read_blocks,
    whole_files,
)

PIECE = 1 << 20
"""Number of bytes to decode at a time from a huge document."""
PARQUET_ROWS = 1024
PARQUET_BYTES = 32 << 20
"""How many bytes of text in a Parquet file to turn into Python strings at a time.

pyarrow also keeps the column for a row group in memory.
"""
KNOWN_SOURCE_KEYS = ("meta.redpajama_set_name", "meta.pile_set_name", "meta.source", "source")
UNKNOWN_SOURCE = "unknown"
_WHITE = b" \t\r\n\x0b\x0c"
_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_LINE_END = re.compile(rb"[\r\n]|\Z")
# The space before the word makes sure that the letters are not part of a JSON escape such as \n or
# \u00e9.
_BORDER = re.compile(rb" [A-Za-z]+(?= [A-Za-z])")


class BadTextError(Exception):
    """A record or part of a record is not text, so the whole document is bad."""


@dataclass(frozen=True)
class HugeText:
    """The text in a huge document, not yet decoded.

    A str needs up to four bytes per character, and encoders copy their input, so a 100 MB document
    would need half a gigabyte. A piece ends after a word in ASCII letters followed by a
    space and another letter. It is never inside a character or a JSON escape. `tokens.huge_text`
    decides where the text can be divided without changing its tokens.
    """

    content: memoryview
    decode: Callable[[bytes], str]
    """Function that decodes a piece, and raises `BadTextError` if it is not text."""

    def pieces(self) -> Iterator[str]:
        """Yield the text in pieces of about a megabyte, or in one piece if it cannot be cut."""
        start = 0
        while start < len(self.content):
            border = _BORDER.search(self.content, start + PIECE)
            end = border.end() if border else len(self.content)
            yield self.decode(bytes(self.content[start:end]))
            start = end


def decode_plain(piece: bytes) -> str:
    """Decode a piece of a text file."""
    try:
        return piece.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadTextError(TokenMessage.INVALID_UTF8_PIECE.fill(reason=error.reason)) from None


@dataclass(frozen=True)
class BadRecord:
    """A record that cannot be read, with its position in the file."""

    offset: int
    """Where the record begins in the (decompressed) text, in bytes.

    For Parquet, this is the row number.
    """
    reason: str
    raw: bytes


@dataclass
class DocumentBatch:
    """The documents in a block, in order."""

    texts: list[str] = field(default_factory=list)
    sources: list[str] | None = None
    """One source for each text, if a source key is read."""
    huge: HugeText | None = None
    """The document, instead of `texts`, if it is too large to be in memory twice."""
    offset: int = 0
    """Where the record with the huge document begins."""
    bad: list[BadRecord] = field(default_factory=list)
    blank_lines: int = 0
    records: int = 0
    """Records in the input, including bad records."""
    read_bytes: int = 0
    """Bytes of input after decompression."""
    parse_seconds: float = 0.0
    """Seconds spent turning bytes into texts."""


class Parser:
    """Reads texts, and their sources, from JSON lines."""

    def __init__(
        self,
        text_key: str,
        source_key: str = "",
        max_record_bytes: int = MAX_RECORD_BYTES,
    ) -> None:
        import msgspec

        self.max_record_bytes = max_record_bytes
        self.text_key = text_key
        path = source_key.split(".") if source_key else []
        if path[:1] == [text_key]:
            raise DataError(
                TokenMessage.SOURCE_KEY_INSIDE_TEXT_KEY, source_key=source_key, text_key=text_key
            )

        text = ("text", str, msgspec.field(name=text_key))
        raw = ("text", msgspec.Raw, msgspec.field(name=text_key))
        holder: Any = str
        for key in reversed(path[1:]):
            holder = msgspec.defstruct(
                "Holder", [("inner", holder, msgspec.field(name=key))], gc=False
            )

        if path:
            source = [("inner", holder, msgspec.field(name=path[0]))]
        else:
            source = []

        self._texts = _decoder([text])
        self._raw = _decoder([raw])
        self._sources: Any = _decoder(source) if path else None
        self._records = _decoder([text, *source])
        self._text_of = operator.attrgetter("text")
        self._source_of = operator.attrgetter(".".join(["inner"] * len(path)) or "text")

    def parse(self, data: bytes | bytearray, offset: int) -> DocumentBatch:
        """Return the documents and bad records in a block of lines.

        A line without a text is a bad record, unless the line is blank. Blank lines are only
        counted.
        """
        started = time.perf_counter()
        batch = None
        # Only a larger block can contain a line that is too long.
        if len(data) <= self.max_record_bytes:
            if len(data) > HUGE:
                batch = self._huge(data, offset)
            batch = batch or self._fast(data)

        if batch is None:
            batch = DocumentBatch(sources=[] if self._sources else None)
            for line in io.BytesIO(data):
                self._add(batch, line, offset)
                offset += len(line)

        batch.records = len(batch.texts) + len(batch.bad) + (batch.huge is not None)
        batch.read_bytes, batch.parse_seconds = len(data), time.perf_counter() - started
        return batch

    def _huge(self, line: bytes | bytearray, offset: int) -> DocumentBatch | None:
        """Return the text in a huge line, not yet decoded.

        The result is None if the block is not exactly one line with a text.
        """
        try:
            raw = memoryview(self._raw.decode(line).text)
        except (ValueError, RecursionError):
            return None

        if bytes(raw[:1]) != b'"':
            return None
        sources = [self.source_of(line)] if self._sources else None
        return DocumentBatch(
            sources=sources,
            huge=HugeText(raw[1:-1], self._decode_piece),
            offset=offset,
        )

    def _decode_piece(self, piece: bytes) -> str:
        return self._text(b"{" + json.dumps(self.text_key).encode() + b':"' + piece + b'"}')

    def _fast(self, data: bytes | bytearray) -> DocumentBatch | None:
        """Parse all lines in a single call.

        Return None unless each line is exactly one complete record.
        """
        try:
            records = self._records.decode_lines(data)
        except (ValueError, RecursionError):
            return None

        if len(records) != count_newlines(data) + (not data.endswith(b"\n")):
            return None
        sources = list(map(self._source_of, records)) if self._sources else None
        return DocumentBatch(list(map(self._text_of, records)), sources)

    def _add(
        self,
        batch: DocumentBatch,
        line: bytes,
        offset: int,
    ) -> None:
        if not line.strip(_WHITE):
            batch.blank_lines += 1
            return

        if len(line) > self.max_record_bytes:
            reason = _length_problem(len(line), self.max_record_bytes)
            batch.bad.append(BadRecord(offset, reason, line[:HEAD_BYTES]))
            return

        lines = line.rstrip(b"\r\n").split(b"\r")
        try:
            batch.texts.append(self._text(line))
        except BadTextError as error:
            if len(lines) == 1:
                batch.bad.append(BadRecord(offset, str(error), line))
                return

            # A carriage return also ends a line, because the Megatron tool opens the file in text
            # mode.
            for part in lines:
                self._add(batch, part, offset)
                offset += len(part) + 1
        else:
            if batch.sources is not None:
                batch.sources.append(self.source_of(line))

    def _text(self, line: bytes) -> str:
        """Return the text in a record.

        Raise `BadTextError` with the reason if the record has no text.
        """
        # This parser is stricter than the json module. If the parser fails, json decides.
        with contextlib.suppress(ValueError, RecursionError):
            return str(self._texts.decode(line).text)

        _refuse_utf16(line)
        try:
            record = _loads(line.rstrip(_WHITE))
        except UnicodeDecodeError as error:
            reason = TokenMessage.INVALID_UTF8.fill(reason=error.reason, byte=error.start)
            raise BadTextError(reason) from None
        except json.JSONDecodeError as error:
            # Python would call any line in a file "line 1". Some of its messages end in "at".
            reason = error.msg.removesuffix(" at")
            place = TokenMessage.INVALID_JSON_AT.fill(error=reason, position=error.pos + 1)
            raise BadTextError(TokenMessage.INVALID_JSON.fill(error=place)) from None
        except ValueError as error:
            raise BadTextError(TokenMessage.INVALID_JSON.fill(error=error)) from None
        except RecursionError:
            nested = TokenMessage.NESTED_TOO_DEEPLY.fill()
            raise BadTextError(TokenMessage.INVALID_JSON.fill(error=nested)) from None

        if not isinstance(record, dict):
            raise BadTextError(TokenMessage.NOT_AN_OBJECT.fill(kind=_json_name(record)))
        if self.text_key not in record:
            keys = ", ".join(map(repr, list(record)[:8])) or "none"
            raise BadTextError(TokenMessage.NO_TEXT_KEY.fill(text_key=self.text_key, keys=keys))

        text = record[self.text_key]
        if not isinstance(text, str):
            reason = TokenMessage.NOT_A_TEXT.fill(text_key=self.text_key, kind=_json_name(text))
            raise BadTextError(reason)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            half = f"\\u{ord(text[error.start]):04x}"
            raise BadTextError(TokenMessage.LONE_SURROGATE.fill(half=half)) from None

        return text

    def source_of(self, line: bytes | bytearray | memoryview) -> str:
        """Return the source named by a record."""
        try:
            return str(self._source_of(self._sources.decode(line)))
        except (ValueError, RecursionError):
            return UNKNOWN_SOURCE


def _refuse_utf16(line: bytes | bytearray | memoryview) -> None:
    """Raise `BadTextError` if a line begins as a UTF-16 file does.

    The json module would read this line but no later one, as a newline ends between two bytes.
    """
    if bytes(line[:2]) in _UTF16_MARKS:
        raise BadTextError(TokenMessage.UTF16.fill())


def count_newlines(data: bytes | bytearray) -> int:
    """Count the newlines in the data. This is faster than `data.count`."""
    import numpy as np

    return int(np.count_nonzero(np.frombuffer(data, dtype=np.uint8) == ord("\n")))


def _decoder(fields: list[Any]) -> Any:
    import msgspec

    return msgspec.json.Decoder(msgspec.defstruct("Record", fields, gc=False))


def _loads(line: bytes) -> Any:
    """Parse a line with json, however deep the call stack is, and return the result.

    If the stack is too deep, the line is parsed in a new thread, which starts with an empty stack.
    """
    try:
        return json.loads(line)
    except RecursionError:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(max_workers=1) as fresh:
            return fresh.submit(json.loads, line).result()


def _json_name(value: Any) -> str:
    names = {
        type(None): "null",
        bool: "boolean",
        int: "number",
        float: "number",
        str: "text",
        list: "list",
    }
    return names.get(type(value), "object")


def read_documents(segment: Segment, parser: Parser) -> Iterator[DocumentBatch]:
    """Yield the documents in a segment, a few megabytes at a time."""
    kind = kind_of(Path(segment.path))[0]
    if kind == ".txt":
        yield _one_text(segment, parser.max_record_bytes)
    elif kind == ".parquet":
        yield from _parquet(segment, parser.text_key, parser.max_record_bytes)
    else:
        for offset, data in read_blocks(segment, parser.max_record_bytes):
            if isinstance(data, LongRecord):
                yield _too_long(offset, data, parser.max_record_bytes)
                continue

            batch = parser.parse(data, offset)
            # Drop the block, so that it is not kept in memory while its texts are encoded.
            del data
            yield batch


def _too_long(offset: int, record: LongRecord, max_record_bytes: int) -> DocumentBatch:
    bad = BadRecord(offset, _length_problem(record.length, max_record_bytes), bytes(record))
    return DocumentBatch(
        bad=[bad],
        records=1,
        read_bytes=record.length,
    )


def _length_problem(length: int, max_record_bytes: int) -> str:
    return (
        f"a record of {length:,} bytes, and at most {max_record_bytes:,} are read "
        "(data.max_record_bytes, "
        "--max-record-bytes)"
    )


def _one_text(segment: Segment, max_record_bytes: int) -> DocumentBatch:
    content = bytearray()
    length = 0
    with open_segment(segment) as stream:
        while chunk := stream.read(BLOCK):
            length += len(chunk)
            if length <= max_record_bytes:
                content += chunk

    if length > max_record_bytes:
        return _too_long(0, LongRecord(content[:HEAD_BYTES], length), max_record_bytes)
    if not content:
        raise BrokenFileError(
            segment.path, 0, TokenMessage.EMPTY_FILE.fill(), TokenMessage.FETCH_AGAIN.fill()
        )
    batch = DocumentBatch(records=1, read_bytes=len(content))
    try:
        if len(content) > HUGE:
            batch.huge = HugeText(memoryview(content), decode_plain)
        else:
            batch.texts.append(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        around = bytes(content[max(0, error.start - 100) : error.start + 100])
        reason = TokenMessage.INVALID_UTF8_PIECE.fill(reason=error.reason)
        if bytes(content[:2]) in _UTF16_MARKS:
            reason = TokenMessage.UTF16.fill()
        batch.bad.append(BadRecord(error.start, reason, around))

    return batch


def _parquet(segment: Segment, text_key: str, max_record_bytes: int) -> Iterator[DocumentBatch]:
    try:
        import pyarrow.parquet  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        raise DataError(TokenMessage.PYARROW_MISSING, segment=segment.path) from None

    row = 0
    with open_segment(segment) as raw:
        try:
            file = pyarrow.parquet.ParquetFile(raw)
            if text_key not in file.schema_arrow.names:
                columns = ", ".join(file.schema_arrow.names)
                raise DataError(
                    TokenMessage.NO_SUCH_COLUMN,
                    segment=segment.path,
                    text_key=text_key,
                    columns=columns,
                )

            rows = _rows_at_once(file, text_key)
            # With threads, pyarrow would read further ahead than necessary.
            for part in file.iter_batches(rows, columns=[text_key], use_threads=False):
                batch = DocumentBatch(read_bytes=int(part.nbytes), records=part.num_rows)
                for value in part.column(0).to_pylist():
                    # In UTF-8 every character has at least one byte.
                    if isinstance(value, str) and len(value) > max_record_bytes:
                        reason = _length_problem(len(value), max_record_bytes)
                        batch.bad.append(BadRecord(row, reason, value[:HEAD_BYTES].encode()))
                    elif isinstance(value, str):
                        batch.texts.append(value)
                    else:
                        reason = TokenMessage.NOT_A_TEXT.fill(
                            text_key=text_key, kind=_json_name(value)
                        )
                        batch.bad.append(BadRecord(row, reason, repr(value).encode()))

                    row += 1

                yield batch
        except (OSError, ValueError) as error:
            # pyarrow raises ValueErrors or OSErrors
            reason = f"not a whole Parquet file: {error}"
            remedy = "Fetch it again, or use --bad-records skip."
            raise BrokenFileError(segment.path, row, reason, remedy) from error


def _rows_at_once(file: Any, text_key: str) -> int:
    """Return how many rows to read from a Parquet file at a time.

    This depends on the average text size in the largest row group.
    """
    bytes_per_row = 1
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        text_bytes = 0
        for index in range(group.num_columns):
            column = group.column(index)
            if column.path_in_schema == text_key:
                text_bytes += column.total_uncompressed_size

        bytes_per_row = max(bytes_per_row, text_bytes // max(1, group.num_rows))

    return max(1, min(PARQUET_ROWS, PARQUET_BYTES // bytes_per_row))


def is_blank(path: Path) -> bool:
    """Return whether a file contains nothing but white space, so that it has no text to train on.

    A .jsonl file without any other character has no document. The rows in a Parquet file are not
    read, and tokenizing reports a damaged file, so neither counts as blank.
    """
    (segment,) = whole_files([path], empty=True)
    if segment.size == 0:
        return True
    if kind_of(path)[0] == ".parquet":
        return False
    try:
        with open_segment(segment) as stream:
            while chunk := stream.read(BLOCK):
                if chunk.strip(_WHITE):
                    return False
    except BrokenFileError:
        return False

    return True


def find_source_key(segment: Segment) -> str:
    """Return the known source key in the first record of a file, or an empty string."""
    if kind_of(Path(segment.path))[0] != ".jsonl":
        return ""
    try:
        _, data = next(read_blocks(segment))
    except (StopIteration, DataError):
        # Tokenizing will report what is wrong with the file.
        return ""

    line = memoryview(data)[: next(_LINE_END.finditer(data)).start()]
    return next(
        (key for key in KNOWN_SOURCE_KEYS if Parser("", key).source_of(line) != UNKNOWN_SOURCE), ""
    )
