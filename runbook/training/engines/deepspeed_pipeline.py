"""The DeepSpeed pipeline engine, which trains GPTModel.

The model is a list of layers, the embedding and the head can be tied, and a step computes and
updates in separate calls.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from deepspeed.runtime.pipe import schedule
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
from megatron.core import parallel_state
from megatron.core.tensor_parallel import checkpoint

from runbook.plan_file.schema import PhasePlan
from runbook.training.engines.deepspeed_engine import DeepSpeedEngine
from runbook.training.engines.deepspeed_start import (
    initialize_engine,
    local_rank_variable,
    quiet_stdout,
)
from runbook.training.engines.engine import MicroBatches, mean_loss, whole_logits


class DeepSpeedPipeline(DeepSpeedEngine):
    """The DeepSpeed pipeline behind the interface `engine.TrainingEngine`.

    Each rank has built its own stage of GPTModel, and the list of layers refers to the modules in
    it.
    """

    def _begin(self) -> Any:
        parallel = self.spec.parallel
        gpt = self.model
        # At this point DeepSpeed makes the copies of the tied weight equal
        with (
            quiet_stdout(),
            local_rank_variable(),
            torch.no_grad(),
        ):
            module = PipelineModule(
                layers=layer_list(self.spec, gpt),
                topology=PipeModelDataParallelTopology(
                    parallel.pipeline, parallel.tensor, parallel.data
                ),
                loss_fn=lambda logits, labels: mean_loss(
                    gpt.compute_language_model_loss(labels[0], logits), labels[1]
                ),
                partition_method=f"type:^{Block.__name__}$",
            )

        last = len(module._layer_specs)
        stage_layers = self.spec.model.shape.layers // parallel.pipeline
        # The stage boundaries built by megatron-core
        expected = [
            0,
            *(1 + stage_layers * stage for stage in range(1, parallel.pipeline)),
            last,
        ]
        assert list(module.parts) == expected, f"stages begin at {module.parts}, not at {expected}"
        _count_once(gpt)
        engine = initialize_engine(module, self.adam, self.spec, None)
        engine.set_batch_fn(
            lambda batch: (
                (batch["tokens"], batch["position_ids"]),
                (batch["labels"], batch["loss_mask"]),
            )
        )
        # The training loop first checks the loss on all ranks. The optimizer steps later, in
        # `update`.
        engine._INSTRUCTION_MAP = {
            **engine._INSTRUCTION_MAP,
            schedule.OptimizerStep: lambda *_, **__: None,
        }
        return engine

    def compute(self, batches: MicroBatches, num_microbatches: int) -> float:
        """Run the forward and backward passes for one step."""
        self._expect(num_microbatches)
        return self._run(batches, self.engine._train_schedule())

    def _step(self) -> None:
        self.engine._exec_optimizer_step()

    def evaluate(self, batches: MicroBatches, num_microbatches: int) -> float:
        """Run the forward pass only."""
        with self._evaluating():
            return self._run(batches, self.engine._inference_schedule(num_microbatches))

    def next_token_logits(self, ids: torch.Tensor) -> torch.Tensor | None:
        """Return the logits for the token after each prefix."""
        padded, positions = self._padded(ids)
        batch = {
            "tokens": padded,
            "position_ids": positions,
            "labels": padded,
            "loss_mask": torch.ones_like(padded),
        }
        # A prefix is shorter than a training sequence
        self.engine.reset_activation_shape()
        with self._evaluating():
            self._run(iter([batch]), self.engine._inference_schedule(1), compute_loss=False)
        self.engine.reset_activation_shape()
        if not self.engine.is_last_stage():
            return None
        logits = self.engine.fwd_outputs[0][: ids.shape[1]]
        return whole_logits(logits.transpose(0, 1).contiguous())

    def _run(
        self,
        batches: MicroBatches,
        instructions: Any,
        *,
        compute_loss: bool = True,
    ) -> float:
        """Execute a schedule, and return the summed losses on the last stage."""
        self.engine.set_dataiterator(batches)
        self.engine.total_loss = None
        self.engine._compute_loss = compute_loss
        self.engine._exec_schedule(instructions)
        total = self.engine.total_loss
        if compute_loss and self.engine.is_last_stage():
            return float(total)
        return 0.0


def layer_list(spec: PhasePlan, gpt: Any) -> list[LayerSpec]:
    """Return the layers in the complete model.

    DeepSpeed builds only the layers for the stage on this rank, from the modules in `gpt`.
    """
    shape = spec.model.shape
    stage_layers = shape.layers // spec.parallel.pipeline
    first = stage_layers * parallel_state.get_pipeline_model_parallel_rank()
    blocks = []
    for index in range(shape.layers):
        blocks.append(LayerSpec(Block, gpt, f"decoder.layers.{index - first}", _transform))

    if not shape.tied_embeddings:
        embedding = LayerSpec(Part, gpt, "embedding", _embed)
        head = LayerSpec(Part, gpt, "output_layer", _score)
    else:
        embedding = TiedLayerSpec("vocabulary", Vocabulary, gpt, forward_fn=_embed)
        head = TiedLayerSpec("vocabulary", Vocabulary, gpt, forward_fn=_score)

    return [embedding, *blocks, LayerSpec(Part, gpt, "decoder.final_layernorm", _normalize), head]


def _embed(part: Any, inputs: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Return the hidden states [sequence, batch, hidden] for (tokens, position ids)."""
    tokens, positions = inputs
    return part.embedding(input_ids=tokens, position_ids=positions)  # type: ignore[no-any-return]


def _transform(part: Any, hidden: torch.Tensor) -> torch.Tensor:
    """Return the hidden states after one transformer layer."""
    (gpt,), (layer,) = part.stage, part.children()
    rotary = gpt.rotary_pos_emb(hidden.shape[0]) if gpt.position_embedding_type == "rope" else None

    def transform(hidden: torch.Tensor) -> torch.Tensor:
        return layer(hidden_states=hidden, attention_mask=None, rotary_pos_emb=rotary)[0]  # type: ignore[no-any-return]

    recomputes = part.training and layer.config.recompute_granularity == "full"
    if recomputes:
        recomputed: torch.Tensor = checkpoint(transform, False, hidden)
        return recomputed

    return transform(hidden)


def _normalize(part: Any, hidden: torch.Tensor) -> torch.Tensor:
    return part.final_layernorm(hidden)  # type: ignore[no-any-return]


def _score(part: Any, hidden: torch.Tensor) -> torch.Tensor:
    """Return the logits [sequence, batch, vocabulary on this rank]."""
    return part.stage[0].output_layer(hidden, weight=part.weight)[0]  # type: ignore[no-any-return]


class Part(torch.nn.Module):
    """One module of a stage, registered under its own name.

    The module can use the entire stage, but does not own the other weights in it.
    """

    # The weight used as the head, unless the head has its own
    weight = None

    def __init__(
        self,
        gpt: Any,
        path: str,
        forward: Callable[[Any, Any], torch.Tensor],
    ) -> None:
        super().__init__()
        self.stage = [gpt]
        self.add_module(path.rpartition(".")[2], gpt.get_submodule(path))
        self.forward = functools.partial(forward, self)


class Block(Part):
    """One transformer layer. DeepSpeed divides layers of this class evenly over the stages."""


class Vocabulary(torch.nn.Module):
    """The two ends of a model with tied embeddings.

    The first stage has the embeddings, and the last has a copy of their weight. DeepSpeed sums
    the gradients of `weight` over the two stages, and treats all weights here as copies on the last
    stage.
    """

    def __init__(self, gpt: Any) -> None:
        super().__init__()
        self.stage = [gpt]
        if gpt.pre_process:
            self.embedding = gpt.embedding
        self.weight = gpt.shared_embedding_or_output_weight()


def _count_once(gpt: Any) -> None:
    """Mark the weights so that the DeepSpeed gradient norm includes each parameter exactly once.

    On all ranks but the first, the DeepSpeed fp32 norm includes only weights marked as sharded.
    Without marks, it would omit the biases and norms on later stages, and count the tied weight
    twice.
    """
    first_of_tensor = parallel_state.get_tensor_model_parallel_rank() == 0
    for weight in gpt.parameters():
        if getattr(weight, "ds_pipe_replicated", False):
            weight.tensor_model_parallel = weight.model_parallel = False
        else:
            weight.model_parallel = first_of_tensor
