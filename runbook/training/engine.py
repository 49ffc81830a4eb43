"""What the training loop asks of an engine, and nothing more."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from runbook.training.errors import RefusedError
from runbook.training.spec import Spec

Batches = Iterator[dict[str, torch.Tensor]]
"""Micro-batches of this rank's data-parallel copy: `tokens`, `labels`, `loss_mask`, `position_ids`."""


@dataclass(frozen=True)
class Update:
    """What one optimizer step did."""

    gradient_norm: float
    """Norm of the whole gradient before clipping; NaN where the step was skipped."""

    skipped: bool
    """Whether the step was left out because a gradient overflowed (fp16)."""

    loss_scale: float


class Engine(Protocol):
    """A model on all ranks that can learn; every method is called on every rank."""

    def compute(self, batches: Batches, num_microbatches: int) -> float:
        """Forward and backward of one step: the sum of the micro-batches' mean losses, or 0 on a rank without them.

        The number of micro-batches may change from step to step: a batch that ramps up has fewer at first.
        """

    def update(self, learning_rate: float) -> Update:
        """Step the optimizer with the gradients of the last `compute`."""

    def evaluate(self, batches: Batches, num_microbatches: int) -> float:
        """Forward alone; the same sum as `compute` gives."""

    def next_token_logits(self, ids: torch.Tensor) -> torch.Tensor | None:
        """Scores of all tokens after each prefix in `ids` [1, length]; None on ranks of earlier pipeline stages."""

    def parameters(self) -> int:
        """Trained numbers of the whole model, each counted once."""

    def holds_loss(self) -> bool:
        """Whether this rank's share of the loss counts: last pipeline stage, first tensor-parallel rank."""

    def sharded_state(self, *, loading: bool) -> dict[str, Any]:
        """Weights and optimizer state as megatron-core's sharded tensors, with data to save or room to load."""

    def common_state(self) -> dict[str, Any]:
        """The rest: small values that are the same on all ranks."""

    def restore(self, sharded: dict[str, Any], common: dict[str, Any]) -> None:
        """Take up what `dist_checkpointing` loaded into `sharded_state()`; without "optimizer", the weights alone."""


def make_engine(spec: Spec) -> Engine:
    """The engine that the spec names."""
    if spec.engine == "megatron-core":
        from runbook.training.megatron_engine import MegatronEngine

        return MegatronEngine(spec)
    if spec.engine == "deepspeed":
        from runbook.training import deepspeed_start

        deepspeed_start.load()
        from runbook.training.deepspeed_engine import DeepSpeedEngine
        from runbook.training.deepspeed_pipeline import DeepSpeedPipeline

        return DeepSpeedPipeline(spec) if spec.parallel.pipeline > 1 else DeepSpeedEngine(spec)
    raise RefusedError(f"engine: {spec.engine!r} is not built")
