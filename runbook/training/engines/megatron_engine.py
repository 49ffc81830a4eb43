"""The megatron-core engine trains GPTModel in DDP, with a distributed optimizer and 1F1B."""

import contextlib
import functools
import itertools
import math
from collections.abc import Iterator
from typing import Any, TypeAlias

import torch
from megatron.core import parallel_state
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.optimizer.optimizer import Float16OptimizerWithFloat16Params
from megatron.core.pipeline_parallel import get_forward_backward_func

from runbook.plan_file.schema import PhasePlan
from runbook.training.context_parallel import slice_sequences
from runbook.training.engines import engine, gpt_model, optimizers
from runbook.training.engines.engine import MicroBatches, OptimizerUpdate, OwnedState, State
from runbook.training.kernels import linear
from runbook.training.kernels.gradient_norm import use_own_norm

Losses: TypeAlias = list[torch.Tensor]
"""The mean loss for each micro-batch. Only ranks on the last stage have it."""


class MegatronEngine(engine.TrainingEngine):
    """GPTModel and optimizer, trained with megatron-core schedules."""

    def __init__(self, spec: PhasePlan, *, draw: bool = True) -> None:
        super().__init__(spec, gpt_model.build_model(spec, draw=draw))
        self.config = self.models[0].config
        shares_optimizer = optimizers.shares_optimizer(spec)
        tuning = spec.tuning
        has_replicas = spec.parallel.data * spec.parallel.context > 1
        overlaps_gradients = tuning.overlap_gradients and has_replicas
        self.gathers_late = tuning.overlap_weights and shares_optimizer
        data_parallel = DistributedDataParallelConfig(
            grad_reduce_in_fp32=True,
            use_distributed_optimizer=shares_optimizer,
            overlap_grad_reduce=overlaps_gradients,
            overlap_param_gather=self.gathers_late,
            # The training loop itself checks the loss and the gradient norm on all ranks together.
            check_for_nan_in_grad=False,
        )
        self.chunks = []
        for index, model in enumerate(self.models):
            # As in Megatron-LM, the communication of later chunks overlaps with computation even
            # without buckets.
            chunk = DistributedDataParallel(
                self.config, data_parallel, model, disable_bucketing=index > 0
            )
            self.chunks.append(chunk)

        for model in self.models:
            linear.sum_gradients_in_place(model, overlaps=overlaps_gradients)
        if "norm" in gpt_model.kernel_parts(spec):
            use_own_norm()

        self.optimizer = optimizers.megatron_optimizer(spec, self.chunks)
        self.config.grad_scale_func = self.optimizer.scale_loss
        if overlaps_gradients:
            self._send_while_computing()
        self.config.finalize_model_grads_func = self.clock.timed(finalize_model_grads)
        self.schedule = get_forward_backward_func()
        self.in_8_bits = gpt_model.has_own_8_bits(spec)

    def _send_while_computing(self) -> None:
        """Send the gradients while the backward pass for the last micro-batch is still running.

        Later stages send them during the pipeline bubble, as in Megatron-LM.
        """
        no_sync = [chunk.no_sync for chunk in self.chunks]
        start_sync = [chunk.start_grad_sync for chunk in self.chunks]
        if len(self.chunks) == 1:
            self.config.no_sync_func = no_sync[0]
            self.config.grad_sync_func = start_sync[0]
        else:
            self.config.no_sync_func = no_sync
            self.config.grad_sync_func = start_sync

    def compute(self, batches: MicroBatches, num_microbatches: int) -> float:
        """Run the forward and backward passes for one step."""
        self.clear_gradients()
        return total_loss(self._run(_forward_loss, batches, num_microbatches, forward_only=False))

    @property
    def smallest_part(self) -> int:
        """Return the smallest number of micro-batches that can be computed on their own.

        Interleaved stages process micro-batches in groups.
        """
        if len(self.chunks) == 1:
            return 1
        return self.spec.parallel.pipeline

    def clear_gradients(self) -> None:
        """Set the gradients to zero at the beginning of a step."""
        for chunk in self.chunks:
            chunk.zero_grad_buffer()
        self.optimizer.zero_grad()

    def compute_first(
        self,
        batches: MicroBatches,
        count: int,
        num_microbatches: int,
    ) -> Losses:
        """Compute the first micro-batches in a step, and sum their gradients on this rank.

        No gradients are sent to other replicas.
        """
        silent: dict[str, object] = {
            "finalize_model_grads_func": None,
            "no_sync_func": None,
            "grad_sync_func": None,
        }
        with contextlib.ExitStack() as stack:
            stack.enter_context(_changed(self.config, silent))
            for chunk in self.chunks:
                stack.enter_context(chunk.no_sync())
            return self._compute_part(batches, count, num_microbatches)

    def compute_others(
        self,
        batches: MicroBatches,
        count: int,
        num_microbatches: int,
    ) -> Losses:
        """Compute the last micro-batches in a step, then reduce the gradients over all replicas."""
        finalize = self.config.finalize_model_grads_func
        if count:

            def finalize_sums(chunks: Any, _num_tokens: Any, **options: Any) -> None:
                finalize(chunks, None, **options)

            with _changed(self.config, {"finalize_model_grads_func": finalize_sums}):
                return self._compute_part(batches, count, num_microbatches)

        for chunk in self.chunks:
            # Without overlap, megatron-core starts the reduction when it finishes it. A second
            # reduction would count a part of the gradients twice.
            if chunk.ddp_config.overlap_grad_reduce:
                chunk.start_grad_sync()
        finalize(self.chunks, None)
        return []

    def _compute_part(
        self,
        batches: MicroBatches,
        count: int,
        num_microbatches: int,
    ) -> Losses:
        forward = functools.partial(_forward_loss, num_microbatches=num_microbatches)
        # This keeps the schedule from scaling the loss.
        with _changed(self.config, {"calculate_per_token_loss": True}):
            losses: Losses = self._run(forward, batches, count, forward_only=False)
        return losses

    def update(self, learning_rate: float) -> OptimizerUpdate:
        """Step the optimizer."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
            group["weight_decay"] = self.spec.optimizer.weight_decay * group["wd_mult"]

        # This call lowers the loss scale if it is too high
        overflowed = self.optimizer.prepare_grads()
        # Without a scaler the scale is always 1, and reading it would make the host wait for the
        # device.
        if self._loss_scaler() is None:
            scale = 1.0
        else:
            scale = float(self.optimizer.get_loss_scale())

        if overflowed:
            return OptimizerUpdate(math.nan, True, scale)
        norm = float(self.optimizer.get_grad_norm())
        if not math.isfinite(norm):
            # Adam would spread the bad value to every weight
            return OptimizerUpdate(norm, True, scale)

        limit = self.spec.optimizer.clip_gradient
        if 0 < limit < norm:
            weights = self.optimizer.get_parameters()
            gradients = []
            for weight in weights:
                if weight.grad is not None:
                    gradients.append(weight.grad)

            # On a CPU, megatron-core would copy the gradients to clip them.
            torch._foreach_mul_(gradients, limit / (norm + 1e-6))

        self.optimizer.step_with_ready_grads()
        return OptimizerUpdate(norm, False, scale)

    def evaluate(self, batches: MicroBatches, num_microbatches: int) -> float:
        """Run the forward pass only."""
        return total_loss(self._run(_forward_loss, batches, num_microbatches, forward_only=True))

    def next_token_logits(self, ids: torch.Tensor) -> torch.Tensor | None:
        """Return the logits for the token after each prefix."""
        length = ids.shape[1]
        pieces = self.spec.parallel.context
        # Ranks that share a sequence get parts of equal length
        multiple = 1
        if self.config.sequence_parallel:
            multiple *= self.config.tensor_model_parallel_size
        if pieces > 1:
            multiple *= 2 * pieces
        longest = self.spec.model.shape.positions
        padded = engine.sampling_length(length, longest, multiple)
        ids = torch.nn.functional.pad(ids, (0, padded - length))
        positions = torch.arange(padded, device=ids.device).clamp_(max=longest - 1)
        batch = slice_sequences({"tokens": ids, "position_ids": positions.unsqueeze(0)})
        # The interleaved schedule processes micro-batches in groups, with one micro-batch per
        # stage.
        count = self.smallest_part
        outputs = self._run(
            _forward_logits,
            iter([batch] * count),
            count,
            forward_only=True,
            collect_non_loss_data=True,
            seq_length=padded,
            micro_batch_size=1,
        )
        if not outputs:
            return None
        whole = gpt_model.whole_sequence(outputs[0].transpose(0, 1))
        return whole.transpose(0, 1)[:, :length]

    def sharded_state(self) -> State:
        """Return the sharded state.

        Weights the next forward pass would gather are gathered before they are saved.
        """
        self._complete_weights()
        return super().sharded_state()

    def own_tensors(self) -> list[engine.OwnTensor]:
        """Return the tensors on this rank.

        Weights the next forward pass would gather are gathered first.
        """
        self._complete_weights()
        return super().own_tensors()

    def _complete_weights(self) -> None:
        if self.gathers_late:
            for chunk in self.chunks:
                chunk.start_param_sync(force_sync=True)

    def _scaler_values(self) -> dict[str, float]:
        scaler = self._loss_scaler()
        if scaler is None:
            return {}
        return {key: float(value) for key, value in scaler.state_dict().items()}

    def _restore_scaler(self, values: dict[str, float]) -> None:
        scaler = self._loss_scaler()
        if scaler is not None and values:
            whole = {key: int(value) for key, value in values.items()}
            scaler.load_state_dict({**whole, "scale": torch.tensor([values["scale"]])})

    def _loss_scaler(self) -> Any:
        """Return the fp16 loss scaler, or None."""
        return getattr(optimizers.inner_optimizer(self.optimizer), "grad_scaler", None)

    def _owned(self) -> OwnedState:
        inner = optimizers.inner_optimizer(self.optimizer)
        adam = inner.optimizer
        if isinstance(inner, DistributedOptimizer):
            parts = {}
            for weight, (group, order) in inner.model_param_group_index_map.items():
                owned = inner._get_model_param_range_map(weight)["param"]
                main = adam.param_groups[group]["params"][order]
                parts[weight] = engine.WeightPart(owned.start, owned.end, main, adam)

            return OwnedState(parts, is_cut=True)

        weights = mains = [group["params"] for group in adam.param_groups]
        if isinstance(inner, Float16OptimizerWithFloat16Params):
            weights = inner.float16_groups
            mains = inner.fp32_from_float16_groups

        return OwnedState.whole(itertools.chain(*weights), itertools.chain(*mains), adam)

    def _run(
        self,
        forward_step: Any,
        batches: MicroBatches,
        num_microbatches: int,
        *,
        forward_only: bool,
        **options: Any,
    ) -> Any:
        """Execute the schedule, and return the output from the last stage for each micro-batch."""
        linear.begin_pass(in_8_bits=self.in_8_bits)
        for chunk in self.chunks:
            if chunk.training is forward_only:
                chunk.train(not forward_only)

        data_iterator: Any = batches
        if len(self.chunks) > 1:
            # The interleaved schedule reads each micro-batch once for every chunk.
            data_iterator = list(itertools.tee(batches, len(self.chunks)))

        arguments = {
            "forward_step_func": forward_step,
            "data_iterator": data_iterator,
            "model": self.chunks,
            "num_microbatches": num_microbatches,
            "seq_length": self.spec.model.shape.sequence_length,
            "micro_batch_size": self.spec.batch.micro,
            "forward_only": forward_only,
        }
        with torch.set_grad_enabled(not forward_only):
            return self.schedule(**{**arguments, **options})


@contextlib.contextmanager
def _changed(config: Any, values: dict[str, object]) -> Iterator[None]:
    """Change values in the megatron-core configuration until the block ends."""
    before = {name: getattr(config, name) for name in values}
    try:
        for name, value in values.items():
            setattr(config, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(config, name, value)


def total_loss(losses: Losses) -> float:
    """Return the sum of the mean losses over micro-batches, which is 0 on ranks without losses."""
    if not losses:
        return 0.0
    return float(torch.stack(losses).sum())


def _forward_loss(
    batches: MicroBatches,
    chunk: Any,
    num_microbatches: int = 0,
) -> tuple[torch.Tensor, Any]:
    """Compute a micro-batch.

    `num_microbatches` is the number in the whole step, even if the schedule runs only some of them.
    """
    batch = next(batches)

    def loss_to_report(losses: torch.Tensor) -> tuple[torch.Tensor, ...]:
        # The loss to differentiate, which the schedule divides by the number of micro-batches, and
        # a copy to report. The schedule multiplies the loss by the number of pieces in a sequence.
        mean = engine.mean_loss(losses, batch["loss_mask"])
        pieces = parallel_state.get_context_parallel_world_size()
        reported = mean.detach().clone()
        return mean / pieces, reported

    def loss_of_part(losses: torch.Tensor) -> tuple[torch.Tensor, ...]:
        # These are the same operations as in the schedule, in the same order, so the result is
        # bit-identical. The schedule itself would divide by the number of micro-batches in this
        # part.
        loss, reported = loss_to_report(losses)
        pieces = parallel_state.get_context_parallel_world_size()
        no_tokens = torch.tensor(0, dtype=torch.int)
        return loss * pieces / num_microbatches, no_tokens, reported

    output = chunk(batch["tokens"], batch["position_ids"], None, labels=batch["labels"])
    return output, loss_of_part if num_microbatches else loss_to_report


def _forward_logits(batches: MicroBatches, chunk: Any) -> tuple[torch.Tensor, Any]:
    batch = next(batches)
    logits = chunk(batch["tokens"], batch["position_ids"], None)
    return logits, lambda logits, non_loss_data: engine.whole_logits(logits)
