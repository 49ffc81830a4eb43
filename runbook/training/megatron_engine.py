"""The megatron-core engine: GPTModel in DDP, distributed optimizer, 1F1B schedule."""

from __future__ import annotations

import functools
import itertools
import math
import time
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.mapping import is_main_replica
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel import gather_from_tensor_model_parallel_region

from runbook.training import model, optimizer_state
from runbook.training.distributed import device
from runbook.training.engine import Batches, Update
from runbook.training.spec import Spec


class MegatronEngine:
    """See `engine.Engine`."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.models = model.build(spec)
        self.config = self.models[0].config
        data_parallel = DistributedDataParallelConfig(
            grad_reduce_in_fp32=True,
            use_distributed_optimizer=_shares_optimizer(spec),
            check_for_nan_in_grad=False,  # the loop looks at loss and gradient norm itself, on all ranks at once
        )
        self.chunks = [
            DistributedDataParallel(self.config, data_parallel, chunk, disable_bucketing=index > 0)
            for index, chunk in enumerate(self.models)
        ]
        self.optimizer = get_megatron_optimizer(_optimizer_config(spec), self.chunks, use_gloo_process_groups=False)
        optimizer_state.fuse(self.optimizer)
        self.config.grad_scale_func = self.optimizer.scale_loss
        self.config.finalize_model_grads_func = self._bring_gradients_together
        self.communication_seconds = 0.0 if device().type == "cpu" else None
        """Of the last `compute`, for bringing gradients together, waiting included; a GPU does it unseen."""
        self.schedule = get_forward_backward_func()

    def compute(self, batches: Batches, num_microbatches: int) -> float:
        """Forward and backward of one step."""
        for chunk in self.chunks:
            chunk.zero_grad_buffer()
        self.optimizer.zero_grad()
        if self.communication_seconds is not None:
            self.communication_seconds = 0.0
        return self._run(batches, num_microbatches, forward_only=False)

    def _bring_gradients_together(self, *arguments: Any, **options: Any) -> None:
        begun = time.monotonic()
        finalize_model_grads(*arguments, **options)
        if self.communication_seconds is not None:
            self.communication_seconds += time.monotonic() - begun

    def update(self, learning_rate: float) -> Update:
        """Step the optimizer."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
            group["weight_decay"] = self.spec.optimizer.weight_decay * group["wd_mult"]
        overflowed = self.optimizer.prepare_grads()  # lowers the loss scale where it is too high
        scale = float(self.optimizer.get_loss_scale())
        if overflowed:
            return Update(math.nan, True, scale)
        norm = float(self.optimizer.get_grad_norm())
        if not math.isfinite(norm):
            return Update(norm, True, scale)  # Adam would carry it into every weight
        limit = self.spec.optimizer.clip_gradient
        if 0 < limit < norm:
            clip_grad_by_total_norm_fp32(self.optimizer.get_parameters(), limit, norm)
        self.optimizer.step_with_ready_grads()
        return Update(norm, False, scale)

    def evaluate(self, batches: Batches, num_microbatches: int) -> float:
        """Forward alone."""
        self._train(False)
        with torch.no_grad():
            total = self._run(batches, num_microbatches, forward_only=True)
        self._train(True)
        return total

    def next_token_logits(self, ids: torch.Tensor) -> torch.Tensor | None:
        """Scores of all tokens after each prefix."""
        length = ids.shape[1]
        if self.config.sequence_parallel:
            # A sequence is cut evenly; what comes after a token does not change its scores.
            ids = torch.nn.functional.pad(ids, (0, -length % self.config.tensor_model_parallel_size))
        positions = torch.arange(ids.shape[1], device=ids.device).clamp_(max=self.spec.model.positions - 1)
        batch = {"tokens": ids, "position_ids": positions.unsqueeze(0)}
        # The interleaved schedule takes micro-batches by groups of as many as there are stages.
        count = self.spec.parallel.pipeline if len(self.chunks) > 1 else 1
        self._train(False)
        with torch.no_grad():
            outputs = self.schedule(
                forward_step_func=_forward_logits,
                data_iterator=self._iterators(iter([batch] * count)),
                model=self.chunks,
                num_microbatches=count,
                seq_length=ids.shape[1],
                micro_batch_size=1,
                forward_only=True,
                collect_non_loss_data=True,
            )
        self._train(True)
        return outputs[0][:, :length] if outputs else None

    def parameters(self) -> int:
        """Trained numbers of the whole model, by counting those this rank is the first to hold, on all ranks."""
        own = sum(
            leaf.data.numel() for _, leaf in optimizer_state.leaves(self._weights()) if is_main_replica(leaf.replica_id)
        )
        total = torch.tensor([own], dtype=torch.int64, device=device())
        torch.distributed.all_reduce(total)
        return int(total)

    def holds_loss(self) -> bool:
        """Whether this rank's share of the loss counts."""
        return bool(
            parallel_state.is_pipeline_last_stage(ignore_virtual=True)
            and parallel_state.get_tensor_model_parallel_rank() == 0
        )

    def sharded_state(self, *, loading: bool) -> dict[str, Any]:
        """Weights under Megatron's names, optimizer state under optimizer.state.*."""
        weights = self._weights()
        state = optimizer_state.sharded(optimizer_state.of_megatron(self.optimizer), weights, loading=loading)
        return {**weights, "optimizer": state}

    def common_state(self) -> dict[str, Any]:
        """Step count and loss scale."""
        scaler = optimizer_state.loss_scaler(self.optimizer)
        state = scaler.state_dict() if scaler is not None else {}
        return {
            "optimizer_step": optimizer_state.step_count(optimizer_state.of_megatron(self.optimizer)),
            "loss_scaler": {key: float(value) for key, value in state.items()},
        }

    def restore(self, sharded: dict[str, Any], common: dict[str, Any]) -> None:
        """Take up a loaded state; without "optimizer" in it, the weights alone."""
        weights = self._weights()
        for index, chunk in enumerate(self.models):
            model.take_up(chunk, sharded[f"model{index}"])
        owned = optimizer_state.of_megatron(self.optimizer)
        if "optimizer" not in sharded:
            optimizer_state.follow_weights(owned)
            return
        optimizer_state.restore(owned, weights, sharded["optimizer"], common["optimizer_step"])
        scaler, state = optimizer_state.loss_scaler(self.optimizer), common["loss_scaler"]
        if scaler is not None and state:
            scaler.load_state_dict(
                {**{key: int(value) for key, value in state.items()}, "scale": torch.tensor([state["scale"]])}
            )

    def _weights(self) -> dict[str, Any]:
        return {f"model{index}": model.sharded_weights(chunk) for index, chunk in enumerate(self.models)}

    def _train(self, mode: bool) -> None:
        for chunk in self.chunks:
            chunk.train(mode)

    def _iterators(self, batches: Batches) -> Any:
        """The interleaved schedule reads each micro-batch once for every chunk."""
        return list(itertools.tee(batches, len(self.chunks))) if len(self.chunks) > 1 else batches

    def _run(self, batches: Batches, num_microbatches: int, *, forward_only: bool) -> float:
        losses = self.schedule(
            forward_step_func=_forward_loss,
            data_iterator=self._iterators(batches),
            model=self.chunks,
            num_microbatches=num_microbatches,
            seq_length=self.spec.model.sequence_length,
            micro_batch_size=self.spec.batch.micro,
            forward_only=forward_only,
        )
        return float(torch.stack(losses).sum()) if losses else 0.0


def _forward_loss(batches: Batches, chunk: Any) -> tuple[torch.Tensor, Any]:
    batch = next(batches)
    output = chunk(batch["tokens"], batch["position_ids"], None, labels=batch["labels"])
    return output, functools.partial(_mean_loss, batch["loss_mask"])


def _mean_loss(mask: torch.Tensor, losses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean over the tokens that count; the schedule divides by the number of micro-batches."""
    mean = (losses.float() * mask).sum() / mask.sum().clamp(min=1)
    return mean, mean.detach().clone()


def _forward_logits(batches: Batches, chunk: Any) -> tuple[torch.Tensor, Any]:
    batch = next(batches)
    return chunk(batch["tokens"], batch["position_ids"], None), _whole_logits


def _whole_logits(logits: torch.Tensor, non_loss_data: bool = True) -> torch.Tensor:
    whole: torch.Tensor = gather_from_tensor_model_parallel_region(logits.float())
    return whole


def _shares_optimizer(spec: Spec) -> bool:
    """Whether each copy steps a part of the weights; one copy alone would only send gradients and weights to itself."""
    return spec.parallel.zero_stage == 1 and spec.parallel.data > 1


def _optimizer_config(spec: Spec) -> OptimizerConfig:
    fp16 = spec.precision.format == "fp16"
    return OptimizerConfig(
        optimizer="adam",
        lr=spec.learning_rate.peak,
        min_lr=spec.learning_rate.minimum,
        weight_decay=spec.optimizer.weight_decay,
        adam_beta1=spec.optimizer.beta1,
        adam_beta2=spec.optimizer.beta2,
        adam_eps=spec.optimizer.epsilon,
        clip_grad=spec.optimizer.clip_gradient,
        bf16=spec.precision.format == "bf16",
        fp16=fp16,
        params_dtype=model.DTYPES[spec.precision.format],
        use_distributed_optimizer=_shares_optimizer(spec),
        initial_loss_scale=spec.precision.initial_loss_scale,
        min_loss_scale=min(spec.precision.minimum_loss_scale, spec.precision.initial_loss_scale),
        loss_scale=spec.precision.static_loss_scale or None,
        loss_scale_window=spec.precision.loss_scale_window,
        hysteresis=spec.precision.hysteresis,
    )
