"""Checks token files (.bin/.idx) before the first step."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy

from runbook.plan_file.errors import RefusedError
from runbook.plan_file.schema import PhasePlan
from runbook.plan_file.token_index import (
    DTYPES,
    INDEX_HEADER,
    INDEX_MAGIC,
    INDEX_VERSION,
    INT32,
    UINT16,
    index_bytes,
)
from runbook.training.messages import TrainingMessage

SCANNED_BYTES = 2**30
"""How many bytes in a .bin file are scanned for ids outside the vocabulary.

In longer files, the scanned blocks are spread over the whole length. The training loop also checks
every batch it reads.
"""


@dataclass(frozen=True)
class TokenFile:
    """A pair of .bin and .idx files with consistent sizes."""

    prefix: Path
    dtype: numpy.dtype[Any]
    lengths: numpy.ndarray[tuple[int], numpy.dtype[numpy.int32]]

    @property
    def tokens(self) -> int:
        """Return the number of tokens in the whole file."""
        return int(self.lengths.sum(dtype=numpy.int64))


def check_token_files(spec: PhasePlan) -> dict[str, int]:
    """Return the number of tokens in each file.

    Raise `RefusedError` if a file is missing, damaged or too short, or has the wrong type or
    vocabulary.
    """
    if spec.data.mock:
        return {}
    if not spec.data.train:
        raise RefusedError(TrainingMessage.NO_TRAINING_FILE)

    _check_sources(spec)
    held_out = spec.data.held_out
    train = 1.0
    validation = 0.0
    if not held_out:
        train, validation, _ = _shares(spec.data.split)
    num_files = len(spec.data.train) + len(spec.data.validation)
    scanned = max(2**26, SCANNED_BYTES // num_files)
    evaluates = spec.evaluation.interval > 0 and spec.evaluation.iterations > 0
    tokens = {}
    for source in spec.data.train:
        file = _checked(spec, source.prefix, scanned)
        tokens[source.prefix] = file.tokens
        _check_share(file, (0.0, train), spec, "training")
        if evaluates and not held_out:
            _check_share(file, (train, train + validation), spec, "validation")

    if evaluates and held_out and not spec.data.validation:
        raise RefusedError(TrainingMessage.NO_VALIDATION_FILE)

    if not evaluates:
        return tokens
    for source in spec.data.validation:
        file = _checked(spec, source.prefix, scanned)
        tokens[source.prefix] = file.tokens
        _check_share(file, (0.0, 1.0), spec, "validation")

    return tokens


def _check_sources(spec: PhasePlan) -> None:
    """Check that weights are numbers above 0, and that no file is listed twice for the same use."""
    problems: list[str] = []
    uses = {"train": spec.data.train, "validation": spec.data.validation, "test": spec.data.test}
    for use, sources in uses.items():
        files_of: dict[str, str] = {}
        for index, source in enumerate(sources):
            where = f"data.{use}[{index}]"
            if not (math.isfinite(source.weight) and source.weight > 0):
                problems.append(
                    TrainingMessage.WEIGHT_NOT_POSITIVE.fill(
                        use=use, index=index, prefix=source.prefix, weight=source.weight
                    )
                )

            earlier = files_of.setdefault(str(spec.path(source.prefix)), where)
            if earlier != where:
                problems.append(
                    TrainingMessage.SAME_FILE_IN_BLEND.fill(
                        use=use, index=index, prefix=source.prefix, earlier=earlier
                    )
                )

    if problems:
        raise RefusedError(TrainingMessage.BLEND_NOT_USABLE, problems="\n  ".join(problems))


def _checked(spec: PhasePlan, prefix: str, scanned: int) -> TokenFile:
    shape = spec.model.shape
    file = open_pair(spec.path(prefix))
    outside, position = highest_token(file, scanned)
    if not 0 <= outside < shape.vocabulary:
        raise RefusedError(
            TrainingMessage.TOKEN_OUTSIDE_VOCABULARY,
            prefix=file.prefix,
            token=outside,
            vocabulary=spec.model.shape.vocabulary,
            highest=spec.model.shape.vocabulary - 1,
            position=position,
            tokens=file.tokens,
        )

    return file


def open_pair(prefix: Path) -> TokenFile:
    """Open a .bin and .idx pair.

    The index must be complete, and the .bin must have the size the index states.
    """
    index = Path(f"{prefix}.idx")
    binary = Path(f"{prefix}.bin")
    for path in (index, binary):
        if not path.is_file():
            raise RefusedError(TrainingMessage.TOKEN_FILE_MISSING, path=path)

    with index.open("rb") as stream:
        content = stream.read(INDEX_HEADER.size)
    if len(content) < INDEX_HEADER.size:
        raise RefusedError(
            TrainingMessage.INDEX_TOO_SHORT,
            index=index,
            bytes_there=len(content),
            size=INDEX_HEADER.size,
        )

    magic, version, code, sequences, documents = INDEX_HEADER.unpack(content)
    if magic != INDEX_MAGIC or version != INDEX_VERSION:
        raise RefusedError(TrainingMessage.NOT_AN_INDEX, index=index, magic=magic, version=version)

    if code not in (UINT16, INT32):
        if code in DTYPES:
            name = numpy.dtype(DTYPES[code]).name
        else:
            name = f"type {code}"

        raise RefusedError(TrainingMessage.TOKENS_OF_ANOTHER_TYPE, index=index, name=name)

    expected = index_bytes(sequences, documents)
    if index.stat().st_size != expected:
        raise RefusedError(
            TrainingMessage.INDEX_CUT_SHORT,
            index=index,
            bytes_there=index.stat().st_size,
            sequences=sequences,
            documents=documents - 1,
            expected=expected,
        )

    lengths: numpy.ndarray[tuple[int], numpy.dtype[Any]]
    if sequences:
        lengths = numpy.memmap(
            index,
            "<i4",
            "r",
            INDEX_HEADER.size,
            (sequences,),
        )
    else:
        lengths = numpy.zeros(0, "<i4")

    file = TokenFile(prefix, numpy.dtype(DTYPES[code]), lengths)
    if binary.stat().st_size != file.tokens * file.dtype.itemsize:
        raise RefusedError(
            TrainingMessage.BIN_SIZE,
            binary=binary,
            bytes_there=binary.stat().st_size,
            tokens=file.tokens,
            itemsize=file.dtype.itemsize,
            bytes_expected=file.tokens * file.dtype.itemsize,
        )

    _check_index(index, file, documents)
    return file


def _check_index(
    index: Path,
    file: TokenFile,
    documents: int,
    block: int = 2**22,
) -> None:
    """Check that sequences follow one another without gaps, and that documents cover them.

    Megatron-core relies on both properties.
    """
    sequences = len(file.lengths)
    begins = numpy.memmap(
        index,
        "<i8",
        "r",
        INDEX_HEADER.size + sequences * 4,
        (sequences + documents,),
    )
    begin = 0
    for start in range(0, sequences, block):
        lengths = file.lengths[start : start + block].astype(numpy.int64)
        ends = begin + numpy.cumsum(lengths) * file.dtype.itemsize
        right = numpy.concatenate([[begin], ends[:-1]])
        wrong = numpy.flatnonzero(
            (lengths < 0) | (begins[start : min(start + block, sequences)] != right)
        )
        if len(wrong):
            at = int(wrong[0])
            raise RefusedError(
                TrainingMessage.SEQUENCE_PLACE,
                index=index,
                sequence=start + at,
                tokens=lengths[at],
                byte=begins[start + at],
                right_byte=right[at],
            )

        begin = int(ends[-1])

    bounds = begins[sequences:]
    if (
        not documents
        or bounds[0] != 0
        or bounds[-1] != sequences
        or bool((bounds[1:] < bounds[:-1]).any())
    ):
        raise RefusedError(TrainingMessage.DOCUMENTS_OUT_OF_ORDER, index=index, sequences=sequences)


def highest_token(file: TokenFile, scanned: int) -> tuple[int, int]:
    """Return the highest id in the file (or a negative id) and its position.

    At most about `scanned` bytes are read.
    """
    size = file.tokens * file.dtype.itemsize
    highest = 0
    position = 0
    with Path(f"{file.prefix}.bin").open("rb") as stream:
        for start, length in _blocks(size, scanned):
            stream.seek(start)
            block = numpy.frombuffer(stream.read(length), file.dtype)
            # Read as an unsigned number, a negative id is far larger than any vocabulary
            ids = block.view(numpy.dtype(f"<u{file.dtype.itemsize}"))
            if len(ids) and ids[at := int(ids.argmax())] > highest:
                highest = int(ids[at])
                position = start // file.dtype.itemsize + at

    return (highest - 2**32 if highest >= 2**31 else highest), position


def _blocks(size: int, scanned: int, block: int = 2**24) -> Iterator[tuple[int, int]]:
    """Yield (start, length) for blocks that cover the file or are spread evenly over it."""
    starts = list(range(0, size, block))
    if size > scanned:
        count = max(2, scanned // block)
        starts = [(size - block) * step // (count - 1) // 4 * 4 for step in range(count)]

    for start in starts:
        yield start, min(block + 4, size - start)


def _shares(split: str) -> list[float]:
    try:
        parts = [float(part) for part in split.split(",")]
    except ValueError:
        parts = []

    if not 1 <= len(parts) <= 3 or not 0 < sum(parts) < math.inf or min(parts) < 0:
        raise RefusedError(TrainingMessage.NOT_A_SPLIT, split=split)
    total = sum(parts)
    return [part / total for part in parts + [0.0] * (3 - len(parts))]


def _check_share(
    file: TokenFile,
    share: tuple[float, float],
    spec: PhasePlan,
    use: str,
) -> None:
    """Refuse a share too short for one sample, because megatron-core would loop forever."""
    sequences = len(file.lengths)
    begin, end = (round(bound * sequences) for bound in share)
    tokens = int(file.lengths[begin:end].sum(dtype=numpy.int64))
    if tokens <= spec.model.shape.sequence_length:
        raise RefusedError(
            TrainingMessage.SHARE_TOO_SHORT,
            prefix=file.prefix,
            sequences=sequences,
            use=use,
            split=spec.data.split,
            documents=end - begin,
            tokens=tokens,
            sample_tokens=spec.model.shape.sequence_length + 1,
            remedy="evaluation.interval 0" if use == "validation" else "a shorter sequence",
        )
