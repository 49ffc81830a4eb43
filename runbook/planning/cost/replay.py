"""A step replayed: the work that a rehearsal counted at each pipeline stage, in seconds, on the schedule of all stages.

Rates, bandwidths and shares are those that `iteration` plans with. What differs is the work, which is counted here and
estimated there, and the schedule: a stage begins a micro-batch when its input has come.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, NamedTuple, TypeAlias

from runbook.core.table import Table
from runbook.plan_file.rehearsed_work import (
    ATTENTION,
    BACKWARD,
    FORWARD,
    MATRIX,
    MOVED,
    ONCE,
    OPTIMIZER,
    Work,
)
from runbook.planning.cost.iteration import StepModel

COMMUNICATION = "communication"
_COLUMNS = {
    "step": (),
    "computing": (
        "matrices",
        "attention",
        "memory",
        "elementwise",
        "output",
        "recompute",
        "launching",
    ),
    "of it memory": ("memory", "elementwise"),
    "tensor ranks": ("tensor",),
    "next stage": ("pipeline",),
    "gradients": ("data",),
    "optimizer": ("optimizer",),
    "bubble": ("bubble",),
    "slowest device": ("waiting",),
}
"""Columns of the table by the parts of a step that they add up, the replay's and the plan's; the first has all."""


@dataclass(frozen=True)
class Seconds:
    """What takes one part of a step at one stage."""

    matrices: float = 0.0
    attention: float = 0.0
    memory: float = 0.0
    """Moving tensors to and from the device's memory."""
    launching: float = 0.0
    """What a layer takes at least, however small."""
    communication: float = 0.0
    """Collectives that nothing hides."""

    @property
    def computing(self) -> float:
        """All but communication."""
        return self.matrices + self.attention + self.memory + self.launching

    def whole(self) -> float:
        """All of it."""
        return self.computing + self.communication


@dataclass(frozen=True)
class StageTimes:
    """One stage: each chunk's passes over a micro-batch, what else a step does before the optimizer, the optimizer."""

    forward: tuple[Seconds, ...]
    backward: tuple[Seconds, ...]
    once: Seconds
    optimizer: Seconds


class Activity(NamedTuple):
    """Something that a stage does; between two events it waits."""

    stage: int
    kind: str
    chunk: int
    microbatch: int
    start: float
    end: float


@dataclass(frozen=True)
class Replay:
    """One step of all stages."""

    COMPUTED: ClassVar = ("seconds", "bubble_share", "communication_share", "parts")

    microbatches: int
    send_seconds: float
    """Of a message from a stage to the next."""
    hides_sends: bool
    """Whether a stage goes on while it sends."""
    waiting_share: float
    """What waiting for the slowest of all devices adds, as the plan has it."""
    planned_seconds: float
    planned_parts: dict[str, float]
    """The plan's step."""
    stages: tuple[StageTimes, ...]

    @cached_property
    def events(self) -> tuple[Activity, ...]:
        """Everything that the stages do in one step, but for waiting for the slowest device."""
        return tuple(_events(self))

    @cached_property
    def parts(self) -> list[dict[str, float]]:
        """Seconds of a step at each stage, under the plan's names where it has one; they add up to `seconds`."""
        whole = max(event.end for event in self.events)
        found = []
        for stage, times in enumerate(self.stages):
            own = [event for event in self.events if event.stage == stage]
            passes = (*times.forward, *times.backward)
            ends = (times.once, times.optimizer)
            parts = {
                name: self.microbatches * sum(getattr(one, name) for one in passes)
                for name in ("matrices", "attention", "memory", "launching")
            }
            parts["tensor"] = self.microbatches * sum(one.communication for one in passes)
            parts["data"] = sum(one.communication for one in ends)
            sent = sum(event.end - event.start for event in own if event.kind == COMMUNICATION)
            parts["pipeline"] = (
                sent - parts["tensor"] - parts["data"] if len(self.stages) > 1 else 0.0
            )
            parts["optimizer"] = sum(one.computing for one in ends)
            parts["bubble"] = whole - sum(event.end - event.start for event in own)
            found.append(parts | {"waiting": whole * self.waiting_share})
        return found

    @property
    def seconds(self) -> float:
        """Of one step."""
        return sum(self.parts[0].values())

    @property
    def bubble_share(self) -> float:
        """Share of a step that stages wait for each other, in the mean."""
        return self._share("bubble")

    @property
    def communication_share(self) -> float:
        """Share of a step that stages spend in communication that nothing hides, in the mean."""
        return self._share("tensor", "pipeline", "data")

    def _share(self, *names: str) -> float:
        return (
            sum(parts[name] for parts in self.parts for name in names)
            / len(self.parts)
            / self.seconds
        )

    @property
    def text(self) -> str:
        """The step and the plan's, for people."""
        off = self.planned_seconds / self.seconds - 1
        return f"{self.seconds:.4g} s replayed, {self.planned_seconds:.4g} s planned (the plan is {off:+.1%} off)"

    def table(self, basis: str) -> Table:
        """Where the time of a step goes at each stage, and in the plan."""
        rows = [
            *((str(stage), parts) for stage, parts in enumerate(self.parts)),
            ("plan", self.planned_parts),
        ]
        return Table(
            [
                {"stage": name}
                | {
                    words: f"{sum(parts.get(key, 0.0) for key in keys or parts):.4g}"
                    for words, keys in _COLUMNS.items()
                }
                for name, parts in rows
            ],
            title="Seconds of one step, replayed on the schedule of all stages",
            notes=[
                f"A step takes {self.text}; replayed: {basis}",
                f"Stages wait for each other in {self.bubble_share:.1%} of it, send in {self.communication_share:.1%}",
            ],
        )


def stage_times(stage: int, work: Sequence[Work], model: StepModel) -> StageTimes:
    """A stage's counted work in seconds on the model's devices."""
    setup = model.setup
    chunks = range(model.setup.virtual_pipeline)
    passes: dict[str, list[Seconds]] = {FORWARD: [], BACKWARD: []}
    for part, chunk in itertools.product(passes, chunks):
        own = [_priced(one, model) for one in work if (one.part, one.chunk) == (part, chunk)]
        passes[part].append(own[0] if own else Seconds())
    if setup.stage_layers:
        layers: float = setup.stage_layers[stage]
    else:
        layers = setup.shape.layers / setup.pipeline
    for chunk in chunks:
        both = [passes[part][chunk] for part in passes]
        least = (model.least_layer_seconds * layers + model.least_microbatch_seconds) / len(chunks)
        missing = max(0.0, least - sum(map(Seconds.whole, both)))
        for part, share in ((FORWARD, 1 / 3), (BACKWARD, 2 / 3)):
            passes[part][chunk] = replace(passes[part][chunk], launching=share * missing)
    last = sum(
        one.computing for part in passes for one in passes[part]
    )  # what gradients and weights go on beside
    ends = [
        [_priced(one, model, last) for one in work if one.part == part]
        for part in (ONCE, OPTIMIZER)
    ]
    once, optimizer = (one[0] if one else Seconds() for one in ends)
    return StageTimes(tuple(passes[FORWARD]), tuple(passes[BACKWARD]), once, optimizer)


def _priced(work: Work, model: StepModel, beside: float = 0.0) -> Seconds:
    amount = work.amounts.get
    sent = {"alone": 0.0, "overlapped": 0.0}
    for kind, size in work.amounts.items():
        if ":" in kind:
            group, operation, when = kind.split(":")
            members, span = _group(group, model)
            times = 2 if operation.startswith("allreduce") else 1
            sent[when] += times * model.collective(size, members, span=span)
    busy = Seconds(
        matrices=amount(MATRIX, 0) / model.matrix_rate,
        attention=amount(ATTENTION, 0) / 2 / model.attention_rate,
        memory=amount(MOVED, 0) / model.setup.device.memory_bandwidth,
    )
    return replace(
        busy,
        communication=sent["alone"] + model.exposed(busy.computing + beside, sent["overlapped"]),
    )


def _group(name: str, model: StepModel) -> tuple[int, int]:
    """Ranks of a process group, and how many devices they span."""
    setup = model.setup
    world = model.setup.world
    named = {
        "tensor": (setup.tensor, setup.tensor),
        "context": (setup.context, setup.tensor * setup.context),
        "data": (setup.data * setup.context, world // setup.pipeline),
        "embeddings": (2, world),
        "pipeline": (setup.pipeline, world),
        "tensor and pipeline": (setup.tensor * setup.pipeline, world),
        "everyone": (world, world),
    }
    return named.get(name) or (int(name.split()[0]), world // setup.pipeline)


def schedule_of(
    stage: int, stages: int, chunks: int, microbatches: int
) -> list[tuple[str, int, int]]:
    """(pass, chunk, micro-batch) in the order in which a stage runs them: 1F1B, interleaved with several chunks.

    >>> [f"{kind[0]}{microbatch}" for kind, _, microbatch in schedule_of(0, 2, 1, 3)]
    ['f0', 'f1', 'b0', 'f2', 'b1', 'b2']
    """
    table = [
        (chunk, microbatch)
        for first in range(0, microbatches, stages)
        for chunk in range(chunks)
        for microbatch in range(first, min(first + stages, microbatches))
    ]
    ahead = stages - stage - 1 if chunks == 1 else 2 * (stages - stage - 1) + (chunks - 1) * stages
    forward = [(FORWARD, *place) for place in table]
    order = forward[:ahead]
    for place, (chunk, microbatch) in enumerate(table):
        order += [*forward[ahead + place :][:1], (BACKWARD, chunks - 1 - chunk, microbatch)]
    return order


def _events(replayed: Replay) -> list[Activity]:
    stages = replayed.stages
    count = len(replayed.stages)
    chunks = len(replayed.stages[0].forward)
    orders = [
        iter(schedule_of(stage, count, chunks, replayed.microbatches)) for stage in range(count)
    ]
    following = [next(order, None) for order in orders]
    clocks = [0.0] * count
    arrived = dict[_Place | None, float]({None: 0.0})
    events = list[Activity]()

    def do(stage: int, kind: str, chunk: int, microbatch: int, seconds: float) -> None:
        if seconds:
            events.append(
                Activity(stage, kind, chunk, microbatch, clocks[stage], clocks[stage] + seconds)
            )
            clocks[stage] += seconds

    while any(following):
        for stage in range(count):
            while (step := following[stage]) and (
                source := _source(stage, count, chunks, *step)
            ) in arrived:
                kind, chunk, microbatch = step
                clocks[stage] = max(clocks[stage], arrived[source])
                times: Seconds = getattr(stages[stage], kind)[chunk]
                is_last = (stage, chunk) == ((count - 1, chunks - 1) if kind == FORWARD else (0, 0))
                do(stage, kind, chunk, microbatch, times.computing)
                sending = 0.0 if is_last else replayed.send_seconds
                waits = 0.0 if replayed.hides_sends else sending
                do(stage, COMMUNICATION, chunk, microbatch, times.communication + waits)
                arrived[kind, stage, chunk, microbatch] = clocks[stage] + sending - waits
                following[stage] = next(orders[stage], None)
    for part in (ONCE, OPTIMIZER):  # between the two, all stages agree on the norm of the gradient
        for stage in range(count):
            times = getattr(stages[stage], part)
            do(stage, OPTIMIZER, 0, 0, times.computing)
            do(stage, COMMUNICATION, 0, 0, times.communication)
        clocks = [max(clocks)] * count
    return events


_Place: TypeAlias = tuple[str, int, int, int]


def _source(
    stage: int, stages: int, chunks: int, kind: str, chunk: int, microbatch: int
) -> _Place | None:
    """The pass, stage, chunk and micro-batch whose result this one needs; None: it begins with the tokens."""
    if kind == FORWARD:
        before = (stage - 1, chunk) if stage else (stages - 1, chunk - 1)
        return (FORWARD, *before, microbatch) if before[1] >= 0 else None
    after = (stage + 1, chunk) if stage + 1 < stages else (0, chunk + 1)
    if after[1] < chunks:
        return (BACKWARD, *after, microbatch)
    return (FORWARD, stage, chunk, microbatch)
