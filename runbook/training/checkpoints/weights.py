"""Reads complete weights from a checkpoint one at a time, by megatron-core module name."""

import contextlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from megatron.core.dist_checkpointing.mapping import ShardedTensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from runbook.plan_file.errors import RefusedError
from runbook.plan_file.schema import PhasePlan
from runbook.training.checkpoints import folders, torch_dist
from runbook.training.engines.engine import each_shard, sharded_weights
from runbook.training.messages import TrainingMessage


@dataclass(frozen=True)
class WholeWeights:
    """The weights in a verified checkpoint."""

    folder: Path
    iteration: int
    shards: torch_dist.StoredShards

    def stored_names(self, names: Iterable[str], *, masters: bool) -> dict[str, str]:
        """Return the key in the checkpoint for each named weight.

        With `masters`, it is the key of the float32 copy in the optimizer, if the checkpoint has
        one.
        """
        described = self.shards.description.state_dict_metadata
        stored = {}
        for name in names:
            key = stored_key(name)
            if not isinstance(described.get(key), TensorStorageMetadata):
                raise RefusedError(
                    TrainingMessage.WEIGHT_OF_ANOTHER_MODEL, folder=self.folder, name=name
                )
            # The key of the float32 copy the optimizer updates
            master = f"optimizer.state.fp32_param.{key}"
            stored[name] = master if masters and master in described else key

        return stored

    def read(self, names: Iterable[str], *, masters: bool) -> dict[str, torch.Tensor]:
        """Read these weights. Raise `RefusedError` if a weight is missing or damaged."""
        stored = self.stored_names(names, masters=masters)
        weights = {}
        for name, key in stored.items():
            weights[name] = finite(self.shards.read_whole(key), self.shards.folder, name)

        return weights

    def fill(self, gpt: torch.nn.Module, *, masters: bool) -> None:
        """Copy this rank's part of each weight into a GPTModel.

        Only one weight is in memory at a time.
        """
        with torch.no_grad():
            for shard in each_shard(sharded_weights(gpt)):
                if isinstance(shard, ShardedTensor):
                    value = self.read([shard.key], masters=masters)[shard.key]
                    if tuple(value.shape) != tuple(shard.global_shape):
                        raise RefusedError(
                            TrainingMessage.SHAPE_OF_ANOTHER_MODEL,
                            folder=self.folder,
                            key=shard.key,
                            shape=tuple(value.shape),
                        )

                    parts = zip(shard.global_offset, shard.local_shape, strict=True)
                    shard.data.copy_(
                        value[tuple(slice(start, start + size) for start, size in parts)]
                    )


READ_FORMATS = (torch.float32, torch.float16, torch.bfloat16)


def finite(weight: torch.Tensor, folder: Path, name: str) -> torch.Tensor:
    """Return `weight`. Raise `RefusedError` unless all values are finite 16- or 32-bit floats.

    64-bit values would be rounded, and 8-bit values have no meaning without their scales, which are
    stored elsewhere.
    """
    if weight.is_floating_point() and weight.dtype not in READ_FORMATS:
        raise RefusedError(
            TrainingMessage.WEIGHT_NUMBER_FORMAT,
            folder=folder,
            name=name,
            number_format=str(weight.dtype).removeprefix("torch."),
        )

    if not weight.is_floating_point() or not bool(torch.isfinite(weight.float()).all()):
        raise RefusedError(TrainingMessage.WEIGHT_NOT_FINITE, folder=folder, name=name)

    return weight


_FUSED_NORMS = {
    "input_layernorm": "self_attention.linear_qkv",
    "pre_mlp_layernorm": "mlp.linear_fc1",
}
"""Names used for norms in a checkpoint.

megatron-core stores a norm with the following matrix, since Transformer Engine fuses them.
"""


def stored_key(name: str) -> str:
    """Return the name a weight has in a checkpoint.

    >>> stored_key("decoder.layers.3.input_layernorm.weight")
    'decoder.layers.3.self_attention.linear_qkv.layer_norm_weight'
    """
    for norm, fused in _FUSED_NORMS.items():
        name = name.replace(f".{norm}.", f".{fused}.layer_norm_")
    return name


def newest_weights(spec: PhasePlan, iteration: int = 0) -> WholeWeights:
    """Return the weights in the newest complete checkpoint, or in the one for a given iteration.

    Raise `RefusedError` with the reason if there is no such checkpoint.
    """
    root = spec.path(spec.checkpoint.folder)
    checkpoints, problems = folders.candidates(root)
    for candidate in checkpoints:
        if iteration and candidate.iteration != iteration:
            continue
        problem = folders.checksum_fault(candidate, sorted(candidate.metadata["files"]))
        if problem:
            problems.append(problem)
            continue

        folder = candidate.folder / folders.SHARDS
        shards = torch_dist.StoredShards(
            folder, torch_dist.check_shards(folder, candidate.shards())
        )
        return WholeWeights(candidate.folder, candidate.iteration, shards)

    if iteration:
        available = ", ".join(str(candidate.iteration) for candidate in checkpoints) or "none"
        fault = f"no complete checkpoint at iteration {iteration} (available: {available})"
    elif problems:
        fault = "no complete checkpoint"
    else:
        fault = _why_no_checkpoint(spec)

    raise RefusedError("\n  ".join([f"{root} has {fault}", *problems]))


def _why_no_checkpoint(spec: PhasePlan) -> str:
    """Say that nothing was saved yet, or that what the events call saved is gone."""
    path = spec.path(spec.log.events)
    steps = set()
    if path.exists():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            # A killed process leaves a last line that is cut off.
            with contextlib.suppress(ValueError, KeyError, TypeError):
                event = json.loads(line)
                if (event["event"], event["phase"]) == ("saved", spec.phase):
                    steps.add(int(event["iteration"]))

    if not steps:
        return TrainingMessage.NOTHING_SAVED_YET.fill()
    return TrainingMessage.CHECKPOINTS_GONE.fill(
        events=path.name,
        steps=", ".join(map(str, sorted(steps))),
        run=path.parent.name,
        phase=spec.phase,
    )
