"""Blocks of lines to texts: fast where all is well, line by line with reasons where it is not."""

from __future__ import annotations

import json
import operator
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runbook.data.huge import HUGE, BadTextError, HugeText, decode_plain
from runbook.data.inputs import Segment, kind_of
from runbook.data.reading import BLOCK, BrokenFileError, blocks, opened, whole_text
from runbook.errors import DataError

KNOWN_SOURCE_KEYS = ("meta.redpajama_set_name", "meta.pile_set_name", "meta.source", "source")
UNKNOWN_SOURCE = "unknown"
_WHITE = b" \t\r\n\x0b\x0c"

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True)
class BadRecord:
    """A record that cannot be read, and where it stands."""

    file: str
    offset: int
    """Of its first byte, in the file's (decompressed) text; a row number in a Parquet file."""

    reason: str
    raw: bytes


@dataclass
class Batch:
    """The documents of one block, in order."""

    texts: list[str] = field(default_factory=list)
    sources: list[str] | None = None
    """One for each text, where a source key is read."""

    huge: HugeText | None = None
    """Instead of texts: one document too large to be held twice."""

    offset: int = 0
    """Where the huge document's record begins."""

    bad: list[BadRecord] = field(default_factory=list)
    blank_lines: int = 0
    records: int = 0
    """Found in the input: texts and bad ones."""

    read_bytes: int = 0
    """Of decompressed input."""

    parse_seconds: float = 0.0
    """Spent between bytes and texts."""


class Parser:
    """Takes texts, and their sources, out of JSON lines."""

    def __init__(self, text_key: str, source_key: str = "") -> None:
        import msgspec

        self._text_key = text_key
        path = source_key.split(".") if source_key else []
        if path[:1] == [text_key]:
            raise DataError(f"source key {source_key!r} lies inside the text key {text_key!r}; choose another")
        fields = [("text", str, msgspec.field(name=text_key))]
        self._texts: Any = msgspec.json.Decoder(msgspec.defstruct("TextRecord", fields, gc=False))
        self._raw: Any = msgspec.json.Decoder(
            msgspec.defstruct("RawRecord", [("text", msgspec.Raw, msgspec.field(name=text_key))])
        )
        self._both: Any = None
        self._sources: Any = None
        self._text_of = operator.attrgetter("text")
        self._source_of = operator.attrgetter(".".join(["inner"] * len(path)) or "text")
        if path:
            holder: Any = str
            for key in reversed(path[1:]):
                holder = msgspec.defstruct("Holder", [("inner", holder, msgspec.field(name=key))], gc=False)
            inner = ("inner", holder, msgspec.field(name=path[0]))
            self._sources = msgspec.json.Decoder(msgspec.defstruct("SourceRecord", [inner]))
            fields.append(inner)
            self._both = msgspec.json.Decoder(msgspec.defstruct("SourcedRecord", fields, gc=False))

    def parse(self, data: Buffer, file: str, offset: int) -> Iterator[Batch]:
        """Texts of a block of lines; every line that gives none is a bad record, a blank line is only counted.

        One batch, or several where lines of the block are huge.
        """
        if len(data) <= HUGE:
            yield self._block(data, file, offset)
            return
        whole = data if isinstance(data, bytes | bytearray) else bytes(data)
        view = memoryview(whole)
        start = small = 0  # lines from `small` to `start` wait for a batch of their own
        while start < len(whole):
            end = whole.find(b"\n", start) + 1 or len(whole)
            if end - start > HUGE:
                if small < start:
                    yield self._block(bytes(view[small:start]), file, offset + small)
                yield self._huge(view[start:end], file, offset + start)
                small = end
            start = end
        if small < start:
            yield self._block(bytes(view[small:start]), file, offset + small)

    def _huge(self, line: memoryview, file: str, offset: int) -> Batch:
        try:
            raw = memoryview(self._raw.decode(line).text)
        except (ValueError, RecursionError):
            return self._block(bytes(line), file, offset)
        if bytes(raw[:1]) != b'"':
            return self._block(bytes(line), file, offset)  # which says what else it is
        sources = [self._source_of_line(line)] if self._both else None
        text = HugeText(raw[1:-1], self._decode_piece)
        return Batch(sources=sources, huge=text, offset=offset, records=1, read_bytes=len(line))

    def _decode_piece(self, piece: bytes) -> str:
        text, reason = self._line(b"{" + json.dumps(self._text_key).encode() + b':"' + piece + b'"}')
        if reason:
            raise BadTextError(reason.removeprefix("invalid JSON: "))
        return text

    def _block(self, data: Buffer, file: str, offset: int) -> Batch:
        started = time.perf_counter()
        batch = self._fast(data) or self._slow(bytes(data), file, offset)
        batch.records = len(batch.texts) + len(batch.bad)
        batch.read_bytes, batch.parse_seconds = len(data), time.perf_counter() - started
        return batch

    def _fast(self, data: Buffer) -> Batch | None:
        """All lines in one call; None unless each line is exactly one whole record."""
        whole = bytes(data) if isinstance(data, memoryview) else data
        lines = whole.count(b"\n") + (len(data) > 0 and data[-1] != 10)
        decoder = self._both or self._texts
        try:
            records = decoder.decode_lines(data)
        except (ValueError, RecursionError):
            return None
        if len(records) != lines:
            return None
        sources = list(map(self._source_of, records)) if self._both else None
        return Batch(list(map(self._text_of, records)), sources)

    def _slow(self, data: bytes, file: str, offset: int) -> Batch:
        batch = Batch(sources=[] if self._both else None)
        start = 0
        while start < len(data):
            end = data.find(b"\n", start) + 1 or len(data)
            line = data[start:end]
            if not line.strip(_WHITE):
                batch.blank_lines += 1
            else:
                text, reason = self._line(line)
                if reason:
                    batch.bad.append(BadRecord(file, offset + start, reason, line))
                else:
                    batch.texts.append(text)
                    if batch.sources is not None:
                        batch.sources.append(self._source_of_line(line))
            start = end
        return batch

    def _line(self, line: bytes) -> tuple[str, str]:
        """Text and no reason, or no text and the reason."""
        try:
            return self._texts.decode(line).text, ""
        except (ValueError, RecursionError):
            pass  # stricter than Python's json, which decides
        try:
            record = json.loads(line.rstrip(_WHITE))
        except UnicodeDecodeError as error:
            return "", f"invalid UTF-8: {error.reason} at byte {error.start} of the line"
        except ValueError as error:
            return "", f"invalid JSON: {error}"
        except RecursionError:
            return "", "invalid JSON: nested too deeply"
        if not isinstance(record, dict):
            return "", f"the record is a {_json_name(record)}, not an object"
        if self._text_key not in record:
            keys = ", ".join(map(repr, list(record)[:8])) or "none"
            return "", f"no key {self._text_key!r}; its keys: {keys}"
        text = record[self._text_key]
        if not isinstance(text, str):
            return "", f"{self._text_key!r} is a {_json_name(text)}, not a text"
        try:
            text.encode()
        except UnicodeEncodeError as error:
            half = f"\\u{ord(text[error.start]):04x}"
            return "", f"a lone surrogate {half}, half of a UTF-16 pair, is no character and has no tokens"
        return text, ""

    def _source_of_line(self, line: Buffer) -> str:
        try:
            return str(self._source_of(self._sources.decode(line)))
        except (ValueError, RecursionError):
            return UNKNOWN_SOURCE


def _json_name(value: Any) -> str:
    names = {type(None): "null", bool: "boolean", int: "number", float: "number", str: "text", list: "list"}
    return names.get(type(value), "object")


def read_documents(segment: Segment, parser: Parser, text_key: str) -> Iterator[Batch]:
    """The documents of a segment, a few megabytes at a time."""
    kind, _ = kind_of(Path(segment.path))
    if kind == ".txt":
        yield _one_text(segment)
    elif kind == ".parquet":
        yield from _parquet(segment, text_key)
    else:
        for offset, data in blocks(segment):
            batches = parser.parse(data, segment.path, offset)
            del data  # so that a block is not kept while its texts are encoded
            yield from batches


def _one_text(segment: Segment) -> Batch:
    content = whole_text(segment)
    if len(content) > HUGE:
        return Batch(huge=HugeText(memoryview(content), decode_plain), records=1, read_bytes=len(content))
    try:
        return Batch([content.decode("utf-8")], read_bytes=len(content), records=1)
    except UnicodeDecodeError as error:
        reason = f"invalid UTF-8: {error.reason}"
        bad = BadRecord(
            segment.path, error.start, reason, bytes(content[max(0, error.start - 100) : error.start + 100])
        )
        return Batch(bad=[bad], read_bytes=len(content), records=1)


def _parquet(segment: Segment, text_key: str) -> Iterator[Batch]:
    try:
        import pyarrow.parquet  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        raise DataError(
            f"{segment.path} is a Parquet file, and the package pyarrow is not installed. "
            "Install it (pip install pyarrow), or convert the file to .jsonl.zst."
        ) from None
    row = 0
    with opened(segment) as raw:
        try:
            file = pyarrow.parquet.ParquetFile(raw)
            if text_key not in file.schema_arrow.names:
                columns = ", ".join(file.schema_arrow.names)
                raise DataError(
                    f"{segment.path} has no column {text_key!r}; its columns: {columns}. Set data.text_key."
                )
            for part in file.iter_batches(batch_size=1024, columns=[text_key]):
                batch = Batch(read_bytes=int(part.nbytes), records=part.num_rows)
                for value in part.column(0).to_pylist():
                    if isinstance(value, str):
                        batch.texts.append(value)
                    else:
                        reason = f"{text_key!r} is {_json_name(value)}, not a text"
                        batch.bad.append(BadRecord(segment.path, row, reason, repr(value).encode()))
                    row += 1
                yield batch
        except (OSError, ValueError) as error:  # pyarrow's own errors are ValueErrors or OSErrors
            reason, remedy = f"not a whole Parquet file: {error}", "Fetch it again, or use --bad-records skip."
            raise BrokenFileError(segment.path, row, reason, remedy) from error


def find_source_key(segment: Segment) -> str:
    """The known source key that the first record of a file has, or nothing."""
    import msgspec

    if kind_of(Path(segment.path))[0] != ".jsonl":
        return ""
    try:
        _, data = next(blocks(segment))
        end = bytes(data[:BLOCK]).find(b"\n")
        line = memoryview(data)[: end if end >= 0 else len(data)]
        record = msgspec.json.decode(line, type=dict[str, msgspec.Raw])  # Raw: a huge text is not copied
        top = {key: record[key] for key in {each.split(".")[0] for each in KNOWN_SOURCE_KEYS} if key in record}
        values = {key: msgspec.json.decode(raw) for key, raw in top.items()}
    except (StopIteration, ValueError, DataError, RecursionError):
        return ""  # the work itself will say what is wrong with the file
    for key in KNOWN_SOURCE_KEYS:
        value: Any = values
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if isinstance(value, str):
            return key
    return ""
