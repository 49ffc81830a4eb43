"""One shard: read, parse, encode, join; what a worker does between two done-marks."""

from __future__ import annotations

import base64
import copy
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from runbook.data.documents import UNKNOWN_SOURCE, BadRecord, Batch, Parser, read_documents
from runbook.data.huge import BadTextError
from runbook.data.indexed import DTYPES, Piece, dtype_code
from runbook.data.inputs import Segment, Shard, kind_of
from runbook.data.options import TokenizeOptions
from runbook.data.reading import BrokenFileError, line_number
from runbook.data.tokenizer import Tokenizer
from runbook.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

STAGES = ("read", "parse", "encode", "write")
SAMPLE_CHARACTERS = 1024
SAMPLE_EVERY = 4_000_000
"""Bytes of text between two samples that the judge encodes as well."""

REASONS_KEPT = 20


@dataclass
class Counts:
    """Sums over documents; they add up over shards."""

    records: int = 0
    """Read from the input, good or bad."""

    documents: int = 0
    """In the output, empty ones included."""

    empty: int = 0
    """Of them without a token."""

    sequences: int = 0
    tokens: int = 0
    """With end-of-document tokens."""

    text_bytes: int = 0
    skipped_records: int = 0
    skipped_files: int = 0
    dropped: int = 0
    """Left out by choice: empty ones where they are not kept, sources not wanted."""

    blank_lines: int = 0
    judged: int = 0
    """Documents compared between encoder and judge."""

    input_bytes: int = 0
    sources: dict[str, list[int]] = field(default_factory=dict)
    """documents, bytes of text, tokens by source."""

    lengths: list[int] = field(default_factory=list)
    """Documents with at least 2^i and fewer than 2^(i+1) tokens."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))

    def add(self, other: Counts) -> None:
        """Add another shard's counts to these."""
        for name, value in vars(other).items():
            mine = getattr(self, name)
            if isinstance(value, dict):
                for key, each in value.items():
                    if isinstance(each, list):
                        mine[key] = [
                            left + right for left, right in zip(mine.get(key, [0] * len(each)), each, strict=True)
                        ]
                    else:
                        mine[key] = mine.get(key, 0) + each
            elif isinstance(value, list):
                mine.extend([0] * (len(value) - len(mine)))
                for place, each in enumerate(value):
                    mine[place] += each
            else:
                setattr(self, name, mine + value)


@dataclass
class Result:
    """What became of a shard; its tokens are in the sink."""

    counts: Counts
    piece: Piece
    problems: list[str]
    """The first bad records and broken files, in words."""

    quarantine: list[str]
    """JSON lines, one for each thing set aside."""


class Sink(Protocol):
    """Where a shard's tokens go while it is being made."""

    length: int
    """Bytes written so far."""

    def write(self, data: bytes) -> None:
        """Append."""
        ...

    def cut(self, length: int) -> None:
        """Forget all but the first `length` bytes."""
        ...


Report = Callable[[Counts], None]


class ShardMaker:
    """Tokenizes shards, one after the other, with one tokenizer and one set of options."""

    def __init__(self, tokenizer: Tokenizer, options: TokenizeOptions, source_key: str, report: Report) -> None:
        import numpy as np

        self._tokenizer = tokenizer
        self._options = options
        self._parser = Parser(options.text_key, source_key)
        self._report = report
        self._dtype = np.dtype(DTYPES[dtype_code(tokenizer.vocabulary)])
        eod = tokenizer.end_of_document(options.eod_token) if options.append_eod else None
        self._eod = None if eod is None else np.array([eod], dtype=self._dtype)

    def make(self, shard: Shard, sink: Sink) -> Result:
        """Tokenize a shard into the sink; a broken file leaves nothing of itself behind."""
        import numpy as np

        work = _Work(shard, sink)
        for segment in shard.segments:
            before = work.position()
            try:
                self._segment(segment, work)
            except BrokenFileError as error:
                if self._options.bad_records == "stop":
                    raise
                work.go_back(before)
                work.counts.skipped_files += 1
                work.set_aside(str(error), {"file": error.path, "offset": error.offset, "reason": error.reason})
        lengths = np.concatenate(work.lengths) if work.lengths else np.empty(0, dtype=np.int32)
        empty = np.array(work.empty, dtype=np.int64)
        counts = work.counts
        counts.sequences, counts.documents, counts.empty = len(lengths), len(lengths) + len(empty), len(empty)
        counts.tokens = int(lengths.sum(dtype=np.int64))
        if len(lengths):
            counts.lengths = np.bincount(np.log2(lengths).astype(np.int64)).tolist()
        return Result(counts, Piece(lengths, empty), work.problems, work.quarantine)

    def _segment(self, segment: Segment, work: _Work) -> None:
        clock = time.perf_counter
        batches = iter(read_documents(segment, self._parser, self._options.text_key))
        while True:
            started = clock()
            batch = next(batches, None)
            seconds = clock() - started
            if batch is None:
                return
            work.counts.seconds["parse"] += batch.parse_seconds
            work.counts.seconds["read"] += seconds - batch.parse_seconds
            work.counts.records += batch.records
            work.counts.input_bytes += batch.read_bytes
            work.counts.blank_lines += batch.blank_lines
            for bad in batch.bad:
                self._bad(bad, segment, work)
            if batch.huge is not None:
                self._encode_huge(batch, segment, work)
                continue
            self._choose(batch, work)
            if batch.texts:
                self._encode(batch, work)
            self._report(work.counts)

    def _bad(self, bad: BadRecord, segment: Segment, work: _Work) -> None:
        parquet = kind_of(Path(segment.path))[0] == ".parquet"
        if self._options.bad_records != "stop" and work.counts.skipped_records >= REASONS_KEPT:
            line = 0  # counting lines reads the file again: not for every one of many
        else:
            line = bad.offset + 1 if parquet else line_number(segment, bad.offset)
        at = f"row {bad.offset}" if parquet else f"line {line}, byte {bad.offset}" if line else f"byte {bad.offset}"
        words = f"{bad.file}, {at}: {bad.reason}"
        if self._options.bad_records == "stop":
            raise DataError(
                f"{words}. Mend the record, or leave such records out: --bad-records skip (counted) or quarantine "
                "(kept aside as well)."
            )
        work.counts.skipped_records += 1
        raw = base64.b64encode(bad.raw).decode()
        work.set_aside(
            words, {"file": bad.file, "line": line, "offset": bad.offset, "reason": bad.reason, "base64": raw}
        )

    def _encode_huge(self, batch: Batch, segment: Segment, work: _Work) -> None:
        """One document in pieces; the report is made for each, so that progress is seen."""
        import numpy as np

        huge, batch.huge = batch.huge, None
        assert huge is not None
        if not self._wanted(batch.sources[0] if batch.sources else UNKNOWN_SOURCE):
            work.counts.dropped += 1
            return
        before, tokens, text_bytes, sampled = work.sink.length, 0, 0, False
        clock = time.perf_counter
        try:
            for piece in huge.pieces(self._tokenizer.splits_words):
                started = clock()
                ids, _ = self._tokenizer.encode_batch([piece])
                work.counts.seconds["encode"] += clock() - started
                if not sampled:
                    sampled = True
                    work.counts.judged += self._tokenizer.check_sample([piece[:SAMPLE_CHARACTERS]], segment.path)
                work.sink.write(ids.astype(self._dtype).tobytes())
                tokens += len(ids)
                text_bytes += len(piece) if piece.isascii() else len(piece.encode())
                self._report(work.counts)
        except BadTextError as error:
            work.sink.cut(before)
            raw = f"(the record has {batch.read_bytes} bytes and is not kept)".encode()
            self._bad(BadRecord(segment.path, batch.offset, str(error), raw), segment, work)
            return
        if self._eod is not None and tokens:
            work.sink.write(self._eod.tobytes())
            tokens += 1
        work.add(np.array([tokens]), [text_bytes], batch.sources)

    def _wanted(self, source: str) -> bool:
        keep, drop = self._options.keep_sources, self._options.drop_sources
        return source not in drop and (not keep or source in keep)

    def _choose(self, batch: Batch, work: _Work) -> None:
        """Drop documents that the options do not want."""
        wanted = [True] * len(batch.texts)
        if (self._options.keep_sources or self._options.drop_sources) and batch.sources is not None:
            wanted = [self._wanted(source) for source in batch.sources]
        if not self._options.keep_empty:
            wanted = [each and text != "" for each, text in zip(wanted, batch.texts, strict=True)]
        if all(wanted):
            return
        work.counts.dropped += wanted.count(False)
        if batch.sources is not None:
            batch.sources = [each for each, want in zip(batch.sources, wanted, strict=True) if want]
        batch.texts = [each for each, want in zip(batch.texts, wanted, strict=True) if want]

    def _encode(self, batch: Batch, work: _Work) -> None:
        import numpy as np

        clock = time.perf_counter
        started = clock()
        ids, offsets = self._tokenizer.encode_batch(batch.texts)
        work.counts.seconds["encode"] += clock() - started
        text_bytes = sizes(batch.texts)
        judged = work.counts.text_bytes >= work.next_sample
        sample = batch.texts[work.num_batches * 7919 % len(batch.texts)][:SAMPLE_CHARACTERS]
        batch.texts.clear()  # a huge document is not needed beside its tokens
        if judged:
            work.next_sample += SAMPLE_EVERY
            work.counts.judged += self._tokenizer.check_sample([sample], f"in {work.shard.describe()}")
        started = clock()
        lengths = np.diff(offsets)
        if self._eod is not None:
            lengths = lengths + (lengths > 0)
        work.sink.write(join(ids, offsets, self._dtype, self._eod))
        work.add(lengths, text_bytes, batch.sources)
        work.counts.seconds["write"] += clock() - started


def sizes(texts: list[str]) -> list[int]:
    """Bytes of each text in UTF-8, without a loop over those that are ASCII.

    >>> sizes(["abc", "é", ""])
    [3, 2, 0]
    """
    found = list(map(len, texts))
    plain = list(map(str.isascii, texts))
    place = -1
    for _ in range(plain.count(False)):
        place = plain.index(False, place + 1)
        found[place] = len(texts[place].encode())
    return found


def join(ids: NDArray[np.uint32], offsets: NDArray[np.int64], dtype: np.dtype[Any], eod: NDArray[Any] | None) -> bytes:
    """Ids as bytes of the output's type, with the end-of-document token after each text that has tokens."""
    import numpy as np

    narrow = ids.astype(dtype)
    if eod is None:
        return narrow.tobytes()
    ends = offsets[1:][np.diff(offsets) > 0]
    if len(ends) * 200 > len(narrow):  # short texts: one pass of numpy beats a slice for each
        return np.insert(narrow, ends, eod[0]).tobytes()
    view, end = memoryview(narrow.data), eod.tobytes()
    pieces: list[bytes | memoryview] = []
    before = 0
    for after in ends.tolist():
        pieces += (view[before:after], end)
        before = after
    return b"".join(pieces)


class _Work:
    """What has been made of the shard in hand."""

    def __init__(self, shard: Shard, sink: Sink) -> None:
        self.shard = shard
        self.sink = sink
        self.counts = Counts()
        self.lengths: list[NDArray[np.int32]] = []
        self.empty: list[int] = []
        self.problems: list[str] = []
        self.quarantine: list[str] = []
        self.num_batches = 0
        self.next_sample = 0
        self._documents = 0

    def add(self, lengths: NDArray[np.int64], text_bytes: list[int], sources: list[str] | None) -> None:
        """Take in a batch that was written."""
        import numpy as np

        self.num_batches += 1
        self.counts.text_bytes += sum(text_bytes)
        self.counts.tokens += int(lengths.sum())
        self.empty += (np.flatnonzero(lengths == 0) + self._documents).tolist()
        self._documents += len(lengths)
        self.counts.documents = self._documents
        self.lengths.append(lengths[lengths > 0].astype(np.int32))
        if sources:
            self._add_sources(sources, text_bytes, lengths)

    def _add_sources(self, sources: list[str], text_bytes: list[int], lengths: NDArray[np.int64]) -> None:
        if sources.count(sources[0]) == len(sources):  # files often hold one source: no loop over documents
            rows = [(sources[0], len(sources), sum(text_bytes), int(lengths.sum()))]
        else:
            ones = [1] * len(sources)
            rows = list(zip(sources, ones, text_bytes, lengths.tolist(), strict=True))
        for source, documents, size, tokens in rows:
            totals = self.counts.sources.setdefault(source, [0, 0, 0])
            totals[0] += documents
            totals[1] += size
            totals[2] += tokens

    def set_aside(self, words: str, record: dict[str, Any]) -> None:
        """Remember what was left out."""
        if len(self.problems) < REASONS_KEPT:
            self.problems.append(words)
        self.quarantine.append(json.dumps(record))

    def position(self) -> _Position:
        """A place to go back to."""
        return _Position(
            self.sink.length,
            len(self.lengths),
            len(self.empty),
            len(self.problems),
            len(self.quarantine),
            self._documents,
            copy.deepcopy(self.counts),
        )

    def go_back(self, position: _Position) -> None:
        """Forget what was made since."""
        self.sink.cut(position.written)
        del self.lengths[position.lengths :]
        del self.empty[position.empty :]
        del self.problems[position.problems :]
        del self.quarantine[position.quarantine :]
        self._documents = position.documents
        self.counts = position.counts


@dataclass(frozen=True)
class _Position:
    written: int
    lengths: int
    empty: int
    problems: int
    quarantine: int
    documents: int
    counts: Counts
