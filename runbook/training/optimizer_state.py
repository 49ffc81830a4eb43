"""Adam's state out of an engine's optimizer and back, whole and under the weights' own names.

megatron-core's `fully_reshardable` form of the distributed optimizer does not load with torch's Adam (a missing
'step'), and its `dp_reshardable` form ties a checkpoint to the layout of the gradient buffers. Here each weight has
three float32 tensors of its own shape, `optimizer.state.{fp32_param,exp_avg,exp_avg_sq}.<weight>`, cut over tensor and
pipeline ranks as the weight is; each data-parallel copy takes the range it owns. So a checkpoint fits any layout.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory
from megatron.core.dist_checkpointing.optimizer import make_sharded_optimizer_tensor
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.optimizer.optimizer import Float16OptimizerWithFloat16Params

from runbook.training.distributed import device

KINDS = ("fp32_param", "exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class Part:
    """The flat range of one weight whose optimizer state lives on this rank, and where its float32 copy is."""

    start: int
    stop: int
    main: torch.Tensor
    """What Adam steps: the float32 weight itself, a part of it, or a buffer of many that has it at `offset`."""
    adam: torch.optim.Optimizer
    offset: int = 0

    def tensor(self, kind: str) -> torch.Tensor:
        """The float32 weight, or one of Adam's moments (zeros where Adam has not stepped yet), as a flat view."""
        whole = self.main.detach()
        if kind != "fp32_param":
            state = self.adam.state[self.main]
            if kind not in state:
                state[kind] = torch.zeros_like(self.main, dtype=torch.float32, requires_grad=False)
            whole = state[kind]
        return whole.view(-1).narrow(0, self.offset, self.stop - self.start)


@dataclass(frozen=True)
class Owned:
    """The optimizer state that this rank has: by weight, and whether the data-parallel copies share it out."""

    parts: dict[torch.nn.Parameter, Part]
    is_cut: bool


def sharded(owned: Owned, weights: dict[str, Any], *, loading: bool) -> dict[str, Any]:
    """Sharded tensors of the whole state, by `<kind>.<name>`.

    To save, each tensor is brought together on the one data-parallel copy that writes it; the others name it without
    holding it. To load, every copy has room for all of it. The `weights` themselves are shared out in the same way.
    """
    group = parallel_state.get_data_parallel_group()
    sizes = {
        f"{kind}.{name}": shape(leaf.data).numel() for name, leaf in leaves(weights) for kind in (*KINDS, "weight")
    }
    writers = share_out(sizes, group.size())
    state: dict[str, Any] = {}
    for name, leaf in leaves(weights):
        for kind in KINDS:
            writer = writers[f"{kind}.{name}"]
            if loading:
                whole = torch.empty(shape(leaf.data), dtype=torch.float32)
            else:
                whole = _whole(leaf.data, owned, kind, writer)
            shard = make_sharded_optimizer_tensor(leaf, whole, f"optimizer.state.{kind}")
            _assign(shard, writer)
            state[f"{kind}.{name}"] = shard
    for name, leaf in leaves(weights):
        _assign(leaf, writers[f"weight.{name}"])
    return state


def shape(weight: torch.Tensor) -> torch.Size:
    """Shape of a weight, also while ZeRO 3 has it cut up."""
    return getattr(weight, "ds_shape", weight.shape)


def share_out(sizes: dict[str, int], copies: int) -> dict[str, int]:
    """Which copy writes what, so that all write about as much: the largest first, each to who has least.

    >>> share_out({"a": 5, "b": 3, "c": 1, "d": 1}, 2)
    {'a': 0, 'b': 1, 'c': 1, 'd': 1}
    """
    load = [0] * copies
    writers = {}
    for name, size in sorted(sizes.items(), key=lambda item: (-item[1], item[0])):
        writers[name] = load.index(min(load))
        load[writers[name]] += size
    return writers


def restore(owned: Owned, weights: dict[str, Any], state: dict[str, torch.Tensor], step: int) -> None:
    """Take each weight's own range out of the whole tensors that were loaded."""
    with torch.no_grad():
        for name, leaf in leaves(weights):
            part = owned.parts.get(leaf.data)
            if part is None:
                continue
            for kind in KINDS:
                part.tensor(kind).copy_(state[f"{kind}.{name}"].reshape(-1)[part.start : part.stop])
            if "step" not in part.adam.param_groups[0]:
                part.adam.state[part.main]["step"] = torch.tensor(float(step), device=part.main.device)
            for group in part.adam.param_groups:
                if "step" in group:  # the fused Adam of Apex and Transformer Engine counts by group
                    group["step"] = step


def follow_weights(owned: Owned, gathered: Callable[[torch.nn.Parameter], Any] = contextlib.nullcontext) -> None:
    """Take the float32 copies from the weights, and let Adam begin anew; `gathered`: how a cut weight is made whole."""
    with torch.no_grad():
        for weight, part in owned.parts.items():
            part.adam.state[part.main].clear()
            for group in part.adam.param_groups:
                if "step" in group:
                    group["step"] = 0
            with gathered(weight):
                part.tensor("fp32_param").copy_(weight.detach().reshape(-1)[part.start : part.stop])


def step_count(owned: Owned) -> int:
    """Steps Adam has made on any rank; skipped ones do not count."""
    own = max((_steps(part) for part in owned.parts.values()), default=0)
    count = torch.tensor([own], dtype=torch.int64, device=device())
    torch.distributed.all_reduce(count, op=torch.distributed.ReduceOp.MAX)
    return int(count)


def _steps(part: Part) -> int:
    groups = (int(group.get("step", 0)) for group in part.adam.param_groups)
    return max([int(part.adam.state[part.main].get("step", 0)), *groups])


def fuse(optimizer: Any) -> None:
    """Let torch's Adam step all weights in one kernel; Apex's and Transformer Engine's do so anyway."""
    adam = _inner(optimizer).optimizer
    if isinstance(adam, torch.optim.Adam):
        for group in adam.param_groups:
            group["fused"], group["foreach"] = True, False


def loss_scaler(optimizer: Any) -> Any:
    """The fp16 loss scaler, or None."""
    return getattr(_inner(optimizer), "grad_scaler", None)


def leaves(weights: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every trained weight in a sharded state dict, with its path in it."""
    for key, node in weights.items():
        name = f"{prefix}.{key}" if prefix else key
        if isinstance(node, dict):
            yield from leaves(node, name)
        elif isinstance(node, ShardedTensor | ShardedTensorFactory) and isinstance(node.data, torch.nn.Parameter):
            yield name, node


def _assign(shard: Any, writer: int) -> None:
    """Make one data-parallel copy the one that writes: it has 0 as the last number of its replica id."""
    group = parallel_state.get_data_parallel_group()
    shard.replica_id = (*shard.replica_id[:-1], (group.rank() - writer) % group.size())


def _whole(weight: torch.nn.Parameter, owned: Owned, kind: str, writer: int) -> torch.Tensor:
    """The state of one weight on the host of the copy that writes it; elsewhere only its shape."""
    group, part = parallel_state.get_data_parallel_group(), owned.parts.get(weight)
    if not owned.is_cut or group.size() == 1:
        assert part is not None, "where nothing is shared out, every rank has all of its state"
        whole = part.tensor(kind)
    else:
        whole = torch.zeros(shape(weight).numel(), dtype=torch.float32, device=weight.device)
        if part is not None:
            whole[part.start : part.stop] = part.tensor(kind)
        torch.distributed.reduce(whole, torch.distributed.get_global_rank(group, writer), group=group)
    if group.rank() != writer:
        return torch.empty(shape(weight), dtype=torch.float32, device="meta")
    return whole.view(shape(weight)).cpu()


def of_megatron(optimizer: Any) -> Owned:
    """What megatron-core's optimizer has on this rank."""
    return Owned(dict(_parts(optimizer)), isinstance(_inner(optimizer), DistributedOptimizer))


def _inner(optimizer: Any) -> Any:
    chained = getattr(optimizer, "chained_optimizers", [optimizer])
    assert len(chained) == 1, "a dense model has one optimizer"
    return chained[0]


def _parts(optimizer: Any) -> Iterator[tuple[torch.nn.Parameter, Part]]:
    inner = _inner(optimizer)
    adam = inner.optimizer
    if isinstance(inner, DistributedOptimizer):
        for weight, (group, order) in inner.model_param_group_index_map.items():
            owned = inner._get_model_param_range_map(weight)["param"]
            yield weight, Part(owned.start, owned.end, adam.param_groups[group]["params"][order], adam)
    elif isinstance(inner, Float16OptimizerWithFloat16Params):
        for weights, mains in zip(inner.float16_groups, inner.fp32_from_float16_groups, strict=True):
            for weight, main in zip(weights, mains, strict=True):
                yield weight, Part(0, weight.numel(), main, adam)
    else:
        for group in adam.param_groups:
            for weight in group["params"]:
                yield weight, Part(0, weight.numel(), weight, adam)
