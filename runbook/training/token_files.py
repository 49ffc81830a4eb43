"""What a .bin/.idx pair claims, and whether it is true: looked at before the first step."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy

from runbook.training.errors import RefusedError
from runbook.training.spec import Spec

_MAGIC = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<9sQBQQ")
_TYPES: dict[int, numpy.dtype[Any]] = {4: numpy.dtype("<i4"), 8: numpy.dtype("<u2")}
_TYPE_NAMES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float64", 7: "float32", 8: "uint16"}
SCANNED_BYTES = 2**30
"""Of longer .bin files only this much is scanned for ids outside the vocabulary, in blocks over their whole length;
the loop looks at every batch it reads as well."""


@dataclass(frozen=True)
class TokenFile:
    """A .bin/.idx pair whose sizes agree."""

    prefix: Path
    dtype: numpy.dtype[Any]
    lengths: numpy.ndarray[tuple[int], numpy.dtype[numpy.int32]]

    @property
    def tokens(self) -> int:
        """Tokens in the whole file."""
        return int(self.lengths.sum(dtype=numpy.int64))


def check(spec: Spec) -> None:
    """`RefusedError` if a file of the spec is missing, broken, of another type or vocabulary, or too short."""
    if spec.data.mock:
        return
    if not spec.data.train:
        raise RefusedError("data.train names no file: tokenize a dataset first, or set data.mock true")
    _check_sources(spec)
    split = _shares(spec.data.split)
    scanned = max(2**26, SCANNED_BYTES // (len(spec.data.train) + len(spec.data.validation)))
    held_out = bool(spec.data.validation or spec.data.test)
    evaluates = spec.evaluation.interval > 0 and spec.evaluation.iterations > 0
    for source in spec.data.train:
        file = _checked(spec, source.prefix, scanned)
        _check_share(file, (0.0, 1.0) if held_out else (0.0, split[0]), spec, "training")
        if evaluates and not held_out:
            _check_share(file, (split[0], split[0] + split[1]), spec, "validation")
    if evaluates and held_out and not spec.data.validation:
        raise RefusedError("evaluation.interval is set and data.test is given, but data.validation names no file")
    for source in spec.data.validation if evaluates else []:
        _check_share(_checked(spec, source.prefix, scanned), (0.0, 1.0), spec, "validation")


def _check_sources(spec: Spec) -> None:
    """Weights that are numbers above 0, and no file twice in one use."""
    problems: list[str] = []
    uses = {"train": spec.data.train, "validation": spec.data.validation, "test": spec.data.test}
    for use, sources in uses.items():
        seen: dict[str, str] = {}
        for index, source in enumerate(sources):
            where = f"data.{use}[{index}]"
            if not (math.isfinite(source.weight) and source.weight > 0):
                problems.append(f"{where} ({source.prefix}): its weight {source.weight:g} is not a number above 0")
            earlier = seen.setdefault(str(spec.path(source.prefix)), where)
            if earlier != where:
                problems.append(f"{where} ({source.prefix}): the same file as {earlier}; name it once, with the sum")
    if problems:
        raise RefusedError("the blend of token files cannot be trained from:\n  " + "\n  ".join(problems))


def _checked(spec: Spec, prefix: str, scanned: int) -> TokenFile:
    file = open_pair(spec.path(prefix))
    outside, place = highest_token(file, scanned)
    if not 0 <= outside < spec.model.vocabulary:
        raise RefusedError(
            f"{file.prefix}.bin holds token {outside}, but the model's vocabulary is {spec.model.vocabulary} (ids 0 to "
            f"{spec.model.vocabulary - 1}): it was tokenized with another tokenizer, or overwritten (token number "
            f"{place:,} of {file.tokens:,})"
        )
    return file


def open_pair(prefix: Path) -> TokenFile:
    """The pair, if its index is whole and its .bin has the size the index says."""
    index, binary = Path(f"{prefix}.idx"), Path(f"{prefix}.bin")
    for path in (index, binary):
        if not path.is_file():
            raise RefusedError(f"{path} does not exist: run the data phase, or mend data.train in the plan")
    with index.open("rb") as stream:
        content = stream.read(_HEADER.size)
    if len(content) < _HEADER.size:
        raise RefusedError(f"{index} has {len(content)} bytes, fewer than the {_HEADER.size} of an index header")
    magic, version, code, sequences, documents = _HEADER.unpack(content)
    if magic != _MAGIC or version != 1:
        raise RefusedError(f"{index} is no Megatron index: it begins with {magic!r} and version {version}")
    if code not in _TYPES:
        raise RefusedError(
            f"{index} says its tokens are {_TYPE_NAMES.get(code, f'type {code}')}; token ids are uint16 (type 8) or "
            f"int32 (type 4)"
        )
    expected = _HEADER.size + sequences * 12 + documents * 8
    if index.stat().st_size != expected:
        raise RefusedError(
            f"{index} has {index.stat().st_size} bytes; {sequences} sequences and {documents - 1} documents make "
            f"{expected}: it was cut short or overwritten"
        )
    lengths = numpy.memmap(index, "<i4", "r", _HEADER.size, (sequences,)) if sequences else numpy.zeros(0, "<i4")
    file = TokenFile(prefix, _TYPES[code], lengths)
    if binary.stat().st_size != file.tokens * file.dtype.itemsize:
        raise RefusedError(
            f"{binary} has {binary.stat().st_size} bytes; its index says {file.tokens} tokens x "
            f"{file.dtype.itemsize} bytes = {file.tokens * file.dtype.itemsize}"
        )
    _check_index(index, file, documents)
    return file


def _check_index(index: Path, file: TokenFile, documents: int, block: int = 2**22) -> None:
    """Sequences lie one behind the other, and the documents cover them: what megatron-core takes for granted."""
    sequences = len(file.lengths)
    begins = numpy.memmap(index, "<i8", "r", _HEADER.size + sequences * 4, (sequences + documents,))
    begin = 0
    for start in range(0, sequences, block):
        lengths = file.lengths[start : start + block].astype(numpy.int64)
        ends = begin + numpy.cumsum(lengths) * file.dtype.itemsize
        right = numpy.concatenate([[begin], ends[:-1]])
        wrong = numpy.flatnonzero((lengths < 0) | (begins[start : min(start + block, sequences)] != right))
        if len(wrong):
            at = int(wrong[0])
            raise RefusedError(
                f"{index} says sequence {start + at} has {lengths[at]} tokens and begins at byte {begins[start + at]} "
                f"of the .bin; by the sequences before, it begins at byte {right[at]}: it was overwritten"
            )
        begin = int(ends[-1])
    bounds = begins[sequences:]
    if not documents or bounds[0] != 0 or bounds[-1] != sequences or bool((bounds[1:] < bounds[:-1]).any()):
        raise RefusedError(
            f"{index} has documents that do not go from sequence 0 to {sequences} in order: it was overwritten"
        )


def highest_token(file: TokenFile, scanned: int) -> tuple[int, int]:
    """The highest id in the file, or a negative one, and its place; over at most about `scanned` bytes of it."""
    size = file.tokens * file.dtype.itemsize
    highest, place = 0, 0
    with Path(f"{file.prefix}.bin").open("rb") as stream:
        for start, length in _blocks(size, scanned):
            stream.seek(start)
            block = numpy.frombuffer(stream.read(length), file.dtype)
            ids = block.view(numpy.dtype(f"<u{file.dtype.itemsize}"))  # a negative one is far above any vocabulary
            if len(ids) and ids[at := int(ids.argmax())] > highest:
                highest, place = int(ids[at]), start // file.dtype.itemsize + at
    return (highest - 2**32 if highest >= 2**31 else highest), place


def _blocks(size: int, scanned: int, block: int = 2**24) -> Iterator[tuple[int, int]]:
    """Starts and lengths: one after the other if that is all, else spread evenly from the first to the last byte."""
    starts: Sequence[int]
    if size <= scanned:
        starts = range(0, size, block)
    else:
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
        raise RefusedError(f"data.split {split!r} is not three shares such as 949,50,1")
    total = sum(parts)
    return [part / total for part in parts + [0.0] * (3 - len(parts))]


def _check_share(file: TokenFile, share: tuple[float, float], spec: Spec, use: str) -> None:
    """megatron-core loops for ever on a share without tokens."""
    sequences = len(file.lengths)
    begin, end = (round(bound * sequences) for bound in share)
    tokens = int(file.lengths[begin:end].sum(dtype=numpy.int64))
    if tokens <= spec.model.sequence_length:
        raise RefusedError(
            f"{file.prefix}.bin has {sequences} documents; the {use} share of split {spec.data.split} is {end - begin} "
            f"of them with {tokens} tokens, and one sample needs {spec.model.sequence_length + 1}: give more text, "
            f"another data.split, or {'evaluation.interval 0' if use == 'validation' else 'a shorter sequence'}"
        )
