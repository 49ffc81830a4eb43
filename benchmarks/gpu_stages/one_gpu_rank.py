"""A rank in a training run in which all ranks share one GPU.

    python -m benchmarks.gpu_stages.one_gpu_rank PLAN

NCCL refuses two ranks on one GPU. Here every message goes through the host memory over gloo, so
that kernels, layouts and sums over several ranks can be checked where there is only one GPU. The
speed of such a training run is meaningless. On a CPU the messages take the same path, so that a
rehearsal exercises the same code.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch.distributed import distributed_c10d

_original: dict[str, Any] = {}
"""The original functions of torch.distributed, by name."""


def use_one_gpu() -> None:
    """Replace the functions that torch uses to send data between GPUs.

    Call this before megatron-core or DeepSpeed are imported.
    """
    replacements: dict[str, Callable[..., Any]] = {
        "init_process_group": _over_gloo("init_process_group"),
        "new_group": _over_gloo("new_group"),
        "all_reduce": all_reduce,
        "reduce": reduce,
        "broadcast": broadcast,
        "all_gather": all_gather,
        "all_gather_into_tensor": all_gather_into_tensor,
        "_all_gather_base": all_gather_into_tensor,
        "reduce_scatter_tensor": reduce_scatter_tensor,
        "_reduce_scatter_base": reduce_scatter_tensor,
        "isend": isend,
        "irecv": irecv,
        "send": send,
        "recv": recv,
        "batch_isend_irecv": batch_isend_irecv,
        "_coalescing_manager": one_by_one,
    }
    for name, replacement in replacements.items():
        _original[name] = getattr(distributed_c10d, name)
        setattr(distributed_c10d, name, replacement)
        if hasattr(torch.distributed, name):
            setattr(torch.distributed, name, replacement)


def _over_gloo(name: str) -> Callable[..., Any]:
    @functools.wraps(getattr(distributed_c10d, name))
    def wrapped(*positional: Any, **named: Any) -> Any:
        changed = ["gloo" if value == "nccl" else value for value in positional]
        if named.get("backend") == "nccl":
            named["backend"] = "gloo"
        named.pop("pg_options", None)
        named.pop("device_id", None)
        return _original[name](*changed, **named)

    return wrapped


class Finished:
    """The handle for a message that has already arrived.

    A group of point-to-point messages also returns one.
    """

    def wait(self, *_: Any) -> bool:
        """Wait for nothing."""
        return True

    def is_completed(self) -> bool:
        """Return True, because the message has already arrived."""
        return True

    def append(self, _: Any) -> None:
        """Accept the handle for an operation that has already ended."""


def _finished(asynchronous: bool) -> Finished | None:
    return Finished() if asynchronous else None


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous copy in the host memory."""
    return tensor.detach().to("cpu", copy=True).contiguous()


def _bring_back(tensor: torch.Tensor, copy: torch.Tensor) -> None:
    with torch.no_grad():
        tensor.detach().copy_(copy.view(tensor.shape))


SUM = torch.distributed.ReduceOp.SUM
AVERAGE = torch.distributed.ReduceOp.AVG


def _reduced(tensor: torch.Tensor, op: Any, group: Any) -> torch.Tensor:
    """Return the tensor reduced over the group, on the host. gloo has no average."""
    copy = _on_host(tensor)
    average = op == AVERAGE
    _original["all_reduce"](copy, SUM if average else op, group)
    if average:
        copy /= torch.distributed.get_world_size(group)
    return copy


def all_reduce(tensor: Any, op: Any = SUM, group: Any = None, async_op: bool = False) -> Any:
    """Reduce through the host."""
    _bring_back(tensor, _reduced(tensor, op, group))
    return _finished(async_op)


def reduce(
    tensor: Any,
    dst: Any = None,
    op: Any = SUM,
    group: Any = None,
    async_op: bool = False,
    group_dst: Any = None,
) -> Any:
    """Reduce through the host. Every rank gets the result, which a reduction permits."""
    return all_reduce(tensor, op, group, async_op)


def broadcast(
    tensor: Any,
    src: Any = None,
    group: Any = None,
    async_op: bool = False,
    group_src: Any = None,
) -> Any:
    """Broadcast through the host."""
    copy = _on_host(tensor)
    _original["broadcast"](copy, src, group, False, group_src)
    _bring_back(tensor, copy)
    return _finished(async_op)


def all_gather(tensor_list: Any, tensor: Any, group: Any = None, async_op: bool = False) -> Any:
    """Gather through the host."""
    copies = [_on_host(output) for output in tensor_list]
    _original["all_gather"](copies, _on_host(tensor), group)
    for output, copy in zip(tensor_list, copies, strict=True):
        _bring_back(output, copy)
    return _finished(async_op)


def all_gather_into_tensor(
    output_tensor: Any, input_tensor: Any, group: Any = None, async_op: bool = False
) -> Any:
    """Gather into one tensor through the host."""
    copy = _on_host(output_tensor)
    _original["all_gather_into_tensor"](copy, _on_host(input_tensor), group)
    _bring_back(output_tensor, copy)
    return _finished(async_op)


def reduce_scatter_tensor(
    output: Any, input: Any, op: Any = SUM, group: Any = None, async_op: bool = False
) -> Any:
    """Reduce through the host, and keep this rank's part."""
    total = _reduced(input, op, group).view(-1)
    part = output.numel()
    begin = torch.distributed.get_rank(group) * part
    _bring_back(output, total[begin : begin + part])
    return _finished(async_op)


class Received:
    """A message in transit; waiting for it copies it to the GPU."""

    def __init__(self, work: Any, tensor: torch.Tensor, copy: torch.Tensor) -> None:
        self._work = work
        self._tensor = tensor
        self._copy = copy

    def wait(self, *_: Any) -> bool:
        """Wait for the message and copy it."""
        self._work.wait()
        _bring_back(self._tensor, self._copy)
        return True

    def is_completed(self) -> bool:
        """Return whether the message has arrived on the host."""
        return bool(self._work.is_completed())


class Sent:
    """A message in transit, with the copy in host memory that is sent."""

    def __init__(self, work: Any, copy: torch.Tensor) -> None:
        self._work = work
        self._copy = copy

    def wait(self, *_: Any) -> bool:
        """Wait until the copy is no longer needed."""
        self._work.wait()
        return True

    def is_completed(self) -> bool:
        """Return whether the message has left."""
        return bool(self._work.is_completed())


def isend(
    tensor: Any, dst: Any = None, group: Any = None, tag: int = 0, group_dst: Any = None
) -> Any:
    """Send through the host."""
    copy = _on_host(tensor)
    return Sent(_original["isend"](copy, dst, group, tag, group_dst), copy)


def irecv(
    tensor: Any, src: Any = None, group: Any = None, tag: int = 0, group_src: Any = None
) -> Any:
    """Receive through the host."""
    copy = _on_host(tensor)
    return Received(_original["irecv"](copy, src, group, tag, group_src), tensor, copy)


def send(*positional: Any, **named: Any) -> None:
    """Send through the host and wait."""
    isend(*positional, **named).wait()


def recv(*positional: Any, **named: Any) -> None:
    """Receive through the host and wait."""
    irecv(*positional, **named).wait()


def batch_isend_irecv(p2p_op_list: Any) -> list[Any]:
    """Start the messages one after the other."""
    works = []
    for operation in p2p_op_list:
        message = (operation.tensor, operation.peer, operation.group, operation.tag)
        works.append(operation.op(*message))
    return works


@contextlib.contextmanager
def one_by_one(*_: Any, **__: Any) -> Iterator[Finished]:
    """Replace the torch context manager for combined messages: each message is sent immediately."""
    yield Finished()


def main() -> int:
    """Train as this rank."""
    use_one_gpu()
    from runbook.plan_file.schema import read_plan
    from runbook.training import process_groups
    from runbook.training.__main__ import train_rank
    from runbook.training.health.stopping import StopConditions
    from runbook.training.ranks import ranks_from

    process_groups.own_gpu = lambda *_: 0
    process_groups.claim_gpu = lambda *_: None
    spec = read_plan(Path(sys.argv[1]), "04-training")
    return train_rank(spec, ranks_from(os.environ), StopConditions())


if __name__ == "__main__":
    exit_code = main()
    # End as the trainer does. While Python shuts down, a C++ thread from the DeepSpeed backward
    # pass may need the interpreter. Python 3.12 then ends that thread, and with it the process,
    # with "terminate called without an active exception".
    from runbook.training.__main__ import leave

    leave(exit_code)
