"""Proves a .bin/.idx: every entry of the index, every token, the checksums, the counts of the manifest."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from runbook.data.indexed import IndexedReader
from runbook.data.manifest import Manifest, read_manifest
from runbook.data.options import Output
from runbook.errors import DataError
from runbook.plan.checks import Check, judge

AGAIN = "Tokenize again: remove the two files and run the same command."
_BLOCK = 16 << 20
SAMPLED_DOCUMENTS = 2_000_000


def verify(prefix: Path, *, checksums: bool = True) -> list[Check]:
    """Named checks of PREFIX_text_document.bin and .idx, each with its value and rule.

    A broken file is a failed check, never an exception. Reads every byte once; `checksums=False` leaves the content
    of the .bin out, for a look while other work runs.
    """
    output = Output.found(Path(prefix))
    try:
        reader = IndexedReader(output.bin, output.idx)
    except DataError as error:
        return [Check("header", "fail", str(error), "the .idx is Megatron's and agrees with both file sizes", AGAIN)]
    checks = [
        Check(
            "header",
            "pass",
            f"{reader.num_sequences:,} sequences, {reader.num_documents:,} documents, {reader.dtype.name}",
            "the .idx is Megatron's and agrees with both file sizes",
        )
    ]
    checks += _index_checks(reader)
    try:
        manifest = read_manifest(prefix)
    except DataError as error:
        checks.append(Check("manifest", "warn", str(error), "a manifest lies beside the two files", AGAIN))
        return checks
    checks += _count_checks(reader, manifest)
    if checksums:
        checks += _content_checks(reader, manifest, output)
    return checks


def _index_checks(reader: IndexedReader) -> Iterator[Check]:
    """Every length, pointer and document entry, a million at a time."""
    import numpy as np

    smallest, total, at, fault = np.iinfo(np.int32).max, 0, 0, ""
    for part in reader.steps(reader.num_sequences):
        lengths = reader.lengths[part].astype(np.int64)
        smallest = min(smallest, int(lengths.min()))
        expected = at + np.concatenate(([0], np.cumsum(lengths)[:-1])) * reader.dtype.itemsize
        wrong = np.flatnonzero(reader.pointers[part] != expected)
        if len(wrong) and not fault:
            first = int(wrong[0])
            fault = (
                f"sequence {part.start + first} at {int(reader.pointers[part][first])}, expected {int(expected[first])}"
            )
        at += int(lengths.sum()) * reader.dtype.itemsize
        total += int(lengths.sum())
    rule = "each sequence has at least one token"
    value = f"shortest {smallest}" if reader.num_sequences else "no sequence"
    yield judge("lengths", reader.num_sequences > 0 and smallest > 0, value, rule, AGAIN)
    yield judge("offsets", not fault, fault or "each follows the one before", "pointers rise by the lengths", AGAIN)
    value = f"{total:,} in the index, {reader.num_tokens:,} in the .bin"
    yield judge("sizes", total == reader.num_tokens, value, "lengths add up to the size of the .bin", AGAIN)
    entries = reader.document_index
    rises = all(
        bool((np.diff(entries[part.start : part.stop + 1]) >= 0).all()) for part in reader.steps(len(entries) - 1)
    )
    ends = int(entries[0]), int(entries[-1])
    good = rises and ends == (0, reader.num_sequences)
    value = f"{ends[0]} to {ends[1]:,}" + ("" if rises else ", not rising")
    yield judge("document index", good, value, f"rises from 0 to the {reader.num_sequences:,} sequences", AGAIN)


def _count_checks(reader: IndexedReader, manifest: Manifest) -> Iterator[Check]:
    """The index against the manifest, the input against the output."""
    found = reader.num_documents, reader.num_sequences, reader.num_tokens
    said = manifest.documents, manifest.sequences, manifest.tokens
    value = f"{found[0]:,} documents, {found[1]:,} sequences, {found[2]:,} tokens"
    yield judge("counts", found == said, value, f"as in the manifest: {said[0]:,}, {said[1]:,}, {said[2]:,}", AGAIN)
    out = manifest.documents + manifest.skipped_records + manifest.dropped
    value = (
        f"{manifest.records:,} read, {manifest.documents:,} written, {manifest.skipped_records:,} bad, "
        f"{manifest.dropped:,} left out by choice"
    )
    yield judge("nothing lost", manifest.records == out, value, "records read = written + bad + left out", AGAIN)
    left_out = manifest.skipped_records + manifest.skipped_files
    value = f"{manifest.skipped_records:,} records, {manifest.skipped_files:,} files"
    remedy = "See `problems` in the manifest: " + "; ".join(manifest.problems[:2])
    yield judge("bad input", left_out == 0, value, "every record and file could be read", remedy, otherwise="warn")
    spans = [(int(span["offset"]), int(span["bytes"])) for span in manifest.shards]
    joined = all(spans[place][0] + spans[place][1] == after[0] for place, after in enumerate(spans[1:]))
    value = f"{len(spans)} shards"
    yield judge("shards", joined, value, "each begins in the .bin where the one before ends", AGAIN)


def _content_checks(reader: IndexedReader, manifest: Manifest, output: Output) -> Iterator[Check]:
    """Every token, and both checksums, in one pass over the .bin."""
    import numpy as np

    sums = {"bin": hashlib.sha256(), "idx": hashlib.sha256()}
    lowest, highest = 0, 0
    with output.bin.open("rb") as file:
        while chunk := file.read(_BLOCK):
            sums["bin"].update(chunk)
            tokens = np.frombuffer(chunk[: len(chunk) // reader.dtype.itemsize * reader.dtype.itemsize], reader.dtype)
            if len(tokens):
                lowest, highest = min(lowest, int(tokens.min())), max(highest, int(tokens.max()))
    with output.idx.open("rb") as file:
        while chunk := file.read(_BLOCK):
            sums["idx"].update(chunk)
    vocabulary = int(manifest.tokenizer["vocabulary"])
    good = lowest >= 0 and highest < vocabulary
    rule = f"tokens lie between 0 and {vocabulary - 1:,}"
    yield judge("token range", good, f"{lowest} to {highest:,}", rule, AGAIN)
    eod = manifest.tokenizer["end_of_document"]
    if eod is not None:
        yield _eod_check(reader, int(eod))
    yield _duplicates(reader)
    for name, digest in sums.items():
        said = str(manifest.files[name]["sha256"])
        value = digest.hexdigest()
        rule = f"as in the manifest: {said[:16]}..."
        yield judge(f"sha256 of .{name}", value == said, value[:16] + "...", rule, AGAIN)


def _duplicates(reader: IndexedReader) -> Check:
    """How many documents are the same, judged by their length and sixteen of their tokens, in a sample by content.

    Whether a document is in the sample depends on its own tokens, so that copies are in it together.
    """
    import numpy as np

    every = max(1, reader.num_sequences // SAMPLED_DOCUMENTS)
    found = []
    for part in reader.steps(reader.num_sequences):
        lengths = reader.lengths[part].astype(np.int64)
        starts = reader.pointers[part] // reader.dtype.itemsize
        signature = lengths.astype(np.uint64)
        for place in range(16):
            at = np.clip(starts + lengths * place // 16, 0, max(0, reader.num_tokens - 1))
            signature = (signature ^ reader.tokens[at].astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
            signature ^= signature >> np.uint64(29)
        found.append(signature[signature % np.uint64(every) == 0])
    sample = np.concatenate(found) if found else np.empty(0, dtype=np.uint64)
    copies = len(sample) - len(np.unique(sample))
    share = copies / len(sample) if len(sample) else 0.0
    value = f"{copies:,} of {len(sample):,} sampled documents repeat another ({share:.2%})"
    rule = "fewer than 1 in 20 documents repeat another"
    return judge("duplicates", share < 0.05, value, rule, "Remove duplicates before training.", otherwise="warn")


def _eod_check(reader: IndexedReader, eod: int) -> Check:
    """The last token of every sequence, not only of the last."""
    wrong = 0
    for part in reader.steps(reader.num_sequences):
        last = (reader.pointers[part] // reader.dtype.itemsize) + reader.lengths[part] - 1
        inside = last[(last >= 0) & (last < reader.num_tokens)]
        wrong += len(last) - len(inside) + int((reader.tokens[inside] != eod).sum())
    value = f"{reader.num_sequences - wrong:,} of {reader.num_sequences:,}"
    return judge("end of document", wrong == 0, value, f"every document ends with token {eod}", AGAIN)
