"""Reads and writes Megatron's indexed dataset: streams the .idx, and reads both files by memmap.

In files written here, each document is one sequence. An empty document has no sequence and repeats
the previous entry of the document index. `plan_file.token_index` describes the layout.
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
from runbook.tokens.messages import TokenMessage

IndexPiece = tuple[NDArray[np.int32], NDArray[np.int64]]
"""Index entries for a shard: sequence lengths, and the empty documents as ascending numbers."""
TOKEN_DTYPES = {code: name for code, name in DTYPES.items() if "f" not in name}
_STEP = 1 << 20
_REMEDY = (
    "It is not one of Megatron's .idx files, or it was truncated: create it again with `runbook "
    "data tokenize`."
)


def write_index(
    file: BinaryIO, code: int, pieces: Callable[[], Iterable[IndexPiece]]
) -> tuple[int, int]:
    """Write an .idx from pieces, and return how many sequences and documents it has.

    The pieces are read again for each section in the index, so that only one piece is in memory at
    a time.
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
    """Reads PREFIX.bin and PREFIX.idx without loading them into memory.

    If a file contains garbage, this raises `DataError` and does not allocate a huge array.

    When the files are opened, the header is compared with the sizes of both files.
    `verification.verify` checks every entry.
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
                TokenMessage.BIN_DOES_NOT_BELONG,
                bin_path=bin_path,
                bin_bytes=bin_bytes,
                itemsize=self.dtype.itemsize,
                idx_path_name=idx_path.name,
            )

        self.num_tokens = bin_bytes // self.dtype.itemsize
        self.tokens: NDArray[Any] = _map(bin_path, self.dtype.str, 0, self.num_tokens)

    def sequence(self, number: int) -> NDArray[Any]:
        """Return the tokens in a sequence, as a view into the file."""
        if not 0 <= number < self.num_sequences:
            raise DataError(
                TokenMessage.NO_SUCH_SEQUENCE,
                idx_path=self.idx_path,
                num_sequences=self.num_sequences - 1,
                number=number,
            )

        start = int(self.pointers[number]) // self.dtype.itemsize
        length = int(self.lengths[number])
        if int(self.pointers[number]) < 0 or length < 0 or start + length > self.num_tokens:
            raise DataError(
                TokenMessage.SEQUENCE_OUTSIDE_BIN,
                number=number,
                idx_path=self.idx_path,
                start=start,
                end=start + length,
                bin_path_name=self.bin_path.name,
                num_tokens=self.num_tokens,
            )

        return self.tokens[start : start + length]

    def document(self, number: int) -> NDArray[Any]:
        """Return the tokens in a document, over all its sequences.

        The result is empty for an empty document.
        """
        if not 0 <= number < self.num_documents:
            raise DataError(
                TokenMessage.NO_SUCH_DOCUMENT,
                idx_path=self.idx_path,
                num_documents=self.num_documents - 1,
                number=number,
            )

        first = int(self.document_index[number])
        last = int(self.document_index[number + 1])
        sequences = [self.sequence(sequence) for sequence in range(first, last)]
        return np.concatenate(sequences) if sequences else self.tokens[:0]

    def steps(self, count: int) -> Iterator[slice]:
        """Yield slices of a million entries that cover `count` entries in total.

        Checking an index slice by slice needs little memory.
        """
        for start in range(0, count, _STEP):
            yield slice(start, min(start + _STEP, count))


def read_header(path: Path) -> tuple[int, int, int]:
    """Read the dtype code and the counts of sequences and document-index entries from a header."""
    size = _size(path)
    with path.open("rb") as file:
        head = file.read(INDEX_HEADER.size)
    if len(head) < INDEX_HEADER.size:
        raise DataError(
            TokenMessage.INDEX_TOO_SHORT,
            path=path,
            size=size,
            header_size=INDEX_HEADER.size,
            remedy=_REMEDY,
        )

    magic, version, code, sequences, entries = INDEX_HEADER.unpack(head)
    if magic != INDEX_MAGIC:
        raise DataError(
            TokenMessage.NOT_AN_INDEX,
            path=path,
            magic=magic,
            index_magic=INDEX_MAGIC,
            remedy=_REMEDY,
        )
    if version != INDEX_VERSION:
        raise DataError(
            TokenMessage.INDEX_VERSION,
            path=path,
            version=version,
            index_version=INDEX_VERSION,
            remedy=_REMEDY,
        )

    if code not in TOKEN_DTYPES:
        raise DataError(
            TokenMessage.TOKEN_TYPE,
            path=path,
            code=code,
            token_dtypes=sorted(TOKEN_DTYPES),
            remedy=_REMEDY,
        )
    promised = index_bytes(sequences, entries)
    if promised != size or entries < 1:
        raise DataError(
            TokenMessage.INDEX_SIZE,
            path=path,
            size=size,
            sequences=sequences,
            entries=entries,
            promised=promised,
            remedy=_REMEDY,
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

        raise DataError(TokenMessage.TOKEN_FILE_UNUSABLE, path=path, reason=reason) from None


def _map(
    path: Path,
    dtype: str,
    offset: int,
    count: int,
) -> NDArray[Any]:
    # An empty region cannot be memory-mapped
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
        raise DataError(TokenMessage.NOT_MAPPED, path=path, error=error) from None
