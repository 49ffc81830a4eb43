"""Verifies token files (index, checksums and counts), and decodes documents."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from pathlib import Path

import numpy as np

from runbook.core.checks import Check, counted, judge
from runbook.core.errors import DataError
from runbook.core.files import sha256_of
from runbook.tokens.indexed_files import IndexedReader
from runbook.tokens.messages import TokenMessage
from runbook.tokens.pipeline.tokenize_options import Manifest, TokenFiles, read_manifest
from runbook.tokens.tokenizer import load_tokenizer


class TokenCheck(StrEnum):
    """Names for the token-file checks, as stored in records."""

    HEADER = "header"
    LENGTHS = "lengths"
    OFFSETS = "offsets"
    SIZES = "sizes"
    DOCUMENT_INDEX = "document index"
    MANIFEST = "manifest"
    COUNTS = "counts"
    NOTHING_LOST = "nothing lost"
    BAD_INPUT = "bad input"
    SHARDS = "shards"
    TOKEN_RANGE = "token range"
    END_OF_DOCUMENT = "end of document"
    DUPLICATES = "duplicates"
    BIN_CHECKSUM = "sha256 of .bin"
    IDX_CHECKSUM = "sha256 of .idx"


AGAIN = "Tokenize again: remove the two files and run the same command."
ONE_SHORT = (
    "The index counts one token too few for each document, as written by preprocess_data.py "
    "--append-eod of Megatron-DeepSpeed (Microsoft's, LUMI's and ALCF's): it omits the "
    "end-of-document token. A training run would read text that drifts further and further from "
    "its documents, and would never reach the last tokens. The .bin is correct, but the .idx is "
    "not; see docs/errors-in-the-documents.md, 32. " + AGAIN
)
"""The remedy if the index has one token too few for each document."""
_BLOCK = 16 << 20
SAMPLED_DOCUMENTS = 2_000_000


def verify(prefix: Path, *, checksums: bool = True) -> list[Check]:
    """Check PREFIX_text_document.bin and .idx, and return the checks with their values and rules.

    A broken file results in a failed check, never in an exception. Every byte is read once. With
    `checksums=False`, the .bin is not read, so that the check is quick.
    """
    files = TokenFiles.existing(Path(prefix))
    rule = "the .idx is in Megatron's format and agrees with both file sizes"
    try:
        reader = IndexedReader(files.bin, files.idx)
    except DataError as error:
        return [
            Check(
                TokenCheck.HEADER,
                "fail",
                str(error),
                rule,
                AGAIN,
            )
        ]

    value = (
        f"{reader.num_sequences:,} sequences, {reader.num_documents:,} documents, "
        f"{reader.dtype.name}"
    )
    checks = [Check(TokenCheck.HEADER, "pass", value, rule)]
    checks += _index_checks(reader)
    try:
        manifest = read_manifest(prefix)
    except DataError as error:
        checks.append(
            Check(
                TokenCheck.MANIFEST,
                "warn",
                str(error),
                "a manifest is next to the two files",
                AGAIN,
            )
        )
        return checks

    checks += _count_checks(reader, manifest)
    if checksums:
        checks += _content_checks(reader, manifest, files)
    return checks


def _index_checks(reader: IndexedReader) -> Iterator[Check]:
    smallest = np.iinfo(np.int32).max
    total = 0
    fault = ""
    size = reader.dtype.itemsize
    for part in reader.steps(reader.num_sequences):
        lengths = reader.lengths[part].astype(np.int64)
        smallest = min(smallest, int(lengths.min()))
        expected = (total + np.cumsum(lengths) - lengths) * size
        wrong = np.flatnonzero(reader.pointers[part] != expected)
        if len(wrong) and not fault:
            first = int(wrong[0])
            fault = (
                f"sequence {part.start + first} at {reader.pointers[part][first]}, expected "
                f"{expected[first]}"
            )

        total += int(lengths.sum())

    rule = "each sequence contains at least one token"
    if reader.num_sequences:
        value = f"shortest {smallest}"
    else:
        value = "no sequence"

    yield judge(
        TokenCheck.LENGTHS,
        reader.num_sequences > 0 and smallest > 0,
        value,
        rule,
        AGAIN,
    )
    yield judge(
        TokenCheck.OFFSETS,
        not fault,
        fault or "each follows the previous one",
        "pointers rise by the lengths",
        AGAIN,
    )
    value = f"{total:,} in the index, {reader.num_tokens:,} in the .bin"
    # A document without text has an entry but no sequence. A document split into sentences
    # has several sequences.
    missing = reader.num_tokens - total
    is_one_short = missing > 0 and missing in (reader.num_sequences, reader.num_documents)
    remedy = ONE_SHORT if is_one_short else AGAIN
    yield judge(
        TokenCheck.SIZES,
        total == reader.num_tokens,
        value,
        "lengths add up to the size of the .bin",
        remedy,
    )
    entries = reader.document_index
    rises = all(
        bool((np.diff(entries[part.start : part.stop + 1]) >= 0).all())
        for part in reader.steps(len(entries) - 1)
    )
    ends = int(entries[0]), int(entries[-1])
    good = rises and ends == (0, reader.num_sequences)
    value = f"{ends[0]} to {ends[1]:,}"
    if not rises:
        value += ", not rising"
    yield judge(
        TokenCheck.DOCUMENT_INDEX,
        good,
        value,
        f"rises from 0 to the {reader.num_sequences:,} sequences",
        AGAIN,
    )


def _count_checks(reader: IndexedReader, manifest: Manifest) -> Iterator[Check]:
    """Compare the index with the manifest, and the output with the input."""
    in_index = (
        f"{reader.num_documents:,} documents, {reader.num_sequences:,} sequences, "
        f"{reader.num_tokens:,} tokens"
    )
    promised = (
        f"{manifest.documents:,} documents, {manifest.sequences:,} sequences, {manifest.tokens:,} "
        "tokens"
    )
    yield judge(
        TokenCheck.COUNTS,
        in_index == promised,
        in_index,
        f"as in the manifest: {promised}",
        AGAIN,
    )
    out = manifest.documents + manifest.skipped_records + manifest.dropped
    value = (
        f"{manifest.records:,} read, {manifest.documents:,} written, "
        f"{manifest.skipped_records:,} bad, {manifest.dropped:,} left out by choice"
    )
    yield judge(
        TokenCheck.NOTHING_LOST,
        manifest.records == out,
        value,
        "records read = written + bad + left out",
        AGAIN,
    )
    left_out = manifest.skipped_records + manifest.skipped_files
    skipped_records = counted(manifest.skipped_records, "record")
    skipped_files = counted(manifest.skipped_files, "file")
    value = f"{skipped_records}, {skipped_files}"
    remedy = "See `problems` in the manifest: " + "; ".join(manifest.problems[:2])
    yield judge(
        TokenCheck.BAD_INPUT,
        left_out == 0,
        value,
        "every record and file could be read",
        remedy,
        otherwise="warn",
    )
    joined = all(
        before["offset"] + before["bytes"] == after["offset"]
        for before, after in pairwise(manifest.shards)
    )
    value = f"{len(manifest.shards)} shards"
    yield judge(
        TokenCheck.SHARDS,
        joined,
        value,
        "each begins in the .bin where the previous one ends",
        AGAIN,
    )


def _content_checks(
    reader: IndexedReader, manifest: Manifest, files: TokenFiles
) -> Iterator[Check]:
    """Check every token, and both checksums, in one pass over the .bin."""
    bin_sum = hashlib.sha256()
    lowest = 0
    highest = 0
    with files.bin.open("rb") as file:
        while chunk := file.read(_BLOCK):
            bin_sum.update(chunk)
            tokens = np.frombuffer(chunk, reader.dtype, count=len(chunk) // reader.dtype.itemsize)
            if len(tokens):
                lowest = min(lowest, int(tokens.min()))
                highest = max(highest, int(tokens.max()))

    vocabulary = int(manifest.tokenizer["vocabulary"])
    is_inside = lowest >= 0 and highest < vocabulary
    rule = f"tokens are between 0 and {vocabulary - 1:,}"
    yield judge(
        TokenCheck.TOKEN_RANGE,
        is_inside,
        TokenMessage.TOKEN_RANGE.fill(lowest=lowest, highest=highest),
        rule,
        AGAIN,
    )
    eod = manifest.tokenizer["end_of_document"]
    if eod is not None:
        yield _eod_check(reader, int(eod))
    yield _duplicates(reader)
    sums = (
        ("bin", TokenCheck.BIN_CHECKSUM, bin_sum.hexdigest()),
        ("idx", TokenCheck.IDX_CHECKSUM, sha256_of(files.idx)),
    )
    for name, code, sha256 in sums:
        promised = str(manifest.files[name]["sha256"])
        rule = f"as in the manifest: {promised[:16]}..."
        yield judge(
            code,
            sha256 == promised,
            sha256[:16] + "...",
            rule,
            AGAIN,
        )


def _duplicates(reader: IndexedReader) -> Check:
    """Count the duplicate documents in a sample, and return the check.

    Two documents in a sample count as duplicates if they have equal lengths and sixteen equal
    tokens.

    Whether a document is in the sample depends only on its tokens, so all copies of a document are
    sampled together.
    """
    interval = max(1, reader.num_sequences // SAMPLED_DOCUMENTS)
    signatures = []
    for part in reader.steps(reader.num_sequences):
        lengths = reader.lengths[part].astype(np.int64)
        starts = reader.pointers[part] // reader.dtype.itemsize
        signature = lengths.astype(np.uint64)
        for sixteenth in range(16):
            at = np.clip(starts + lengths * sixteenth // 16, 0, max(0, reader.num_tokens - 1))
            signature = (signature ^ reader.tokens[at].astype(np.uint64)) * np.uint64(
                0x9E3779B97F4A7C15
            )
            signature ^= signature >> np.uint64(29)

        signatures.append(signature[signature % np.uint64(interval) == 0])

    if signatures:
        sample = np.concatenate(signatures)
    else:
        sample = np.empty(0, dtype=np.uint64)

    copies = len(sample) - len(np.unique(sample))
    share = copies / len(sample) if len(sample) else 0.0
    value = TokenMessage.SAMPLED_REPEATS.fill(copies=copies, sampled=len(sample), share=share)
    rule = "fewer than 1 in 20 documents repeat another"
    return judge(
        TokenCheck.DUPLICATES,
        share < 0.05,
        value,
        rule,
        "Remove duplicates before training.",
        otherwise="warn",
    )


def _eod_check(reader: IndexedReader, eod: int) -> Check:
    wrong = 0
    for part in reader.steps(reader.num_sequences):
        last = (reader.pointers[part] // reader.dtype.itemsize) + reader.lengths[part] - 1
        inside = last[(last >= 0) & (last < reader.num_tokens)]
        wrong += len(last) - len(inside) + int((reader.tokens[inside] != eod).sum())

    value = TokenMessage.DOCUMENTS_END.fill(
        ended=reader.num_sequences - wrong, documents=reader.num_sequences
    )
    return judge(
        TokenCheck.END_OF_DOCUMENT,
        wrong == 0,
        value,
        f"every document ends with token {eod}",
        AGAIN,
    )


@dataclass(frozen=True)
class DecodedDocument:
    """A decoded document from the output."""

    number: int
    # Total number of tokens; only the first tokens are shown
    tokens: int
    ids: list[int]
    pieces: list[str]  # The text for each shown id


def sample_documents(
    prefix: Path,
    count: int = 3,
    *,
    max_tokens: int = 200,
    numbers: list[int] | None = None,
) -> list[DecodedDocument]:
    """Return documents from the output, each cut after `max_tokens` tokens.

    Without `numbers`, the documents are spread evenly over the output.
    """
    files = TokenFiles.existing(Path(prefix))
    reader = IndexedReader(files.bin, files.idx)
    tokenizer = load_tokenizer(str(read_manifest(prefix).tokenizer["name"]))
    if numbers is None:
        count = min(count, reader.num_documents)
        numbers = [index * reader.num_documents // count for index in range(count)]

    if not numbers:
        raise DataError(TokenMessage.NO_DOCUMENTS, idx=files.idx)
    documents = []
    for number in numbers:
        tokens = reader.document(number)
        ids = tokens[:max_tokens].tolist()
        documents.append(DecodedDocument(number, len(tokens), ids, tokenizer.pieces(ids)))

    return documents
