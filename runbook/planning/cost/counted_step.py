"""Replays a step: schedules, over all stages, the work a dry run counted.

Rates, bandwidths and shares are the same as in `iteration`. Here the work was counted in a dry run,
whereas `iteration` estimates it. The schedule also differs: here a stage starts a micro-batch as
soon as its input has arrived.
"""

from collections.abc import Mapping, Sequence
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
"""Columns in the table, each with the parts of a step that are added up for it.

An empty list means all parts.
"""


@dataclass(frozen=True)
class Seconds:
    """Seconds one part of a step takes on one stage, by cause."""

    matrices: float = 0.0
    attention: float = 0.0
    memory: float = 0.0
    """Time for moving tensors to and from the device memory."""
    launching: float = 0.0
    """Additional time for launching operators, if launching takes longer than their execution."""
    communication: float = 0.0
    """Communication time that is not hidden by computation."""

    @property
    def computing(self) -> float:
        """Return the seconds without communication."""
        return self.matrices + self.attention + self.memory + self.launching

    def whole(self) -> float:
        """Return the total seconds, including communication."""
        return self.computing + self.communication


@dataclass(frozen=True)
class StageTimes:
    """Seconds a stage needs for the passes and for the rest of the step.

    `forward` and `backward` contain the time one micro-batch takes to pass through each chunk.
    `once` is the time for work that is done once per step, before the optimizer runs.
    """

    forward: tuple[Seconds, ...]
    backward: tuple[Seconds, ...]
    once: Seconds
    optimizer: Seconds


class Activity(NamedTuple):
    """Work a stage does from `start` to `end`, in seconds.

    The stage waits between two activities.
    """

    stage: int
    kind: str
    chunk: int
    microbatch: int
    start: float
    end: float


@dataclass(frozen=True)
class Replay:
    """The replay of one step on all stages, together with the planned times."""

    COMPUTED: ClassVar = ("seconds", "bubble_share", "communication_share", "parts")

    microbatches: int
    send_seconds: float
    """Seconds for sending a micro-batch to the next stage."""
    hides_sends: bool
    """Whether a stage computes while it sends."""
    waiting_share: float
    """Share of a step that the plan adds for waiting for the slowest device."""
    planned_seconds: float
    planned_parts: dict[str, float]
    """Seconds of the planned step, by part."""
    stages: tuple[StageTimes, ...]

    @cached_property
    def events(self) -> tuple[Activity, ...]:
        """Return all activities in a step, not counting the wait for the slowest device."""
        return tuple(_events(self))

    @cached_property
    def parts(self) -> list[dict[str, float]]:
        """Return the seconds in a step by part, for each stage; the parts are named as in the plan.

        The parts add up to `seconds`.
        """
        step_seconds = max(event.end for event in self.events)
        return [self._stage_parts(stage, step_seconds) for stage in range(len(self.stages))]

    def _stage_parts(self, stage: int, step_seconds: float) -> dict[str, float]:
        times = self.stages[stage]
        passes = (*times.forward, *times.backward)
        ends = (times.once, times.optimizer)
        events = [event for event in self.events if event.stage == stage]
        busy = sum(event.end - event.start for event in events)
        communicating = sum(
            event.end - event.start for event in events if event.kind == COMMUNICATION
        )
        parts = {}
        for name in ("matrices", "attention", "memory", "launching"):
            parts[name] = self.microbatches * sum(getattr(one_pass, name) for one_pass in passes)

        parts["tensor"] = self.microbatches * sum(one_pass.communication for one_pass in passes)
        parts["data"] = sum(end.communication for end in ends)
        parts["pipeline"] = 0.0
        if len(self.stages) > 1:
            parts["pipeline"] = communicating - parts["tensor"] - parts["data"]
        parts["optimizer"] = sum(end.computing for end in ends)
        parts["bubble"] = step_seconds - busy
        parts["waiting"] = step_seconds * self.waiting_share
        return parts

    @property
    def seconds(self) -> float:
        """Return the seconds that one step takes."""
        return sum(self.parts[0].values())

    @property
    def bubble_share(self) -> float:
        """Return the share of a step that the stages spend waiting for each other, on average."""
        return self._share("bubble")

    @property
    def communication_share(self) -> float:
        """Return the share of a step that the stages spend in exposed communication, on average."""
        return self._share("tensor", "pipeline", "data")

    def _share(self, *names: str) -> float:
        seconds = sum(parts[name] for parts in self.parts for name in names)
        return seconds / len(self.parts) / self.seconds

    @property
    def text(self) -> str:
        """Return the replayed and the planned step time as text."""
        error = self.planned_seconds / self.seconds - 1
        return (
            f"{self.seconds:.4g} s replayed, {self.planned_seconds:.4g} s planned "
            f"(the plan is {error:+.1%} off)"
        )

    def table(self, basis: str) -> Table:
        """Return a table with the step time by part, for each stage and for the plan."""
        rows = [_table_row(str(stage), parts) for stage, parts in enumerate(self.parts)]
        rows.append(_table_row("plan", self.planned_parts))
        bubble = f"{self.bubble_share:.1%}"
        communication = f"{self.communication_share:.1%}"
        return Table(
            rows,
            title="Seconds of one step, replayed on the schedule of all stages",
            notes=[
                f"A step takes {self.text}; replayed: {basis}",
                f"Stages wait for each other for {bubble} of it, and send for {communication}",
            ],
        )


def _table_row(name: str, parts: Mapping[str, float]) -> dict[str, str]:
    row = {"stage": name}
    for column, names in _COLUMNS.items():
        seconds = sum(parts.get(part, 0.0) for part in names or parts)
        # A difference of equal times leaves a rounding error, such as 1e-17.
        row[column] = "0" if abs(seconds) < 1e-12 else f"{seconds:.4g}"

    return row


def stage_times(stage: int, work: Sequence[Work], model: StepModel) -> StageTimes:
    """Return how long the work counted for a stage takes on the devices in `model`."""
    chunks = range(model.setup.layout.virtual_pipeline)
    by_chunk = {(part.part, part.chunk): part for part in reversed(work)}
    forward = [_priced_pass(by_chunk.get((FORWARD, chunk)), model) for chunk in chunks]
    backward = [_priced_pass(by_chunk.get((BACKWARD, chunk)), model) for chunk in chunks]
    least_seconds = _least_seconds(stage, model) / len(chunks)
    for chunk in chunks:
        seconds = forward[chunk].whole() + backward[chunk].whole()
        missing = max(0.0, least_seconds - seconds)
        forward[chunk] = replace(forward[chunk], launching=1 / 3 * missing)
        backward[chunk] = replace(backward[chunk], launching=2 / 3 * missing)

    # Communication for gradients and weights overlaps with the passes.
    computing = sum(one_pass.computing for one_pass in (*forward, *backward))
    by_part = {part.part: part for part in reversed(work)}
    once, optimizer = (
        _priced(by_part[part], model, computing) if part in by_part else Seconds()
        for part in (ONCE, OPTIMIZER)
    )
    return StageTimes(tuple(forward), tuple(backward), once, optimizer)


def _priced_pass(work: Work | None, model: StepModel) -> Seconds:
    return _priced(work, model) if work else Seconds()


def _least_seconds(stage: int, model: StepModel) -> float:
    """Return the seconds needed to launch a stage's operators in both passes of a micro-batch."""
    setup = model.setup
    if setup.stage_layers:
        layers: float = setup.stage_layers[stage]
    else:
        layers = setup.shape.layers / setup.layout.pipeline

    return model.least_layer_seconds * layers + model.least_microbatch_seconds


def _priced(work: Work, model: StepModel, overlapping: float = 0.0) -> Seconds:
    """Return the seconds that counted work takes.

    `overlapping` is how many seconds of other computation may hide the overlapped communication.
    """
    sent = {"alone": 0.0, "overlapped": 0.0}
    for kind, size in work.amounts.items():
        if ":" in kind:
            group, operation, when = kind.split(":")
            ranks, span = _group(group, model)
            # An all-reduce costs a reduce-scatter and an all-gather.
            times = 2 if operation.startswith("allreduce") else 1
            sent[when] += times * model.collective(size, ranks, span=span)

    computing = Seconds(
        matrices=work.amounts.get(MATRIX, 0) / model.matrix_rate,
        attention=work.amounts.get(ATTENTION, 0) / 2 / model.attention_rate,
        memory=work.amounts.get(MOVED, 0) / model.setup.device.memory_bandwidth,
    )
    hidden_behind = computing.computing + overlapping
    exposed = model.exposed(hidden_behind, sent["overlapped"])
    return replace(computing, communication=sent["alone"] + exposed)


def _group(name: str, model: StepModel) -> tuple[int, int]:
    """Return how many ranks a process group has, and how many devices they span."""
    layout = model.setup.layout
    world = layout.world_size
    groups = {
        "tensor": (layout.tensor, layout.tensor),
        "context": (layout.context, layout.tensor * layout.context),
        "data": (layout.data * layout.context, world // layout.pipeline),
        "embeddings": (2, world),
        "pipeline": (layout.pipeline, world),
        "tensor and pipeline": (layout.tensor * layout.pipeline, world),
        "everyone": (world, world),
    }
    if name in groups:
        return groups[name]
    # Names for other groups begin with the rank count.
    return int(name.split()[0]), world // layout.pipeline


def schedule_of(
    stage: int,
    stages: int,
    chunks: int,
    microbatches: int,
) -> list[tuple[str, int, int]]:
    """Return (pass, chunk, micro-batch) in the order in which a stage runs them.

    The schedule is 1F1B, interleaved if a stage has more than one chunk.

    >>> [f"{kind[0]}{microbatch}" for kind, _, microbatch in schedule_of(0, 2, 1, 3)]
    ['f0', 'f1', 'b0', 'f2', 'b1', 'b2']
    """
    passes = []
    for first in range(0, microbatches, stages):
        for chunk in range(chunks):
            for microbatch in range(first, min(first + stages, microbatches)):
                passes.append((chunk, microbatch))

    later_stages = stages - stage - 1
    if chunks == 1:
        warmup = later_stages
    else:
        warmup = 2 * later_stages + (chunks - 1) * stages

    forward = [(FORWARD, chunk, microbatch) for chunk, microbatch in passes]
    order = forward[:warmup]
    for index, (chunk, microbatch) in enumerate(passes):
        # Add the next forward pass, if there is one, and then the oldest backward pass.
        order += forward[warmup + index : warmup + index + 1]
        order.append((BACKWARD, chunks - 1 - chunk, microbatch))

    return order


_Pass: TypeAlias = tuple[str, int, int, int]
"""One pass: its kind (forward or backward), stage, chunk and micro-batch."""


class _Timeline:
    """The clocks and activities of all stages, and the times at which their results arrive."""

    def __init__(self, replayed: Replay) -> None:
        self.replayed = replayed
        self.num_stages = len(replayed.stages)
        self.num_chunks = len(replayed.stages[0].forward)
        self.clocks = [0.0] * self.num_stages
        self.arrivals = dict[_Pass | None, float]({None: 0.0})
        self.events = list[Activity]()

    def add(
        self,
        stage: int,
        kind: str,
        chunk: int,
        microbatch: int,
        seconds: float,
    ) -> None:
        """Record an activity on a stage, unless it takes no time."""
        if seconds:
            start = self.clocks[stage]
            end = start + seconds
            self.events.append(
                Activity(
                    stage,
                    kind,
                    chunk,
                    microbatch,
                    start,
                    end,
                )
            )
            self.clocks[stage] = end

    def run_pass(
        self,
        stage: int,
        kind: str,
        chunk: int,
        microbatch: int,
    ) -> bool:
        """Run one pass and send its result.

        Return False if the input has not arrived yet.
        """
        source = _source(
            stage,
            self.num_stages,
            self.num_chunks,
            kind,
            chunk,
            microbatch,
        )
        if source not in self.arrivals:
            return False
        self.clocks[stage] = max(self.clocks[stage], self.arrivals[source])
        times: Seconds = getattr(self.replayed.stages[stage], kind)[chunk]
        self.add(
            stage,
            kind,
            chunk,
            microbatch,
            times.computing,
        )
        if self._ends_here(stage, kind, chunk):
            sending = 0.0
        else:
            sending = self.replayed.send_seconds

        waiting = 0.0 if self.replayed.hides_sends else sending
        self.add(
            stage,
            COMMUNICATION,
            chunk,
            microbatch,
            times.communication + waiting,
        )
        self.arrivals[kind, stage, chunk, microbatch] = self.clocks[stage] + sending - waiting
        return True

    def run_end(self, part: str) -> None:
        """Run one part of the work that follows the passes, on all stages.

        Afterwards all clocks show the same time.
        """
        for stage in range(self.num_stages):
            times: Seconds = getattr(self.replayed.stages[stage], part)
            self.add(
                stage,
                OPTIMIZER,
                0,
                0,
                times.computing,
            )
            self.add(
                stage,
                COMMUNICATION,
                0,
                0,
                times.communication,
            )

        self.clocks = [max(self.clocks)] * self.num_stages

    def _ends_here(
        self,
        stage: int,
        kind: str,
        chunk: int,
    ) -> bool:
        """Return whether no other stage waits for the result of a pass."""
        if kind == FORWARD:
            return (stage, chunk) == (self.num_stages - 1, self.num_chunks - 1)
        return (stage, chunk) == (0, 0)


def _events(replayed: Replay) -> list[Activity]:
    timeline = _Timeline(replayed)
    stages = range(timeline.num_stages)
    orders = []
    for stage in stages:
        orders.append(
            iter(
                schedule_of(stage, timeline.num_stages, timeline.num_chunks, replayed.microbatches)
            )
        )

    following = [next(order, None) for order in orders]
    # Each stage runs until it must wait for another stage. Then the next stage continues.
    while any(following):
        for stage in stages:
            step = following[stage]
            while step and timeline.run_pass(stage, *step):
                step = next(orders[stage], None)
            following[stage] = step

    # Between these two parts, all stages agree on the gradient norm.
    timeline.run_end(ONCE)
    timeline.run_end(OPTIMIZER)
    return timeline.events


def _source(
    stage: int,
    stages: int,
    chunks: int,
    kind: str,
    chunk: int,
    microbatch: int,
) -> _Pass | None:
    """Return the pass whose result this pass needs, or None if its input is the tokens."""
    if kind == FORWARD:
        if stage:
            return (FORWARD, stage - 1, chunk, microbatch)
        return (FORWARD, stages - 1, chunk - 1, microbatch) if chunk else None

    if stage + 1 < stages:
        return (BACKWARD, stage + 1, chunk, microbatch)
    if chunk + 1 < chunks:
        return (BACKWARD, 0, chunk + 1, microbatch)
    return (FORWARD, stage, chunk, microbatch)
