"""Bytes of device memory by part, for each pipeline stage.

States (weights, gradients, optimizer) are exact for the named optimizers; activations follow Korthikanti et al.
(arXiv 2205.05198). What libraries keep for themselves (contexts, communication and allocator buffers) is not counted on
an accelerator; on a CPU `cpu_memory` adds it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from runbook.params.schema import Precision, Recompute
from runbook.plan import cpu_memory
from runbook.plan.choices import Choice
from runbook.plan.layout import Layout
from runbook.plan.sizes import Shape, on_rank


@dataclass(frozen=True)
class States:
    """Bytes a parameter on one rank."""

    weights: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        """All three."""
        return self.weights + self.gradients + self.optimizer


@dataclass(frozen=True)
class StageMemory:
    """Bytes on each rank of one pipeline stage; attention scores count where no flash attention is used."""

    stage: int
    weights: int
    gradients: int
    optimizer: int
    activations: int
    attention_scores: int
    logits: int
    buffers: int = 0
    """What the engine keeps beside its states; known for a CPU alone."""
    host: int = 0
    """In the node's main memory, for each device: the optimizer's states where they are offloaded."""
    optimizer_moment: int = 0
    """What the optimizer's step takes for a moment, once activations are gone; known for a CPU alone."""

    @property
    def states(self) -> int:
        """What is there between steps."""
        return self.weights + self.gradients + self.optimizer

    @property
    def least(self) -> int:
        """Everything, with an attention that keeps no scores."""
        return self.states + self.buffers + max(self.activations + self.logits, self.optimizer_moment)

    @property
    def most(self) -> int:
        """Everything, with an attention that keeps all scores."""
        kept = self.activations + self.logits + self.attention_scores
        return self.states + self.buffers + max(kept, self.optimizer_moment)

    def as_dict(self) -> dict[str, int]:
        """Each part and the sums."""
        return {**asdict(self), "states": self.states, "least": self.least, "most": self.most}


def state_bytes(precision: Precision, *, deepspeed: bool, zero_stage: int, data: int) -> States:
    """Bytes a parameter, with what ZeRO shares divided by the data-parallel copies.

    Megatron keeps fp32 gradients under bf16 (18 bytes whole, 6 + 12/d shared), and fp16 gradients with an fp32 copy in
    the optimizer under fp16 (20; 4 + 16/d). DeepSpeed keeps 16-bit gradients (16; 4 + 12/d; 2 + 14/d; 16/d); in fp32
    its stages 1 and 2 hold a second copy of the weights.

    >>> [round(state_bytes(Precision.BF16, deepspeed=False, zero_stage=z, data=8).total, 2) for z in (0, 1)]
    [18, 7.5]
    """
    if precision is Precision.FP32:
        weights, gradients, optimizer = 4, 4, 12 if deepspeed and zero_stage in (1, 2) else 8
    elif deepspeed:
        weights, gradients, optimizer = 2, 2, 12
    else:
        weights, gradients, optimizer = (2, 4, 12) if precision is Precision.BF16 else (2, 2, 16)
    return States(
        weights=weights / data if zero_stage >= 3 else weights,
        gradients=gradients / data if zero_stage >= 2 else gradients,
        optimizer=optimizer / data if zero_stage >= 1 else optimizer,
    )


def offloaded(states: States, zero_stage: int, data: int) -> tuple[States, float]:
    """What stays on the device where DeepSpeed offloads the optimizer, and the bytes a parameter on the host.

    The host has weights, two moments and gradients in fp32, shared over the copies; ZeRO 2 hands over each
    gradient at once.

    >>> offloaded(States(2, 1, 6), 2, 2)
    (States(weights=2, gradients=0, optimizer=0), 8.0)
    """
    return States(states.weights, 0 if zero_stage >= 2 else states.gradients, 0), 16 / data


def layer_activations(shape: Shape, layout: Layout, precision: Precision) -> tuple[float, float]:
    """Bytes one layer keeps of one micro-batch for its backward pass: (without attention scores, the scores)."""
    tensor, whole_divisor = layout.tensor, layout.tensor if layout.sequence else 1
    unit = shape.sequence_length / layout.context * layout.micro_batch * shape.hidden
    unit *= 2 if precision is Precision.FP32 else 1
    key_value = shape.kv_heads / shape.heads
    feed_forward = 4 * shape.ffn_hidden / shape.hidden * (1.5 if shape.gated else 1)
    split_over_tensor = 4 + 4 * key_value + feed_forward
    scores = 5 * shape.heads * shape.sequence_length / shape.hidden
    return unit * (10 / whole_divisor + split_over_tensor / tensor), unit * scores / tensor


def stage_memory(choice: Choice, layout: Layout, shape: Shape, stage: int) -> StageMemory:
    """Bytes on each rank of this stage at the fullest moment of a step (1F1B)."""
    training = choice.training
    precision = training.precision
    parameters = on_rank(shape, tensor=layout.tensor, pipeline=layout.pipeline, stage=stage).total
    states = state_bytes(
        precision, deepspeed=choice.deepspeed, zero_stage=layout.zero_stage, data=layout.data * layout.context
    )
    host = 0.0
    if training.offload and choice.deepspeed and layout.zero_stage:
        states, host = offloaded(states, layout.zero_stage, layout.data * layout.context)
    kept, scores = layer_activations(shape, layout, precision)
    in_flight = min(layout.num_microbatches, layout.pipeline - stage)
    layers = shape.layers / layout.pipeline * in_flight
    if layout.virtual_pipeline > 1:
        layers *= 1 + (layout.pipeline - 1) / (layout.pipeline * layout.virtual_pipeline)
    width = 4 if precision is Precision.FP32 else 2
    sequence_split = layout.tensor if layout.sequence else 1
    tokens = shape.sequence_length / layout.context * layout.micro_batch
    if training.recompute is Recompute.FULL:
        activations, all_scores = layers * width * tokens * shape.hidden / sequence_split + kept, scores
    else:
        activations, all_scores = layers * kept, layers * scores
    if training.recompute is Recompute.SELECTIVE:
        all_scores = scores
    stored = StageMemory(
        stage=stage,
        weights=round(parameters * states.weights),
        gradients=round(parameters * states.gradients),
        optimizer=round(parameters * states.optimizer),
        activations=round(activations),
        attention_scores=round(all_scores),
        logits=0,
        host=round(parameters * host),
    )
    last = stage == layout.pipeline - 1
    if choice.on_cpu:
        return _on_cpu(choice, layout, stored, parameters, tokens * width if last else 0)
    logits = 2 * width * tokens * (shape.hidden + shape.padded_vocabulary) / layout.tensor if last else 0
    return replace(stored, logits=round(logits))


def _on_cpu(choice: Choice, layout: Layout, stored: StageMemory, parameters: int, head_bytes: float) -> StageMemory:
    """The same in main memory; `head_bytes`: what all tokens have for one word of the vocabulary, 0 without a head."""
    shape, precision = choice.shape, choice.training.precision
    deepspeed, zero_stage = choice.deepspeed, layout.zero_stage
    rows = cpu_memory.LOGITS * head_bytes
    width = 4 if precision is Precision.FP32 else 2
    gradient = width * shape.hidden if head_bytes else 0
    scores = cpu_memory.DROPPED_SCORES * 2 / width * stored.attention_scores if choice.training.dropout else 0
    moment = cpu_memory.moment_bytes(precision, deepspeed=deepspeed, zero_stage=zero_stage, data=layout.data)
    return replace(
        stored,
        activations=round(cpu_memory.ACTIVATIONS * stored.activations + scores),
        attention_scores=0,
        logits=round((rows + gradient) * shape.padded_vocabulary / layout.tensor),
        buffers=round(cpu_memory.gathered_bytes(parameters, deepspeed=deepspeed, zero_stage=zero_stage)),
        optimizer_moment=round(moment * parameters),
    )


def all_stages(choice: Choice, layout: Layout, shape: Shape) -> list[StageMemory]:
    """Every pipeline stage, first to last."""
    return [stage_memory(choice, layout, shape, stage) for stage in range(layout.pipeline)]


def node_bytes(stages: list[StageMemory], processes: int) -> tuple[int, int]:
    """Main memory that the processes of one node need where there is no accelerator: (least, most)."""
    least = sum(stage.least for stage in stages) / len(stages)
    most = sum(stage.most for stage in stages) / len(stages)
    return round(processes * (least + cpu_memory.PROCESS_BYTES)), round(processes * (most + cpu_memory.PROCESS_BYTES))
