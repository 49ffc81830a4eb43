"""Reads, parses and encodes a shard, which is what a worker does between two done markers."""

from __future__ import annotations

import base64
import contextlib
import copy
import functools
import itertools
import json
import operator
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runbook.core.errors import DataError
from runbook.plan_file.token_index import DTYPES, dtype_code
from runbook.tokens.huge_text import TextCut, cut_of, cut_text
from runbook.tokens.long_words import can_cut_words, cut_long_words
from runbook.tokens.messages import TokenMessage
from runbook.tokens.pipeline.bin_writer import ShardSink
from runbook.tokens.pipeline.parts_folder import ShardCounts, ShardMark
from runbook.tokens.pipeline.tokenize_options import MOST_REPORTED_RECORDS, TokenizeOptions
from runbook.tokens.sources.documents import (
    BadRecord,
    BadTextError,
    DocumentBatch,
    HugeText,
    Parser,
    read_documents,
)
from runbook.tokens.sources.fixed_text import fixed_pieces
from runbook.tokens.sources.input_files import BrokenFileError, Segment, Shard, kind_of, line_number
from runbook.tokens.sources.wrong_formats import format_hint
from runbook.tokens.tokenizer import (
    END_OF_TEXT,
    PROBES,
    Fastokens,
    JoinedIds,
    Tokenizer,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SAMPLE_CHARACTERS = 256
"""How many characters the judge encodes from a sampled text. This takes 0.2 ms."""
SAMPLE_EVERY = 4_000_000
"""The judge also encodes one sample in this many bytes of text."""

Report = Callable[[ShardCounts], None]


class ShardMaker:
    """Tokenizes one shard after another with the same options.

    The source key in the options has already been resolved.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        options: TokenizeOptions,
        report: Report,
    ) -> None:
        import numpy as np

        self._tokenizer = tokenizer
        self._options = options
        self._chosen_sources = options.chosen_sources
        self._parser = Parser(options.text_key, options.source_key, options.max_record_bytes)
        self._report = report
        self._dtype = np.dtype(DTYPES[dtype_code(tokenizer.vocabulary)])
        if options.append_eod:
            eod = tokenizer.end_of_document(options.eod_token)
        else:
            eod = None

        self._eod = None if eod is None else np.array([eod], dtype=self._dtype)
        self._joins_texts = eod is not None and _can_join(tokenizer, eod)

    def make(
        self,
        shard: Shard,
        fingerprint: str,
        sink: ShardSink,
    ) -> ShardMark:
        """Tokenize a shard into the sink. A broken file contributes no documents."""
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
                work.set_aside(
                    str(error), {"file": error.path, "offset": error.offset, "reason": error.reason}
                )

        lengths = np.concatenate([np.empty(0, dtype=np.int32), *work.lengths])
        counts = work.counts
        counts.sequences, counts.empty = len(lengths), len(work.empty)
        counts.tokens = int(lengths.sum(dtype=np.int64))
        counts.lengths = np.bincount(np.log2(lengths).astype(np.int64)).tolist()
        empty = np.array(work.empty, dtype=np.int64)
        mark = ShardMark(
            shard.number,
            fingerprint,
            counts,
            lengths,
            empty,
            tuple(work.problems),
        )
        return sink.finish(mark, work.quarantine)

    def _segment(self, segment: Segment, work: _Work) -> None:
        batches = read_documents(segment, self._parser)
        counts = work.counts
        while True:
            with work.timed("read"):
                batch = next(batches, None)
            if batch is None:
                return
            counts.seconds["parse"] += batch.parse_seconds
            counts.seconds["read"] -= batch.parse_seconds
            counts.records += batch.records
            counts.input_bytes += batch.read_bytes
            counts.blank_lines += batch.blank_lines
            for bad in batch.bad:
                self._set_aside_record(bad, segment, work)
            if batch.huge is not None:
                self._encode_huge(batch, segment, work)
                continue

            self._drop_unwanted(batch, work)
            if self._options.fix_text == "ftfy":
                with work.timed("parse"):
                    batch.texts = ["".join(fixed_pieces([text])) for text in batch.texts]

            if batch.texts:
                self._encode(batch, work)
            self._report(counts)

    def _set_aside_record(
        self,
        bad: BadRecord,
        segment: Segment,
        work: _Work,
    ) -> None:
        stops = self._options.bad_records == "stop"
        line = 0
        at = f"byte {bad.offset}"
        if kind_of(Path(segment.path))[0] == ".parquet":
            line = bad.offset + 1
            at = f"row {bad.offset}"
        # To count lines, the file must be read again, so this is done only for a few records.
        elif stops or work.counts.skipped_records < MOST_REPORTED_RECORDS:
            line = line_number(segment, bad.offset)
            at = TokenMessage.PLACE_IN_LINES.fill(line=line, byte=bad.offset)

        problem = TokenMessage.RECORD_LEFT_OUT.fill(path=segment.path, place=at, reason=bad.reason)
        if stops:
            hint = format_hint(bad.raw)
            raise DataError(TokenMessage.BAD_RECORD, problem=problem, format_hint=hint)

        work.counts.skipped_records += 1
        record = {
            "file": segment.path,
            "line": line,
            "offset": bad.offset,
            "reason": bad.reason,
        }
        work.set_aside(problem, record | {"base64": base64.b64encode(bad.raw).decode()})

    def _encode_huge(
        self,
        batch: DocumentBatch,
        segment: Segment,
        work: _Work,
    ) -> None:
        """Encode a huge document in pieces, and report after each piece."""
        import numpy as np

        huge = batch.huge
        batch.huge = None
        assert huge is not None
        if self._is_dropped(batch, work):
            return
        before = work.sink.length
        tokens = 0
        text_bytes = 0
        try:
            for piece in self._pieces(huge):
                work.counts.piece_bytes = utf8_sizes([piece])[0]
                # A piece without a place to cut may take a minute, so it is reported first.
                self._report(work.counts)
                with work.timed("encode"):
                    ids, _ = self._tokenizer.encoder.encode_batch([piece])
                if not text_bytes:
                    work.counts.judged += self._tokenizer.check_sample(
                        piece[:SAMPLE_CHARACTERS], segment.path
                    )

                work.sink.write(ids.astype(self._dtype).tobytes())
                tokens += len(ids)
                text_bytes += work.counts.piece_bytes
        except BadTextError as error:
            work.counts.piece_bytes = 0
            work.sink.cut(before)
            raw = f"(the record has {batch.read_bytes} bytes and is not kept)".encode()
            self._set_aside_record(BadRecord(batch.offset, str(error), raw), segment, work)
            return

        work.counts.piece_bytes = 0
        if self._eod is not None and tokens:
            work.sink.write(self._eod.tobytes())
            tokens += 1

        work.add(np.array([tokens]), [text_bytes], batch.sources)

    @functools.cached_property
    def _cut(self) -> TextCut:
        """Return how huge documents are cut.

        The way to cut is determined only once, at the first huge document.
        """
        return cut_of(self._tokenizer)

    @functools.cached_property
    def _cuts_words(self) -> bool:
        """Return whether words of megabytes are cut, which is determined only once, too."""
        return can_cut_words(self._tokenizer)

    def _pieces(self, huge: HugeText) -> Iterator[str]:
        parts = huge.pieces()
        if self._options.fix_text == "ftfy":
            parts = fixed_pieces(parts)
        pieces = cut_text(parts, self._tokenizer.encoder, self._cut)
        return cut_long_words(pieces, self._tokenizer) if self._cuts_words else pieces

    def _is_dropped(self, batch: DocumentBatch, work: _Work) -> bool:
        """Return whether a huge document has an unwanted source. If so, count it as dropped."""
        if not batch.sources or self._chosen_sources.wants(batch.sources[0]):
            return False
        work.count_dropped(batch.sources[0])
        return True

    def _drop_unwanted(self, batch: DocumentBatch, work: _Work) -> None:
        if not self._chosen_sources.names_any or batch.sources is None:
            return
        is_kept = list(map(self._chosen_sources.wants, batch.sources))
        for source, is_wanted in zip(batch.sources, is_kept, strict=True):
            if not is_wanted:
                work.count_dropped(source)

        batch.sources = list(itertools.compress(batch.sources, is_kept))
        batch.texts = list(itertools.compress(batch.texts, is_kept))

    def _encode(self, batch: DocumentBatch, work: _Work) -> None:
        import numpy as np

        with work.timed("encode"):
            joined = self._encode_joined(batch)
            if joined is None:
                ids, offsets = self._tokenizer.encoder.encode_batch(batch.texts)

        if joined is None or _are_several(batch.sources):
            text_bytes = utf8_sizes(batch.texts)
        else:
            text_bytes = [joined.text_bytes]

        if work.counts.text_bytes >= work.next_sample:
            work.next_sample += SAMPLE_EVERY
            self._check_sample(batch.texts, joined, work)

        # The text from a huge document is no longer needed once its tokens exist.
        batch.texts.clear()
        with work.timed("write"):
            if joined is not None:
                lengths = joined.lengths
                work.sink.write(joined.ids.view(np.uint8).data)
            else:
                lengths = np.diff(offsets)
                if self._eod is not None:
                    lengths = lengths + (lengths > 0)
                work.sink.write(join_ids(ids, offsets, self._dtype, self._eod))

            work.add(lengths, text_bytes, batch.sources)

    def _check_sample(self, texts: list[str], joined: JoinedIds | None, work: _Work) -> None:
        """Check the encoder on part of a text, and compare a joined text with the text alone."""
        draw = (work.shard.number + work.num_batches) * 7919
        number = draw % len(texts)
        text = texts[number]
        # The sample may begin anywhere in the text, so that the check covers more than how texts
        # begin.
        start = draw % (max(0, len(text) - SAMPLE_CHARACTERS) + 1)
        sample = text[start : start + SAMPLE_CHARACTERS]
        where = f"in {work.shard.describe()}"
        work.counts.judged += self._tokenizer.check_sample(sample, where)
        if joined is not None:
            self._tokenizer.check_ids(text, joined.ids_of(number), where)

    def _encode_joined(self, batch: DocumentBatch) -> JoinedIds | None:
        """Encode the texts as one input, or return None if they cannot be joined."""
        encoder = self._tokenizer.encoder
        if self._joins_texts and self._eod is not None and len(batch.texts) > 1:
            assert isinstance(encoder, Fastokens)
            eod = int(self._eod[0])
            return encoder.encode_joined(batch.texts, END_OF_TEXT, eod, self._dtype)
        return None


def _can_join(tokenizer: Tokenizer, eod: int) -> bool:
    """Return whether texts may be joined by the end-of-document token before they are encoded.

    Only the GPT-2 tokenizer is known to divide its input exactly at this token. The built-in edge
    texts show whether the encoder does the same.
    """
    import numpy as np

    encoder = tokenizer.encoder
    if tokenizer.name != "gpt2" or not isinstance(encoder, Fastokens):
        return False
    if eod != tokenizer.judge.token_id(END_OF_TEXT):
        return False
    texts = [text for text in PROBES if text and END_OF_TEXT not in text]
    dtype = np.dtype(DTYPES[dtype_code(tokenizer.vocabulary)])
    joined = encoder.encode_joined(texts, END_OF_TEXT, eod, dtype)
    ids = []
    for text in texts:
        ids += [*tokenizer.encode(text), eod]

    return joined is not None and joined.ids.tolist() == ids


def _are_several(sources: list[str] | None) -> bool:
    return sources is not None and sources.count(sources[0]) < len(sources)


def utf8_sizes(texts: list[str]) -> list[int]:
    """Return the size of each text in UTF-8 bytes. ASCII texts need no Python loop.

    >>> utf8_sizes(["abc", "é", ""])
    [3, 2, 0]
    """
    sizes = list(map(len, texts))
    for index in itertools.compress(itertools.count(), map(operator.not_, map(str.isascii, texts))):
        sizes[index] = len(texts[index].encode())
    return sizes


def join_ids(
    ids: NDArray[np.uint32],
    offsets: NDArray[np.int64],
    dtype: np.dtype[Any],
    eod: NDArray[Any] | None,
) -> memoryview:
    """Convert ids to the number type used in the output, as bytes to write.

    The end-of-document token follows each text that has tokens. All ids are written to their places
    in a single array, because every additional copy takes as long as reading the text.
    """
    import numpy as np

    if eod is None:
        return ids.astype(dtype).view(np.uint8).data
    ends = offsets[1:][np.diff(offsets) > 0]
    joined = np.empty(len(ids) + len(ends), dtype=dtype)
    eod_places = ends + np.arange(len(ends))
    is_text = np.ones(len(joined), dtype=bool)
    is_text[eod_places] = False
    joined[is_text] = ids
    joined[eod_places] = eod[0]
    return joined.view(np.uint8).data


@dataclass
class _Work:
    """What is done in the current shard."""

    shard: Shard
    sink: ShardSink
    counts: ShardCounts = field(default_factory=ShardCounts)
    lengths: list[NDArray[np.int32]] = field(default_factory=list)
    empty: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    quarantine: list[str] = field(default_factory=list)
    num_batches: int = 0
    next_sample: int = 0

    @contextlib.contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.counts.seconds[stage] += time.perf_counter() - started

    def add(
        self,
        lengths: NDArray[np.int64],
        text_bytes: list[int],
        sources: list[str] | None,
    ) -> None:
        import numpy as np

        self.num_batches += 1
        counts = self.counts
        counts.text_bytes += sum(text_bytes)
        counts.tokens += int(lengths.sum())
        self.empty += (np.flatnonzero(lengths == 0) + counts.documents).tolist()
        counts.documents += len(lengths)
        self.lengths.append(lengths[lengths > 0].astype(np.int32))
        if not sources:
            return
        # A file often has only one source. In this case no loop over its documents is needed.
        if sources.count(sources[0]) == len(sources):
            rows = [(sources[0], len(sources), sum(text_bytes), int(lengths.sum()))]
        else:
            rows = list(
                zip(
                    sources,
                    [1] * len(sources),
                    text_bytes,
                    lengths.tolist(),
                    strict=True,
                )
            )

        for source, documents, size, tokens in rows:
            totals = counts.sources.setdefault(
                source, {"documents": 0, "text_bytes": 0, "tokens": 0}
            )
            totals["documents"] += documents
            totals["text_bytes"] += size
            totals["tokens"] += tokens

    def count_dropped(self, source: str) -> None:
        self.counts.dropped += 1
        sources = self.counts.dropped_sources
        sources[source] = sources.get(source, 0) + 1

    def set_aside(self, problem: str, record: dict[str, Any]) -> None:
        if len(self.problems) < MOST_REPORTED_RECORDS:
            self.problems.append(problem)
        self.quarantine.append(json.dumps(record))

    def position(self) -> tuple[int, list[int], ShardCounts]:
        return self.sink.length, list(map(len, self._lists())), copy.deepcopy(self.counts)

    def go_back(self, position: tuple[int, list[int], ShardCounts]) -> None:
        written, sizes, self.counts = position
        self.sink.cut(written)
        for entries, size in zip(self._lists(), sizes, strict=True):
            del entries[size:]

    def _lists(self) -> tuple[list[Any], ...]:
        return self.lengths, self.empty, self.problems, self.quarantine
