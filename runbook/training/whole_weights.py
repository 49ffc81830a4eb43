"""Weights of a checkpoint, whole and by name, without ranks: for continuing a text and for export."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from runbook.training import checkpoints, safe_reading
from runbook.training.errors import RefusedError
from runbook.training.spec import Spec

MASTER = "optimizer.state.fp32_param."
"""Before a weight's name: its float32 copy, which the optimizer steps."""


@dataclass(frozen=True)
class Whole:
    """The weights of one checkpoint that was verified."""

    folder: Path
    iteration: int
    metadata: Metadata

    def names(self) -> list[str]:
        """Names of the model's own weights, as its modules have them."""
        known = self.metadata.state_dict_metadata
        return sorted(
            _as_in_model(name)
            for name, described in known.items()
            if isinstance(described, TensorStorageMetadata) and not name.startswith("optimizer.")
        )

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of one whole weight."""
        return tuple(self.metadata.state_dict_metadata[_as_stored(name)].size)  # type: ignore[union-attr]

    def read(self, names: list[str], *, masters: bool) -> dict[str, torch.Tensor]:
        """These weights; in float32 as the optimizer has them where `masters` and the checkpoint has those."""
        known = self.metadata.state_dict_metadata
        stored = {name: _as_stored(name) for name in names}
        if masters:
            stored = {name: MASTER + key if MASTER + key in known else key for name, key in stored.items()}
        room: dict[str, Any] = {
            key: torch.empty(known[key].size, dtype=known[key].properties.dtype)  # type: ignore[union-attr]
            for key in stored.values()
        }
        with safe_reading.only_data(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            load(room, storage_reader=filesystem.FileSystemReader(self.folder / checkpoints.SHARDS), no_dist=True)
        return {name: room[key] for name, key in stored.items()}


def _as_stored(name: str) -> str:
    """megatron-core stores a norm with the matrix behind it, as Transformer Engine joins them."""
    for ours, stored in _NORMS.items():
        name = name.replace(f".{ours}.", f".{stored}.layer_norm_")
    return name


def _as_in_model(name: str) -> str:
    for ours, stored in _NORMS.items():
        name = name.replace(f".{stored}.layer_norm_", f".{ours}.")
    return name


_NORMS = {"input_layernorm": "self_attention.linear_qkv", "pre_mlp_layernorm": "mlp.linear_fc1"}


def newest(spec: Spec, iteration: int = 0) -> Whole:
    """The newest whole checkpoint, or that of one iteration; `RefusedError` says why there is none."""
    root = spec.path(spec.checkpoint.folder)
    found, problems = checkpoints.candidates(root)
    for candidate in found:
        if iteration and candidate.iteration != iteration:
            continue
        problem = checkpoints.broken(candidate, sorted(candidate.metadata["files"]))
        if problem:
            problems.append(problem)
            continue
        safe_reading.check(candidate.folder / checkpoints.SHARDS)
        with (candidate.folder / checkpoints.SHARDS / ".metadata").open("rb") as stream:
            return Whole(candidate.folder, candidate.iteration, safe_reading.read_metadata(stream))
    there = ", ".join(str(one.iteration) for one in found) or "none"
    wanted = f"no whole checkpoint of iteration {iteration}" if iteration else "no whole checkpoint"
    raise RefusedError("\n  ".join([f"{root} has {wanted} (there are: {there})", *problems]))
