"""The DeepSpeed engine: ZeRO 0 to 3 around GPTModel, tensor parallelism through DeepSpeed's `mpu`."""

from __future__ import annotations

import copy
import math
from typing import Any

import deepspeed
import torch
from deepspeed.runtime.utils import clip_grad_norm_
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.mapping import is_main_replica
from megatron.core.tensor_parallel import gather_from_tensor_model_parallel_region

from runbook.training import deepspeed_state, model, optimizer_state
from runbook.training.deepspeed_clock import Clock
from runbook.training.deepspeed_config import configuration
from runbook.training.deepspeed_start import initialize, join, limit_waits
from runbook.training.distributed import device
from runbook.training.engine import Batches, Update
from runbook.training.spec import Spec


class DeepSpeedEngine:
    """See `engine.Engine`."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        (self.model,) = model.build(spec)
        # ZeRO 3 cuts the weights up: their shapes and places in the whole model are asked before.
        self.weights = {"model0": model.sharded_weights(self.model)}
        self.adam = _adam(spec, self.model)
        self.norm = math.nan
        """Gradient norm of fp32 without ZeRO, which DeepSpeed forgets."""
        self.waiting = False
        """Whether there are gradients that no optimizer step has used."""
        self.discards = False
        join()
        self.engine = self._begin()
        limit_waits(spec.limits.process_group_timeout_seconds)
        self._clock = Clock(deepspeed.comm.comm.cdb) if device().type == "cpu" else None
        self._mend()

    def _begin(self) -> Any:
        return initialize(WithLoss(self.model), self.adam, configuration(self.spec), Grid())

    def _mend(self) -> None:
        """What DeepSpeed leaves wrong or unsaid."""
        for state in self.adam.state.values():
            state["step"].zero_()  # it has made a step of length 0 to get room for the moments
        take = self.adam.step
        # The one place that every optimizer of DeepSpeed comes through when norm and clipping are done.
        self.adam.step = lambda *_, **__: take() if self._may_step() else None  # type: ignore[method-assign]
        if self.engine.fp16_enabled():
            self.engine.optimizer.loss_scaler.raise_error_at_min_scale = False  # the loop has its own answer to it
            self._let_scale_grow_later()
        if self.spec.parallel.zero_stage == 0:
            take_step = self.engine._take_model_step
            prepare = self._clip if self.spec.precision.format == "fp32" else self._mark_gradients

            def prepare_and_step(arguments: Any) -> None:
                prepare()
                take_step(arguments)

            self.engine._take_model_step = prepare_and_step
            self.engine.clip_fp32_gradients = lambda: None

    def _let_scale_grow_later(self) -> None:
        """Raise the loss scale after the step: DeepSpeed does it before, and then divides by the new scale."""
        optimizer, take_step = self.engine.optimizer, self.engine._take_model_step
        change, well = optimizer._update_scale, []

        def note(overflow: bool) -> None:
            change(overflow) if overflow else well.append(True)

        def step_and_change(arguments: Any) -> None:
            take_step(arguments)
            if well:
                well.clear()
                change(False)

        optimizer._update_scale, self.engine._take_model_step = note, step_and_change

    def _may_step(self) -> bool:
        """No step from gradients that are to be forgotten, nor from such as are no numbers."""
        return not self.discards and math.isfinite(self._norm())

    def _norm(self) -> float:
        """Norm of the whole gradient; DeepSpeed says inf or -1 where it is no number."""
        norm = getattr(self.engine.optimizer, "_global_grad_norm", None)
        value = self.norm if norm is None else float(norm)
        return value if value >= 0 else math.inf

    def _clip(self) -> None:
        """Clip in fp32: DeepSpeed forgets the norm that it clips by, and computes none where nothing is clipped."""
        limit = self.spec.optimizer.clip_gradient or math.inf
        self.norm = float(clip_grad_norm_(list(self.engine.module.parameters()), limit, mpu=self.engine.mpu))

    def _mark_gradients(self) -> None:
        """Say of gradients what is said of their weights: DeepSpeed's norm in 16 bits asks the gradients themselves.

        Unmarked, the parts of the other tensor-parallel ranks are not in the norm.
        """
        for weight in self.model.parameters():
            if weight.grad is not None:
                for mark in ("tensor_model_parallel", "model_parallel", "ds_pipe_replicated"):
                    setattr(weight.grad, mark, getattr(weight, mark, False))

    @property
    def communication_seconds(self) -> float | None:
        """Of the last `compute`, for bringing gradients (and ZeRO 3's weights) together; a GPU does it unseen."""
        return None if self._clock is None else self._clock.seconds

    def compute(self, batches: Batches, num_microbatches: int) -> float:
        """Forward and backward of one step."""
        self._expect(num_microbatches)
        total = torch.zeros((), device=device())
        for index in range(num_microbatches):
            self.engine.set_gradient_accumulation_boundary(index + 1 == num_microbatches)
            loss = self.engine(**next(batches))
            self.engine.backward(loss)
            total += loss.detach()
        return float(total)

    def update(self, learning_rate: float) -> Update:
        """Step the optimizer."""
        for group in self.adam.param_groups:
            group["lr"] = learning_rate
        self._step()
        self.waiting = False
        norm, scale = self._norm(), deepspeed_state.loss_scale(self.engine)
        if self.spec.precision.format == "fp16" and not self.engine.was_step_applied():
            return Update(math.nan, True, scale)
        return Update(norm, not math.isfinite(norm), scale)

    def _step(self) -> None:
        self.engine.step()

    def _expect(self, num_microbatches: int) -> None:
        """Begin a step of so many micro-batches; gradients of one that was given up are forgotten."""
        if self.waiting:
            self.discards = True
            self._step()  # DeepSpeed clears all its buffers in a step, and nowhere else
            self.discards = False
        self.waiting = True
        batch, parallel = self.spec.batch, self.spec.parallel
        if num_microbatches != self.engine.gradient_accumulation_steps():
            self.engine.set_train_batch_size(batch.micro * parallel.data * num_microbatches)
        if self._clock is not None:
            self._clock.seconds = 0.0

    def evaluate(self, batches: Batches, num_microbatches: int) -> float:
        """Forward alone."""
        self.engine.eval()
        total = torch.zeros((), device=device())
        with torch.no_grad():
            for _ in range(num_microbatches):
                total += self.engine.module(**next(batches))
        self.engine.train()
        return float(total)

    def next_token_logits(self, ids: torch.Tensor) -> torch.Tensor | None:
        """Scores of all tokens after each prefix."""
        self.engine.eval()
        with torch.no_grad():
            logits = self.engine.module(ids, torch.arange(ids.shape[1], device=ids.device).unsqueeze(0))
        self.engine.train()
        return whole_logits(logits)

    def parameters(self) -> int:
        """Trained numbers of the whole model, by counting those this rank is the first to hold, on all ranks."""
        own = sum(
            optimizer_state.shape(leaf.data).numel()
            for _, leaf in optimizer_state.leaves(self.weights)
            if is_main_replica(leaf.replica_id)
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
        weights = {"model0": {key: copy.copy(leaf) for key, leaf in self.weights["model0"].items()}}
        state = optimizer_state.sharded(self._owned(), weights, loading=loading)
        if self.spec.parallel.zero_stage == 3:
            weights = deepspeed_state.gathered(weights, loading=loading)
        return {**weights, "optimizer": state}

    def common_state(self) -> dict[str, Any]:
        """Step count and loss scale."""
        return {
            "optimizer_step": optimizer_state.step_count(self._owned()),
            "loss_scaler": deepspeed_state.loss_scaler(self.engine),
        }

    def restore(self, sharded: dict[str, Any], common: dict[str, Any]) -> None:
        """Take up a loaded state; without "optimizer" in it, the weights alone."""
        deepspeed_state.put_weights(self.model, sharded["model0"])
        owned = self._owned()
        if "optimizer" not in sharded:
            deepspeed_state.follow_weights(owned)
            return
        optimizer_state.restore(owned, self.weights, sharded["optimizer"], common["optimizer_step"])
        deepspeed_state.put_loss_scaler(self.engine, common["loss_scaler"])

    def _owned(self) -> optimizer_state.Owned:
        return deepspeed_state.owned(self.engine, self.adam, self.model)


class WithLoss(torch.nn.Module):
    """GPTModel that gives the mean loss over the tokens that count, as DeepSpeed wants one number for its backward."""

    def __init__(self, gpt: torch.nn.Module) -> None:
        super().__init__()
        self.gpt = gpt

    def forward(
        self,
        tokens: torch.Tensor,
        position_ids: torch.Tensor,
        labels: torch.Tensor | None = None,
        loss_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The loss, or logits [batch, sequence, vocabulary of this rank] where no labels are given."""
        output: torch.Tensor = self.gpt(tokens, position_ids, None, labels=labels)
        return output if loss_mask is None else mean_loss(output, loss_mask)


def mean_loss(losses: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mean over the tokens that count."""
    return (losses.float() * mask).sum() / mask.sum().clamp(min=1)


def whole_logits(logits: torch.Tensor) -> torch.Tensor:
    """Logits of the whole vocabulary, from those of each tensor-parallel rank."""
    whole: torch.Tensor = gather_from_tensor_model_parallel_region(logits.float())
    return whole


class Grid:
    """megatron-core's groups in the words that DeepSpeed asks its `mpu` for."""

    get_data_parallel_group = staticmethod(parallel_state.get_data_parallel_group)
    get_data_parallel_rank = staticmethod(parallel_state.get_data_parallel_rank)
    get_data_parallel_world_size = staticmethod(parallel_state.get_data_parallel_world_size)
    get_model_parallel_group = staticmethod(parallel_state.get_tensor_model_parallel_group)
    get_model_parallel_rank = staticmethod(parallel_state.get_tensor_model_parallel_rank)
    get_model_parallel_world_size = staticmethod(parallel_state.get_tensor_model_parallel_world_size)
    get_tensor_model_parallel_group = staticmethod(parallel_state.get_tensor_model_parallel_group)
    get_tensor_model_parallel_rank = staticmethod(parallel_state.get_tensor_model_parallel_rank)
    get_tensor_model_parallel_world_size = staticmethod(parallel_state.get_tensor_model_parallel_world_size)
    get_pipeline_model_parallel_rank = staticmethod(parallel_state.get_pipeline_model_parallel_rank)
    get_pipeline_model_parallel_world_size = staticmethod(parallel_state.get_pipeline_model_parallel_world_size)


def _adam(spec: Spec, gpt: torch.nn.Module) -> torch.optim.AdamW:
    """AdamW over two groups as Megatron makes them: matrices decay, biases and norms do not."""
    parameters = list(gpt.named_parameters())
    without = {name for name, weight in parameters if name.endswith(".bias") or weight.dim() == 1}
    optimizer = spec.optimizer
    return torch.optim.AdamW(
        [
            {
                "params": [weight for name, weight in parameters if name not in without],
                "weight_decay": optimizer.weight_decay,
            },
            {"params": [weight for name, weight in parameters if name in without], "weight_decay": 0.0},
        ],
        lr=0.0,  # each step is told its own
        betas=(optimizer.beta1, optimizer.beta2),
        eps=optimizer.epsilon,
        fused=True,
    )
