"""The DeepSpeed engine, which trains GPTModel with ZeRO 0 to 3.

Tensor parallelism goes through DeepSpeed's `mpu`.
"""

import contextlib
import dataclasses
import math
from collections.abc import Iterable, Iterator
from itertools import chain
from types import SimpleNamespace
from typing import Any

import deepspeed
import torch
from deepspeed.runtime.fp16.unfused_optimizer import FP16_UnfusedOptimizer
from deepspeed.runtime.utils import clip_grad_norm_
from deepspeed.runtime.zero import GatheredParameters
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.mapping import is_main_replica

from runbook.plan_file.schema import PhasePlan
from runbook.training.engines import engine, gpt_model, optimizers
from runbook.training.engines.deepspeed_start import (
    initialize_engine,
    join_deepspeed,
    local_rank_variable,
)
from runbook.training.engines.engine import MicroBatches, OptimizerUpdate, WeightPart, whole_shape
from runbook.training.process_groups import device

_COLLECTIVES = (
    "all_reduce",
    "all_reduce_coalesced",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "all_gather",
    "all_gather_base",
    "all_gather_into_tensor",
    "all_gather_coalesced",
)
"""`deepspeed.comm` backend methods to time.

They are the collectives used for gradients and for weights in ZeRO 3. Messages between pipeline
stages are not timed.
"""

_SCALER = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")


class DeepSpeedEngine(engine.TrainingEngine):
    """GPTModel in a DeepSpeed engine."""

    def __init__(self, spec: PhasePlan, *, draw: bool = True) -> None:
        super().__init__(spec, gpt_model.build_model(spec, draw=draw))
        (self.model,) = self.models
        self.adam = optimizers.deepspeed_adam(spec, self.model)
        # Gradient norm in fp32 training without ZeRO, which DeepSpeed does not store
        self.norm = math.nan
        # Whether there are gradients no optimizer step has used yet
        self.waiting = False
        self.discards = False
        join_deepspeed()
        self.engine = self._begin()
        if not self.clock.is_late:
            backend = deepspeed.comm.comm.cdb
            for name in _COLLECTIVES:
                if hasattr(backend, name):
                    setattr(backend, name, self.clock.timed(getattr(backend, name)))

        self._mend()

    def _begin(self) -> Any:
        return initialize_engine(GptWithLoss(self.model), self.adam, self.spec, MODEL_PARALLEL_UNIT)

    def _mend(self) -> None:
        """Override DeepSpeed behavior that is incompatible with this training loop."""
        for state in self.adam.state.values():
            # DeepSpeed takes a step with a learning rate of 0 to allocate the moments
            state["step"].zero_()

        step_adam = self.adam.step

        def step_unless_bad(*_: Any, **__: Any) -> None:
            """Update the weights, unless the step was abandoned or has bad gradients.

            All DeepSpeed optimizers call this function.
            """
            if not self.discards and math.isfinite(self._norm()):
                step_adam()

        self.adam.step = step_unless_bad  # type: ignore[method-assign]
        if self.engine.fp16_enabled():
            # The training loop itself handles an overflow at the smallest scale.
            self.engine.optimizer.loss_scaler.raise_error_at_min_scale = False
            self._let_scale_grow_later()

        if self.spec.parallel.zero_stage == 0:
            take_step = self.engine._take_model_step
            prepare = self._mark_gradients
            if self.spec.precision.format == "fp32":
                prepare = self._clip

            def prepare_and_step(arguments: Any) -> None:
                prepare()
                take_step(arguments)

            self.engine._take_model_step = prepare_and_step
            self.engine.clip_fp32_gradients = lambda: None

    def _let_scale_grow_later(self) -> None:
        """Raise the loss scale after the step.

        DeepSpeed raises the scale before the step, and then divides by the new scale.
        """
        optimizer = self.engine.optimizer
        take_step = self.engine._take_model_step
        change = optimizer._update_scale
        delayed = []

        def change_or_delay(overflow: bool) -> None:
            if overflow:
                change(overflow)
            else:
                delayed.append(True)

        def step_and_change(arguments: Any) -> None:
            take_step(arguments)
            if delayed:
                delayed.clear()
                change(False)

        optimizer._update_scale = change_or_delay
        self.engine._take_model_step = step_and_change

    def _norm(self) -> float:
        """Return the norm of the full gradient.

        DeepSpeed returns inf or -1 if the norm is not finite.
        """
        norm = getattr(self.engine.optimizer, "_global_grad_norm", None)
        value = self.norm if norm is None else float(norm)
        if value >= 0:
            return value
        return math.inf

    def _clip(self) -> None:
        """Clip the gradients in fp32.

        DeepSpeed does not store the norm it uses for clipping, and computes no norm if clipping is
        off.
        """
        limit = self.spec.optimizer.clip_gradient or math.inf
        weights = list(self.engine.module.parameters())
        self.norm = float(clip_grad_norm_(weights, limit, mpu=self.engine.mpu))

    def _mark_gradients(self) -> None:
        """Copy the weights' attributes to their gradients.

        DeepSpeed reads the attributes from the gradients when it computes a norm in 16 bits.

        Without these attributes, the norm would omit the other tensor-parallel ranks.
        """
        for weight in self.model.parameters():
            if weight.grad is not None:
                for mark in ("tensor_model_parallel", "model_parallel", "ds_pipe_replicated"):
                    setattr(weight.grad, mark, getattr(weight, mark, False))

    def compute(self, batches: MicroBatches, num_microbatches: int) -> float:
        """Run the forward and backward passes for one step."""
        self._expect(num_microbatches)
        total = torch.zeros((), device=device())
        # During the first steps, ZeRO 3 checks that the modules always run in the same order
        with local_rank_variable():
            for index in range(num_microbatches):
                self.engine.set_gradient_accumulation_boundary(index + 1 == num_microbatches)
                loss = self.engine(**next(batches))
                self.engine.backward(loss)
                total += loss.detach()

        return float(total)

    def update(self, learning_rate: float) -> OptimizerUpdate:
        """Step the optimizer."""
        for group in self.adam.param_groups:
            group["lr"] = learning_rate
        self._step()
        self.waiting = False
        norm = self._norm()
        if self.engine.fp16_enabled():
            scale = float(self.engine.optimizer.loss_scale)
        else:
            scale = 1.0

        if self.spec.precision.format == "fp16" and not self.engine.was_step_applied():
            return OptimizerUpdate(math.nan, True, scale)
        return OptimizerUpdate(norm, not math.isfinite(norm), scale)

    def _step(self) -> None:
        self.engine.step()

    def _expect(self, num_microbatches: int) -> None:
        """Start a step with this many micro-batches.

        Gradients from an abandoned step are discarded.
        """
        if self.waiting:
            self.discards = True
            # DeepSpeed clears its buffers only in an optimizer step
            self._step()
            self.discards = False

        self.waiting = True
        batch = self.spec.batch
        parallel = self.spec.parallel
        if num_microbatches != self.engine.gradient_accumulation_steps():
            self.engine.set_train_batch_size(batch.micro * parallel.data * num_microbatches)

    def evaluate(self, batches: MicroBatches, num_microbatches: int) -> float:
        """Run the forward pass only."""
        total = torch.zeros((), device=device())
        with self._evaluating():
            for _ in range(num_microbatches):
                total += self.engine.module(**next(batches))

        return float(total)

    @contextlib.contextmanager
    def _evaluating(self) -> Iterator[None]:
        self.engine.module.eval()
        with torch.no_grad(), local_rank_variable():
            yield
        self.engine.module.train()

    def next_token_logits(self, ids: torch.Tensor) -> torch.Tensor | None:
        """Return the logits for the token after each prefix."""
        padded, positions = self._padded(ids)
        with self._evaluating():
            logits = self.engine.module(padded, positions)
        return engine.whole_logits(logits[:, : ids.shape[1]])

    def _padded(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Pad texts to one of a few compiled lengths, and return them with token positions."""
        longest = self.spec.model.shape.positions
        length = ids.shape[1]
        padded = engine.sampling_length(length, longest)
        positions = torch.arange(padded, device=ids.device).clamp_(max=longest - 1)
        return torch.nn.functional.pad(ids, (0, padded - length)), positions.unsqueeze(0)

    def sharded_state(self) -> engine.State:
        """Return weights under Megatron names, and optimizer state under `optimizer.state.*`."""
        state = super().sharded_state()
        if self.spec.parallel.zero_stage == 3:
            # Weights are gathered one by one into host memory on the replica that writes them.
            gathered = {}
            for name, shard in state["model0"].items():
                gathered[name] = self._gathered(shard)
            state["model0"] = gathered

        return state

    def _gathered(self, shard: engine.Shard) -> engine.Shard:
        """Return the shard with the complete weight, in host memory if this replica writes it."""
        weight = shard.data
        if not isinstance(weight, torch.nn.Parameter):
            return shard
        is_written = is_main_replica(shard.replica_id)
        data = torch.empty(whole_shape(weight), dtype=weight.dtype, device="meta")
        with self._gather(weight):
            if is_written:
                data = self.host_copies.copy(weight)
            # DeepSpeed frees the gathered weight afterwards
            self.host_copies.wait()

        return dataclasses.replace(shard, data=data)

    def _gather(self, weight: torch.nn.Parameter) -> contextlib.AbstractContextManager[Any]:
        return GatheredParameters([weight], enabled=hasattr(weight, "ds_id"))  # type: ignore[no-any-return]

    def _own_range(self, weight: torch.nn.Parameter) -> tuple[int, torch.Tensor] | None:
        if not hasattr(weight, "ds_id"):
            return None
        part = _cut_part(self.engine.optimizer, self.adam, weight)
        assert part is not None, "ZeRO 3 shards every weight over all ranks"
        shard: torch.Tensor = weight.ds_tensor  # type: ignore[attr-defined]
        return part.start, shard.view(-1).narrow(0, 0, part.stop - part.start)

    def _share(self, destinations: Iterable[engine.Destination]) -> None:
        super()._share(destinations)
        self._fill_persistent_weights()

    def finish_own(self, common: engine.CommonState) -> None:
        """Restore the values in `common`, and gather small weights if they are not sharded."""
        super().finish_own(common)
        self._fill_persistent_weights()

    def _fill_persistent_weights(self) -> None:
        # ZeRO 3 keeps small weights unsharded on all ranks.
        small_weights = getattr(self.engine.optimizer, "persistent_parameters", [])
        if small_weights:
            small_weights[0].partition(small_weights)
            small_weights[0].all_gather(small_weights)

    def _scaler_values(self) -> dict[str, float]:
        scaler = self._loss_scaler()
        values = {}
        for key in _SCALER:
            value = getattr(scaler, key, None)
            if value is not None:
                values[key] = float(value)

        return values

    def _restore_scaler(self, values: dict[str, float]) -> None:
        scaler = self._loss_scaler()
        for key, value in values.items():
            if hasattr(scaler, key):
                setattr(scaler, key, value if key == "cur_scale" else int(value))

    def _loss_scaler(self) -> Any:
        """Return the fp16 loss scaler, or None."""
        if not self.engine.fp16_enabled():
            return None
        return self.engine.optimizer.loss_scaler

    def _owned(self) -> engine.OwnedState:
        optimizer = self.engine.optimizer
        adam = self.adam
        weights = list(self.model.parameters())
        if optimizer is adam:  # An fp32 optimizer without ZeRO
            return engine.OwnedState.whole(weights, weights, adam)
        if isinstance(optimizer, FP16_UnfusedOptimizer):  # A 16-bit optimizer without ZeRO
            halves = chain.from_iterable(optimizer.fp16_groups)
            mains = chain.from_iterable(optimizer.fp32_groups)
            return engine.OwnedState.whole(halves, mains, adam)

        parts = {}
        for weight in weights:
            part = _cut_part(optimizer, adam, weight)
            if part:
                parts[weight] = part

        return engine.OwnedState(parts, is_cut=True)


class GptWithLoss(torch.nn.Module):
    """A GPTModel that returns the mean loss over the unmasked tokens.

    DeepSpeed needs a single number for the backward pass.
    """

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
        """Return the loss, or the logits if no labels are given.

        Logits have the shape [batch, sequence, vocabulary on this rank].
        """
        output: torch.Tensor = self.gpt(tokens, position_ids, None, labels=labels)
        if loss_mask is None:
            return output
        return engine.mean_loss(output, loss_mask)


_TENSOR_GROUPS = {
    f"get_model_parallel_{fact}": getattr(parallel_state, f"get_tensor_model_parallel_{fact}")
    for fact in ("group", "rank", "world_size")
}
"""The methods that DeepSpeed calls for model-parallel ranks, here for tensor-parallel ranks."""
MODEL_PARALLEL_UNIT = SimpleNamespace(**vars(parallel_state) | _TENSOR_GROUPS)
"""Groups from megatron-core, in the form of the `mpu` that DeepSpeed expects."""


def _cut_part(
    optimizer: Any,
    adam: torch.optim.Optimizer,
    weight: torch.nn.Parameter,
) -> WeightPart | None:
    """Return the range of a weight that ZeRO assigned to this rank in the flat Adam buffer."""
    if hasattr(weight, "ds_id"):
        # Stage 3 divides every weight into equal pieces, with padding in the last one.
        group, offset, length = optimizer.grad_position[optimizer.get_param_id(weight)]
        whole = whole_shape(weight).numel()
        start = min(whole, length * optimizer._get_param_partition_rank(weight))
        flat = optimizer.fp32_partitioned_groups_flat[group]
        return WeightPart(
            start,
            min(start + length, whole),
            flat,
            adam,
            offset,
        )

    mapping = weight._hp_mapping  # type: ignore[attr-defined]
    if mapping is None:
        return None
    address = mapping.lp_fragment_address
    flat = adam.param_groups[mapping.param_group_index]["params"][0]
    return WeightPart(
        address.start,
        address.start + address.numel,
        flat,
        adam,
        mapping.hp_fragment_address.start,
    )
