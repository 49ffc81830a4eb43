"""Reads `replay.jsonl`, which records recomputed micro-batches, and compares two such records.

A segment begins with a line describing the program and the machines. Each recomputed step has a
line with a four-byte fingerprint for every rank, layer and part.
"""

from __future__ import annotations

import base64
import hashlib
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypedDict

FORWARD, BACKWARD, GRADIENT = ("forward", "backward", "gradient")
PARTS = (FORWARD, BACKWARD, GRADIENT)
"""Parts of a micro-batch: activations, gradients of activations, gradients of weights."""
ATTENTION, FEED_FORWARD, OUTPUT = ("attention", "feed-forward", "output")
BLOCKS = (ATTENTION, FEED_FORWARD, OUTPUT)
"""Blocks in a layer, in the order of computation.

Tensor-parallel ranks sum results after each of the first two.
"""
MARK_BYTES = 4
TRANSIENT = "transient corruption"
"""Name of the alarm used if a rank computed a wrong result once, but not since then."""
PERSISTENT = "persistent corruption"
"""Name of the alarm used if a rank repeatedly computes wrong results."""


class ComputedPlace(NamedTuple):
    """The tensor a fingerprint belongs to."""

    part: str
    layer: int
    """Layers are numbered from 1.

    0 is the embedding; the number of layers plus one is everything after the last layer.
    """
    name: str
    number: int = 0
    """How many times the tensor had been computed before in the same pass, by earlier micro-batches
    or before recomputation.
    """

    @property
    def metric(self) -> str:
        """Return the name used for the tensor in alarms.

        >>> ComputedPlace("forward", 3, "mlp.linear_fc1").metric
        'forward of layer 3'
        """
        return f"{self.part} of layer {self.layer}"

    def describe(self, num_layers: int) -> str:
        """Describe the tensor.

        >>> ComputedPlace("forward", 3, "mlp.linear_fc1").describe(num_layers=4)
        'layer 3, mlp.linear_fc1, forward'
        >>> ComputedPlace("gradient", 5, "output_layer.weight").describe(num_layers=4)
        'after the last layer, output_layer.weight, gradient'
        """
        if self.layer == 0:
            layer = "before the first layer"
        elif self.layer > num_layers:
            layer = "after the last layer"
        else:
            layer = f"layer {self.layer}"

        return f"{layer}, {self.name}, {self.part}"


def passing_order(location: ComputedPlace, position: int) -> tuple[int, int, int, int]:
    """Return when a tensor is computed relative to others, as a sort key over all ranks.

    `position` is the index of the tensor on its rank. Layers are computed forward and then
    backward; within a layer, the gradients of weights come last.
    """
    if location.part == FORWARD:
        return (0, location.layer, 0, position)
    return (1, -location.layer, int(location.part == GRADIENT), position)


def first_difference(
    first_numbers: Mapping[ComputedPlace, float],
    second_numbers: Mapping[ComputedPlace, float],
    tolerance: float = 0.0,
) -> tuple[tuple[int, int, int, int], ComputedPlace] | None:
    """Return the first tensor that two computations on a rank differ in, with its order, or None.

    Two numbers count as equal up to a relative difference of `tolerance`.
    """
    orders: dict[ComputedPlace, tuple[int, int, int, int]] = {}
    for numbers in (first_numbers, second_numbers):
        for position, location in enumerate(numbers):
            # Tensors found in both computations are ordered as in the first one.
            orders.setdefault(location, passing_order(location, position))

    different = []
    for location in orders:
        if not _agree(first_numbers.get(location), second_numbers.get(location), tolerance):
            different.append(location)

    if not different:
        return None
    first = min(different, key=orders.__getitem__)
    return orders[first], first


def _agree(first: float | None, second: float | None, tolerance: float) -> bool:
    if first is None or second is None:
        return False
    if tolerance == 0.0:
        return first == second
    if math.isnan(first) or math.isnan(second):
        return math.isnan(first) and math.isnan(second)
    return abs(first - second) <= tolerance * max(abs(first), abs(second))


class MarkKey(NamedTuple):
    """The block a recorded mark belongs to.

    A block is the part of a layer between two sums over tensor-parallel ranks.
    """

    part: str
    layer: int
    block: str

    @classmethod
    def of(cls, location: ComputedPlace) -> MarkKey:
        """Return the block a tensor belongs to.

        >>> MarkKey.of(ComputedPlace("forward", 3, "mlp.linear_fc1")).block
        'feed-forward'
        """
        if location.name.startswith(("self_attention", "input_layernorm")):
            return cls(location.part, location.layer, ATTENTION)
        if location.name.startswith(("mlp", "pre_mlp_layernorm")):
            return cls(location.part, location.layer, FEED_FORWARD)
        return cls(location.part, location.layer, OUTPUT)

    def order(self) -> tuple[int, int, int, int]:
        """Return when this block is computed relative to others, as a sort key over all ranks."""
        position = BLOCKS.index(self.block)
        location = ComputedPlace(self.part, self.layer, self.block)
        return passing_order(location, position if self.part == FORWARD else -position)


def layer_marks(numbers: Mapping[ComputedPlace, float]) -> dict[MarkKey, bytes]:
    """Return a four-byte mark for each block.

    A mark changes if any fingerprint in the block changes.
    """
    texts: dict[MarkKey, list[bytes]] = {}
    for location, number in numbers.items():
        form = "<q" if isinstance(number, int) else "<d"
        texts.setdefault(MarkKey.of(location), []).append(struct.pack(form, number))

    marks = {}
    for key, fingerprint in texts.items():
        digest = hashlib.blake2b(b"".join(fingerprint), digest_size=MARK_BYTES)
        marks[key] = digest.digest()

    return marks


def packed(marks: Iterable[bytes]) -> str:
    """Return marks as text for JSON."""
    return base64.b64encode(b"".join(marks)).decode()


def unpacked(text: str) -> list[bytes]:
    """Return the marks that `packed` wrote as text.

    >>> unpacked(packed([b"abcd", b"efgh"]))
    [b'abcd', b'efgh']
    """
    content = base64.b64decode(text)
    starts = range(0, len(content), MARK_BYTES)
    return [content[start : start + MARK_BYTES] for start in starts]


class ReplayLine(TypedDict, total=False):
    """A line in replay.jsonl, which begins a segment or records a step."""

    segment: int
    versions: dict[str, str]
    code: str
    bitwise: bool
    watched: dict[str, list[str]]
    """Names of the watched outputs by part; empty in older records."""
    threads: int
    hosts: list[str]
    machines: list[str]
    programs: list[str]
    places: list[list[MarkKey]]
    """The block each mark belongs to, for each kind of rank."""
    places_of_rank: list[int]
    iteration: int
    data: list[str]
    samples: list[str]
    marks: list[str]
    seconds: float


@dataclass(frozen=True)
class Circumstances:
    """The programs and machines that computed a segment."""

    versions: Mapping[str, str] = field(default_factory=dict)
    code: str = ""
    """sha256 of the trainer source files."""
    machines: Sequence[str] = ()
    """Processor or GPU used by each rank, with the number of threads."""
    hosts: Sequence[str] = ()
    programs: Sequence[str] = ()
    """Hash over versions and code on each rank; empty in older records."""
    threads: int = 0
    """Number of threads on the first rank; 0 if unknown."""
    is_bitwise: bool = True
    watched: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Names of the outputs the marks cover, by part; empty in older records."""


@dataclass(frozen=True)
class RecordedStep:
    """The record of a recomputed step."""

    iteration: int
    data: Sequence[str]
    """Hash over the tokens in the first micro-batch, for each rank."""
    marks: Sequence[Mapping[MarkKey, bytes]]
    """Marks for each rank."""
    circumstances: Circumstances
    samples: Sequence[str] = ()
    """Hash over everything each rank read for the step; empty in older records."""


def read_steps(lines: Iterable[ReplayLine]) -> dict[int, RecordedStep]:
    """Return the recorded steps by iteration.

    If a step was trained more than once, the last record is used.
    """
    steps: dict[int, RecordedStep] = {}
    circumstances = Circumstances()
    places: list[list[MarkKey]] = []
    for line in lines:
        if "places" in line:
            kinds = [[MarkKey(*key) for key in kind] for kind in line["places"]]
            places = [kinds[index] for index in line["places_of_rank"]]
            circumstances = Circumstances(
                versions=line.get("versions", {}),
                code=line.get("code", ""),
                machines=line.get("machines", ()),
                hosts=line.get("hosts", ()),
                programs=line.get("programs", ()),
                threads=line.get("threads", 0),
                is_bitwise=line.get("bitwise", True),
                watched=line.get("watched", {}),
            )
        elif "marks" in line and len(places) == len(line["marks"]):
            marks = []
            for keys, text in zip(places, line["marks"], strict=True):
                marks.append(dict(zip(keys, unpacked(text), strict=False)))

            iteration = line["iteration"]
            steps[iteration] = RecordedStep(
                iteration=iteration,
                data=line["data"],
                marks=marks,
                circumstances=circumstances,
                samples=line.get("samples", ()),
            )
    return steps


@dataclass(frozen=True)
class Difference:
    """The first difference between two recordings of a step."""

    iteration: int
    rank: int
    part: str
    layer: int
    block: str
    ranks: tuple[int, ...]
    """All ranks with different results in this block, including the first."""


def ranks_of_other_samples(first_step: RecordedStep, second_step: RecordedStep) -> tuple[int, ...]:
    """Return the ranks that read different data for the same step."""
    first = first_step.data
    second = second_step.data
    if first_step.samples and second_step.samples:
        first = first_step.samples
        second = second_step.samples
    pairs = enumerate(zip(first, second, strict=False))
    return tuple(rank for rank, (before, after) in pairs if before != after)


def compare_steps(first_step: RecordedStep, second_step: RecordedStep) -> Difference | None:
    """Return the first computed difference between two recordings of a step, or None.

    Marks for a part are compared only if both recordings cover the same outputs.
    """
    first_watched = first_step.circumstances.watched
    second_watched = second_step.circumstances.watched
    parts = [part for part in PARTS if first_watched.get(part) == second_watched.get(part)]
    different: list[tuple[MarkKey, int]] = []
    for rank, (marks, others) in enumerate(zip(first_step.marks, second_step.marks, strict=True)):
        comparable = [key for key in marks if key.part in parts]
        different += [(key, rank) for key in comparable if marks[key] != others.get(key)]
    if not different:
        return None
    first, rank = min(different, key=lambda difference: (difference[0].order(), difference[1]))
    ranks = tuple(rank for key, rank in different if key == first)
    return Difference(
        first_step.iteration,
        rank,
        first.part,
        first.layer,
        first.block,
        ranks,
    )
