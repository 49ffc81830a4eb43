"""What a checkpoint remembers beside weights and optimizer: how far the run is, its random states, its shape."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.mapping import ShardedObject
from megatron.core.tensor_parallel import get_cuda_rng_tracker

from runbook.training.spec import Spec

_SHAPE = (
    "layers", "hidden", "heads", "kv_heads", "ffn_hidden", "positions", "padded_vocabulary", "tied_embeddings",
    "position_embedding", "normalization", "activation", "biases",
)  # fmt: skip


@dataclass
class Progress:
    """How far a run is; what a checkpoint remembers beside tensors."""

    iteration: int = 0
    consumed_samples: int = 0
    segment: int = 0
    skipped: int = 0
    nan: int = 0
    passed_over: list[list[int]] = field(default_factory=list)
    """First and last samples of steps that are left out since a rollback."""

    def passes_over(self, sample: int) -> bool:
        """Whether the step that begins with this sample is left out."""
        return any(first == sample for first, _ in self.passed_over)


def shape(spec: Spec) -> dict[str, Any]:
    """Every number of the model that its weights depend on."""
    return {key: getattr(spec.model, key) for key in _SHAPE}


def random_state() -> ShardedObject:
    """This rank's random states, under its place among the ranks."""
    state: dict[str, Any] = {"torch": torch.get_rng_state(), "tracker": get_cuda_rng_tracker().get_states()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    ranks = (
        (parallel_state.get_pipeline_model_parallel_rank(), parallel_state.get_pipeline_model_parallel_world_size()),
        (parallel_state.get_tensor_model_parallel_rank(), parallel_state.get_tensor_model_parallel_world_size()),
        (parallel_state.get_data_parallel_rank(), parallel_state.get_data_parallel_world_size()),
    )
    return ShardedObject("random", state, tuple(size for _, size in ranks), tuple(rank for rank, _ in ranks))


def restore_random(state: dict[str, Any]) -> None:
    """Take up what `random_state` gave."""
    torch.set_rng_state(state["torch"])
    get_cuda_rng_tracker().set_states(state["tracker"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
