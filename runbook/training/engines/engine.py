"""The interface between the training loop and an engine.

This module also defines the single form in which every engine saves the Adam state.

The `fully_reshardable` form in which megatron-core saves the distributed optimizer does not load
with the torch Adam (a missing 'step'), and the `dp_reshardable` form ties a checkpoint to the
layout of the gradient buffers. Here each weight has three float32 tensors with the same shape,
`optimizer.state.{fp32_param,exp_avg,exp_avg_sq}.<weight>`. They are divided over tensor and
pipeline ranks like the weight, and each replica reads the range it owns. So a checkpoint can be
loaded with any layout.
"""

from __future__ import annotations

import abc
import contextlib
import copy
import dataclasses
import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.mapping import (
    ShardedObject,
    ShardedTensor,
    ShardedTensorFactory,
    is_main_replica,
)
from megatron.core.dist_checkpointing.optimizer import make_sharded_optimizer_tensor
from megatron.core.tensor_parallel import gather_from_tensor_model_parallel_region

from runbook.plan_file.schema import PhasePlan
from runbook.training.host_copies import make_host_copies
from runbook.training.process_groups import reduce_number, run_on_all_ranks
from runbook.training.ranks import on_gpu

# A micro-batch: `tokens`, `labels`, `loss_mask`, `position_ids`
MicroBatch: TypeAlias = dict[str, torch.Tensor]
# Micro-batches of this rank's data-parallel replica
MicroBatches: TypeAlias = Iterator[MicroBatch]

Shard: TypeAlias = ShardedTensor | ShardedTensorFactory | ShardedObject
"""This rank's part of a tensor or object, with its position in the whole, as in megatron-core."""
Shards: TypeAlias = dict[str, Shard]
State: TypeAlias = dict[str, Shards]
"""Shards by section: `model0`, `model1` and so on

(one model chunk each), `optimizer`, `random`.
"""
ReadShard: TypeAlias = Callable[[Shard, int, torch.Tensor], None]
"""Fills a flat tensor from this rank's part of a stored tensor, from a given offset in the part."""

MASTER = "fp32_param"
"""The float32 copy of a weight, in the optimizer state."""
# The first of these includes waiting for data, and the second waiting for communication
DATA, COMPUTE = (
    "data_wait_seconds",
    "forward_backward_seconds",
)
COMMUNICATION = "communication_seconds"
OPTIMIZER = "optimizer_seconds"


class StepClock:
    """Measures how long the parts of a step take.

    The host only queues work for a GPU, so a clock on the host cannot measure that work. On a GPU,
    events in the stream mark the beginning and the end of each part. They are read after the loop
    has waited for the GPU anyway, so it takes no time to read them.
    """

    def __init__(self, make_event: Callable[[], Any] | None = None) -> None:
        # Creates a GPU event with `record` and `elapsed_time` in ms; if None, the host clock is
        # used
        self._make_event = make_event
        # The time for a part is known only once the GPU has finished it
        self.is_late = make_event is not None
        self._spans: dict[str, list[tuple[Any, Any]]] = {}
        self._running: set[str] = set()

    @contextlib.contextmanager
    def during(self, part: str) -> Iterator[None]:
        """Measure how long the body takes.

        Time within nested blocks of the same part is counted only once.
        """
        start = self._mark()
        is_outermost = part not in self._running
        self._running.add(part)
        try:
            yield
        finally:
            if is_outermost:
                self._running.discard(part)
                self._spans.setdefault(part, []).append((start, self._mark()))

    def timed(self, collective: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function to count the time it takes.

        If it returns a handle, waiting for the handle is counted too.
        """

        @functools.wraps(collective)
        def timed(*arguments: Any, **options: Any) -> Any:
            with self.during(COMMUNICATION):
                result = collective(*arguments, **options)
            if hasattr(result, "wait"):
                return _TimedHandle(result, self)
            return result

        return timed

    def forget(self, *parts: str) -> None:
        """Discard the recorded times of these parts."""
        self._spans = {part: spans for part, spans in self._spans.items() if part not in parts}

    def take(self) -> dict[str, float]:
        """Return the seconds spent in each part since the last call.

        On a GPU, the stream must have finished these parts.
        """
        spans = self._spans
        self._spans = {}
        seconds = {}
        for part, pairs in spans.items():
            seconds[part] = sum(self._seconds(*span) for span in pairs)

        return seconds

    def _mark(self) -> Any:
        """Return when the rank, or the stream on its GPU, reaches this point."""
        if self._make_event is None:
            return time.monotonic()
        event = self._make_event()
        event.record()
        return event

    def _seconds(self, start: Any, end: Any) -> float:
        return float(start.elapsed_time(end) / 1000 if self.is_late else end - start)


class _TimedHandle:
    """A collective in progress."""

    def __init__(self, work: Any, clock: StepClock) -> None:
        self._work = work
        self.wait = clock.timed(work.wait)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


@dataclass(frozen=True)
class OptimizerUpdate:
    """Result of an optimizer step."""

    # Norm of the full gradient before clipping; NaN if the step was skipped
    gradient_norm: float
    # Whether the step was left out because a gradient overflowed (fp16)
    skipped: bool
    loss_scale: float
    numbers: Mapping[str, float] = field(default_factory=dict)
    """Other numbers an engine computes in a step, by their names in metrics.jsonl.

    The last rank's numbers are written to metrics.jsonl, TensorBoard and the trackers.
    """


@dataclass(frozen=True)
class CommonState:
    """The values in a checkpoint that are the same on all ranks."""

    optimizer_step: int = 0
    # State of the loss scale for fp16; empty in other formats
    loss_scaler: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class WeightPart:
    """The flat range of a weight for which this rank has the optimizer state.

    This rank also has the float32 copy of that range.
    """

    start: int
    stop: int
    main: torch.Tensor
    """The tensor that Adam updates.

    This tensor is the float32 weight, a part of that weight, or a buffer with many weights in which
    this weight begins at `offset`.
    """
    adam: torch.optim.Optimizer
    offset: int = 0

    def tensor(self, kind: str) -> torch.Tensor:
        """Return the float32 weight, or one of the Adam moments, as a flat view.

        The moments are zeros if Adam has not taken a step yet.
        """
        whole = self.main.detach()
        if kind != MASTER:
            state = self.adam.state[self.main]
            if kind not in state:
                state[kind] = torch.zeros_like(self.main, dtype=torch.float32, requires_grad=False)
                # The torch Adam creates the whole state at once. An Adam that counts steps per
                # group does not store a step here.
                if "step" not in {*state, *self.adam.param_groups[0]}:
                    self.set_steps(0)

            whole = state[kind]

        return whole.view(-1).narrow(0, self.offset, self.stop - self.start)

    def num_steps(self) -> int:
        """Return the number of steps taken by Adam. Skipped steps do not count."""
        groups = (int(group.get("step", 0)) for group in self.adam.param_groups)
        return max([int(self.adam.state[self.main].get("step", 0)), *groups])

    def set_steps(self, steps: int) -> None:
        """Set the number of steps taken by Adam."""
        if "step" not in self.adam.param_groups[0]:
            self.adam.state[self.main]["step"] = torch.tensor(float(steps), device=self.main.device)
        self.set_group_steps(steps)

    def set_group_steps(self, steps: int) -> None:
        """Set the step count in an Adam that counts steps per group.

        The fused optimizers of Apex and Transformer Engine count in this way.
        """
        for group in self.adam.param_groups:
            if "step" in group:
                group["step"] = steps


@dataclass(frozen=True)
class Destination:
    """The tensor that receives a stored range, and the replica that reads the range for all.

    If the reader is None, each replica reads its own range.
    """

    shard: Shard
    start: int
    tensor: torch.Tensor
    reader: int | None


@dataclass(frozen=True)
class OwnTensor:
    """A flat tensor in the state on this rank, with the name it has in a checkpoint."""

    name: str
    tensor: torch.Tensor


@dataclass(frozen=True)
class OwnedState:
    """The optimizer state on this rank by weight, and whether it is sharded over the replicas."""

    parts: dict[torch.nn.Parameter, WeightPart]
    is_cut: bool

    @classmethod
    def whole(
        cls,
        weights: Iterable[torch.nn.Parameter],
        mains: Iterable[torch.Tensor],
        adam: torch.optim.Optimizer,
    ) -> OwnedState:
        """Return the state of an unsharded optimizer, with a float32 copy of each weight."""
        pairs = zip(weights, mains, strict=True)
        return cls(
            {weight: WeightPart(0, weight.numel(), main, adam) for weight, main in pairs},
            is_cut=False,
        )


class TrainingEngine(abc.ABC):
    """A model that can be trained. `models` contains the model chunks on this rank.

    Every method is called on every rank.
    """

    def __init__(self, spec: PhasePlan, models: list[Any]) -> None:
        self.spec = spec
        self.models = models
        # The tensors a checkpoint contains for each weight, in addition to the weight itself
        self.state_kinds = (MASTER, *spec.optimizer.moments)
        # The shape of each weight and its position in the complete model, recorded before ZeRO 3
        # shards the weights
        self._shards = [sharded_weights(model) for model in models]
        self.host_copies = make_host_copies()
        self.clock = StepClock(
            functools.partial(torch.cuda.Event, enable_timing=True) if on_gpu() else None
        )
        """Clock that also measures communication for gradients (and for weights in ZeRO 3).

        The clock does not measure communication in streams that DeepSpeed creates on a GPU.
        """

    @abc.abstractmethod
    def compute(self, batches: MicroBatches, num_microbatches: int) -> float:
        """Run the forward and backward passes for one step.

        Return the sum of the mean losses over the micro-batches, or 0 on a rank without losses.

        The number of micro-batches may change from step to step, because a batch that ramps up has
        fewer micro-batches at first.
        """

    @abc.abstractmethod
    def update(self, learning_rate: float) -> OptimizerUpdate:
        """Step the optimizer with the gradients from the last `compute`."""

    @abc.abstractmethod
    def evaluate(self, batches: MicroBatches, num_microbatches: int) -> float:
        """Run only the forward pass. Return the same sum as `compute`."""

    @abc.abstractmethod
    def next_token_logits(self, ids: torch.Tensor) -> torch.Tensor | None:
        """Return the logits for the token after each prefix in `ids` [1, length].

        Ranks on earlier pipeline stages return None.
        """

    def weights(self) -> State:
        """Return the weights in each model chunk as sharded tensors under Megatron names."""
        weights: State = {}
        for index, shards in enumerate(self._shards):
            # Return copies, because a save changes the writer in the shards and removes their data.
            weights[f"model{index}"] = {name: copy.copy(shard) for name, shard in shards.items()}

        return weights

    @abc.abstractmethod
    def _owned(self) -> OwnedState: ...

    @abc.abstractmethod
    def _scaler_values(self) -> dict[str, float]: ...

    @abc.abstractmethod
    def _restore_scaler(self, values: dict[str, float]) -> None: ...

    def _gather(self, weight: torch.nn.Parameter) -> contextlib.AbstractContextManager[Any]:
        """Gather a weight sharded by ZeRO 3, to read it within the block."""
        return contextlib.nullcontext()

    def sharded_state(self) -> State:
        """Return the weights and the optimizer state as sharded tensors with the data to save.

        The optimizer state for each weight is gathered on the replica that writes it. The other
        replicas only have a description, without data. Writing the weights is distributed in the
        same way.

        Gathered state is copied to the host, one weight after another, so the GPU needs memory for
        only one. These copies are complete after `host_copies.wait`. State already complete on a
        rank is not copied.
        """
        weights = self.weights()
        owned = self._owned()
        optimizer_state = Shards()
        writers = self._writers(weights)
        for name, weight in trained_weights(weights):
            for kind in self.state_kinds:
                writer = writers[f"{kind}.{name}"]
                whole = self._whole_state(weight.data, owned, kind, writer)
                shard = _state_shard(weight, whole, kind)
                _assign_writer(shard, writer)
                optimizer_state[f"{kind}.{name}"] = shard

            _assign_writer(weight, writers[f"weight.{name}"])

        return {**weights, "optimizer": optimizer_state}

    def _whole_state(
        self,
        weight: torch.nn.Parameter,
        owned: OwnedState,
        kind: str,
        writer: int,
    ) -> torch.Tensor:
        """Return the state for one weight on the replica that writes it.

        On other replicas, return only its shape.
        """
        group = parallel_state.get_data_parallel_group(with_context_parallel=True)
        shape = whole_shape(weight)
        part = owned.parts.get(weight)
        if not owned.is_cut or group.size() == 1:
            assert part is not None, "without sharding, every rank has all of its state"
            state = part.tensor(kind) if group.rank() == writer else None
        else:
            state = self._brought_together(weight, part, kind, writer)

        if state is None:
            return torch.empty(shape, dtype=torch.float32, device="meta")
        return state.view(shape)

    def _brought_together(
        self,
        weight: torch.nn.Parameter,
        part: WeightPart | None,
        kind: str,
        writer: int,
    ) -> torch.Tensor | None:
        """Return the whole state, if each replica has a part of it.

        The result is in host memory on the replica that writes the state.
        """
        group = parallel_state.get_data_parallel_group(with_context_parallel=True)
        numbers = whole_shape(weight).numel()
        whole = torch.zeros(numbers, dtype=torch.float32, device=weight.device)
        if part is not None:
            whole[part.start : part.stop] = part.tensor(kind)
        target = torch.distributed.get_global_rank(group, writer)
        torch.distributed.reduce(whole, target, group=group)
        if whole.device.type == "cpu":
            return whole if group.rank() == writer else None
        copy = self.host_copies.copy(whole) if group.rank() == writer else None
        self.host_copies.let_go(whole.nbytes)
        return copy

    def common_state(self) -> CommonState:
        """Return the largest number of Adam steps on any rank, and the loss scale."""
        own_steps = max((part.num_steps() for part in self._owned().parts.values()), default=0)
        return CommonState(
            reduce_number(own_steps, torch.distributed.ReduceOp.MAX), self._scaler_values()
        )

    def restore(
        self,
        read: ReadShard,
        common: CommonState,
        *,
        with_optimizer: bool,
    ) -> None:
        """Load a checkpoint, range by range and in place.

        Without the optimizer state, Adam starts over. A single replica reads each number, and sends
        it to all replicas that need it.
        """
        copy = parallel_state.get_data_parallel_rank(with_context_parallel=True)
        with torch.no_grad():
            destinations = list(self._destinations(with_optimizer=with_optimizer))

            def read_own() -> None:
                for destination in destinations:
                    if destination.reader in (None, copy):
                        read(destination.shard, destination.start, destination.tensor)

            run_on_all_ranks(read_own)
            self._share(destinations)
            if with_optimizer:
                for part in self._owned().parts.values():
                    part.set_steps(common.optimizer_step)
                self._restore_scaler(common.loss_scaler)
            else:
                self._reset_optimizer()

    def own_tensors(self) -> list[OwnTensor]:
        """Return all weights and optimizer state that this rank needs.

        The tensors are flat and may be written to.

        All ranks must call this method together. Unlike the shards in a checkpoint, the tensors
        include data that other ranks also hold.
        """
        tensors: dict[tuple[int, int], OwnTensor] = {}
        with torch.no_grad():
            for destination in self._destinations(with_optimizer=True):
                own_tensor = OwnTensor(destination.shard.key, destination.tensor)
                # fp32 weights without ZeRO are their own master copy, so they are included only
                # once.
                tensors.setdefault(
                    (own_tensor.tensor.data_ptr(), own_tensor.tensor.nbytes), own_tensor
                )

        return [own_tensor for own_tensor in tensors.values() if own_tensor.tensor.nbytes]

    def finish_own(self, common: CommonState) -> None:
        """Restore everything except tensors, once the tensors from `own_tensors` are filled."""
        for part in self._owned().parts.values():
            part.set_steps(common.optimizer_step)
        self._restore_scaler(common.loss_scaler)

    def _destinations(self, *, with_optimizer: bool) -> Iterator[Destination]:
        weights = self.weights()
        owned = self._owned()
        readers = self._writers(weights)
        for name, shard in trained_weights(weights):
            weight = shard.data
            part = owned.parts.get(shard.data)
            like = torch.empty(whole_shape(weight), dtype=weight.dtype, device="meta")
            stored = dataclasses.replace(shard, data=like)
            own_range = self._own_range(weight)
            reader = readers[f"weight.{name}"] if own_range is None else None
            if own_range is None:
                start, room = (0, weight.detach().view(-1))
            else:
                start, room = own_range

            yield Destination(stored, start, room, reader)
            if part is None or not with_optimizer:
                continue
            for kind in self.state_kinds:
                stored = _state_shard(shard, like.float(), kind)
                reader = None if owned.is_cut else readers[f"{kind}.{name}"]
                yield Destination(stored, part.start, part.tensor(kind), reader)

    def _own_range(self, weight: torch.nn.Parameter) -> tuple[int, torch.Tensor] | None:
        """Return the offset and the flat range that ZeRO 3 keeps of a weight on this rank.

        Return None if this rank has no part of the weight.
        """
        return None

    def _share(self, destinations: Iterable[Destination]) -> None:
        """Send data one replica has read to the other replicas."""
        group = parallel_state.get_data_parallel_group(with_context_parallel=True)
        for shared in destinations:
            if shared.reader is not None and group.size() > 1:
                source = torch.distributed.get_global_rank(group, shared.reader)
                torch.distributed.broadcast(shared.tensor.view(torch.uint8), source, group=group)

    def _reset_optimizer(self) -> None:
        """Copy the weights to their float32 copies, and let Adam start over."""
        for weight, part in self._owned().parts.items():
            part.adam.state[part.main].clear()
            part.set_group_steps(0)
            with self._gather(weight):
                part.tensor(MASTER).copy_(weight.detach().reshape(-1)[part.start : part.stop])

    def _writers(self, weights: State) -> dict[str, int]:
        """Return which replica writes each weight and the optimizer states for it.

        That replica also reads the data all replicas need.
        """
        sizes = {}
        for name, shard in trained_weights(weights):
            for kind in (*self.state_kinds, "weight"):
                sizes[f"{kind}.{name}"] = whole_shape(shard.data).numel()

        return assign_writers(
            sizes, parallel_state.get_data_parallel_world_size(with_context_parallel=True)
        )

    def num_parameters(self) -> int:
        """Return the number of trained parameters in the complete model.

        Each rank counts the parameters it is the main replica of, and the counts are summed.
        """
        count = 0
        for _, shard in trained_weights(self.weights()):
            if is_main_replica(shard.replica_id):
                count += whole_shape(shard.data).numel()

        return reduce_number(count)

    def holds_loss(self) -> bool:
        """Return whether the loss on this rank is used.

        The loss is used on the first tensor-parallel rank in the last pipeline stage.
        """
        is_last_stage = parallel_state.is_pipeline_last_stage(ignore_virtual=True)
        return bool(is_last_stage and parallel_state.get_tensor_model_parallel_rank() == 0)


def mean_loss(losses: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the mean loss over the unmasked tokens."""
    return (losses.float() * mask).sum() / mask.sum().clamp(min=1)


def whole_logits(logits: torch.Tensor) -> torch.Tensor:
    """Return the logits for the full vocabulary, gathered from the tensor-parallel ranks."""
    whole: torch.Tensor = gather_from_tensor_model_parallel_region(logits.float())
    return whole


SHORTEST_SAMPLE = 64


def sampling_length(length: int, positions: int, multiple: int = 1) -> int:
    """Return the number of tokens a text is padded to for scoring.

    The number is a power of two, to compile few shapes while a text grows by one token at a time.
    Padding after a token does not change the scores for it. The result is a multiple of `multiple`,
    and at most the number of positions unless the text is longer.

    >>> [sampling_length(length, 1000) for length in (3, 64, 65, 600, 1002)]
    [64, 64, 128, 1000, 1002]
    >>> sampling_length(601, 1001, multiple=4)
    1004
    """
    power = max(SHORTEST_SAMPLE, 1 << (length - 1).bit_length())
    padded = max(length, min(power, positions))
    return padded + -padded % multiple


def whole_shape(weight: torch.Tensor) -> torch.Size:
    """Return the shape of a weight, even while ZeRO 3 has it sharded."""
    return getattr(weight, "ds_shape", weight.shape)


def assign_writers(sizes: dict[str, int], copies: int) -> dict[str, int]:
    """Assign items to replicas, to let all of them write about the same amount.

    Items are assigned in order of decreasing size, each to the replica with the least data.

    >>> assign_writers({"a": 5, "b": 3, "c": 1, "d": 1}, 2)
    {'a': 0, 'b': 1, 'c': 1, 'd': 1}
    """
    load = [0] * copies
    writers = {}
    for name, size in sorted(sizes.items(), key=lambda item: (-item[1], item[0])):
        writers[name] = load.index(min(load))
        load[writers[name]] += size

    return writers


def sharded_weights(model: Any) -> Shards:
    """Return the weights in a GPTModel as sharded tensors.

    Each layer is named by its number in the complete model.
    """
    weights: Shards = model.sharded_state_dict(metadata={"non_homogeneous_layers": True})
    if any("_extra_state" in name and leaf.data is not None for name, leaf in weights.items()):
        # Skip the fp8 state from Transformer Engine: this trainer does not use it, and some
        # versions pickle more than data.
        weights = {name: leaf for name, leaf in weights.items() if "_extra_state" not in name}

    return weights


def trained_weights(weights: State) -> Iterator[tuple[str, Any]]:
    """Yield every trained weight in the model chunks, with the name `<chunk>.<name>`."""
    for chunk, shards in weights.items():
        for name, shard in shards.items():
            if isinstance(shard, ShardedTensor | ShardedTensorFactory) and isinstance(
                shard.data, torch.nn.Parameter
            ):
                yield f"{chunk}.{name}", shard


def each_shard(node: Any) -> Iterator[Shard]:
    """Yield every sharded tensor and object in a nested state, including factories' products."""
    if isinstance(node, ShardedTensorFactory):
        yield from each_shard(node.build())
    elif isinstance(node, ShardedTensor | ShardedObject):
        yield node
    elif isinstance(node, dict | list | tuple):
        for child in node.values() if isinstance(node, dict) else node:
            yield from each_shard(child)


def _state_shard(weight: Any, state: torch.Tensor, kind: str) -> Any:
    return make_sharded_optimizer_tensor(weight, state, f"optimizer.state.{kind}")


def _assign_writer(shard: Any, writer: int) -> None:
    """Make one replica the writer, by setting the last number in its replica id to 0."""
    group = parallel_state.get_data_parallel_group(with_context_parallel=True)
    shard.replica_id = (*shard.replica_id[:-1], (group.rank() - writer) % group.size())
