"""Counts what a step allocates, computes, sends and waits for, operator by operator.

The same counter is used with fake tensors and with real training on CPUs, to compare the two.
"""

import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from runbook.plan_file.rehearsed_work import (
    ATTENTION,
    BACKWARD,
    FORWARD,
    KERNELS,
    MATRIX,
    MOVED,
    OPTIMIZER,
    Allocation,
)

SNAPSHOT_STEP = 1.01
"""The peak must grow by this factor before the tensors at the peak are recorded again."""
LARGEST = 8
FORWARD_BACKWARD = "forward and backward"
TIMELINE_POINTS = 400


@dataclass
class StepCounts:
    """The counts since the last `OperatorCounter.reset`."""

    peak_bytes: int = 0
    peak_moment: str = ""
    host_peak_bytes: int = 0
    flops: int = 0
    operators: int = 0
    collectives: Counter[tuple[str, str]] = field(default_factory=Counter)
    collective_bytes: Counter[tuple[str, str]] = field(default_factory=Counter)
    work: Counter[tuple[str, int, str]] = field(default_factory=Counter)
    """The work by part of the step, model chunk and type, as in `plan_file.rehearsed_work`."""
    synchronizations: Counter[str] = field(default_factory=Counter)
    largest: list[Allocation] = field(default_factory=list)
    timeline: list[tuple[str, int]] = field(default_factory=list)


class OperatorCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts all operators that run while this mode is active.

    With `fake`, numbers the code reads are made up, and no messages are sent.
    """

    def __init__(self, *, fake: bool, device_type: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.fake = fake
        self.device_type = device_type
        self.moment = ""
        self.chunk = 0
        self.in_kernel = False
        self.groups: dict[str, str] = {}
        """Readable names for process groups, keyed by the names in torch."""
        self.counts = StepCounts()
        self.bytes = Counter[str]()
        self._alive: dict[int, tuple[Any, Allocation, str]] = {}
        self._snapshot_at = 0.0

    def reset(self) -> StepCounts:
        """Return the counts so far, and start counting again.

        The peak in the new counts starts at the memory that is in use now.
        """
        counts = self.counts
        self.counts = StepCounts()
        self._snapshot_at = 0.0
        self.counts.peak_bytes = self.bytes[self.device_type]
        return counts

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Count an operator, and run it or replace its result."""
        options = kwargs or {}
        if func.namespace == "prim":
            return func(*args, **options)

        self.counts.operators += 1
        # `item()` makes the host wait for the device.
        if func is torch.ops.aten._local_scalar_dense.default:
            if args[0].device.type == self.device_type:
                self.counts.synchronizations[_asked_by()] += 1
            if self.fake:
                return _number_in(args[0])

        if func.namespace == "c10d" and func._opname != "barrier":
            self._collective(func, args)
            if self.fake:
                return self._skip_collective(func, args)

        if self.fake and func is torch.ops.aten._to_copy.default:
            # torch would try to move the number to a nonexistent device.
            args[0].constant = None

        result = func(*args, **options)
        self._count_result(func, args, options, result)
        return result

    def _skip_collective(self, func: Any, args: tuple[Any, ...]) -> Any:
        """Return the result of a collective without sending, and count the memory needed for it."""
        if self.device_type == "cpu" and "reduce_scatter" in func._opname:
            # gloo sums into a copy on the host.
            self._seen(self.bytes["cpu"] + _tensor_bytes(args[1]))

        return _unsent(func, args)

    def _count_result(
        self,
        func: Any,
        args: tuple[Any, ...],
        options: Mapping[str, object],
        result: Any,
    ) -> None:
        """Count the FLOPs, memory and kernel for an operator that was computed."""
        formula = flop_registry.get(func._overloadpacket)
        flops = 0
        if formula is not None:
            flops = formula(*args, **options, out_val=result)
        self.counts.flops += flops
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._allocated(leaf, func)

        if func.is_view or func._opname in _NO_KERNEL or self.in_kernel:
            return
        kind = ATTENTION if "attention" in func._opname else MATRIX
        self._kernel((args, result), flops, kind)

    def _kernel(
        self,
        tensors: Any,
        flops: int = 0,
        kind: str = MATRIX,
    ) -> None:
        self._add(KERNELS, 1)
        self._add(kind, flops)
        # The rate for attention already accounts for the bytes it moves.
        self._add(MOVED, 0 if kind == ATTENTION else _tensor_bytes(tensors))

    def _add(self, kind: str, number: int) -> None:
        if self.moment == OPTIMIZER:
            part = OPTIMIZER
        elif torch._C._current_graph_task_id() == -1:
            # No autograd task is running.
            part = FORWARD
        else:
            part = BACKWARD

        self.counts.work[part, self.chunk, kind] += number

    def as_one_kernel(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function to count it as one kernel.

        A compiler would turn the function into a single kernel that reads the arguments and writes
        the result.
        """

        def counted(*arguments: Any) -> Any:
            inside = self.in_kernel
            self.in_kernel = True
            result = call(*arguments)
            self.in_kernel = inside
            if not inside:
                self._kernel((arguments, result))
                self._seen(self.bytes[self.device_type])

            return result

        return counted

    def _allocated(self, tensor: torch.Tensor, func: Any) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._alive:
            return
        device_type = tensor.device.type
        size = storage.nbytes()
        if device_type == "meta":
            return  # A tensor with a shape but without data
        reference = weakref.ref(storage, lambda _: self._freed(key))
        self._alive[key] = (
            reference,
            Allocation(size, str(func), tuple(tensor.shape), str(tensor.dtype)),
            device_type,
        )
        self.bytes[device_type] += size
        counts = self.counts
        current = self.bytes[device_type]
        if device_type != self.device_type:
            counts.host_peak_bytes = max(counts.host_peak_bytes, current)
            return

        self._seen(current)

    def _seen(self, current: int) -> None:
        """Record this number of bytes on the device as a point in the timeline.

        The number becomes the peak if it exceeds the current peak.
        """
        counts = self.counts
        # Intermediate results in a kernel never reach memory.
        if self.in_kernel:
            return
        if current > counts.peak_bytes:
            counts.peak_bytes = current
            counts.peak_moment = self.moment
            if current > SNAPSHOT_STEP * self._snapshot_at:
                self._snapshot_at = current
                on_device = []
                for _, allocation, device_type in self._alive.values():
                    if device_type == self.device_type:
                        on_device.append(allocation)

                on_device.sort(key=lambda allocation: -allocation.bytes)
                counts.largest = on_device[:LARGEST]

        counts.timeline.append((self.moment, current))

    def _freed(self, key: int) -> None:
        _, allocation, device_type = self._alive.pop(key)
        self.bytes[device_type] -= allocation.bytes

    def _collective(self, func: Any, args: tuple[Any, ...]) -> None:
        group = next(
            torch.distributed.ProcessGroup.unbox(value)
            for value, parameter in zip(args, func._schema.arguments, strict=False)
            if "ProcessGroup" in str(parameter.type)
        )
        key = (self.groups.get(group.group_name, f"{group.size()} ranks"), func._opname.strip("_"))
        size = max(map(_tensor_bytes, args[:2]))
        self.counts.collectives[key] += 1
        self.counts.collective_bytes[key] += size
        names = [parameter.name for parameter in func._schema.arguments]
        # Messages between stages do not have this argument.
        if "async_op" in names:
            # torch omits an argument equal to the default, here True.
            asynchronous = args[names.index("async_op") :]
            waits = bool(asynchronous) and not asynchronous[0]
            group_name, operation = key
            self._add(f"{group_name}:{operation}:{'alone' if waits else 'overlapped'}", size)

    def bytes_of(self, tensors: Iterable[torch.Tensor]) -> int:
        """Return the bytes in the storages behind these tensors. Each storage is counted once."""
        storages = [tensor.untyped_storage() for tensor in tensors]
        bytes_of_storage = {storage._cdata: storage.nbytes() for storage in storages}
        return sum(bytes_of_storage.values())


_NO_KERNEL = frozenset(
    {
        "empty",
        "empty_like",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "_unsafe_view",
        "detach",
        "set_",
    }
)
"""Operators that touch no memory, besides views."""


def _number_in(tensor: Any) -> bool | int | float:
    """Return the number in a fake tensor, or zero if torch does not know this number.

    Zero means that nothing overflowed, that no rank has a fault, and that all sums are zero.
    """
    if getattr(tensor, "constant", None) is not None:
        number: bool | int | float = tensor.constant.item()
        return number

    if tensor.dtype is torch.bool:
        return False
    if tensor.dtype.is_floating_point:
        return 0.0
    return 0


def _tensor_bytes(argument: Any) -> int:
    return sum(leaf.nbytes for leaf in tree_leaves(argument) if isinstance(leaf, torch.Tensor))


def _unsent(func: Any, args: tuple[Any, ...]) -> Any:
    """Return the result for an unsent collective.

    The result consists of the tensors passed to the collective, and a handle that does not wait.
    """
    from torch._C._distributed_c10d import FakeWork

    returned = []
    for value in func._schema.returns:
        if "Work" in str(value.type):
            returned.append(FakeWork().boxed())
        else:
            returned.append(args[0])

    if len(returned) == 1:
        return returned[0]
    return tuple(returned)


def _asked_by() -> str:
    """Return the innermost line waiting for a number from the device.

    Only lines in the trainer, megatron-core and DeepSpeed count.
    """
    frame: Any = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        is_ours = module.startswith(("runbook.training", "megatron", "deepspeed"))
        if is_ours and ".rehearsal" not in module:
            return f"{module}.{frame.f_code.co_name}:{frame.f_lineno}"
        frame = frame.f_back

    return "torch"


def thinned(
    timeline: list[tuple[str, int]], points: int = TIMELINE_POINTS
) -> list[tuple[str, int]]:
    """Return the memory timeline with fewer points. The highest point in each interval is kept.

    >>> thinned([("a", 1), ("a", 5), ("a", 2), ("b", 3)], 2)
    [('a', 5), ('b', 3)]
    """
    stretch = max(1, -(-len(timeline) // points))
    highest = []
    for start in range(0, len(timeline), stretch):
        points_of_stretch = timeline[start : start + stretch]
        highest.append(max(points_of_stretch, key=lambda point: point[1]))

    return highest
