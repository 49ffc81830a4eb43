"""Memory needed in training: bytes by part on each rank, and whether they fit.

The bytes for states (weights, gradients, optimizer) are exact for the supported optimizers; those
for activations follow Korthikanti et al. (arXiv 2205.05198). Of the memory used by libraries on an
accelerator, workspaces for matrix products and buffers are counted; contexts, communication and
unused blocks in the allocator are not. On a CPU, the module `cpu` adds the memory used by libraries.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from runbook.core.checks import Check, check_of
from runbook.core.units import show_bytes
from runbook.params.schema.site import Site
from runbook.plan_file.deepspeed import bucket_elements
from runbook.plan_file.diagnostics import RuleResult
from runbook.plan_file.json_records import OPTIONAL
from runbook.plan_file.schema import ADAM_MOMENTS, Layout, ModelShape, Precision
from runbook.planning.choice import Choice, Machine
from runbook.planning.cost import cpu
from runbook.planning.cost.memory_ranges import device_range, measured_range, read_on_device
from runbook.planning.cost.step_inputs import device_of, memory_of
from runbook.planning.messages import PlanningMessage
from runbook.planning.rule_codes import PlanCode
from runbook.planning.sizes import on_rank


@dataclass(frozen=True)
class States:
    """Bytes per parameter on one rank."""

    weights: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        """Return the bytes for weights, gradients and optimizer states together."""
        return self.weights + self.gradients + self.optimizer


@dataclass(frozen=True)
class StageMemory:
    """Bytes on each rank in one pipeline stage.

    Attention scores are counted if flash attention is not used.
    """

    COMPUTED: ClassVar = ("states", "least", "most", "first_step")

    stage: int
    weights: int
    gradients: int
    optimizer: int
    activations: int
    attention_scores: int
    logits: int
    buffers: int = 0
    """Buffers that the engine has in addition to states.

    These are DeepSpeed buckets, weights that ZeRO 3 has gathered, and workspaces for matrix
    products.
    """
    host: int = 0
    """Bytes that offloaded optimizer states take in main memory, per device."""
    passing: int = 0
    """Activation gradients on a GPU while a layer's backward pass runs, and DeepSpeed's bucket if
    it exists only then.
    """
    recomputed: int = field(default=0, metadata=OPTIONAL)
    """Part of `activations` that does not exist until the backward pass computes it again.

    By then, the memory of the logits is free.
    """
    recomputed_scores: int = field(default=0, metadata=OPTIONAL)
    """Part of `attention_scores` that does not exist until the backward pass computes it again."""
    late_gradients: int = field(default=0, metadata=OPTIONAL)
    """Part of `gradients` that does not exist until the backward pass, because DeepSpeed frees
    them after each step.
    """
    moments: int = field(default=0, metadata=OPTIONAL)
    """Part of `optimizer` that does not exist until the first optimizer step."""
    optimizer_moment: int = 0
    """Temporary memory for the optimizer step, once the activations have been freed.

    On a GPU, this memory holds gradients in fp32; on a CPU, it is larger.
    """
    backward_end: int = field(default=0, metadata=OPTIONAL)
    """Memory at the end of a backward pass on the first stage, where the token embedding gets its
    gradient: this gradient, and the activations of the other micro-batches in flight.
    """

    @property
    def states(self) -> int:
        """Return the bytes in use between steps."""
        return self.weights + self.gradients + self.optimizer

    @property
    def least(self) -> int:
        """Return the total if attention stores no scores."""
        return self._total(scores=0, recomputed_scores=0)

    @property
    def most(self) -> int:
        """Return the total if attention stores all scores."""
        return self._total(self.attention_scores, self.recomputed_scores)

    @property
    def first_step(self) -> int:
        """Return what `least` is during the first step, which Megatron reports in its log.

        The moments are created once the activations have been freed.
        """
        before_moments = replace(self, optimizer=self.optimizer - self.moments, moments=0)
        return max(before_moments.least, self.states + self.buffers + self.optimizer_moment)

    @property
    def reserved(self) -> int:
        """Return what the allocator reserves for `least`, apart from unused ends of blocks.

        The optimizer's temporaries are large, and freed activations leave only small blocks, so they
        do not share memory.
        """
        without_step = replace(self, optimizer_moment=0)
        return without_step.least + self.optimizer_moment

    def _total(self, scores: int, recomputed_scores: int) -> int:
        """Return the bytes at the peak, which occurs at one of four moments in a step."""
        recomputed = self.recomputed + recomputed_scores
        forward_end = self.activations + scores - recomputed + self.logits
        backward_start = self.activations + scores + self.passing
        backward_end = self.late_gradients + self.backward_end
        step = self.late_gradients + max(recomputed + self.passing, self.optimizer_moment)
        in_use = self.states + self.buffers - self.late_gradients
        return in_use + max(forward_end, backward_start, backward_end, step)


def state_bytes(
    precision: Precision,
    *,
    deepspeed: bool,
    zero_stage: int,
    data: int,
    own_trainer: bool = False,
    half_sums: bool = False,
    separate_sums: int = 0,
    moments: Sequence[str] = ADAM_MOMENTS,
) -> States:
    """Return the bytes per parameter, where ZeRO shards states over the data-parallel replicas.

    With bf16, Megatron keeps gradients in fp32 (18 bytes unsharded, 6 + 12/d sharded). With fp16,
    Megatron keeps gradients in fp16 and an fp32 copy in the optimizer (20; 4 + 16/d), while our own
    trainer keeps fp32 gradients as with bf16. With `half_sums`, Megatron keeps 16-bit gradients and
    an fp32 copy with bf16 too (`training.reduce_in_bf16`). DeepSpeed keeps 16-bit gradients (16; 4
    + 12/d; 2 + 14/d; 16/d). In fp32, DeepSpeed stages 1 and 2 keep a second copy of the weights. If
    its optimizer is the one for bf16, `separate_sums` is the width of sums that it keeps in addition
    to the gradients (8 + 12/d with fp32 sums), and it shards its states in ZeRO 0 too.

    >>> [round(state_bytes("bf16", deepspeed=False, zero_stage=z, data=8).total, 2) for z in (0, 1)]
    [18, 7.5]
    """
    moment_bytes = 4 * len(moments)
    if precision == "fp32":
        weights = 4
        gradients = 4
        second_copy = 4 if deepspeed and zero_stage in (1, 2) else 0
        optimizer = second_copy + moment_bytes
    elif deepspeed:
        weights = 2
        gradients = 2 + separate_sums
        optimizer = 4 + moment_bytes
    else:
        has_wide_sums = own_trainer or (precision == "bf16" and not half_sums)
        weights = 2
        gradients = 4 if has_wide_sums else 2
        gradient_copy = 0 if has_wide_sums else 4
        optimizer = 4 + moment_bytes + gradient_copy

    return States(
        weights=weights / data if zero_stage >= 3 else weights,
        gradients=gradients / data if zero_stage >= 2 else gradients,
        optimizer=optimizer / data if zero_stage >= 1 or separate_sums else optimizer,
    )


LOSS_BLOCK_BYTES = 2**28
"""Bytes of float32 values that our cross entropy holds on a GPU at a time
(training/kernels/blocked.py).
"""


CROSS_ENTROPY_BYTES = 4
"""Bytes that the Megatron loss needs for each logit.

The loss creates an fp32 copy of the 16-bit logits, and keeps both for the backward pass
(vocab_parallel_cross_entropy in megatron-core).
"""


_DEEPSPEED_LOSS_BYTES = 2 * CROSS_ENTROPY_BYTES
"""Bytes that Megatron-DeepSpeed's loss needs for each logit.

The loss also keeps the fp32 logits from which it subtracts the largest, because it subtracts out of
place (megatron/core/tensor_parallel/cross_entropy.py in deepspeedai/Megatron-DeepSpeed).
"""


_FUSED_LOSS_BYTES = {"native": 2 * CROSS_ENTROPY_BYTES, "te": 0}
"""Bytes per logit for the fused losses (`training.loss_fusion`).

The native loss, once compiled, keeps two copies of the fp32 logits. Transformer Engine's loss
overwrites the 16-bit logits with the gradient (megatron/core/fusions/fused_cross_entropy.py,
transformer_engine/pytorch/cross_entropy.py).
"""


_SCORE_BYTES = 5
_SCORE_BYTES_WITHOUT_DROPOUT = 2
"""Bytes that a layer stores per 16-bit attention score.

A layer stores the results of softmax and dropout (2 bytes each), and the dropout mask (arXiv
2205.05198). PyTorch's dropout with probability 0 returns its input and creates no mask
(`is_fused_kernel_acceptable` in aten/src/ATen/native/Dropout.cpp).
"""


_MASK_BYTES = 2
"""Bytes per token and width of a layer for the two dropout masks outside of attention."""


_PLAIN_SCORE_BYTES = 10
"""Bytes per attention score that a layer needs in its backward pass with PyTorch's own softmax.

The layer needs the scores, the softmax, and the gradients of both, 2 bytes each. It also keeps the
buffer `mpu` of 2 bytes per score, which a log shows as allocated between its steps. The bytes were
counted in CoreAttention in argonne-lcf/Megatron-DeepSpeed, without dropout.
"""


_MIB = 2**20
_WORKSPACE_FAMILIES = {
    "V100": (8 * _MIB + 128 * 2**10, 4 * _MIB),
    "A100": (8 * _MIB + 128 * 2**10, 4 * _MIB),
    "L40S": (8 * _MIB + 128 * 2**10, 4 * _MIB),
    "H100": (32 * _MIB, 32 * _MIB),
    "H100-500W": (32 * _MIB, 32 * _MIB),
    "Blackwell": (32 * _MIB, 32 * _MIB),
    "Blackwell Ultra": (32 * _MIB, 32 * _MIB),
}
"""Bytes in a cuBLAS workspace of PyTorch, and in that of Transformer Engine, by device family.

Sources: parseChosenWorkspaceSize in PyTorch's aten/src/ATen/cuda/CublasHandlePool.cpp, and
get_cublas_workspace_size_bytes in Transformer Engine's pytorch/module/base.py. Workspaces of other
libraries on AMD and Intel are not counted.
"""
_TORCH_WORKSPACES = 2
"""Number of PyTorch's workspaces: one for the main thread, and one for the backward thread."""
_USES_TRANSFORMER_ENGINE = ("megatron-lm", "nemo")
"""Frameworks whose layers use Transformer Engine."""


DEEPSPEED_BUCKET = 500_000_000
"""Default number of gradients in a bucket for DeepSpeed ZeRO 1 and 2 (`reduce_bucket_size`).

`setup_buckets` in DeepSpeed's runtime/zero/stage_1_and_2.py allocates the bucket at the start of
each backward pass, and a second one with `overlap_comm`. ZeRO 1 does not free it before the step's
last micro-batch.
"""


LIVE_PARAMETERS = 10**9
"""Default number of weights that DeepSpeed ZeRO 3 keeps gathered at a time."""


def layer_activations(
    shape: ModelShape,
    parallel: Layout,
    micro_batch: int,
    precision: Precision,
    *,
    gathers_keys: bool = False,
    megatron_deepspeed: bool = False,
    has_masks: bool = True,
    saves_in_fp8: bool = False,
) -> tuple[float, float]:
    """Return the bytes per micro-batch that one layer keeps for its backward pass.

    The result is (bytes without attention scores, bytes of attention scores). With `gathers_keys`,
    the keys and values of the whole sequence are kept, as in our own attention. Layers in
    Megatron-DeepSpeed repeat keys and values for every head, and keep the SiLU output (`repeat_kv`
    and `swiglu` in its megatron/model/transformer.py). `has_masks` says whether dropout creates
    masks. With `saves_in_fp8`, the inputs of matrix products take one byte instead of two; that of
    attention's output is kept twice, as attention keeps its result in 16 bits.
    """
    tensor = parallel.tensor
    whole_divisor = parallel.tensor if parallel.sequence else 1
    unit = shape.sequence_length / parallel.context * micro_batch * shape.hidden
    unit *= 2 if precision == "fp32" else 1
    key_value = 1 if megatron_deepspeed else shape.kv_heads / shape.heads
    gated_share = 2.0 if megatron_deepspeed else 1.5
    feed_forward = 4 * shape.ffn_hidden / shape.hidden * (gated_share if shape.gated else 1)
    norm_results = 4
    if saves_in_fp8:
        norm_results = 2
        feed_forward -= shape.ffn_hidden / shape.hidden
    split_over_tensor = 4 + 4 * key_value + feed_forward + (1 if saves_in_fp8 else 0)
    # Attention on two pieces of the sequence keeps its results both separately and joined.
    if gathers_keys and parallel.context > 1:
        split_over_tensor += 4 * key_value * (parallel.context - 1) + 2
    score_bytes = _SCORE_BYTES if has_masks else _SCORE_BYTES_WITHOUT_DROPOUT
    scores = score_bytes * shape.heads * shape.sequence_length / shape.hidden
    # The inputs of both norms are kept, too.
    whole = 4 + norm_results + (_MASK_BYTES if has_masks else 0)
    return unit * (whole / whole_divisor + split_over_tensor / tensor), unit * scores / tensor


def stage_memory(choice: Choice, stage: int) -> StageMemory:
    """Return the bytes that each rank in this stage needs at the peak of a step (1F1B)."""
    layout = choice.layout
    parameters = on_rank(
        choice.shape,
        tensor=layout.tensor,
        pipeline=layout.pipeline,
        stage=stage,
        layers=choice.stage_layers[stage],
    ).total
    states, host_bytes = _states_with_offload(choice)
    activations, attention_scores = _kept_activations(choice, stage)
    recomputed, recomputed_scores = _recomputed(choice, stage)
    passing_optimizer = _main_gradients(choice)
    # Transformer Engine keeps two more copies of each weight in 8 bits, one of them transposed.
    fp8_weights = 2 if choice.training.fp8 != "none" else 0
    stored = StageMemory(
        stage=stage,
        weights=round(parameters * (states.weights + fp8_weights)),
        gradients=round(parameters * states.gradients),
        optimizer=round(parameters * (states.optimizer - passing_optimizer)),
        activations=round(activations),
        attention_scores=round(attention_scores),
        logits=0,
        host=round(parameters * host_bytes),
    )
    is_last = stage == layout.pipeline - 1
    if choice.on_cpu:
        head_bytes = _rank_tokens(choice) * _width(choice) if is_last else 0
        return _on_cpu(choice, stored, parameters, head_bytes)

    logits = _logits(choice) if is_last else 0
    bucket = _bucket(choice)
    keeps_bucket = layout.zero_stage == 1 and choice.num_microbatches > 1
    has_late_gradients = _frees_gradients(choice) and choice.num_microbatches == 1
    return replace(
        stored,
        logits=round(logits),
        passing=round(_passing_gradients(choice)) + (0 if keeps_bucket else bucket),
        recomputed=round(recomputed),
        recomputed_scores=round(recomputed_scores),
        late_gradients=stored.gradients if has_late_gradients else 0,
        moments=_moments(choice, parameters),
        buffers=_engine_buffers(choice, parameters)
        + workspace_bytes(choice)
        + _dummy_gradients(choice, stage)
        + _gathered_sequence(choice, stage)
        + (bucket if keeps_bucket else 0),
        optimizer_moment=_optimizer_moment(choice, stage, parameters),
        backward_end=_backward_end(choice, stage, activations - recomputed),
    )


def _width(choice: Choice) -> int:
    """Return the bytes of a single weight or activation."""
    return 4 if choice.training.precision == "fp32" else 2


def _rank_tokens(choice: Choice) -> float:
    """Return how many tokens from a micro-batch are on one rank.

    Context parallelism divides the sequence.
    """
    return choice.shape.sequence_length / choice.layout.context * choice.micro_batch


def _sequence_split(choice: Choice) -> int:
    """Return the number of ranks over which sequence parallelism divides activations."""
    layout = choice.layout
    return layout.tensor if layout.sequence else 1


def _states_with_offload(choice: Choice) -> tuple[States, float]:
    """Return the bytes per parameter on the device, and the offloaded bytes in the node memory."""
    layout = choice.layout
    replicas = layout.data * layout.context
    states = state_bytes(
        choice.training.precision,
        deepspeed=choice.deepspeed,
        zero_stage=layout.zero_stage,
        data=replicas,
        own_trainer=choice.own_trainer,
        half_sums=choice.has_half_sums,
        separate_sums=_separate_sums(choice),
        moments=choice.training.optimizer.moments,
    )
    offloads = choice.training.offload and choice.deepspeed and layout.zero_stage > 0
    if not offloads:
        return states, 0.0
    # ZeRO 2 reduces each gradient immediately.
    gradients = 0 if layout.zero_stage >= 2 else states.gradients
    # Weights, moments and gradients are in fp32 and partitioned across the replicas.
    num_offloaded = 2 + len(choice.training.optimizer.moments)
    host_bytes = 4 * num_offloaded / replicas
    return replace(states, gradients=gradients, optimizer=0), host_bytes


def _separate_sums(choice: Choice) -> int:
    """Return the bytes per gradient that DeepSpeed's optimizer for bf16 sums up apart; 0 without it.

    DeepSpeed uses it with ZeRO 1 if the site asks for sums in fp32, and with pipeline stages in ZeRO
    0, then with sums in bf16 (`_do_optimizer_sanity_check` in runtime/engine.py, `BF16_Optimizer` in
    runtime/bf16_optimizer.py).
    """
    layout = choice.layout
    training = choice.training
    if training.framework != "megatron-deepspeed" or training.precision != "bf16":
        return 0
    if layout.zero_stage == 0 and layout.pipeline > 1:
        return 2
    checkout = choice.site.frameworks.get("megatron-deepspeed")
    data_types = checkout.deepspeed.get("data_types") if checkout else None
    asks_for_fp32 = isinstance(data_types, Mapping) and data_types.get("grad_accum_dtype") == "fp32"
    can_keep_them = layout.zero_stage == 1 and not training.offload
    return 4 if asks_for_fp32 and can_keep_them else 0


def _chunks_in_flight(choice: Choice, stage: int) -> int:
    """Return how many sets of chunk activations a stage keeps at the peak of a step."""
    layout = choice.layout
    chunks = layout.virtual_pipeline
    later_stages = layout.pipeline - stage - 1
    if chunks == 1:
        in_flight = later_stages + 1
    else:
        in_flight = 2 * later_stages + (chunks - 1) * layout.pipeline + 1

    return min(in_flight, chunks * choice.num_microbatches)


def _layers_in_flight(choice: Choice, stage: int) -> float:
    """Return over how many layers a stage keeps activations at the peak of a step.

    Micro-batches enter a chunk in groups of as many as there are stages. If the layers do not
    divide evenly, the first chunks have one more.
    """
    layout = choice.layout
    chunks = layout.virtual_pipeline
    in_flight = _chunks_in_flight(choice, stage)
    layers, remainder = divmod(choice.stage_layers[stage], chunks)
    if not remainder:
        return layers * in_flight
    whole_groups, in_last_group = divmod(in_flight, layout.pipeline)
    kept = [layers + (chunk < remainder) for chunk in range(chunks)] * (whole_groups // chunks + 1)
    return layout.pipeline * sum(kept[:whole_groups]) + in_last_group * kept[whole_groups]


def _layer_activations(choice: Choice) -> tuple[float, float]:
    """Return the bytes that one layer keeps (without attention scores, attention scores)."""
    return layer_activations(
        choice.shape,
        choice.layout,
        choice.micro_batch,
        choice.training.precision,
        gathers_keys=choice.own_trainer,
        megatron_deepspeed=choice.training.framework == "megatron-deepspeed",
        has_masks=_has_masks(choice),
        saves_in_fp8=choice.training.fp8 != "none" and not choice.own_trainer,
    )


def _has_masks(choice: Choice) -> bool:
    """Return whether dropout creates masks. The plan for CPUs was fitted with masks."""
    return choice.on_cpu or choice.training.dropout > 0


def _kept_activations(choice: Choice, stage: int) -> tuple[float, float]:
    """Return the bytes that a stage keeps for the backward pass (activations, attention scores)."""
    recompute = choice.training.recompute
    layer_bytes, layer_scores = _layer_activations(choice)
    backward_scores = layer_scores * _backward_score_share(choice)
    chunks = _chunks_in_flight(choice, stage)
    layers_per_chunk = choice.stage_layers[stage] / choice.layout.virtual_pipeline
    layers = _layers_in_flight(choice, stage)
    if recompute == "selective":
        return layers * layer_bytes, layer_scores + backward_scores
    if recompute != "full":
        return layers * layer_bytes, layers * layer_scores + backward_scores
    group = min(float(choice.tuning.recompute_num_layers), layers_per_chunk)
    recomputed_layers = _recomputed_layers(choice, stage)
    if choice.tuning.recompute_method == "block":
        # The first layers of each chunk keep only their inputs, and each is recomputed separately.
        stored_inputs = chunks * group
        whole_layers = layers - chunks * group + recomputed_layers
    else:
        # Each group of layers keeps only its input, and is recomputed as a whole.
        stored_inputs = layers / group
        whole_layers = recomputed_layers

    input_bytes = (
        stored_inputs
        * _width(choice)
        * _rank_tokens(choice)
        * choice.shape.hidden
        / _sequence_split(choice)
    )
    whole_scores = whole_layers * layer_scores + backward_scores
    return input_bytes + whole_layers * layer_bytes, whole_scores


def _recomputed_layers(choice: Choice, stage: int) -> float:
    """Return how many layers a full recomputation computes at a time."""
    if choice.tuning.recompute_method == "block":
        return 1.0
    layers_per_chunk = choice.stage_layers[stage] / choice.layout.virtual_pipeline
    return min(float(choice.tuning.recompute_num_layers), layers_per_chunk)


def _recomputed(choice: Choice, stage: int) -> tuple[float, float]:
    """Return the bytes that the backward pass computes again (activations, attention scores).

    Our own trainer is not included: its plan was compared with measurements as a sum.
    """
    recompute = choice.training.recompute
    if choice.own_trainer or recompute == "none":
        return 0.0, 0.0
    layer_bytes, layer_scores = _layer_activations(choice)
    backward_scores = layer_scores * _backward_score_share(choice)
    if recompute == "selective":
        return 0.0, layer_scores + backward_scores
    layers = _recomputed_layers(choice, stage)
    return layers * layer_bytes, layers * layer_scores + backward_scores


def _backward_score_share(choice: Choice) -> float:
    """Return the extra bytes for attention scores in a backward pass, relative to those kept.

    These bytes are counted only if the framework's fused softmax cannot be used. Megatron-DeepSpeed
    has no fused softmax for Intel.
    """
    device = device_of(choice.site)
    is_plain = (
        choice.training.framework == "megatron-deepspeed"
        and device is not None
        and device.family == "PVC"
    )
    score_bytes = _SCORE_BYTES if _has_masks(choice) else _SCORE_BYTES_WITHOUT_DROPOUT
    return _PLAIN_SCORE_BYTES / score_bytes - 1 if is_plain else 0.0


def _logits(choice: Choice) -> float:
    """Return the bytes that the logits and the loss need on a GPU of the last stage."""
    layout = choice.layout
    shape = choice.shape
    width = _width(choice)
    tokens = _rank_tokens(choice)
    if choice.compiles_kernels:
        # The gradient overwrites the logits.
        return width * tokens * shape.padded_vocabulary / layout.tensor

    if choice.own_trainer and not choice.deepspeed:
        logits = tokens * shape.padded_vocabulary / layout.tensor
        return width * logits + min(4 * logits, LOSS_BLOCK_BYTES)

    # Without sequence parallelism, the last norm's input and output are whole on each rank.
    hidden_bytes = 2 * width * shape.hidden * layout.tensor / _sequence_split(choice)
    if choice.own_trainer:
        hidden_bytes = 2 * width * shape.hidden
        logit_bytes = 2 * width
    else:
        loss_bytes = _DEEPSPEED_LOSS_BYTES if choice.deepspeed else CROSS_ENTROPY_BYTES
        logit_bytes = width + _FUSED_LOSS_BYTES.get(choice.training.loss_fusion, loss_bytes)

    return tokens * (hidden_bytes + logit_bytes * shape.padded_vocabulary) / layout.tensor


def _passing_gradients(choice: Choice) -> float:
    """Return the bytes of activation gradients on a GPU during the backward pass in a layer."""
    layout = choice.layout
    if choice.own_trainer and choice.deepspeed:
        return 0
    shape = choice.shape
    width = _width(choice)
    # These are the gradients for the layer input and output, and for activations within the
    # feed-forward block.
    outside = 2 * shape.hidden / _sequence_split(choice)
    inside = 2 * shape.ffn_hidden * (1.5 if shape.gated else 1) / layout.tensor
    gradients = width * _rank_tokens(choice) * (outside + inside)
    if not choice.own_trainer and not _reuses_weight_gradients(choice):
        # The gradient for the largest weight stays allocated until it has been added to the
        # gradient buffer, as logs from 2021 show (tests/planning/gpu_peaks.csv).
        gradients += width * shape.hidden * shape.ffn_hidden / layout.tensor

    return gradients


def _engine_buffers(choice: Choice, parameters: int) -> int:
    """Return the bytes that the engine keeps on a GPU in addition to states."""
    layout = choice.layout
    width = _width(choice)
    if choice.own_trainer:
        if not choice.deepspeed or layout.zero_stage == 0:
            return 0
        model = on_rank(choice.shape, tensor=1, pipeline=1, stage=0).total
        return width * bucket_elements(model, layout.tensor)

    if choice.deepspeed and choice.training.precision != "fp32":
        if layout.zero_stage == 3:
            return width * min(parameters, LIVE_PARAMETERS)
        return 0

    return 0


def _frees_gradients(choice: Choice) -> bool:
    """Return whether DeepSpeed's ZeRO 1 or 2 frees the gradients after each step."""
    has_zero = choice.layout.zero_stage in (1, 2) and not _separate_sums(choice)
    return choice.deepspeed and not choice.own_trainer and has_zero


def _bucket(choice: Choice) -> int:
    """Return the bytes of the bucket in which DeepSpeed gathers gradients in a backward pass.

    With pipeline stages, DeepSpeed allocates the bucket once the activations have been freed.
    """
    if not _frees_gradients(choice) or choice.layout.pipeline > 1:
        return 0
    num_buckets = 2 if choice.tuning.overlap_gradients else 1
    return num_buckets * _width(choice) * DEEPSPEED_BUCKET


def _moments(choice: Choice, parameters: int) -> int:
    """Return the bytes for moments that the optimizer creates in its first step.

    The optimizers in Apex, Transformer Engine and PyTorch create them in their first `step`.
    DeepSpeed calls `step` once at the start for ZeRO 0 and 3.
    """
    layout = choice.layout
    is_offloaded = choice.training.offload and choice.deepspeed
    is_created_later = not choice.deepspeed or layout.zero_stage in (1, 2)
    is_created_later = is_created_later or _separate_sums(choice) > 0
    if choice.own_trainer or is_offloaded or not is_created_later:
        return 0
    replicas = layout.data * layout.context
    moment_bytes = 4 * len(choice.training.optimizer.moments)
    is_sharded = layout.zero_stage > 0 or _separate_sums(choice) > 0
    return round(parameters * moment_bytes / (replicas if is_sharded else 1))


def workspace_bytes(choice: Choice) -> int:
    """Return the bytes of all cuBLAS workspaces on a GPU."""
    device = device_of(choice.site)
    if device is None or device.family not in _WORKSPACE_FAMILIES:
        return 0
    torch_bytes, engine_bytes = _WORKSPACE_FAMILIES[device.family]
    torch_bytes = _requested_workspace(choice.site) or torch_bytes
    has_engine = choice.training.framework in _USES_TRANSFORMER_ENGINE
    return _TORCH_WORKSPACES * torch_bytes + (engine_bytes if has_engine else 0)


def _requested_workspace(site: Site) -> int:
    """Return the bytes of a workspace that the site asks for; 0 if it does not.

    Deterministic training needs such a value, for example `:4096:8` for eight times 4,096 KiB.
    """
    for group in site.environment.values():
        sizes = re.findall(r":(\d+):(\d+)", group.get("CUBLAS_WORKSPACE_CONFIG") or "")
        if sizes:
            return sum(2**10 * int(kibibytes) * int(count) for kibibytes, count in sizes)
    return 0


def _reuses_weight_gradients(choice: Choice) -> bool:
    """Return whether matrix products add weight gradients to the sums, and return dummies.

    Transformer Engine keeps one dummy for each shape of a weight (`get_dummy_wgrad` in its
    pytorch/module/base.py; megatron-core uses it too, since August 2025). Earlier programs, such as
    the document's NeMo of 2023, allocate and free them one by one.
    """
    can_fuse = choice.tuning.fuse_gradients != "never" and not _is_ascend(choice)
    return choice.training.framework == "megatron-lm" and can_fuse


def _dummy_gradients(choice: Choice, stage: int) -> int:
    """Return the bytes of the dummies that stand for weight gradients."""
    if not _reuses_weight_gradients(choice):
        return 0
    shape = choice.shape
    attention_width = shape.heads * shape.head_size
    columns = attention_width + 2 * shape.kv_heads * shape.head_size
    columns += shape.ffn_hidden * (2 if shape.gated else 1)
    rows = attention_width + shape.ffn_hidden
    if stage == choice.layout.pipeline - 1:
        columns += shape.padded_vocabulary
    return _width(choice) * shape.hidden * (columns + rows) // choice.layout.tensor


def _gathered_sequence(choice: Choice, stage: int) -> int:
    """Return the bytes of the buffer in which Megatron gathers the output layer's input.

    Sequence parallelism needs it, and it is never freed (`get_global_memory_buffer` in
    megatron/core/tensor_parallel/layers.py). Layers of Transformer Engine free theirs.
    """
    layout = choice.layout
    is_last = stage == layout.pipeline - 1
    if choice.own_trainer or _sequence_split(choice) == 1 or not is_last:
        return 0
    return round(_width(choice) * _rank_tokens(choice) * choice.shape.hidden)


def _backward_end(choice: Choice, stage: int, activations: float) -> int:
    """Return the bytes at the end of a backward pass on the first stage.

    The token embedding's gradient is a tensor of its own before it is added to the sum. The
    activations of one micro-batch have been freed by then.
    """
    if choice.own_trainer or stage > 0:
        return 0
    layout = choice.layout
    shape = choice.shape
    in_flight = _chunks_in_flight(choice, stage)
    others = activations * (in_flight - 1) / in_flight
    embedding = _width(choice) * shape.padded_vocabulary * shape.hidden / layout.tensor
    return round(others + embedding)


def _is_ascend(choice: Choice) -> bool:
    return choice.site.hardware.device.startswith("Ascend")


def _largest_piece(choice: Choice, stage: int, parameters: int) -> int:
    """Return how many parameters of one weight a rank's share of the optimizer holds at most."""
    layout = choice.layout
    shape = choice.shape
    replicas = layout.data * layout.context if layout.zero_stage else 1
    largest = shape.ffn_hidden * (2 if shape.gated else 1)
    if stage in (0, layout.pipeline - 1):
        largest = max(largest, shape.padded_vocabulary)
    return min(parameters // replicas, largest * shape.hidden // layout.tensor)


def _main_gradients(choice: Choice) -> float:
    """Return the bytes per parameter that the fp32 main gradients in Megatron take.

    These are freed before the next forward pass. megatron-core converts the 16-bit gradients at the
    end of a step (`_copy_model_grads_to_main_grads`), and `zero_grad` frees the result. Megatron-LM
    2.x did not free them.
    """
    layout = choice.layout
    if choice.own_trainer or choice.deepspeed or choice.on_cpu:
        return 0.0
    if choice.training.precision != "fp16" and not choice.has_half_sums:
        return 0.0
    replicas = layout.data * layout.context
    return 4 / (replicas if layout.zero_stage else 1)


def _optimizer_moment(choice: Choice, stage: int, parameters: int) -> int:
    """Return the temporary memory for the optimizer step on a device, in bytes.

    MindSpeed's AdamW on Ascend devices updates one weight at a time, with a temporary of its size
    in fp32 (baselines of single ranks in tests/pipeline of Ascend/MindSpeed-LLM c77308a1).
    """
    layout = choice.layout
    is_mindspeed = _is_ascend(choice) and not choice.deepspeed and not choice.own_trainer
    update = 4 * _largest_piece(choice, stage, parameters) if is_mindspeed else 0
    if main_gradients := _main_gradients(choice):
        return round(main_gradients * parameters) + update
    if update:
        return update
    if choice.own_trainer or not choice.deepspeed or choice.training.precision == "fp32":
        return 0
    if _separate_sums(choice) == 4:
        return 0
    replicas = layout.data * layout.context
    # The gradients are converted to fp32.
    is_sharded = layout.zero_stage > 0 or _separate_sums(choice) > 0
    return 4 * parameters // (replicas if is_sharded else 1)


def _on_cpu(
    choice: Choice,
    stored: StageMemory,
    parameters: int,
    head_bytes: float,
) -> StageMemory:
    """Return the memory that a pipeline stage needs on a CPU.

    `head_bytes` is how many bytes of logits there are per vocabulary entry, over all tokens; it is
    0 if the stage has no output layer.
    """
    layout = choice.layout
    shape = choice.shape
    precision = choice.training.precision
    deepspeed = choice.deepspeed
    zero_stage = layout.zero_stage
    rows = cpu.LOGITS * head_bytes
    width = 4 if precision == "fp32" else 2
    gradient = width * shape.hidden if head_bytes else 0
    if choice.training.dropout:
        scores = cpu.DROPPED_SCORES * 2 / width * stored.attention_scores
    else:
        scores = 0

    moment = cpu.moment_bytes(
        precision,
        deepspeed=deepspeed,
        zero_stage=zero_stage,
        data=layout.data,
    )
    return replace(
        stored,
        activations=round(cpu.ACTIVATIONS * stored.activations + scores),
        attention_scores=0,
        logits=round((rows + gradient) * shape.padded_vocabulary / layout.tensor),
        # Memory that ZeRO 3 keeps permanently for gathered weights and buckets, measured with two
        # and four ranks.
        buffers=round(140 * 2**20 + 6.8 * parameters) if deepspeed and zero_stage == 3 else 0,
        optimizer_moment=round(moment * parameters),
    )


@dataclass(frozen=True)
class PhaseMemory:
    """Memory on the fullest rank in a phase, compared with the available memory."""

    fullest_stage: StageMemory
    least_by_stage: tuple[int, ...]
    limit_of: str
    """Whether the limit applies to a `node` or to a `device`."""
    limit_bytes: int
    """Available memory in bytes; 0 if unknown."""
    least_bytes: int
    most_bytes: int
    likely_bytes: tuple[int, int] | None = field(default=None, metadata=OPTIONAL)
    """Range that held nine of ten measured peaks, for a plan of `least_bytes`; None in an older
    plan."""
    likely_on_device: tuple[int, int] | None = field(default=None, metadata=OPTIONAL)
    """Range that held nine of ten nvidia-smi readings; None if unknown."""
    on_device_bytes: int | None = field(default=None, metadata=OPTIONAL)
    """What nvidia-smi is expected to report for the fullest rank; None if unknown."""


def all_stages(choice: Choice) -> list[StageMemory]:
    """Return the memory needed on every pipeline stage, first to last."""
    return [stage_memory(choice, stage) for stage in range(choice.layout.pipeline)]


def node_bytes(stages: list[StageMemory], processes: int) -> tuple[int, int]:
    """Return the minimum and maximum main memory that a node without accelerators needs."""
    least_bytes = sum(stage.least for stage in stages) / len(stages)
    most_bytes = sum(stage.most for stage in stages) / len(stages)
    return round(processes * (least_bytes + cpu.PROCESS_BYTES)), round(
        processes * (most_bytes + cpu.PROCESS_BYTES)
    )


def process_bytes(memory: PhaseMemory) -> int:
    """Return the minimum memory that a process needs, averaged over the pipeline stages.

    If processes share the memory of a node, as on CPUs, `least_bytes` is for a whole node.
    """
    if memory.limit_of != "node":
        return memory.least_bytes
    mean_bytes = sum(memory.least_by_stage) / len(memory.least_by_stage)
    return round(mean_bytes) + cpu.PROCESS_BYTES


RESERVE = 0.94
"""Share of device memory that a plan may use.

Contexts, communication and fragmentation need the remainder.
"""


def phase_memory(choice: Choice, stages: list[StageMemory], machine: Machine | None) -> PhaseMemory:
    """Return the memory needed and available on a device, or on a node without accelerators."""
    fullest = max(stages, key=lambda stage: stage.most)
    limit = memory_of(choice.site)
    least_bytes = fullest.least
    most_bytes = fullest.most
    if choice.on_cpu:
        least_bytes, most_bytes = node_bytes(stages, choice.devices_per_node)
        limit = (machine.memory_bytes if machine else 0) or choice.site.hardware.node_memory

    on_device = device_range(choice)
    on_device_bytes = read_on_device(max(stage.reserved for stage in stages))
    return PhaseMemory(
        fullest_stage=fullest,
        least_by_stage=tuple(stage.least for stage in stages),
        limit_of="node" if choice.on_cpu else "device",
        limit_bytes=limit,
        least_bytes=least_bytes,
        most_bytes=most_bytes,
        likely_bytes=measured_range(choice).of(least_bytes),
        likely_on_device=on_device.of(on_device_bytes) if on_device else None,
        on_device_bytes=on_device_bytes if on_device else None,
    )


def check_memory(choice: Choice, memory: PhaseMemory) -> Check:
    """Check that a phase fits into the available memory.

    The check fails if not even the minimum fits. It warns if the phase fits only without stored
    attention scores.
    """
    least_bytes = memory.least_bytes
    most_bytes = memory.most_bytes
    limit = memory.limit_bytes
    fullest = memory.fullest_stage
    if choice.on_cpu:
        who = _processes_need(choice.devices_per_node)
        memory_name = PlanningMessage.MEMORY_OF_THE_NODE.fill()
    else:
        least_bytes = max(memory.least_by_stage)
        who = f"stage {fullest.stage}, the fullest, needs"
        memory_name = f"one {choice.site.hardware.device}"

    with_scores = ""
    if most_bytes > least_bytes:
        with_scores = PlanningMessage.WITH_SCORES.fill(needed=show_bytes(most_bytes))
    if limit:
        room = PlanningMessage.MEMORY_AVAILABLE.fill(available=show_bytes(limit))
    else:
        room = PlanningMessage.MEMORY_UNKNOWN.fill()

    is_tight = not choice.on_cpu and least_bytes > RESERVE * limit
    holds = False
    keys: tuple[str, ...] = ()
    ways = ""
    if not limit:
        verdict = "unknown"
    elif least_bytes > limit or is_tight:
        verdict = "fail" if least_bytes > limit else "warn"
        keys = _remedy_keys(choice)
        ways = _remedy(choice)
        if verdict == "warn":
            room += PlanningMessage.USABLE_SHARE.fill(share=RESERVE)
    elif most_bytes > limit:
        verdict = "warn"
        keys = ("training.recompute",)
        ways = PlanningMessage.FLASH_ATTENTION.fill()
    else:
        verdict = "pass"
        holds = True

    result = RuleResult(
        code=PlanCode.MEMORY_FITS,
        holds=holds,
        values={
            "processes": who,
            "needed": show_bytes(least_bytes),
            "with_scores": with_scores,
            "states": show_bytes(fullest.states),
            "room": room,
            "available": show_bytes(limit) if limit else "",
            "memory": memory_name,
            "ways": ways,
        },
        keys=keys,
    )
    return check_of(result, choice.phase, otherwise=verdict)


def _processes_need(count: int) -> str:
    return "1 process needs" if count == 1 else f"{count} processes need"


def check_host_memory(choice: Choice, stages: list[StageMemory]) -> list[Check]:
    """Check that the main memory in a node can hold the offloaded optimizer states.

    Return no check if the states are not offloaded.
    """
    layout = choice.layout
    if not choice.training.offload or choice.smoke:
        return []
    name = "offload"
    rule = "the node's main memory has room for everything that its devices offload"
    if not choice.deepspeed or layout.zero_stage == 0:
        how = f"training.framework={choice.training.framework}, parallel.zero_stage={layout.zero_stage}"
        remedy = PlanningMessage.SHARE_TO_OFFLOAD.fill()
        return [
            Check(
                name,
                "fail",
                how,
                "DeepSpeed offloads the optimizer states that ZeRO 1 to 3 shard",
                remedy,
                keys=("training.offload", "parallel.zero_stage", "training.framework"),
            )
        ]

    need = choice.devices_per_node * max(stage.host for stage in stages)
    limit = choice.site.hardware.node_memory
    value = PlanningMessage.OFFLOAD.fill(
        devices=choice.devices_per_node,
        needed=show_bytes(need),
    )
    if not limit:
        value += PlanningMessage.NODE_MEMORY_NOT_KNOWN.fill()
        return [Check(name, "unknown", value, rule)]
    value += PlanningMessage.NODE_MEMORY.fill(available=show_bytes(limit))
    if need <= limit:
        return [
            Check(
                name,
                "warn",
                value,
                rule,
                "Take the step time from the smoke test.",
            )
        ]

    return [
        Check(
            name,
            "fail",
            value,
            rule,
            f"Increase {choice.keys.job}.nodes, so that each node holds fewer states.",
            keys=(f"{choice.keys.job}.nodes", "training.offload"),
        )
    ]


def _ways_to_save_memory(choice: Choice) -> dict[str, object]:
    """Return changes that reduce the memory needed in a phase, as keys and values.

    Larger tensor and pipeline sizes are not included.
    """
    layout = choice.layout
    ways: dict[str, object] = {}
    if choice.micro_batch > 1:
        ways[choice.keys.micro_batch] = 1
    if choice.training.recompute != "full":
        ways["training.recompute"] = "full"
    if layout.zero_stage == 0:
        ways["parallel.zero_stage"] = 1
    elif choice.deepspeed and layout.pipeline == 1 and layout.zero_stage < 3:
        ways["parallel.zero_stage"] = layout.zero_stage + 1

    can_offload = choice.deepspeed and not choice.own_trainer and layout.zero_stage > 0
    if can_offload and not choice.training.offload:
        ways["training.offload"] = "true"
    return ways


def _remedy(choice: Choice) -> str:
    keys = choice.keys
    ways = [f"a larger {keys.tensor} or {keys.pipeline}"]
    ways += [f"{key} {value}" for key, value in _ways_to_save_memory(choice).items()]
    return PlanningMessage.LESS_MEMORY.fill(ways=", ".join(ways), job_key=keys.job)


def _remedy_keys(choice: Choice) -> tuple[str, ...]:
    keys = choice.keys
    return (keys.tensor, keys.pipeline, *_ways_to_save_memory(choice), f"{keys.job}.nodes")
