"""Megatron's indexed dataset: the .idx written as a stream, both files read by numpy memmap.

A document is one sequence here; an empty document has no sequence and repeats its entry in the
document index. `plan_file.token_index` has the layout.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from runbook.core.errors import DataError
from runbook.plan_file.token_index import (
    DTYPES,
    INDEX_HEADER,
    INDEX_MAGIC,
    INDEX_VERSION,
    index_bytes,
)

IndexPiece = tuple[NDArray[np.int32], NDArray[np.int64]]
"""What one shard brings: lengths of its sequences, and the numbers of its empty documents, rising.
"""
TOKEN_DTYPES = {code: name for code, name in DTYPES.items() if "f" not in name}
_STEP = 1 << 20
_REMEDY = (
    "It is not an .idx of Megatron's, or it was cut: make it again with `runbook data tokenize`."
)


def write_index(
    file: BinaryIO, code: int, pieces: Callable[[], Iterable[IndexPiece]]
) -> tuple[int, int]:
    """Write an .idx from pieces that are asked for again for each part; sequences and documents.

    Only one piece is in memory at a time.
    """
    sizes = np.array(
        [(len(lengths), len(lengths) + len(empty)) for lengths, empty in pieces()]
    ).sum(axis=0)
    sequences, documents = map(int, sizes)
    file.write(
        INDEX_HEADER.pack(
            INDEX_MAGIC,
            INDEX_VERSION,
            code,
            sequences,
            documents + 1,
        )
    )
    for lengths, _ in pieces():
        file.write(lengths.astype("<i4").tobytes())
    position = 0
    for lengths, _ in pieces():
        sizes = lengths.astype(np.int64) * np.dtype(DTYPES[code]).itemsize
        file.write((np.cumsum(sizes) - sizes + position).astype("<i8").tobytes())
        position += int(sizes.sum())

    file.write(bytes(8))
    before = 0
    for lengths, empty in pieces():
        has_text = np.ones(len(lengths) + len(empty), dtype=np.int64)
        has_text[empty] = 0
        file.write((np.cumsum(has_text) + before).astype("<i8").tobytes())
        before += len(lengths)

    return sequences, documents


class IndexedReader:
    """Reads PREFIX.bin and PREFIX.idx without loading them.

    Any garbage is a DataError, never a huge allocation.

    Opening compares the header with the two file sizes; `verification.verify` looks at every entry.
    """

    def __init__(self, bin_path: Path, idx_path: Path) -> None:
        self.bin_path = bin_path
        self.idx_path = idx_path
        code, self.num_sequences, entries = read_header(idx_path)
        self.num_documents = entries - 1
        self.dtype = np.dtype(TOKEN_DTYPES[code])
        pointers_at = INDEX_HEADER.size + 4 * self.num_sequences
        self.lengths: NDArray[np.int32] = _map(
            idx_path, "<i4", INDEX_HEADER.size, self.num_sequences
        )
        self.pointers: NDArray[np.int64] = _map(idx_path, "<i8", pointers_at, self.num_sequences)
        entries_at = pointers_at + 8 * self.num_sequences
        self.document_index: NDArray[np.int64] = _map(idx_path, "<i8", entries_at, entries)
        bin_bytes = _size(bin_path)
        if bin_bytes % self.dtype.itemsize:
            raise DataError(
                f"{bin_path} has {bin_bytes} bytes, which is no multiple of the "
                f"{self.dtype.itemsize} bytes of a token that {idx_path.name} names. The two do "
                "not belong together, or one was cut: make them again."
            )

        self.num_tokens = bin_bytes // self.dtype.itemsize
        self.tokens: NDArray[Any] = _map(bin_path, self.dtype.str, 0, self.num_tokens)

    def sequence(self, number: int) -> NDArray[Any]:
        """The tokens of a sequence, as a view into the file."""
        if not 0 <= number < self.num_sequences:
            raise DataError(
                f"{self.idx_path} has sequences 0 to {self.num_sequences - 1}; {number} was asked "
                "for"
            )

        start = int(self.pointers[number]) // self.dtype.itemsize
        length = int(self.lengths[number])
        if int(self.pointers[number]) < 0 or length < 0 or start + length > self.num_tokens:
            raise DataError(
                f"sequence {number} of {self.idx_path} points at tokens {start} to "
                f"{start + length}, but {self.bin_path.name} has {self.num_tokens}: the index is "
                "broken, make both files again"
            )

        return self.tokens[start : start + length]

    def document(self, number: int) -> NDArray[Any]:
        """The tokens of a document (all its sequences); empty for an empty document."""
        if not 0 <= number < self.num_documents:
            raise DataError(
                f"{self.idx_path} has documents 0 to {self.num_documents - 1}; {number} was asked "
                "for"
            )

        first = int(self.document_index[number])
        last = int(self.document_index[number + 1])
        sequences = [self.sequence(sequence) for sequence in range(first, last)]
        return np.concatenate(sequences) if sequences else self.tokens[:0]

    def steps(self, count: int) -> Iterator[slice]:
        """Yield slices of a million entries that cover `count`.

        Checks of one slice at a time need little memory.
        """
        for start in range(0, count, _STEP):
            yield slice(start, min(start + _STEP, count))


def read_header(path: Path) -> tuple[int, int, int]:
    """Dtype code, sequences and entries of the document index."""
    size = _size(path)
    with path.open("rb") as file:
        head = file.read(INDEX_HEADER.size)
    if len(head) < INDEX_HEADER.size:
        raise DataError(
            f"{path} has {size} bytes; the header alone has {INDEX_HEADER.size}. {_REMEDY}"
        )

    magic, version, code, sequences, entries = INDEX_HEADER.unpack(head)
    if magic != INDEX_MAGIC:
        raise DataError(f"{path} begins with {magic!r} and not with {INDEX_MAGIC!r}. {_REMEDY}")
    if version != INDEX_VERSION:
        raise DataError(
            f"{path} says version {version}; only version {INDEX_VERSION} is known. {_REMEDY}"
        )

    if code not in TOKEN_DTYPES:
        raise DataError(f"{path} names token type {code}; known: {sorted(TOKEN_DTYPES)}. {_REMEDY}")
    promised = index_bytes(sequences, entries)
    if promised != size or entries < 1:
        raise DataError(
            f"{path} has {size} bytes, but its header promises {sequences} sequences and {entries} "
            "document entries, "
            f"which take {promised}. {_REMEDY}"
        )

    return code, sequences, entries


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            reason = "is missing"
        else:
            reason = f"cannot be read ({error.strerror})"

        raise DataError(
            f"{path} {reason}; make it with `runbook data tokenize INPUT --out PREFIX`"
        ) from None


def _map(
    path: Path,
    dtype: str,
    offset: int,
    count: int,
) -> NDArray[Any]:
    # An empty region cannot be mapped
    if count == 0:
        return np.empty(0, dtype=dtype)
    try:
        return np.memmap(
            path,
            dtype=dtype,
            mode="r",
            offset=offset,
            shape=(count,),
        )
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be mapped into memory: {error}") from None
