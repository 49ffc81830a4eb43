"""Recomputes the first micro-batch of some steps, and reports which rank computes wrong numbers.

Before the other micro-batches, the first one is computed twice from the same random states. The
step continues with the gradients from the second computation. They are bit-identical to the
gradients in a step that computes the micro-batch once, because the sums begin at 0, and nothing is
sent to other replicas before the last micro-batch.
"""

import collections
import hashlib
import itertools
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from megatron.core import parallel_state

from runbook.plan_file.alarms import Alarm
from runbook.plan_file.replay_file import (
    PERSISTENT,
    TRANSIENT,
    ComputedPlace,
    ReplayLine,
    first_difference,
    layer_marks,
    packed,
)
from runbook.plan_file.schema import PhasePlan
from runbook.training.checkpoints.state import restore_tracker_states, tracker_states
from runbook.training.engines.engine import MicroBatch, MicroBatches
from runbook.training.engines.megatron_engine import Losses, MegatronEngine, total_loss
from runbook.training.health import injected_faults
from runbook.training.messages import TrainingMessage
from runbook.training.process_groups import device, gather_on_first_rank, reduce_number
from runbook.training.ranks import on_gpu
from runbook.training.replay import circumstances
from runbook.training.replay.trace import Tracer

TOLERANCE_ON_GPU = 1e-2
"""Relative difference between two norms that is ignored if kernels add in varying order.

This value is an estimate. Rounding in bf16 should stay far below it, and a flipped exponent bit
exceeds it.
"""
REPEATS = 2
"""How many times a rank recomputes a micro-batch after two computations have differed."""

Numbers: TypeAlias = dict[ComputedPlace, float]


@dataclass(frozen=True)
class RandomStates:
    """The random states used in the forward pass on a rank."""

    torch_state: torch.Tensor
    tracker: dict[str, torch.Tensor]
    cuda: torch.Tensor | None

    @classmethod
    def now(cls) -> "RandomStates":
        """Return copies of the states on this rank."""
        cuda = torch.cuda.get_rng_state() if on_gpu() else None
        tracker = {name: state.clone() for name, state in tracker_states().items()}
        return cls(torch.get_rng_state(), tracker, cuda)

    def restore(self) -> None:
        """Set the states on this rank."""
        torch.set_rng_state(self.torch_state)
        restore_tracker_states({name: state.clone() for name, state in self.tracker.items()})
        if self.cuda is not None:
            torch.cuda.set_rng_state(self.cuda)


@dataclass(frozen=True)
class Computation:
    """A forward and backward pass over the first micro-batches in a step."""

    losses: Losses
    numbers: Numbers


@dataclass(frozen=True)
class Corruption:
    """A rank that computed something different the second time, and where the difference began."""

    iteration: int
    rank: int
    host: str
    place: ComputedPlace
    kind: str
    evidence: str

    def as_alarm(self) -> Alarm:
        """Return the corruption as an alarm for the log and the events."""
        return Alarm(
            kind=self.kind,
            metric=self.place.metric,
            iteration=self.iteration,
            since=self.iteration,
            value=float("nan"),
            usual=float("nan"),
            evidence=self.evidence,
            rank=self.rank,
        )


@dataclass
class ReplayedPart:
    """Result of replaying part of a step."""

    findings: list[Corruption] = field(default_factory=list)
    seconds: float = 0.0
    """Time to recompute the first micro-batch."""


class Replayer:
    """Replays the first micro-batches in a step, at a fixed interval of steps."""

    def __init__(self, spec: PhasePlan, engine: MegatronEngine) -> None:
        self._engine = engine
        self._interval = spec.limits.replay_interval
        self._num_layers = spec.model.shape.layers
        self.is_bitwise = not on_gpu() or torch.are_deterministic_algorithms_enabled()
        self._tolerance = 0.0 if self.is_bitwise else TOLERANCE_ON_GPU
        self._tracer = Tracer(
            engine.models,
            spec.model.shape.layers,
            engine.clock,
            bitwise=self.is_bitwise,
            ranks_of_a_layer=spec.parallel.tensor * spec.parallel.context,
        )
        self._iteration = 0
        self._numbers: Numbers = {}
        self._data = ""
        self._batches: list[MicroBatch] = []
        self._has_header = False
        self.last = ReplayedPart()

    def is_due(self, iteration: int) -> bool:
        """Return whether the first micro-batch in this step must be recomputed."""
        return bool(self._interval) and iteration % self._interval == 0

    def compute(
        self,
        batches: MicroBatches,
        num_microbatches: int,
        iteration: int,
    ) -> float:
        """Compute a step like the engine, but compute the first micro-batches twice.

        Return the same loss as the engine.
        """
        self.last = ReplayedPart()
        self._iteration = iteration
        size = self._engine.smallest_part
        self._batches.clear()
        batches = self._remembered(batches)
        first = list(itertools.islice(batches, size))
        self._data = hash_of_tokens(first)
        states = RandomStates.now()
        before = self._pass(first, num_microbatches, 0)
        start = time.monotonic()
        again = self._again(first, num_microbatches, states, 1)
        agrees = first_difference(before.numbers, again.numbers, self._tolerance) is None
        if reduce_number(int(not agrees), torch.distributed.ReduceOp.MAX):
            again = self._judge(first, num_microbatches, states, [before, again])
        self.last.seconds = time.monotonic() - start
        self._numbers = again.numbers
        count = num_microbatches - size
        others = self._engine.compute_others(batches, count, num_microbatches)
        return total_loss([*again.losses, *others])

    def _remembered(self, batches: MicroBatches) -> MicroBatches:
        """Yield the micro-batches in a step, and keep them until the samples are hashed."""
        for batch in batches:
            self._batches.append(batch)
            yield batch

    def _pass(self, first: list[MicroBatch], num_microbatches: int, number: int) -> Computation:
        """Compute the first micro-batches, starting with zero gradients."""
        self._engine.clear_gradients()
        injected_faults.armed.begin_computation(self._iteration, number)
        with self._tracer.tracing() as trace:
            losses = self._engine.compute_first(iter(first), len(first), num_microbatches)
        self._tracer.add_gradients(trace)
        return Computation(losses, trace.numbers())

    def _again(
        self,
        first: list[MicroBatch],
        num_microbatches: int,
        states: RandomStates,
        number: int,
    ) -> Computation:
        states.restore()
        return self._pass(first, num_microbatches, number)

    def _judge(
        self,
        first: list[MicroBatch],
        num_microbatches: int,
        states: RandomStates,
        computations: list[Computation],
    ) -> Computation:
        """Recompute the micro-batches here and on another replica, and record the result.

        Return the last computation this rank ran itself.
        """
        neighbour = self._on_neighbour(first, num_microbatches, states)
        for number in range(2, 2 + REPEATS):
            computations.append(self._again(first, num_microbatches, states, number))
        own_numbers = [computation.numbers for computation in computations]
        suspect = self._suspect(own_numbers, neighbour)
        suspects: list[_Suspect | None] = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(suspects, suspect)
        self.last.findings = []
        for first_suspect in first_of_replicas(filter(None, suspects)):
            self.last.findings.append(self._finding(first_suspect))

        return computations[-1]

    def _on_neighbour(
        self,
        first: list[MicroBatch],
        num_microbatches: int,
        states: RandomStates,
    ) -> Numbers | None:
        """Make the corresponding rank in the next replica compute the micro-batches for this rank.

        Return None if there is only one replica.
        """
        group = parallel_state.get_data_parallel_group()
        size = group.size()
        if size == 1:
            return None
        # The neighbour has a different device, so the micro-batches are sent from host memory.
        on_host = []
        for batch in first:
            on_host.append({key: value.cpu() for key, value in batch.items()})

        tasks: list[Any] = [None] * size
        torch.distributed.all_gather_object(tasks, (on_host, states), group=group)
        batches, other_states = tasks[group.rank() - 1]
        there = []
        for batch in batches:
            there.append({key: value.to(device()) for key, value in batch.items()})

        computation = self._again(there, num_microbatches, other_states, -1)
        answers: list[Any] = [None] * size
        torch.distributed.all_gather_object(answers, computation.numbers, group=group)
        numbers: Numbers = answers[(group.rank() + 1) % size]
        return numbers

    def _suspect(self, own_numbers: list[Numbers], neighbour: Numbers | None) -> "_Suspect | None":
        """Return the first difference between the first two computations on this rank, or None."""
        difference = first_difference(own_numbers[0], own_numbers[1], self._tolerance)
        if difference is None:
            return None
        if neighbour is None:
            reference = _most_frequent(own_numbers)
        else:
            reference = neighbour

        wrong = []
        for number, numbers in enumerate(own_numbers):
            if first_difference(numbers, reference, self._tolerance) is not None:
                wrong.append(number)

        repeated = [number for number in wrong if number >= 2]
        order, location = difference
        return _Suspect(
            order=order,
            place=location,
            rank=torch.distributed.get_rank(),
            host=socket.gethostname(),
            replica=parallel_state.get_data_parallel_rank(),
            kind=PERSISTENT if repeated else TRANSIENT,
            num_wrong=len(wrong),
            num_computed=len(own_numbers),
            has_neighbour=neighbour is not None,
        )

    def _finding(self, suspect: "_Suspect") -> Corruption:
        if suspect.has_neighbour:
            judge = TrainingMessage.OF_ANOTHER_REPLICA.fill()
        else:
            judge = TrainingMessage.OF_ITS_OWN_REPEATS.fill()

        evidence = TrainingMessage.OTHER_NUMBERS.fill(
            rank=suspect.rank,
            host=suspect.host,
            place=suspect.place.describe(self._num_layers),
            num_wrong=suspect.num_wrong,
            num_computed=suspect.num_computed,
            judge=judge,
        )
        return Corruption(
            self._iteration,
            suspect.rank,
            suspect.host,
            suspect.place,
            suspect.kind,
            evidence,
        )

    def lines(self) -> Iterator[ReplayLine]:
        """Yield the lines for replay.jsonl about the step just computed, on rank 0.

        All ranks must call this.
        """
        marks = layer_marks(self._numbers)
        keys = list(marks)
        if not self._has_header:
            self._has_header = True
            own_keys = circumstances.RankCircumstances.now(keys)
            ranks = gather_on_first_rank(own_keys)
            if ranks:
                yield circumstances.header(
                    ranks, is_bitwise=self.is_bitwise, watched=self._tracer.watched.as_record()
                )
        own_marks = (self._data, hash_of_samples(self._batches), packed(marks.values()))
        self._batches.clear()
        steps = gather_on_first_rank(own_marks)
        if steps:
            yield {
                "iteration": self._iteration,
                "data": [data for data, _, _ in steps],
                "samples": [samples for _, samples, _ in steps],
                "marks": [text for _, _, text in steps],
                "seconds": round(self.last.seconds, 4),
            }


@dataclass(frozen=True)
class _Suspect:
    """A rank on which the first two computations differ."""

    order: tuple[int, int, int, int]
    place: ComputedPlace
    rank: int
    host: str
    replica: int
    kind: str
    num_wrong: int
    num_computed: int
    has_neighbour: bool


def first_of_replicas(suspects: Any) -> list[_Suspect]:
    """Return the first rank with a difference in each replica.

    The other ranks in the replica have received wrong numbers from this first rank.
    """
    firsts: dict[int, _Suspect] = {}
    for suspect in suspects:
        earliest = firsts.get(suspect.replica)
        if earliest is None or suspect.order < earliest.order:
            firsts[suspect.replica] = suspect

    return list(firsts.values())


def _most_frequent(numbers_of: list[Numbers]) -> Numbers:
    """Return the most frequent result. In a tie, return the latest result."""
    texts = [tuple(numbers.items()) for numbers in numbers_of]
    ((most_frequent, _),) = collections.Counter(reversed(texts)).most_common(1)
    return dict(most_frequent)


def hash_of_samples(batches: list[MicroBatch]) -> str:
    """Return a hash over the input to a step on this rank: tokens, labels and loss mask."""
    digest = hashlib.blake2b(digest_size=4)
    for batch in batches:
        for _, values in sorted(batch.items()):
            digest.update(values.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def hash_of_tokens(batches: list[MicroBatch]) -> str:
    """Return a hash over the tokens in micro-batches."""
    digest = hashlib.blake2b(digest_size=4)
    for batch in batches:
        digest.update(batch["tokens"].cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
