"""Seconds of one training step, part by part, from shapes, layout and an accelerator.

Counted: operations and bytes of every layer, of the output layer, of collectives and of the optimizer. Calibrated:
the few shares in `coefficients.py`. A matrix product takes the time of its operations at the sustained rate plus the
time of its bytes, so that small matrices are slow without a curve of their own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property

from runbook.plan import sizes
from runbook.plan.accelerators import Accelerator
from runbook.plan.coefficients import DEFAULT, Coefficients
from runbook.plan.sizes import Shape

RECOMPUTE = ("none", "selective", "operators", "full")
"""`operators`: every second matrix product again, as torchtitan's selective checkpointing."""

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
class Setup:
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
class Step:
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

    def as_dict(self) -> dict[str, float]:
        """Each part and the sum, to four digits."""
        return {name: float(f"{value:.4g}") for name, value in {**asdict(self), "seconds": self.seconds}.items()}


def iteration(setup: Setup, coefficients: Coefficients = DEFAULT) -> Step:
    """The step of this setup; `KeyError` where the device has no peak or no share for its precision (`known`)."""
    return _Model(setup, coefficients).step()


def known(device: Accelerator, precision: str, coefficients: Coefficients = DEFAULT) -> str:
    """Why no speed can be given, or an empty word."""
    if precision not in device.peaks:
        return f"no {precision} peak is known for {device.name}"
    if device.family not in coefficients.sustained:
        return f"no sustained share is known for the family {device.family}"
    return ""


@dataclass(frozen=True)
class _Layer:
    """Seconds of one layer for one micro-batch, both passes, without what is recomputed."""

    matrices: float
    matrices_forward: float
    attention: float
    attention_forward: float
    elementwise: float
    elementwise_forward: float
    tensor: float


@dataclass(frozen=True)
class _Model:
    setup: Setup
    coefficients: Coefficients

    @cached_property
    def _tokens(self) -> float:
        return self.setup.micro_batch * self.setup.shape.sequence_length / self.setup.context

    @cached_property
    def _rate(self) -> float:
        """Operations a second of large matrix products."""
        setup, own = self.setup, self.coefficients
        peak = setup.device.peaks[setup.precision] * own.sustained[setup.device.family] * 1e12
        return peak * own.fp8 if setup.precision == "fp8" else peak

    @cached_property
    def _half_rate(self) -> float:
        """The same in 16 bits, for attention and the output layer of an fp8 training."""
        setup, own = self.setup, self.coefficients
        name = "bf16" if setup.precision == "fp8" else setup.precision
        return setup.device.peaks[name] * own.sustained[setup.device.family] * 1e12

    @cached_property
    def _width(self) -> float:
        return 4.0 if self.setup.precision in ("fp32", "tf32") else 2.0

    def _product(self, columns: float, inner: float, rate: float) -> float:
        """Seconds of tokens x inner times inner x columns."""
        tokens = self._tokens
        moved = self._width * (tokens * inner + inner * columns + tokens * columns)
        return 2 * tokens * inner * columns / rate + moved / self.setup.device.memory_bandwidth

    def _matrices(self) -> float:
        """Forward products of a layer."""
        shape, tensor = self.setup.shape, self.setup.tensor
        width = shape.heads * shape.head_size
        attention_in = (width + 2 * shape.kv_heads * shape.head_size) / tensor
        feed_forward_in = shape.ffn_hidden * (2 if shape.gated else 1) / tensor
        return (
            self._product(attention_in, shape.hidden, self._rate)
            + self._product(shape.hidden, width / tensor, self._rate)
            + self._product(feed_forward_in, shape.hidden, self._rate)
            + self._product(shape.hidden, shape.ffn_hidden / tensor, self._rate)
        )

    @cached_property
    def _attention_share(self) -> float:
        own, setup = self.coefficients, self.setup
        old = setup.device.family.startswith("H100") and setup.code != "tuned"
        return own.attention * (own.attention_hopper if old else 1.0)

    @cached_property
    def _tensor_waited(self) -> float:
        return self.coefficients.tensor_tuned if self.setup.code == "tuned" else 1.0

    def _attention(self) -> tuple[float, float]:
        """(forward, both passes) of scores and their use."""
        setup, shape = self.setup, self.setup.shape
        pairs = self._tokens * shape.sequence_length
        full = 4 * pairs * shape.heads * shape.head_size / setup.tensor
        if setup.flash:
            forward = full / 2 / (self._half_rate * self._attention_share)
            return forward, 3.5 * forward
        scores = pairs * shape.heads / setup.tensor
        kept = scores * self.coefficients.scores / setup.device.memory_bandwidth
        forward = full / (self._half_rate * 0.7) + kept / 3
        return forward, 3 * full / (self._half_rate * 0.7) + kept

    def _elementwise(self) -> float:
        """Forward seconds of everything that is bound by memory."""
        setup, shape, own = self.setup, self.setup.shape, self.coefficients
        inner = shape.ffn_hidden * (1.5 if shape.gated else 1) / (4 * shape.hidden)
        split = (_FORWARD_BYTES - _SHARED_BYTES) * inner / setup.tensor
        whole = _SHARED_BYTES / (setup.tensor if setup.sequence else 1)
        casts = _FP8_CASTS / setup.tensor if setup.precision == "fp8" else 0.0
        factor = (
            own.elementwise * {"unfused": own.unfused, "eager": own.eager, "fused": 1.0, "tuned": own.tuned}[setup.code]
        )
        moved = self._tokens * shape.hidden * (split + whole + casts) * factor * self._width / 2
        return moved / setup.device.memory_bandwidth

    def _collective(self, num_bytes: float, size: int, *, span: int) -> float:
        """Seconds of one all-gather or reduce-scatter of so many bytes over `size` ranks that span `span` devices."""
        if size <= 1:
            return 0.0
        device, own = self.setup.device, self.coefficients
        inside = span <= device.devices_per_node
        bandwidth = device.link_bandwidth * own.links if inside else device.network_bandwidth * own.network
        if not inside:
            bandwidth *= max(1.0, min(size, size * device.devices_per_node / span))
            bandwidth = min(bandwidth, device.link_bandwidth * own.links)
        return num_bytes * (size - 1) / size / bandwidth

    def _tensor(self) -> float:
        """Waited-for collectives of a layer and micro-batch: two in each pass, each both ways."""
        setup, shape = self.setup, self.setup.shape
        one = self._tokens * shape.hidden * self._width
        times = 8 + (4 if setup.recompute == "full" else 0)
        return times * self._tensor_waited * self._collective(one, setup.tensor, span=setup.tensor) + self._ring()

    def _ring(self) -> float:
        """Keys and values passed around the context ranks, hidden as tensor communication is."""
        setup, shape = self.setup, self.setup.shape
        one = 2 * self._tokens * shape.kv_heads * shape.head_size * self._width / setup.tensor * setup.context
        span = setup.tensor * setup.context
        return 3 * self._tensor_waited * self._collective(one, setup.context, span=span) / 2

    def _layer(self) -> _Layer:
        matrices, elementwise = self._matrices(), self._elementwise()
        forward, both = self._attention()
        return _Layer(
            matrices=3 * matrices,
            matrices_forward=matrices,
            attention=both,
            attention_forward=forward,
            elementwise=(1 + _BACKWARD) * elementwise,
            elementwise_forward=elementwise,
            tensor=self._tensor(),
        )

    def _recompute(self, layer: _Layer) -> float:
        mode = self.setup.recompute
        if mode == "full":
            return layer.matrices_forward + layer.attention_forward + layer.elementwise_forward
        if mode == "operators":
            return 0.5 * layer.matrices_forward + layer.elementwise_forward
        return layer.attention_forward if mode == "selective" and not self.setup.flash else 0.0

    def _output(self) -> float:
        """Output layer and loss of one micro-batch, on the last stage."""
        setup, shape = self.setup, self.setup.shape
        columns = shape.padded_vocabulary / setup.tensor
        products = 3 * self._product(columns, shape.hidden, self._half_rate)
        return products + _LOGIT_BYTES * self._tokens * columns / setup.device.memory_bandwidth

    def step(self) -> Step:
        setup, own = self.setup, self.coefficients
        layer, output = self._layer(), self._output()
        again = self._recompute(layer)
        busy = layer.matrices + layer.attention + layer.elementwise + again + layer.tensor
        least = own.unfused_microseconds if setup.code == "unfused" else own.layer_microseconds
        launching = max(0.0, least * 1e-6 - busy)
        layers, microbatches = setup.shape.layers / setup.pipeline, setup.num_microbatches
        stage = layers * (busy + launching)
        send = self._send() * 2 * setup.virtual_pipeline if setup.pipeline > 1 else 0.0
        mean = stage + output / setup.pipeline + send
        # A vendor's recipes give the last stage fewer layers; elsewhere all wait for it.
        slowest = mean if setup.code == "tuned" else stage + output + send
        bubble = (setup.pipeline - 1) / setup.virtual_pipeline * mean
        work = microbatches * slowest
        data = self._data(slowest)
        optimizer = self._optimizer()
        waiting = self._jitter(work + bubble + data + optimizer)
        times = microbatches * layers
        return Step(
            matrices=times * layer.matrices,
            attention=times * layer.attention,
            elementwise=times * layer.elementwise,
            output=microbatches * (slowest - stage - send),
            recompute=times * again,
            launching=times * launching,
            tensor=times * layer.tensor,
            pipeline=microbatches * send,
            bubble=bubble,
            data=data,
            optimizer=optimizer,
            waiting=waiting,
        )

    def _send(self) -> float:
        setup = self.setup
        split = setup.tensor if setup.sequence else 1
        one = self._tokens * setup.shape.hidden * self._width / split
        inside = setup.tensor * setup.context * setup.pipeline <= setup.device.devices_per_node
        own, device = self.coefficients, setup.device
        bandwidth = device.link_bandwidth * own.links if inside else device.network_bandwidth * own.network
        return one / bandwidth

    def _parameters(self) -> float:
        shape, setup = self.setup.shape, self.setup
        embedding = shape.padded_vocabulary * shape.hidden / setup.tensor
        return shape.layers / setup.pipeline * sizes.layer(shape, tensor=setup.tensor) + embedding

    def _data(self, microbatch: float) -> float:
        """What data-parallel communication adds: hidden behind the work it may overlap with."""
        setup = self.setup
        ranks = setup.data * setup.context
        if ranks == 1:
            return 0.0
        num_bytes = self._parameters() * self._width
        one = self._collective(num_bytes, ranks, span=setup.world // setup.pipeline)
        if setup.zero_stage >= 2 and setup.pipeline == 1:
            gathers = 3.0 if setup.zero_stage >= 3 and setup.recompute != "none" else 2.0
            gathers += 1.0 if setup.zero_stage >= 3 else 0.0
            return setup.num_microbatches * self._hidden(microbatch, gathers * one)
        return self._hidden(microbatch * max(1, setup.num_microbatches // 4), 3 * one)

    def _hidden(self, work: float, talk: float) -> float:
        if self.setup.code == "unfused":
            return talk
        power = self.coefficients.overlap_power
        return float((work**power + talk**power) ** (1 / power) - work)

    def _optimizer(self) -> float:
        setup = self.setup
        share = setup.data * setup.context if setup.zero_stage else 1
        return _OPTIMIZER_BYTES * self._parameters() / share / setup.device.memory_bandwidth

    def _jitter(self, seconds: float) -> float:
        return seconds * self.coefficients.jitter * max(0.0, math.log2(self.setup.world / 8))


def parts(step: Step) -> Mapping[str, float]:
    """Share of each part of a step."""
    return {name: value / step.seconds for name, value in asdict(step).items()}
