"""Megatron's indexed dataset: the .idx layout, written as a stream and read by numpy memmap.

    MMIDIDX 0 0 | version 1 <Q | dtype code <B | sequences <Q | documents + 1 <Q
    lengths int32[sequences] | byte pointers int64[sequences] | document index int64[documents + 1]

A document is one sequence here; an empty document has no sequence and repeats its entry in the document index.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from runbook.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
HEADER = struct.Struct("<9sQBQQ")
DTYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f8", 7: "<f4", 8: "<u2"}
TOKEN_DTYPES = {code: name for code, name in DTYPES.items() if "f" not in name}
UINT16, INT32 = 8, 4
_STEP = 1 << 20


def dtype_code(vocabulary: int) -> int:
    """Megatron's choice: two bytes a token below 65,500 tokens, four from there on.

    >>> dtype_code(50257), dtype_code(65499), dtype_code(65500)
    (8, 8, 4)
    """
    return UINT16 if vocabulary < 65500 else INT32


class Piece:
    """The part of an index that one shard brings: sequence lengths, and which of its documents are empty."""

    def __init__(self, lengths: NDArray[np.int32], empty: NDArray[np.int64]) -> None:
        self.lengths = lengths
        self.empty = empty
        """Numbers of the empty documents among the shard's documents, rising."""

    @property
    def documents(self) -> int:
        """Documents with and without text."""
        return len(self.lengths) + len(self.empty)

    def document_ends(self) -> NDArray[np.int64]:
        """For each document, how many of the shard's sequences lie before its end."""
        import numpy as np

        has_text = np.ones(self.documents, dtype=np.int64)
        has_text[self.empty] = 0
        return np.cumsum(has_text)


def write_index(file: BinaryIO, code: int, pieces: Callable[[], Iterable[Piece]]) -> tuple[int, int]:
    """Write an .idx from pieces that are asked for three times in the same order; sequences and documents.

    Only one piece is in memory at a time.
    """
    import numpy as np

    sequences = documents = 0
    for piece in pieces():
        sequences += len(piece.lengths)
        documents += piece.documents
    file.write(HEADER.pack(MAGIC, VERSION, code, sequences, documents + 1))
    for piece in pieces():
        file.write(piece.lengths.astype("<i4").tobytes())
    token_bytes = np.dtype(DTYPES[code]).itemsize
    position = 0
    for piece in pieces():
        ends = np.cumsum(piece.lengths, dtype=np.int64) * token_bytes + position
        starts = ends - piece.lengths.astype(np.int64) * token_bytes
        file.write(starts.astype("<i8").tobytes())
        position = int(ends[-1]) if len(ends) else position
    file.write(struct.pack("<q", 0))
    before = 0
    for piece in pieces():
        file.write((piece.document_ends() + before).astype("<i8").tobytes())
        before += len(piece.lengths)
    return sequences, documents


class IndexedReader:
    """Reads PREFIX.bin and PREFIX.idx without loading them; any garbage is a DataError, never a huge allocation.

    Opening compares the header with the two file sizes; `faults` looks at every entry.
    """

    def __init__(self, bin_path: Path, idx_path: Path) -> None:
        import numpy as np

        self.bin_path, self.idx_path = bin_path, idx_path
        self.code, self.num_sequences, entries = _read_header(idx_path)
        self.num_documents = entries - 1
        self.dtype = np.dtype(TOKEN_DTYPES[self.code])
        at = HEADER.size
        self.lengths: NDArray[np.int32] = _map(idx_path, "<i4", at, self.num_sequences)
        at += 4 * self.num_sequences
        self.pointers: NDArray[np.int64] = _map(idx_path, "<i8", at, self.num_sequences)
        at += 8 * self.num_sequences
        self.document_index: NDArray[np.int64] = _map(idx_path, "<i8", at, entries)
        self.bin_bytes = _size(bin_path)
        if self.bin_bytes % self.dtype.itemsize:
            raise DataError(
                f"{bin_path} has {self.bin_bytes} bytes, which is no multiple of the {self.dtype.itemsize} bytes of a "
                f"token that {idx_path.name} names. The two do not belong together, or one was cut: make them again."
            )
        self.num_tokens = self.bin_bytes // self.dtype.itemsize
        self.tokens: NDArray[Any] = _map(bin_path, self.dtype.str, 0, self.num_tokens)

    def sequence(self, number: int) -> NDArray[Any]:
        """The tokens of a sequence, as a view into the file."""
        if not 0 <= number < self.num_sequences:
            raise DataError(f"{self.idx_path} has sequences 0 to {self.num_sequences - 1}; {number} was asked for")
        start, length = int(self.pointers[number]) // self.dtype.itemsize, int(self.lengths[number])
        if int(self.pointers[number]) < 0 or length < 0 or start + length > self.num_tokens:
            raise DataError(
                f"sequence {number} of {self.idx_path} points at tokens {start} to {start + length}, but "
                f"{self.bin_path.name} has {self.num_tokens}: the index is broken, make both files again"
            )
        return self.tokens[start : start + length]

    def document(self, number: int) -> NDArray[Any]:
        """The tokens of a document (all its sequences); empty for an empty document."""
        import numpy as np

        if not 0 <= number < self.num_documents:
            raise DataError(f"{self.idx_path} has documents 0 to {self.num_documents - 1}; {number} was asked for")
        first, last = int(self.document_index[number]), int(self.document_index[number + 1])
        sequences = [self.sequence(each) for each in range(first, last)]
        return np.concatenate(sequences) if sequences else self.tokens[:0]

    def steps(self, count: int) -> Iterator[slice]:
        """Slices that cover `count` entries a million at a time, so that checks need little memory."""
        for start in range(0, count, _STEP):
            yield slice(start, min(start + _STEP, count))


def _read_header(path: Path) -> tuple[int, int, int]:
    size = _size(path)
    with path.open("rb") as file:
        head = file.read(HEADER.size)
    remedy = "It is not an .idx of Megatron's, or it was cut: make it again with `runbook data tokenize`."
    if len(head) < HEADER.size:
        raise DataError(f"{path} has {size} bytes; the header alone has {HEADER.size}. {remedy}")
    magic, version, code, sequences, entries = HEADER.unpack(head)
    if magic != MAGIC:
        raise DataError(f"{path} begins with {magic!r} and not with {MAGIC!r}. {remedy}")
    if version != VERSION:
        raise DataError(f"{path} says version {version}; only version {VERSION} is known. {remedy}")
    if code not in TOKEN_DTYPES:
        raise DataError(f"{path} names token type {code}; known: {sorted(TOKEN_DTYPES)}. {remedy}")
    promised = HEADER.size + 12 * sequences + 8 * entries
    if promised != size or entries < 1:
        raise DataError(
            f"{path} has {size} bytes, but its header promises {sequences} sequences and {entries} document entries, "
            f"which take {promised}. {remedy}"
        )
    return code, sequences, entries


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        reason = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
        raise DataError(f"{path} {reason}; make it with `runbook data tokenize INPUT --out PREFIX`") from None


def _map(path: Path, dtype: str, offset: int, count: int) -> NDArray[Any]:
    import numpy as np

    if count == 0:  # an empty region cannot be mapped
        return np.empty(0, dtype=dtype)
    try:
        return np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=(count,))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be mapped into memory: {error}") from None
