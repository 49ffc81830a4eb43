"""Time of one training step on accelerators, part by part, with the calibrated coefficients.

Operations and bytes are counted for every layer, the output layer, collectives and the optimizer.
Only a few shares, in `Coefficients`, are calibrated. A matrix product takes the time to compute it
at the sustained rate, with half a wave of idle processors, plus the time to move the bytes. At the
same time, the host launches operators one by one.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

from runbook.plan_file.deepspeed import LARGEST_BUCKET
from runbook.plan_file.schema import ADAM_MOMENTS, Layout, ModelShape
from runbook.planning import sizes
from runbook.planning.cost import own_kernels
from runbook.planning.cost.accelerators import Accelerator
from runbook.planning.cost.own_kernels import OWN_KERNELS, OwnKernels

_SUSTAINED = MappingProxyType(
    {
        "V100": 0.729,
        "A100": 0.811,
        "H100": 0.699,
        "H100-500W": 0.635,
        "Blackwell": 0.594,
        "Blackwell Ultra": 0.739,
        "MI250X": 0.51,
        "MI300X": 0.255,
        "MI350": 0.564,
        "PVC": 0.407,
        "L40S": 0.55,
    }
)


@dataclass(frozen=True)
class Coefficients:
    """Coefficients fitted to published results. Everything else in the model is counted.

    `python -m benchmarks.predict_cross_validation --fit` repeats the fit.
    """

    sustained: Mapping[str, float] = field(default_factory=lambda: _SUSTAINED)
    """Share of the 16-bit peak that large matrix products sustain at the power limit, by device
    family.
    """
    fp8: float = 0.907
    """Share of the fp8 peak that fp8 products sustain, relative to the 16-bit share."""
    attention: float = 0.394
    """Speed of the first FlashAttention relative to large matrix products, except in vendor stacks.
    """
    attention_hopper: float = 0.61
    """Relative speed of FlashAttention on an H100 with kernels written for the A100."""
    attention_vendor: float = 0.693
    """Relative speed of fused attention in vendor stacks since autumn 2024."""
    attention_vendor_first: float = 0.489
    """The same speed in older stacks, on Hopper and later GPUs."""
    attention_second: float = 1.35
    """Speed of FlashAttention-2 relative to the first."""
    elementwise: float = 2.42
    """Bytes moved by norms, activations, residuals and dropout, relative to fused code, which reads
    and writes each tensor once."""
    eager: float = 2.38
    """Factor by which the bytes in `elementwise` grow without a compiler or fused kernels."""
    unfused_elsewhere: float = 5.07
    """Factor for the bytes in `elementwise` in DeepSpeed forks without fused kernels, or with ZeRO.

    The fused kernels do not exist for AMD and Intel. ZeRO adds hooks and copies.
    """
    blackwell_first: float = 0.895
    """Speed of matrix products and attention in the first vendor stacks for Blackwell, relative to
    later ones."""
    other_program: float = 1.05
    """Step time relative to the planned one, for programs that have no row of their own in the fit
    (`StepSetup.is_other_program`)."""
    contention: float = 0.103
    """Time that computation loses to communication it hides, relative to the communication.

    NCCL kernels occupy some of the processors.
    """
    tuned: float = 0.673
    """Factor for the bytes in `elementwise` in a stack tuned by a vendor."""
    scores: float = 30.8
    """Bytes per attention score that both passes move if scores are stored."""
    tensor_tuned: float = 0.245
    """Share of tensor-parallel communication that vendor stacks do not hide on Hopper and later
    GPUs.

    Transformer Engine in these stacks overlaps communication with matrix products. In all other
    cases the share is 1.
    """
    links: float = 0.716
    """Share of the datasheet link bandwidth that collectives reach."""
    network: float = 0.686
    """Share of the stated network bandwidth that collectives reach."""
    sharded_shown: float = 0.28
    """Share of communication the first FSDP in PyTorch exposes (`StepSetup.first_sharding`)."""
    overlap_power: float = 2.27
    """How well communication for sharded states is hidden behind computation.

    1 means not at all; infinity means completely.
    """
    operator_microseconds: float = 18.3
    """Time the host needs to launch one operator.

    The launch time limits the step if operators are small.
    """
    unfused_operator_microseconds: float = 39.6
    """The same time in DeepSpeed forks of Megatron, which have an engine and hooks written in
    Python.
    """
    microbatch_operators: float = 91.3
    """Operators a stage launches for each micro-batch outside the layers: embedding, output layer,
    loss, sends and the schedule."""
    launch_power: float = 4.52
    """How well launches on the host are hidden behind work on the device.

    1 means not at all; infinity means completely.
    """
    step_milliseconds: float = 9.59
    """Time per step outside the micro-batches, except in DeepSpeed forks.

    The time includes the gradient norm (for which all ranks wait), clipping, and refilling the
    empty launch queue on the host.
    """
    latency_microseconds: float = 9.24
    """Minimum time a collective within a node takes per doubling of the ranks."""
    hop_microseconds: float = 8.96
    """Latency of a ring between two nodes. In a reduce-scatter or an all-gather, each piece passes
    through all nodes in the group.
    """
    jitter: float = 0.00477
    """Share of time to add for each doubling beyond eight devices, because all devices wait for the
    slowest.
    """


DEFAULT = Coefficients()


CALIBRATED = frozenset(
    {
        *("V100", "A100", "H100", "H100-500W", "Blackwell", "Blackwell Ultra"),
        *("MI250X", "MI300X", "MI350", "PVC"),
    }
)
"""Device families for which the fit uses a published training run.

For the other families, the model relies on measured matrix products.
"""


_FORWARD_BYTES = 36.0
"""Bytes per token and hidden unit in the forward pass through a plain GPT layer in 16 bits.

The bytes are moved by norms, residuals, dropout and the activation.
"""
_SHARED_BYTES = 20.0
"""The part of `_FORWARD_BYTES` that tensor parallelism divides only with sequence parallelism."""
_FORKS_BYTES = 42.0
"""The forward bytes in DeepSpeed forks of Megatron with their own fused CUDA kernels.

The bytes were counted in the layer that vTrain copies from Megatron-DeepSpeed (VIA-Research/vTrain
f8dda8473a48, src/model/gpt_modeling.py). Two norms read and write (8). Bias, dropout and residual
are one kernel, which reads two tensors and writes one and a mask (14 for two such kernels). Bias
and GeLU are one kernel on four times the width (16), and the context is transposed (4). No fitted
factor is applied to these bytes.
"""
_FORKS_SHARED_BYTES = 22.0
"""The part of `_FORKS_BYTES` that tensor parallelism does not divide: norms, dropout and residual.
"""
_FORKS_BANDWIDTH = 0.88
"""Share of the datasheet bandwidth a copy reaches. The kernels in the forks are assumed to reach it
too.

Measured on an H200: 4.24 of 4.8 TB/s (docs/measurements/gpu-h200.md).
"""
_BACKWARD = 1.8
"""Bytes moved by the backward pass relative to the forward pass."""
_LOGIT_BYTES = 24.0
"""Bytes per token and vocabulary entry for 16-bit and 32-bit logits, softmax and gradient."""
_MEGATRON_LOGIT_BYTES = 52.0
"""Bytes per logit for the Megatron loss, which runs one kernel per operation on 32-bit logits.

The bytes were counted in tensor_parallel/cross_entropy.py in Megatron-core 0.8. The forward pass
has a cast (6), a maximum (4), subtraction, exponential and division in place (8 each) and a sum
(4); the backward pass has a product (8) and a cast (6).
"""
_OPTIMIZER_BYTES = 40.0
"""Bytes per parameter that the optimizer step moves, not counting moments.

The step reads and writes fp32 weights (8). It casts the gradient to fp32, unscales it, computes the
norm, clips it and reads it (26). It writes weights in 16 bits and sets gradients to zero (6).
"""
_MOMENT_BYTES = 8.0
"""Bytes per parameter for reading and writing one moment in fp32."""
_PLAIN_ACTIVATION_BYTES = 26.0
"""Additional bytes per token and hidden unit in the forward pass if plain PyTorch kernels compute a
squared ReLU.

The forward pass moves 16 bytes and the backward pass 56, as counted in torch.pow and relu.
`_BACKWARD` distributes the sum over the passes. No fitted factor is applied to this value.
"""
_FP8_CASTS = 12.0
"""Additional bytes per token and hidden unit in the forward pass for quantized copies and
transposes.
"""
_BLOCK_CASTS = 2.0
"""Factor for `_FP8_CASTS` in recipes that scale blocks instead of tensors.

The blocks run along the inner dimension, so the backward pass needs copies that are quantized along
the other dimension. The value is counted, not fitted, because no row in the data names the recipe
that was used.
"""
_BLOCK_RECIPES = ("mxfp8", "blockwise")
_WAVE = 110 * 128 * 256
"""Number of matrix elements a device computes at a time: each of 110 processors computes a 128 x
256 tile. On average half of the last wave is idle, which is why small matrices are slow.
"""
_SPLIT = 4096
"""If the inner dimension is larger than this, sums are split among processors, as for gradients of
small weights.
"""
_OPERATORS = {
    "tuned": 22,
    "fused": 24,
    "eager": 36,
    "unfused": 24,
    "plain": 36,
    "compiled": 36,
    "compiled-dropout": 36,
}
"""Number of operators launched in the forward pass through a layer: products, norms, attention,
dropout, activation, copies, sends.
"""
_OPERATORS_ELSEWHERE = 48
"""Number of operators in DeepSpeed forks on devices that cannot run their fused kernels."""
_NOT_CUDA = ("MI250X", "MI300X", "MI350", "PVC")
_ZERO_3_OPERATORS = 150
"""Additional operators per pass through a layer with DeepSpeed ZeRO 3.

The 34 DeepSpeed hooks around 17 modules, and three calls for each of four large weights, are
written in Python. Each of these 46 calls is assumed to take as long as launching an operator. The
value is based on a single result, 1.3B on an H200 (benchmarks/gpu_h200_fourth.json), in which a
rank that shards nothing waits for the host during two thirds of a step.
"""
_SOFTMAX_OPERATORS = 8
"""Additional operators if the fused softmax does not accept the batch.

Scale, mask, two casts and dropout then run one by one, on copies.
"""
_SOFTMAX_GROUP = 4
"""The Megatron fused softmax accepts a batch only if heads per rank x micro-batch is a multiple of
this."""
_ALIGNED_HEAD = 8
"""Matrix products in attention use tensor cores only if the head width is a multiple of this.

16 bytes are loaded at once. FlashAttention pads narrower heads itself.
"""
_UNALIGNED = 0.58
"""Share of the fp32 peak that other products in attention reach without tensor cores.

BigScience measured GPT 182B with 96 heads of width 144, and with 128 heads of width 108
(chronicles-prequel, 2022-02-26). A step takes 39 s longer in the second case with tensor 4 and
pipeline 12, and 38 s longer with 8 and 6, which is 11.6 and 11.1 TFLOP/s.
"""
_CONTEXT_OPERATORS = 8
"""Additional operators for each additional rank of context parallelism.

Each such rank adds an attention block, a correction, and an exchange of keys.
"""
_BACKWARD_OPERATORS = 1.4
"""Host time for the backward pass relative to the forward pass.

The backward pass launches more operators, but launches them from C++.
"""
_GRAPHED = 0.1
"""Share of the launch time on the host that remains if CUDA graphs launch whole layers.

This value was not measured.
"""
_OVERLAPS_TENSOR = ("H100", "H100-500W", "Blackwell", "Blackwell Ultra")
"""Families on which vendor stacks send parts of a matrix product while they compute others.

Transformer Engine has done so with its user buffers since 2023. On an A100, Megatron-LM waits for
the communication.
"""
_SHOWN_WITH_SEQUENCE = 6 / 8
_SHOWN_WITHOUT_SEQUENCE = 4 / 8
"""Share of tensor-parallel communication that vendor stacks do not hide without these buffers, with
sequence parallelism and without.

Counted in `LinearWithGradAccumulationAndAsyncCommunication` in Megatron-core
(tensor_parallel/layers.py). There are eight equal pieces. Computing weight gradients hides two of
them, the reduce-scatters in the backward pass, or without sequence parallelism four, both
all-reduces.
"""
_FORWARD_SHARE = 1 / 3
"""Share of the work in a micro-batch that belongs to the forward pass.

Weights are gathered during the first forward pass, and gradients are reduced during the last
backward pass.
"""
_BUCKET = 40e6
_BUCKET_PER_RANK = 1e6
"""Minimum number of parameters in a bucket, in total and per data-parallel rank (megatron-core's
DistributedDataParallel).

Gathering the first bucket and reducing the last bucket are not hidden.
"""
_DDP_BUCKET = 25 * 2**20 / 4
"""Number of fp32 gradients in a PyTorch DistributedDataParallel bucket (`bucket_cap_mb`)."""
_PREFETCHED = 50e6
"""Number of parameters that DeepSpeed ZeRO 3 gathers ahead (stage3_prefetch_bucket_size).

Gathering the first parameters of a pass is not hidden.
"""
_NETWORK_LATENCY = 3.0
"""Latency between nodes for a collective, relative to one within a node."""


@dataclass(frozen=True)
class StepSetup:
    """A way to train a model on several devices."""

    shape: ModelShape
    layout: Layout
    micro_batch: int
    global_batch: int
    device: Accelerator
    precision: str
    recompute: str = "none"
    """How much is recomputed: none, selective, operators or full.

    `operators` means every second matrix product, as in torchtitan.
    """
    recomputed: float = 1.0
    """Share of the layers recomputed with `full`."""
    shown_data: float = 0.0
    """Share of the data-parallel communication that is never hidden."""
    overlaps_tensor: bool = True
    """Whether a vendor stack sends parts of a matrix product while it computes others.

    Megatron-LM does so only with `--tp-comm-overlap`, which is off by default.
    """
    hides_sends: bool = False
    """Whether stages send while they compute."""
    broadcasts_batches: bool = False
    """Whether one tensor-parallel rank sends the batches to the others."""
    flash: bool = True
    code: str = "fused"
    """How well kernels are fused and communication is hidden: unfused, eager, fused or tuned.

    For our own trainer the values are plain, compiled and compiled-dropout (`own_kernels`).
    """
    deepspeed: bool = False
    """Whether our own trainer uses DeepSpeed as its engine."""
    num_moments: int = len(ADAM_MOMENTS)
    """Number of float32 tensors the optimizer keeps for each weight."""
    cuda_graphs: bool = False
    """Whether the host launches each layer as one CUDA graph."""
    half_sums: bool = False
    """Whether gradients are reduced in 16 bits.

    FSDP does so in pure bf16, and Megatron-LM if it is configured to.
    """
    first_sharding: bool = False
    """Whether states are sharded by FSDP in a PyTorch version from 2023.

    It hides less communication than later versions.
    """
    has_ddp_buckets: bool = False
    """Whether PyTorch's DistributedDataParallel reduces the gradients, in small buckets."""
    first_megatron: bool = False
    """Whether the program is Megatron-LM from 2021 or 2022.

    Its stages split what they send over the tensor-parallel ranks, even without sequence
    parallelism (`scatter_gather_tensors_in_pipeline`). Replicas reduce their gradients after the
    last backward pass (`--overlap-grad-reduce` came in 2023).
    """
    fused_loss: bool = True
    """Whether a few fused kernels compute the loss.

    The Megatron loss uses one kernel per operation.
    """
    stops_early: bool = False
    """Whether recomputation stops at the last tensor the backward pass needs.

    PyTorch recomputation has done so since 2.1 (`set_checkpoint_early_stop`). Megatron recomputes
    whole layers.
    """
    launches_block: bool = False
    """Whether the host waits for each kernel before it launches the next one
    (`CUDA_LAUNCH_BLOCKING=1`).
    """
    first_flash: bool = False
    """Whether attention uses the first FlashAttention, from 2022.

    Otherwise, FlashAttention-2 from 2023 is assumed.
    """
    plain_activation: bool = False
    """Whether the activation runs as separate PyTorch kernels, like the squared ReLU for Nemotron
    in NeMo.
    """
    first_vendor_attention: bool = False
    """Whether a vendor stack is older than cuDNN 9.3 (August 2024), in which fused attention is
    faster on Hopper and later GPUs.
    """
    first_blackwell: bool = False
    """Whether a vendor stack for Blackwell is older than CUDA 13 (August 2025)."""
    is_other_program: bool = False
    """Whether the efficiencies are not fitted to any results with this program."""
    fp8_recipe: str = ""
    """How 8-bit operands are scaled. mxfp8 and blockwise scale along the inner dimension; all other
    recipes are equally costly.
    """

    @property
    def stage_layers(self) -> tuple[int, ...]:
        """Return the number of layers on each stage; empty if they do not divide evenly."""
        return self.layout.stage_layers(self.shape.layers)

    @property
    def num_microbatches(self) -> int:
        """Return the number of micro-batches per step on each replica, at least one."""
        return max(1, round(self.global_batch / (self.layout.data * self.micro_batch)))


@dataclass(frozen=True)
class StepTime:
    """Seconds in a step, part by part; the parts add up to `seconds`."""

    matrices: float
    attention: float
    elementwise: float
    output: float
    recompute: float
    launching: float
    tensor: float
    pipeline: float
    bubble: float
    data: float
    optimizer: float
    waiting: float

    @property
    def seconds(self) -> float:
        """Return the total of all parts."""
        return float(sum(vars(self).values()))

    @property
    def products_share(self) -> float:
        """Return the share of the step that layers spend in matrix products and attention."""
        return (self.matrices + self.attention + self.recompute) / self.seconds


def iteration(setup: StepSetup, coefficients: Coefficients = DEFAULT) -> StepTime:
    """Return the step time, part by part.

    Raise `KeyError` if the device peak in this precision, or its sustained share, is unknown (see
    `known`).
    """
    return StepModel(setup, coefficients).step()


def known(device: Accelerator, precision: str) -> str:
    """Return why the device speed in this precision is unknown, or '' if it is known."""
    if precision not in device.peaks:
        return f"no {precision} peak is known for {device.name}"
    if device.family not in DEFAULT.sustained:
        return f"no sustained share is known for the family {device.family}"
    return ""


@dataclass(frozen=True)
class StepModel:
    """Computes how long each part of a step takes.

    A replayed dry run also uses this model, to compute times from counted work.
    """

    setup: StepSetup
    coefficients: Coefficients = DEFAULT

    @cached_property
    def _tokens(self) -> float:
        return self.setup.micro_batch * self.setup.shape.sequence_length / self.setup.layout.context

    @cached_property
    def matrix_rate(self) -> float:
        """Return the FLOP/s in large matrix products."""
        rate = self._sustained(self.setup.precision)
        if self.setup.precision == "fp8":
            return rate * self.coefficients.fp8
        return rate

    @cached_property
    def _half_rate(self) -> float:
        """Return the FLOP/s in large matrix products that do not use fp8.

        Attention and the output layer run at this rate even if the training uses fp8.
        """
        return self._sustained("bf16" if self.setup.precision == "fp8" else self.setup.precision)

    def _sustained(self, precision: str) -> float:
        device = self.setup.device
        if self._is_power_bound:
            share = own_kernels.POWER_BOUND
        else:
            share = self.coefficients.sustained[device.family]
        if self.setup.first_blackwell:
            share *= self.coefficients.blackwell_first

        return device.peaks[precision] * share * 1e12

    @property
    def _own(self) -> OwnKernels | None:
        """Return what kernels cost in our own trainer, or None for other programs."""
        return OWN_KERNELS.get(self.setup.code)

    @property
    def _is_power_bound(self) -> bool:
        """Return whether large products in our trainer run at the measured power limit."""
        device = self.setup.device
        is_measured = (
            device.family == own_kernels.POWER_FAMILY
            and device.power_watts == own_kernels.POWER_WATTS
        )
        is_short = self.setup.precision in ("bf16", "fp16", "fp8")
        return self._own is not None and is_measured and is_short

    @cached_property
    def _width(self) -> float:
        return 4.0 if self.setup.precision in ("fp32", "tf32") else 2.0

    def _product(
        self,
        columns: float,
        inner: float,
        rate: float,
    ) -> tuple[float, float]:
        """Return the seconds that products with an inner x columns weight take in a layer.

        The result is (forward, both passes). The backward pass has two products, one for the
        gradient of each factor.
        """
        tokens = self._tokens
        forward = self._one_product(tokens, inner, columns, rate)
        input_gradient = self._one_product(tokens, columns, inner, rate)
        weight_gradient = self._one_product(inner, tokens, columns, rate)
        return forward, forward + input_gradient + weight_gradient

    def _one_product(
        self,
        rows: float,
        inner: float,
        columns: float,
        rate: float,
    ) -> float:
        """Return the seconds for one product of rows x inner and inner x columns."""
        computing = 2 * rows * inner * columns / rate
        splits = max(1.0, inner / _SPLIT)
        wave = 1 + _WAVE / 2 / (rows * columns * splits)
        moved = self._width * (rows * inner + inner * columns + rows * columns)
        moving = moved / self.setup.device.memory_bandwidth
        if not self._is_power_bound:
            return computing * wave + moving
        # A processor that waits uses less power, so the others can run faster.
        at_full_clock = computing * own_kernels.POWER_BOUND / own_kernels.CLOCK_BOUND
        return max(computing, at_full_clock * wave + moving)

    def _forward_product(self, columns: float, inner: float) -> float:
        """Return the seconds for a forward product of tokens x inner and inner x columns."""
        return self._product(columns, inner, self.matrix_rate)[0]

    def _last_product(self) -> float:
        """Return the seconds for the last forward matmul in a layer (in the feed-forward block)."""
        shape = self.setup.shape
        return self._forward_product(shape.hidden, shape.ffn_hidden / self.setup.layout.tensor)

    def _every_second_product(self) -> float:
        """Return the seconds for the forward products that torchtitan recomputes.

        The policy in torchtitan numbers the products in a layer and saves the results of the odd
        ones. The even ones are recomputed: the keys, the product after attention and the second
        product into the feed-forward block.
        """
        shape = self.setup.shape
        tensor = self.setup.layout.tensor
        keys = self._forward_product(shape.kv_heads * shape.head_size / tensor, shape.hidden)
        width = shape.heads * shape.head_size / tensor
        after_attention = self._forward_product(shape.hidden, width)
        if not shape.gated:
            # Without a gate, the second product in the feed-forward block is the last one in the
            # layer, so the result is not needed again.
            return keys + after_attention
        into_middle = self._forward_product(shape.ffn_hidden / tensor, shape.hidden)
        return keys + after_attention + into_middle

    def _matrices(self) -> tuple[float, float]:
        """Return the seconds for all matrix products in a layer: (forward, both passes)."""
        shape = self.setup.shape
        tensor = self.setup.layout.tensor
        width = shape.heads * shape.head_size
        attention_in = (width + 2 * shape.kv_heads * shape.head_size) / tensor
        feed_forward_in = shape.ffn_hidden * (2 if shape.gated else 1) / tensor
        first = (
            (attention_in, shape.hidden),
            (shape.hidden, width / tensor),
            (feed_forward_in, shape.hidden),
        )
        products = (*first, (shape.hidden, shape.ffn_hidden / tensor))
        seconds = [self._product(columns, inner, self.matrix_rate) for columns, inner in products]
        forward = sum(one_pass for one_pass, _ in seconds)
        both = sum(both_passes for _, both_passes in seconds)
        return forward, both

    def _attention(self) -> tuple[float, float]:
        """Return the seconds to compute and apply attention scores: (forward, both passes)."""
        setup = self.setup
        layout = setup.layout
        shape = self.setup.shape
        pairs = self._tokens * shape.sequence_length
        full = 4 * pairs * shape.heads * shape.head_size / layout.tensor
        if setup.flash:
            forward = full / 2 / self.attention_rate
            return forward, 3.5 * forward

        scores = pairs * shape.heads / layout.tensor
        score_seconds = scores * self.coefficients.scores / setup.device.memory_bandwidth
        product_seconds = full / self._unfused_attention_rate
        return product_seconds + score_seconds / 3, 3 * product_seconds + score_seconds

    @property
    def _unfused_attention_rate(self) -> float:
        """Return the FLOP/s that attention reaches if scores are stored."""
        setup = self.setup
        fp32_peak = setup.device.peaks.get("fp32")
        if setup.shape.head_size % _ALIGNED_HEAD and fp32_peak:
            return fp32_peak * _UNALIGNED * 1e12
        return self._half_rate * 0.7

    @cached_property
    def attention_rate(self) -> float:
        """Return the operations per second in fused attention, which skips the upper triangle."""
        coefficients = self.coefficients
        setup = self.setup
        is_hopper = setup.device.family.startswith("H100")
        if self._own and is_hopper:
            return own_kernels.attention_rate(self._half_rate, setup.shape.head_size)
        if setup.code == "tuned":
            if setup.first_vendor_attention:
                return self._half_rate * coefficients.attention_vendor_first
            return self._half_rate * coefficients.attention_vendor
        share = coefficients.attention
        if is_hopper:
            share *= coefficients.attention_hopper
        if not setup.first_flash:
            share *= coefficients.attention_second
        return self._half_rate * share

    def _launching(self, least_seconds: float, busy: float) -> float:
        """Return how much time launching operators on the host adds to the device's busy time."""
        if self._own:
            # The host launches operators ahead for whole micro-batches, so launching has no effect
            # if it takes less time than the work on the device.
            return max(0.0, least_seconds - busy)
        if self.setup.launches_block:
            return least_seconds

        power = self.coefficients.launch_power
        return float((least_seconds**power + busy**power) ** (1 / power) - busy)

    @property
    def _has_fused_kernels(self) -> bool:
        """Return whether DeepSpeed forks run fused CUDA kernels without the hooks for ZeRO.

        The pipeline engine in the forks needs no hooks.
        """
        setup = self.setup
        layout = setup.layout
        return setup.device.family not in _NOT_CUDA and (
            layout.zero_stage == 0 or layout.pipeline > 1
        )

    @property
    def _operator_seconds(self) -> float:
        coefficients = self.coefficients
        setup = self.setup
        if self._own:
            microseconds = own_kernels.OPERATOR_MICROSECONDS
        elif setup.code == "unfused":
            microseconds = coefficients.unfused_operator_microseconds
        else:
            microseconds = coefficients.operator_microseconds

        return microseconds * 1e-6 * (_GRAPHED if setup.cuda_graphs else 1.0)

    @property
    def least_layer_seconds(self) -> float:
        """Return the seconds needed to launch a layer's operators in both passes."""
        forward = self._forward_operators
        passes = 1 + _BACKWARD_OPERATORS + self._recomputed_operators
        return forward * passes * self._operator_seconds

    @property
    def _forward_operators(self) -> int:
        """Return the number of operators launched in the forward pass through a layer."""
        setup = self.setup
        layout = setup.layout
        is_unfused = setup.code == "unfused"
        if is_unfused and not self._has_fused_kernels:
            operators = _OPERATORS_ELSEWHERE
        else:
            operators = _OPERATORS[setup.code]

        if is_unfused and self._has_fused_kernels and not setup.flash:
            softmax_rows = setup.micro_batch * max(1, setup.shape.heads // layout.tensor)
            if softmax_rows % _SOFTMAX_GROUP:
                operators += _SOFTMAX_OPERATORS

        if self._own and setup.deepspeed and layout.zero_stage >= 3:
            operators += _ZERO_3_OPERATORS
        return operators + _CONTEXT_OPERATORS * (layout.context - 1)

    @property
    def _recomputed_operators(self) -> float:
        """Return the number of operators that recomputation adds, relative to the forward pass."""
        setup = self.setup
        if setup.recompute == "full":
            return setup.recomputed
        if setup.recompute == "operators":
            return 0.7
        if setup.recompute == "selective" and not setup.flash:
            return 0.3
        return 0.0

    @property
    def least_microbatch_seconds(self) -> float:
        """Return the seconds needed to launch operators outside the layers for a micro-batch."""
        return self.coefficients.microbatch_operators * self._operator_seconds

    @property
    def waiting_share(self) -> float:
        """Return the time spent waiting for the slowest device, relative to the work in a step."""
        return self.coefficients.jitter * max(0.0, math.log2(self.setup.layout.world_size / 8))

    @property
    def _waited_share(self) -> float:
        """Return the time a step takes beyond its counted work, relative to that work."""
        if self.setup.is_other_program:
            return (1 + self.waiting_share) * self.coefficients.other_program - 1
        return self.waiting_share

    def _elementwise(self) -> float:
        """Return the seconds for all memory-bound work in the forward pass through a layer."""
        setup = self.setup
        layout = setup.layout
        shape = self.setup.shape
        inner = shape.ffn_hidden * (1.5 if shape.gated else 1) / (4 * shape.hidden)
        forward_bytes, shared_bytes = self._forward_bytes
        split = (forward_bytes - shared_bytes) * inner / layout.tensor
        whole = shared_bytes / (layout.tensor if layout.sequence else 1)
        activation = 0.0
        if setup.plain_activation:
            activation = _PLAIN_ACTIVATION_BYTES * inner / layout.tensor
        casts = 0.0
        if setup.precision == "fp8":
            casts = _FP8_CASTS / layout.tensor
        if setup.fp8_recipe in _BLOCK_RECIPES and not self._own:
            casts *= _BLOCK_CASTS
        token_bytes = (split + whole + casts) * self._kernel_factor + activation
        moved = self._tokens * shape.hidden * token_bytes * self._width / 2
        return moved / self._kernel_bandwidth

    @property
    def _kernel_bandwidth(self) -> float:
        """Return the bytes per second that kernels for the layers and the loss move."""
        device = self.setup.device
        if self._own:
            return own_kernels.kernel_bandwidth(device)
        return device.memory_bandwidth

    @property
    def _runs_forks_kernels(self) -> bool:
        """Return whether the layers run the fused CUDA kernels in DeepSpeed forks of Megatron."""
        return self.setup.code == "unfused" and self._has_fused_kernels

    @property
    def _forward_bytes(self) -> tuple[float, float]:
        """Return the forward bytes counted in a layer: (all, those not split over tensor ranks)."""
        if self._runs_forks_kernels:
            return _FORKS_BYTES, _FORKS_SHARED_BYTES
        return _FORWARD_BYTES, _SHARED_BYTES

    @property
    def _kernel_factor(self) -> float:
        """Return the ratio of bytes moved by the framework kernels to counted bytes."""
        if self._own:
            return self._own.elementwise
        if self._runs_forks_kernels:
            return 1 / _FORKS_BANDWIDTH
        coefficients = self.coefficients
        factors = {
            "unfused": coefficients.unfused_elsewhere,
            "eager": coefficients.eager,
            "fused": 1.0,
            "tuned": coefficients.tuned,
        }
        return coefficients.elementwise * factors[self.setup.code]

    def bandwidth(self, span: int) -> float:
        """Return the bandwidth, in bytes per second, between ranks that span this many devices."""
        device = self.setup.device
        if span <= device.devices_per_node:
            return device.link_bandwidth * self.coefficients.links
        return device.network_bandwidth * self.coefficients.network

    def collective(
        self,
        num_bytes: float,
        size: int,
        *,
        span: int,
    ) -> float:
        """Return the seconds for one all-gather or reduce-scatter of this many bytes.

        `size` ranks take part, spread over `span` devices.
        """
        if size <= 1:
            return 0.0
        node = self.setup.device.devices_per_node
        bandwidth = self.bandwidth(span)
        latency = self.coefficients.latency_microseconds * 1e-6
        if span > node:
            ranks_of_a_node = max(1.0, min(size, size * node / span))
            bandwidth = min(bandwidth * ranks_of_a_node, self.bandwidth(node))
            latency *= _NETWORK_LATENCY

        return num_bytes * (size - 1) / size / bandwidth + latency * math.log2(size)

    def _tensor(self) -> float:
        """Return how many seconds a layer waits for collectives in one micro-batch.

        Each pass has two all-gathers and two reduce-scatters. The exchange of keys in context
        parallelism is hidden in the same way.
        """
        setup = self.setup
        layout = setup.layout
        shape = self.setup.shape
        waited = self._waited_tensor_share
        activation_bytes = self._tokens * shape.hidden * self._width
        times = 8 + (4 * setup.recomputed if setup.recompute == "full" else 0)
        rank_key_bytes = (
            2 * self._tokens * shape.kv_heads * shape.head_size * self._width / layout.tensor
        )
        key_bytes = rank_key_bytes * layout.context
        context_span = layout.tensor * layout.context
        ring = 3 * waited * self.collective(key_bytes, layout.context, span=context_span) / 2
        gather = self.collective(activation_bytes, layout.tensor, span=layout.tensor)
        return times * waited * gather + ring

    @property
    def _waited_tensor_share(self) -> float:
        """Return the share of tensor-parallel communication that is not hidden."""
        setup = self.setup
        if setup.code != "tuned" or setup.device.family not in _OVERLAPS_TENSOR:
            return 1.0
        if setup.overlaps_tensor:
            return self.coefficients.tensor_tuned
        if setup.layout.sequence:
            return _SHOWN_WITH_SEQUENCE
        return _SHOWN_WITHOUT_SEQUENCE

    def _output(self) -> float:
        setup = self.setup
        shape = self.setup.shape
        columns = shape.padded_vocabulary / setup.layout.tensor
        _, products = self._product(columns, shape.hidden, self._half_rate)
        loss = self._tokens * columns * self._logit_seconds
        return products + loss + self._gradient_sums(columns * shape.hidden)

    @property
    def _logit_seconds(self) -> float:
        """Return the seconds per logit for the loss and the gradient."""
        device = self.setup.device
        kernels = self._own
        if kernels is None:
            logit_bytes = _LOGIT_BYTES if self.setup.fused_loss else _MEGATRON_LOGIT_BYTES
            return logit_bytes / device.memory_bandwidth
        return own_kernels.moving_seconds(device, kernels.logit_bytes, kernels.least_logit_bytes)

    def _gradient_sums(self, parameters: float) -> float:
        """Return the seconds for adding gradients to their sums outside the matrix products."""
        if self._own is None:
            return 0.0
        if self.setup.deepspeed:
            gradient_bytes = own_kernels.DEEPSPEED_GRADIENT_BYTES
        else:
            gradient_bytes = self._own.gradient_bytes

        # Gradients the matrix product kernel itself accumulates cost nothing extra.
        least_bytes = min(gradient_bytes, own_kernels.LEAST_GRADIENT_BYTES)
        device = self.setup.device
        return parameters * own_kernels.moving_seconds(device, gradient_bytes, least_bytes)

    def _kernel_gaps(self) -> float:
        """Return the seconds the device idles between kernels in both passes through a layer."""
        if self._own is None:
            return 0.0
        passes = 1 + _BACKWARD_OPERATORS
        gaps = own_kernels.KERNEL_GAPS * (1 + self._recomputed_operators / passes)
        return gaps * (_GRAPHED if self.setup.cuda_graphs else 1.0)

    def step(self) -> StepTime:
        """Return the step time in seconds by part, computed from formulas."""
        setup = self.setup
        layout = setup.layout
        forward, matrices = self._matrices()
        attention_forward, attention = self._attention()
        elementwise_forward = self._elementwise()
        layer_parameters = sizes.layer(setup.shape, tensor=layout.tensor)
        elementwise = (1 + _BACKWARD) * elementwise_forward + self._gradient_sums(layer_parameters)
        output = self._output()
        tensor = self._tensor()
        again = self._recomputed(forward, attention_forward, elementwise_forward)
        layer = matrices + attention + elementwise + again + tensor
        layers, last_layers = self._longest_and_last_stage()
        stage = layers * layer
        send = self._sends(stage)
        mean_layers = setup.shape.layers / layout.pipeline
        mean = mean_layers * layer + output / layout.pipeline + send
        slowest = max(stage, last_layers * layer + output) + send
        least_seconds = layers * self.least_layer_seconds + self.least_microbatch_seconds
        gaps = layers * self._kernel_gaps()
        launching = gaps + self._launching(least_seconds, slowest + gaps)
        mean += gaps + self._launching(least_seconds, mean + gaps)
        bubble = (layout.pipeline - 1) / layout.virtual_pipeline * mean
        optimizer = self._optimizer()
        data = self._data(slowest + launching, bubble if setup.code == "tuned" else 0.0)
        microbatches = setup.num_microbatches
        if setup.broadcasts_batches:
            batches = microbatches * self._batch()
        else:
            batches = 0.0

        once = self._step_seconds
        work = microbatches * (slowest + launching) + batches + bubble + data + optimizer + once
        times = microbatches * layers
        return StepTime(
            matrices=times * matrices,
            attention=times * attention,
            elementwise=times * elementwise,
            output=microbatches * (slowest - stage - send),
            recompute=times * again,
            launching=microbatches * launching + once,
            tensor=times * tensor + batches,
            pipeline=microbatches * send,
            bubble=bubble,
            data=data,
            optimizer=optimizer,
            waiting=work * self._waited_share,
        )

    def _longest_and_last_stage(self) -> tuple[float, float]:
        """Return how many layers the longest and the last stage have.

        The last stage also has the output layer. If the layers do not divide evenly, vendor recipes
        give the last stage fewer layers: 126 layers on 8 stages are split into 15, six times 16,
        and 15. DeepSpeed fills one stage after the other (`partition_balanced`): 78 layers on 12
        stages are split into eleven times 7, and 1.
        """
        setup = self.setup
        if setup.stage_layers:
            return max(setup.stage_layers), setup.stage_layers[-1]
        even = setup.shape.layers / setup.layout.pipeline
        if even.is_integer():
            return even, even
        if setup.code == "unfused":
            fullest = math.ceil(even)
            return fullest, max(0, setup.shape.layers - fullest * (setup.layout.pipeline - 1))
        if setup.code == "tuned":
            return math.ceil(even), math.floor(even)
        return even, even

    def _recomputed(
        self,
        matrices: float,
        attention: float,
        elementwise: float,
    ) -> float:
        """Return the seconds needed to recompute a layer.

        The arguments are the seconds for the forward pass through the layer, by part.
        """
        setup = self.setup
        if setup.recompute == "full":
            if setup.stops_early:
                # The backward pass needs the input to the last product, but not the result.
                matrices -= self._last_product()
            return (matrices + attention + elementwise) * setup.recomputed
        if setup.recompute == "operators":
            return self._every_second_product() + elementwise
        if setup.recompute == "selective" and not setup.flash:
            return attention
        return 0.0

    def _sends(self, stage: float) -> float:
        """Return the seconds needed to send a micro-batch to the next stage, and gradients back."""
        setup = self.setup
        layout = setup.layout
        if layout.pipeline == 1:
            return 0.0
        seconds = self._send() * 2 * layout.virtual_pipeline
        return self.exposed(stage, seconds) if setup.hides_sends else seconds

    def _optimizer(self) -> float:
        """Return the seconds for the optimizer step, which mostly moves states."""
        setup = self.setup
        layout = setup.layout
        shards = layout.data * layout.context if layout.zero_stage else 1
        optimizer_bytes = _OPTIMIZER_BYTES + _MOMENT_BYTES * setup.num_moments
        if self._own and setup.deepspeed:
            optimizer_bytes += own_kernels.DEEPSPEED_STEP_BYTES
        moved = optimizer_bytes * self._parameters / shards
        return moved / setup.device.memory_bandwidth

    def _batch(self) -> float:
        """Return the seconds for sending a micro-batch to the tensor-parallel ranks.

        A micro-batch has four 32-bit numbers per token, and all ranks wait for them.
        """
        layout = self.setup.layout
        return self.collective(16 * self._tokens, layout.tensor, span=layout.tensor)

    def _send(self) -> float:
        """Return the seconds needed to send the activations for a micro-batch to the next stage."""
        setup = self.setup
        layout = setup.layout
        activation_bytes = self._tokens * setup.shape.hidden * self._width
        # The DeepSpeed pipeline engine splits each tensor that it sends over the tensor ranks
        # (`PartitionedTensor`), and so did the first Megatron-LM. The receiving ranks gather the
        # pieces again.
        splits_sends = setup.code == "unfused" or setup.first_megatron
        is_partitioned = splits_sends and not layout.sequence
        split = layout.tensor if layout.sequence or is_partitioned else 1
        bandwidth = self.bandwidth(layout.tensor * layout.context * layout.pipeline)
        sending = activation_bytes / split / bandwidth
        if not is_partitioned:
            return sending
        return sending + self.collective(activation_bytes, layout.tensor, span=layout.tensor)

    @cached_property
    def _parameters(self) -> float:
        shape = self.setup.shape
        setup = self.setup
        layout = setup.layout
        embedding = shape.padded_vocabulary * shape.hidden / layout.tensor
        layers = max(setup.stage_layers, default=shape.layers / layout.pipeline)
        return layers * sizes.layer(shape, tensor=layout.tensor) + embedding

    def _data(self, microbatch: float, pause: float) -> float:
        """Return the seconds that data-parallel communication adds.

        Weights are gathered during the first forward pass, and gradients are reduced during the
        last backward pass; together these passes take `microbatch` seconds. Half of `pause`, the
        time that stages wait, also hides communication. Interleaving could hide more communication,
        but GPT-3 on 512 to 10,752 H100s (MLPerf) shows no such effect.
        """
        setup = self.setup
        layout = setup.layout
        ranks = layout.data * layout.context
        if ranks == 1:
            return 0.0
        model_bytes = self._parameters * self._width
        gather = self.collective(model_bytes, ranks, span=layout.world_size // layout.pipeline)
        if self._own and setup.deepspeed:
            return self._deepspeed_data(microbatch, gather)
        reduces_last = setup.code == "unfused" or setup.first_megatron
        if reduces_last and layout.zero_stage != 1:
            return self._unhidden_data(gather)
        if layout.zero_stage >= 2 and layout.pipeline == 1:
            return setup.num_microbatches * self._sharded_data(microbatch, gather)
        # Weights are gathered in 16 bits. Gradients are reduced in 32 bits, or in 16 bits in
        # vendors' recipes for fp8
        if setup.half_sums or (setup.precision == "fp8" and setup.code == "tuned"):
            reduce = gather
        else:
            reduce = 2 * gather

        if setup.has_ddp_buckets:
            latencies = self._ring_seconds(ranks) / self._bucket_share(ranks)
            gather += latencies
            reduce += latencies
        shown_share = max(setup.shown_data, self._bucket_share(ranks))
        window = microbatch * self._hiding_microbatches
        forward = _FORWARD_SHARE * window + pause / 2
        backward = (1 - _FORWARD_SHARE) * window + pause / 2
        gathering = self._partly_hidden(forward, gather, shown_share)
        return gathering + self._partly_hidden(backward, reduce, shown_share)

    def _ring_seconds(self, ranks: int) -> float:
        """Return the latency of one reduce-scatter or all-gather among data-parallel ranks.

        NCCL sends it around a ring through all nodes the ranks are on.
        """
        layout = self.setup.layout
        span = layout.world_size // layout.pipeline
        nodes = min(ranks, math.ceil(span / self.setup.device.devices_per_node))
        return 1e-6 * self.coefficients.hop_microseconds * (nodes - 1)

    @property
    def _hiding_microbatches(self) -> int:
        """Return how many micro-batches can hide the reductions in a step behind their work.

        An interleaved stage computes as many micro-batches as there are stages with one chunk of
        layers before it turns to the next chunk. All of them hide communication for chunks that are
        finished, or not yet needed.
        """
        setup = self.setup
        if setup.layout.virtual_pipeline > 1 and setup.hides_sends:
            return min(setup.layout.pipeline, setup.num_microbatches)
        return 1

    def _unhidden_data(self, gather: float) -> float:
        """Return the seconds that data-parallel communication takes if no computation hides it.

        This concerns DeepSpeed forks and the first Megatron-LM, both without ZeRO 1. The arguments
        are the same as in `_deepspeed_data`. No published result shows that any of this time is
        hidden.
        """
        setup = self.setup
        layout = setup.layout
        if layout.zero_stage == 0 or layout.pipeline > 1:
            # One all-reduce, after the last backward pass.
            return 2 * gather

        if layout.zero_stage == 2:
            return gather * (1 + 2 * setup.num_microbatches)
        return 3 * gather * setup.num_microbatches

    def _deepspeed_data(self, microbatch: float, gather: float) -> float:
        """Return how many seconds our own trainer with DeepSpeed waits for other replicas.

        `gather` is the time to gather the weights. The collectives were counted in the source code
        of DeepSpeed 0.19. Gradients have as many bits as weights. ZeRO 1 reduces them after the
        last micro-batch in a step, and ZeRO 2 after each micro-batch, both with an all-reduce
        (`use_multi_rank_bucket_allreduce`), which is a reduce-scatter and an all-gather. ZeRO 3
        uses a reduce-scatter. A bucket that is not yet full is reduced after the backward pass.
        """
        setup = self.setup
        layout = setup.layout
        forward = _FORWARD_SHARE * microbatch
        backward = microbatch - forward
        bucket = min(1.0, LARGEST_BUCKET / self._parameters)
        shown_share = max(setup.shown_data, bucket)
        all_reduce = self._partly_hidden(backward, 2 * gather, shown_share)
        if not layout.zero_stage:
            return all_reduce
        # Updated weights are gathered at the end of the step, without overlap.
        if layout.zero_stage == 1 or layout.pipeline > 1:
            return gather + all_reduce
        if layout.zero_stage == 2:
            return gather + setup.num_microbatches * all_reduce
        # ZeRO 3 gathers weights in each pass. While one layer is computed, the weights for the next
        # layer are gathered.
        first = min(1.0, _PREFETCHED / self._parameters)
        gathering = self._partly_hidden(forward, gather, first)
        gathering += self._partly_hidden(backward, gather, first)
        reducing = self._partly_hidden(backward, gather, bucket)
        return setup.num_microbatches * (gathering + reducing)

    def _partly_hidden(
        self,
        work: float,
        talk: float,
        shown_share: float,
    ) -> float:
        """Return the time that communication adds to work.

        The work can hide all communication except the share `shown_share`.
        """
        hideable = (1 - shown_share) * talk
        contended = self.coefficients.contention * min(work, hideable)
        return self.exposed(work, hideable) + contended + shown_share * talk

    def _sharded_data(self, microbatch: float, gather: float) -> float:
        """Return how many seconds a micro-batch waits for communication in FSDP.

        `gather` is the time to gather the weights. The weights are gathered for the forward pass.
        ZeRO 3 gathers them again for the backward pass, which includes recomputation. Gradients are
        reduced in 32 bits unless FSDP is configured otherwise.
        """
        setup = self.setup
        # Each layer is gathered and reduced by itself, and so is the embedding.
        ring = self._ring_seconds(setup.layout.data * setup.layout.context)
        latencies = ring * (setup.shape.layers + 1)
        gathers = 2.0 if setup.layout.zero_stage >= 3 else 1.0
        talk = gathers * (gather + latencies)
        talk += (gather if setup.half_sums else 2 * gather) + latencies
        if setup.first_sharding:
            shown_share = self.coefficients.sharded_shown
        else:
            shown_share = 0.0

        # The weights for a layer are gathered while the previous one is computed, which hides part
        # of the communication.
        hideable = (1 - shown_share) * talk
        contended = self.coefficients.contention * min(microbatch, hideable)
        return max(0.0, hideable - microbatch) + contended + shown_share * talk

    def _bucket_share(self, ranks: int) -> float:
        """Return the share of parameters on a rank that are in one bucket."""
        bucket = max(_BUCKET, _BUCKET_PER_RANK * ranks)
        if self.setup.has_ddp_buckets:
            bucket = _DDP_BUCKET
        return min(1.0, bucket / self._parameters)

    @property
    def _step_seconds(self) -> float:
        """Return the seconds in a step outside the micro-batches.

        For our own trainer, these seconds are included in the measured times, and for DeepSpeed
        forks in the launch times.
        """
        if self._own or self.setup.code == "unfused":
            return 0.0
        return 1e-3 * self.coefficients.step_milliseconds

    def exposed(self, work: float, talk: float) -> float:
        """Return the time that communication adds to the work that may hide it."""
        if self.setup.code == "unfused":
            return talk
        power = self.coefficients.overlap_power
        return float((work**power + talk**power) ** (1 / power) - work)
