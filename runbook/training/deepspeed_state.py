"""Where DeepSpeed's optimizers keep a weight's float32 copy and Adam's moments, for every ZeRO stage."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from deepspeed.runtime.fp16.unfused_optimizer import FP16_UnfusedOptimizer
from deepspeed.runtime.zero import GatheredParameters
from megatron.core.dist_checkpointing.mapping import is_main_replica

from runbook.training import optimizer_state
from runbook.training.optimizer_state import Owned, Part, shape

_SCALER = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")


def owned(engine: Any, adam: torch.optim.Optimizer, model: torch.nn.Module) -> Owned:
    """What of the optimizer's state this rank has."""
    parts = dict(_parts(engine.optimizer, adam, list(model.parameters())))
    return Owned(parts, is_cut=engine.optimizer is not adam and not isinstance(engine.optimizer, FP16_UnfusedOptimizer))


def follow_weights(state: Owned) -> None:
    """Take the float32 copies from the weights, and let Adam begin anew."""
    optimizer_state.follow_weights(state, _gathered)


def gathered(weights: dict[str, Any], *, loading: bool) -> dict[str, Any]:
    """The weights of ZeRO 3, one brought together after the other, on the host of the copy that writes it.

    To load, there is room for each of them on the host.
    """
    return {
        name: {key: _gathered_leaf(leaf, loading) for key, leaf in chunk.items()} for name, chunk in weights.items()
    }


def put_weights(model: torch.nn.Module, loaded: dict[str, Any]) -> None:
    """Write loaded weights into the model, also where ZeRO 3 has them cut up."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            with _gathered(weight, change=True):
                weight.copy_(loaded[name])


def loss_scale(engine: Any) -> float:
    """What the loss is multiplied with before the backward pass; 1 outside fp16."""
    return float(engine.optimizer.loss_scale) if engine.fp16_enabled() else 1.0


def loss_scaler(engine: Any) -> dict[str, float]:
    """State of fp16's loss scale, or nothing."""
    holder = _scaler(engine)
    return {key: float(getattr(holder, key)) for key in _SCALER if getattr(holder, key, None) is not None}


def put_loss_scaler(engine: Any, state: dict[str, float]) -> None:
    """Take up a saved loss scale."""
    holder = _scaler(engine)
    for key, value in state.items():
        if hasattr(holder, key):
            setattr(holder, key, value if key == "cur_scale" else int(value))


def _scaler(engine: Any) -> Any:
    return engine.optimizer.loss_scaler if engine.fp16_enabled() else None


def _parts(
    optimizer: Any, adam: torch.optim.Optimizer, weights: list[torch.nn.Parameter]
) -> Iterator[tuple[torch.nn.Parameter, Part]]:
    if optimizer is adam:  # fp32 without ZeRO
        for weight in weights:
            yield weight, Part(0, weight.numel(), weight, adam)
    elif isinstance(optimizer, FP16_UnfusedOptimizer):  # 16 bits without ZeRO
        for halves, mains in zip(optimizer.fp16_groups, optimizer.fp32_groups, strict=True):
            for weight, main in zip(halves, mains, strict=True):
                yield weight, Part(0, weight.numel(), main, adam)
    else:
        for weight in weights:
            part = _cut_part(optimizer, adam, weight)
            if part is not None:
                yield weight, part


def _cut_part(optimizer: Any, adam: torch.optim.Optimizer, weight: torch.nn.Parameter) -> Part | None:
    """The range of a weight that ZeRO gave this rank, inside the flat buffer that Adam steps."""
    if hasattr(weight, "ds_id"):  # stage 3: every weight is cut into equal pieces, the last one padded
        group, offset, length = optimizer.grad_position[optimizer.get_param_id(weight)]
        whole = shape(weight).numel()
        start = min(whole, length * optimizer._get_param_partition_rank(weight))
        flat = optimizer.fp32_partitioned_groups_flat[group]
        return Part(start, min(start + length, whole), flat, adam, offset)
    mapping = weight._hp_mapping  # type: ignore[attr-defined]
    if mapping is None:
        return None
    place, flat = mapping.lp_fragment_address, adam.param_groups[mapping.param_group_index]["params"][0]
    return Part(place.start, place.start + place.numel, flat, adam, mapping.hp_fragment_address.start)


def _gathered_leaf(leaf: Any, loading: bool) -> Any:
    weight = leaf.data
    if not isinstance(weight, torch.nn.Parameter):
        return leaf
    if loading:
        data = torch.empty(shape(weight), dtype=weight.dtype)
    else:
        with _gathered(weight):
            data = torch.empty(shape(weight), dtype=weight.dtype, device="meta")
            if is_main_replica(leaf.replica_id):
                data = weight.detach().to("cpu", copy=True)
    return dataclasses.replace(leaf, data=data)


def _gathered(weight: torch.nn.Parameter, *, change: bool = False) -> contextlib.AbstractContextManager[Any]:
    """Bring the pieces of a weight of ZeRO 3 together for a while; `change`: and share out again what is in it."""
    if not hasattr(weight, "ds_id"):
        return contextlib.nullcontext()
    gathering: contextlib.AbstractContextManager[Any] = GatheredParameters([weight], 0 if change else None)
    return gathering
