"""Seconds of one training step on accelerators, part by part, with the calibrated coefficients.

Counted: operations and bytes of every layer, of the output layer, of collectives and of the optimizer. Calibrated:
the few shares in `Coefficients`. A matrix product takes the time of its operations at the sustained rate plus the
time of its bytes, so that small matrices are slow without a curve of their own.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from types import MappingProxyType

from runbook.plan_file.schema import Shape
from runbook.planning import sizes
from runbook.planning.cost.accelerators import Accelerator


@dataclass(frozen=True)
class Coefficients:
    """What published results settle; everything else in the model is counted.

    The values are fitted to them: `python -m benchmarks.predict_cross_validation --fit` prints them again.
    """

    sustained: Mapping[str, float] = field(
        default_factory=lambda: MappingProxyType(
            {
                "V100": 0.95,
                "A100": 0.725,
                "H100": 0.653,
                "H100-500W": 0.617,
                "Blackwell": 0.671,
                "MI250X": 0.503,
                "MI300X": 0.45,
                "PVC": 0.406,
                "L40S": 0.55,
            }
        )
    )
    """Share of the 16-bit peak that large matrix products sustain at the power limit, by family."""
    fp8: float = 0.923
    """The same share in fp8, relative to 16 bits."""
    attention: float = 0.492
    """Speed of fused attention relative to large matrix products."""
    attention_hopper: float = 0.606
    """The same again on H100 outside a vendor's own stack: kernels written for the A100."""
    elementwise: float = 2.12
    """Bytes moved by norms, activations, residuals and dropout, relative to one read and write each by fused code."""
    eager: float = 1.95
    """The same without a compiler or fused kernels, relative to with."""
    unfused: float = 5.15
    """The same in DeepSpeed's forks of Megatron."""
    tuned: float = 0.764
    """The same in a vendor's own tuned stack."""
    scores: float = 19.7
    """Bytes a score costs in both passes where attention scores are kept."""
    tensor_tuned: float = 0.291
    """Share of tensor-parallel communication that is waited for in a vendor's own stack; elsewhere all of it."""
    links: float = 0.782
    """Share of the links' datasheet that collectives reach."""
    network: float = 0.81
    """Share of the network's figure that collectives reach."""
    overlap_power: float = 2.3
    """How sharply communication of shared states hides behind work (1: not at all, infinite: wholly)."""
    layer_microseconds: float = 1000.0
    """Least time of a layer's two passes, however small: what launching its kernels takes."""
    unfused_microseconds: float = 6840.0
    """The same in DeepSpeed's forks of Megatron."""
    jitter: float = 0.00407
    """Time added by each doubling of the devices beyond eight: waiting for the slowest."""


DEFAULT = Coefficients()


CALIBRATED = frozenset({"V100", "A100", "H100", "H100-500W", "Blackwell", "MI250X", "PVC"})
"""Families with a published training among the rows of the fit; the others rest on measured matrix products."""


_FORWARD_BYTES = 36.0
"""Norms, residuals, dropout and activation of a plain GPT layer in 16 bits: bytes a token and hidden unit, forward."""
_SHARED_BYTES = 20.0
"""Of these, what is not divided by tensor without sequence parallelism."""
_BACKWARD = 1.8
"""Bytes of the backward pass relative to the forward pass."""
_LOGIT_BYTES = 24.0
"""A token and vocabulary entry: logits in 16 and 32 bits, softmax, gradient."""
_OPTIMIZER_BYTES = 34.0
"""A parameter: fp32 weights and two moments read and written, gradient read twice, weights written in 16 bits."""
_FP8_CASTS = 12.0
"""More bytes a token and hidden unit, forward: quantized copies and transposes."""


@dataclass(frozen=True)
class StepSetup:
    """One way to train one model on some devices."""

    shape: Shape
    device: Accelerator
    precision: str
    tensor: int
    pipeline: int
    data: int
    micro_batch: int
    global_batch: int
    context: int = 1
    virtual_pipeline: int = 1
    sequence: bool = True
    recompute: str = "none"
    """none, selective, operators (every second matrix product, as torchtitan does) or full."""
    recomputed: float = 1.0
    """Share of the layers that `full` computes again."""
    stage_layers: tuple[int, ...] = ()
    """Layers on each stage, where that was chosen."""
    shown_data: float = 0.0
    """Share of the data-parallel communication that nothing can hide."""
    hides_sends: bool = False
    """Whether stages send while they compute."""
    broadcasts_batches: bool = False
    """Whether one tensor-parallel rank sends the batches to the others."""
    zero_stage: int = 1
    flash: bool = True
    code: str = "fused"
    """unfused, eager, fused or tuned: how many kernels a layer is made of, and how well communication hides."""

    @property
    def world(self) -> int:
        """All devices."""
        return self.tensor * self.pipeline * self.data * self.context

    @property
    def num_microbatches(self) -> int:
        """Micro-batches of a step, each copy; at least one."""
        return max(1, round(self.global_batch / (self.data * self.micro_batch)))


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step by part; they add up to `seconds`."""

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
        """All of it."""
        return float(sum(asdict(self).values()))


def iteration(setup: StepSetup, coefficients: Coefficients = DEFAULT) -> StepTime:
    """The step of this setup; `KeyError` where the device has no peak or no share for its precision (`known`)."""
    return StepModel(setup, coefficients).step()


def known(device: Accelerator, precision: str) -> str:
    """Why no speed can be given, or an empty word."""
    if precision not in device.peaks:
        return f"no {precision} peak is known for {device.name}"
    if device.family not in DEFAULT.sustained:
        return f"no sustained share is known for the family {device.family}"
    return ""


@dataclass(frozen=True)
class StepModel:
    """The parts of a step, which a rehearsal prices its counts with as well."""

    setup: StepSetup
    coefficients: Coefficients = DEFAULT

    @cached_property
    def _tokens(self) -> float:
        return self.setup.micro_batch * self.setup.shape.sequence_length / self.setup.context

    @cached_property
    def matrix_rate(self) -> float:
        """Operations a second of large matrix products."""
        rate = self._sustained(self.setup.precision)
        return rate * self.coefficients.fp8 if self.setup.precision == "fp8" else rate

    @cached_property
    def _half_rate(self) -> float:
        """The same in 16 bits, for attention and the output layer of an fp8 training."""
        return self._sustained("bf16" if self.setup.precision == "fp8" else self.setup.precision)

    def _sustained(self, precision: str) -> float:
        device = self.setup.device
        return device.peaks[precision] * self.coefficients.sustained[device.family] * 1e12

    @cached_property
    def _width(self) -> float:
        return 4.0 if self.setup.precision in ("fp32", "tf32") else 2.0

    def _product(self, columns: float, inner: float, rate: float) -> float:
        """Seconds of tokens x inner times inner x columns."""
        tokens = self._tokens
        moved = self._width * (tokens * inner + inner * columns + tokens * columns)
        return 2 * tokens * inner * columns / rate + moved / self.setup.device.memory_bandwidth

    def _matrices(self) -> float:
        shape, tensor = self.setup.shape, self.setup.tensor
        width = shape.heads * shape.head_size
        attention_in = (width + 2 * shape.kv_heads * shape.head_size) / tensor
        feed_forward_in = shape.ffn_hidden * (2 if shape.gated else 1) / tensor
        return (
            self._product(attention_in, shape.hidden, self.matrix_rate)
            + self._product(shape.hidden, width / tensor, self.matrix_rate)
            + self._product(feed_forward_in, shape.hidden, self.matrix_rate)
            + self._product(shape.hidden, shape.ffn_hidden / tensor, self.matrix_rate)
        )

    def _attention(self) -> tuple[float, float]:
        """(forward, both passes) of scores and their use."""
        setup, shape, own = self.setup, self.setup.shape, self.coefficients
        pairs = self._tokens * shape.sequence_length
        full = 4 * pairs * shape.heads * shape.head_size / setup.tensor
        if setup.flash:
            forward = full / 2 / self.attention_rate
            return forward, 3.5 * forward
        scores = pairs * shape.heads / setup.tensor
        kept = scores * own.scores / setup.device.memory_bandwidth
        forward = full / (self._half_rate * 0.7) + kept / 3
        return forward, 3 * full / (self._half_rate * 0.7) + kept

    @cached_property
    def attention_rate(self) -> float:
        """Operations a second of fused attention, of which it leaves out those above the diagonal."""
        own, old = self.coefficients, self.setup.device.family.startswith("H100") and self.setup.code != "tuned"
        return self._half_rate * own.attention * (own.attention_hopper if old else 1.0)

    @property
    def least_layer_seconds(self) -> float:
        """Of both passes, however small the layer is."""
        own = self.coefficients
        return (own.unfused_microseconds if self.setup.code == "unfused" else own.layer_microseconds) * 1e-6

    @property
    def waiting_share(self) -> float:
        """Of a step's work, what waiting for the slowest device adds."""
        return self.coefficients.jitter * max(0.0, math.log2(self.setup.world / 8))

    def _elementwise(self) -> float:
        """Forward seconds of everything that is bound by memory."""
        setup, shape, own = self.setup, self.setup.shape, self.coefficients
        inner = shape.ffn_hidden * (1.5 if shape.gated else 1) / (4 * shape.hidden)
        split = (_FORWARD_BYTES - _SHARED_BYTES) * inner / setup.tensor
        whole = _SHARED_BYTES / (setup.tensor if setup.sequence else 1)
        casts = _FP8_CASTS / setup.tensor if setup.precision == "fp8" else 0.0
        kernels = {"unfused": own.unfused, "eager": own.eager, "fused": 1.0, "tuned": own.tuned}[setup.code]
        factor = own.elementwise * kernels
        moved = self._tokens * shape.hidden * (split + whole + casts) * factor * self._width / 2
        return moved / setup.device.memory_bandwidth

    def bandwidth(self, span: int) -> float:
        """Bytes a second between ranks that span so many devices."""
        device, own = self.setup.device, self.coefficients
        if span <= device.devices_per_node:
            return device.link_bandwidth * own.links
        return device.network_bandwidth * own.network

    def collective(self, num_bytes: float, size: int, *, span: int) -> float:
        """Seconds of one all-gather or reduce-scatter of so many bytes over `size` ranks that span `span` devices."""
        if size <= 1:
            return 0.0
        node, bandwidth = self.setup.device.devices_per_node, self.bandwidth(span)
        if span > node:
            bandwidth = min(bandwidth * max(1.0, min(size, size * node / span)), self.bandwidth(node))
        return num_bytes * (size - 1) / size / bandwidth

    def _tensor(self) -> float:
        """Waited-for collectives of a layer and micro-batch, two a pass, both ways; context's keys hide as these do."""
        setup, shape = self.setup, self.setup.shape
        waited = self.coefficients.tensor_tuned if setup.code == "tuned" else 1.0
        one = self._tokens * shape.hidden * self._width
        times = 8 + (4 * setup.recomputed if setup.recompute == "full" else 0)
        keys = 2 * self._tokens * shape.kv_heads * shape.head_size * self._width / setup.tensor * setup.context
        ring = 3 * waited * self.collective(keys, setup.context, span=setup.tensor * setup.context) / 2
        return times * waited * self.collective(one, setup.tensor, span=setup.tensor) + ring

    def _output(self) -> float:
        setup, shape = self.setup, self.setup.shape
        columns = shape.padded_vocabulary / setup.tensor
        products = 3 * self._product(columns, shape.hidden, self._half_rate)
        return products + _LOGIT_BYTES * self._tokens * columns / setup.device.memory_bandwidth

    def step(self) -> StepTime:
        """All parts of a step, counted by formula."""
        setup = self.setup
        forward, moved_forward, output = self._matrices(), self._elementwise(), self._output()
        attention_forward, attention = self._attention()
        matrices, elementwise, tensor = 3 * forward, (1 + _BACKWARD) * moved_forward, self._tensor()
        again = {
            "full": (forward + attention_forward + moved_forward) * setup.recomputed,
            "operators": 0.5 * forward + moved_forward,
            "selective": 0.0 if setup.flash else attention_forward,
        }.get(setup.recompute, 0.0)
        busy = matrices + attention + elementwise + again + tensor
        launching = max(0.0, self.least_layer_seconds - busy)
        even, microbatches = setup.shape.layers / setup.pipeline, setup.num_microbatches
        layers, last = max(setup.stage_layers, default=even), [even, *setup.stage_layers][-1]
        stage = layers * (busy + launching)
        send = self._send() * 2 * setup.virtual_pipeline if setup.pipeline > 1 else 0.0
        send = self.exposed(stage, send) if setup.hides_sends else send
        mean = even * (busy + launching) + output / setup.pipeline + send
        # A vendor's recipes give the last stage fewer layers; elsewhere all wait for it.
        is_even = setup.code == "tuned" and layers == even
        slowest = mean if is_even else max(stage, last * (busy + launching) + output) + send
        bubble = (setup.pipeline - 1) / setup.virtual_pipeline * mean
        shared = setup.data * setup.context if setup.zero_stage else 1
        optimizer = _OPTIMIZER_BYTES * self._parameters / shared / setup.device.memory_bandwidth
        data = self._data(slowest)
        batches = microbatches * self._batch() if setup.broadcasts_batches else 0.0
        work = microbatches * slowest + batches + bubble + data + optimizer
        times = microbatches * layers
        return StepTime(
            matrices=times * matrices,
            attention=times * attention,
            elementwise=times * elementwise,
            output=microbatches * (slowest - stage - send),
            recompute=times * again,
            launching=times * launching,
            tensor=times * tensor + batches,
            pipeline=microbatches * send,
            bubble=bubble,
            data=data,
            optimizer=optimizer,
            waiting=work * self.waiting_share,
        )

    def _batch(self) -> float:
        """A micro-batch to the tensor-parallel ranks: four numbers of 32 bits a token; all wait for it."""
        return self.collective(16 * self._tokens, self.setup.tensor, span=self.setup.tensor)

    def _send(self) -> float:
        setup = self.setup
        split = setup.tensor if setup.sequence else 1
        one = self._tokens * setup.shape.hidden * self._width / split
        return one / self.bandwidth(setup.tensor * setup.context * setup.pipeline)

    @cached_property
    def _parameters(self) -> float:
        shape, setup = self.setup.shape, self.setup
        embedding = shape.padded_vocabulary * shape.hidden / setup.tensor
        layers = max(setup.stage_layers, default=shape.layers / setup.pipeline)
        return layers * sizes.layer(shape, tensor=setup.tensor) + embedding

    def _data(self, microbatch: float) -> float:
        """What data-parallel communication adds: hidden behind the work it may overlap with."""
        setup = self.setup
        ranks = setup.data * setup.context
        if ranks == 1:
            return 0.0
        one = self.collective(self._parameters * self._width, ranks, span=setup.world // setup.pipeline)
        if setup.zero_stage >= 2 and setup.pipeline == 1:
            gathers = 3.0 if setup.zero_stage >= 3 and setup.recompute != "none" else 2.0
            gathers += 1.0 if setup.zero_stage >= 3 else 0.0
            return setup.num_microbatches * self.exposed(microbatch, gathers * one)
        hidden = self.exposed(microbatch * max(1, setup.num_microbatches // 4), 3 * one * (1 - setup.shown_data))
        return hidden + 3 * one * setup.shown_data

    def exposed(self, work: float, talk: float) -> float:
        """What communication adds to the work that it may overlap with."""
        if self.setup.code == "unfused":
            return talk
        power = self.coefficients.overlap_power
        return float((work**power + talk**power) ** (1 / power) - work)
