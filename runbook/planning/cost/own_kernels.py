"""Costs of the kernels in our trainer on a GPU, measured part by part.

Unless noted otherwise, measurements were made on one NVIDIA H200 at the 700 W limit, 2026-11-26,
with PyTorch 2.11, cuBLAS 13.1, cuDNN 9.19 and Triton 3.6, for GPT-3 1.3B in bf16 and 8
micro-batches of 4 x 2,048 tokens, by profiling steps with `training.kernels` plain and compiled
(docs/measurements/gpu-h200.md). Measured times are converted to bytes at the datasheet bandwidth.
The results exceed what is really moved, because no kernel reaches that bandwidth: a copy reached
4.24 of 4.8 TB/s.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from runbook.planning.cost.accelerators import Accelerator


@dataclass(frozen=True)
class OwnKernels:
    """Costs for one set of kernels."""

    elementwise: float
    """Bytes moved by the norms, activations and sums in a layer, relative to fused code, which
    reads and writes each tensor once."""
    logit_bytes: float
    """Bytes per token and vocabulary entry for computing the loss and the gradient of the logits.
    """
    least_logit_bytes: float
    """The fewest bytes per logit the kernels can read and write."""
    gradient_bytes: float
    """Bytes per parameter to accumulate the gradients from one micro-batch, in addition to the
    matrix products.
    """


_PLAIN_LAYERS = 2.59
"""The plain kernels took 175 ms for 192 forward and backward passes through a layer (8,192 tokens x
2,048).

This time corresponds to 261 bytes per token and hidden unit, compared with 101 in fused code.
"""
_COMPILED_LAYERS = 2.02
"""The compiled kernels took 137 ms for the same 192 passes.

This time corresponds to 204 bytes per token and hidden unit.
"""
_PLAIN_LOSS = 96.0
"""The plain loss took 66 ms for 8 x 8,192 tokens x 50,304 logits, in about ten passes over float32
blocks.
"""
_COMPILED_LOSS = 7.0
"""The compiled loss reads each 16-bit logit twice and writes it once: 6 bytes, 5 ms in the profile.
"""
_LEAST_PLAIN_LOSS = 40.0
"""Ten passes over 4-byte float32 values."""
_LEAST_COMPILED_LOSS = 6.0
_PLAIN_GRADIENTS = 21.2
"""Adding 8 x 1.32e9 16-bit gradients to float32 sums took 46.6 ms: 10 bytes per gradient at 47 % of the bandwidth.
"""

OWN_KERNELS: Mapping[str, OwnKernels] = MappingProxyType(
    {
        "plain": OwnKernels(_PLAIN_LAYERS, _PLAIN_LOSS, _LEAST_PLAIN_LOSS, _PLAIN_GRADIENTS),
        "compiled": OwnKernels(_COMPILED_LAYERS, _COMPILED_LOSS, _LEAST_COMPILED_LOSS, 0.0),
        # With dropout, the layers remain megatron-core's; only the matrix products and the loss are
        # compiled.
        "compiled-dropout": OwnKernels(_PLAIN_LAYERS, _COMPILED_LOSS, _LEAST_COMPILED_LOSS, 0.0),
    }
)
"""Costs by `StepSetup.code`."""

DEEPSPEED_GRADIENT_BYTES = 6.8
"""DeepSpeed adds gradients in 16 bits: 6 counted bytes, moved at the speed a copy reaches."""
LEAST_GRADIENT_BYTES = 6.0
"""Minimum bytes for adding a gradient in 16 bits to its sum: two reads and a write."""
DEEPSPEED_STEP_BYTES = 16.0
"""Bytes per parameter that a DeepSpeed step moves in addition to what megatron-core moves.

They were counted in the DeepSpeed source: gradients are copied into a bucket, divided, copied out
and flattened, at 4 bytes each.
"""

POWER_BOUND = 0.75
"""Share of the datasheet peak that matrix products sustain at the 700 W limit: 686 ms (plain
kernels) and 706 ms (compiled) for 5.16e14 operations. Isolated products of all sizes reach 0.66 to
0.79; an fp8 product of 8,192 cubed reaches 0.75 of the fp8 peak."""
CLOCK_BOUND = 0.905
"""Share of the datasheet peak that matrix products sustain when power does not limit them.

The value is 0.836, which an A100 sustains, times 1,980 MHz, divided by the 1,830 MHz for which the
datasheet states the peak. The value was derived, not measured. It applies to small products; their
idle waves and bytes are counted separately.
"""
POWER_WATTS = 700.0
"""The power limit that `POWER_BOUND` is valid for."""
POWER_FAMILY = "H100"
"""The device family that `POWER_BOUND` is valid for. This family includes the H200."""

ATTENTION = 0.552
"""Speed of matrix products inside cuDNN attention on H100 and H200, relative to large products.

In the profile, 4.62e13 operations below the diagonal took 126 ms, not counting the exponentials.
"""
EXPONENTIALS = 3.9e12
"""Exponentials per second on an H100 (arXiv:2407.08608).

Each pass computes one exponential per score; with small heads, the matrix products cannot hide this
work.
"""

KERNEL_GAPS = 147e-6
"""Seconds a GPU idles between the 70 kernels in the two passes through a layer: 28 ms per step, in
both profiles.
"""

OPERATOR_MICROSECONDS = 36.0
"""Time the host needs to launch one operator, including the Python code in autograd and in the
Triton launcher.

Launching 24 layers for a micro-batch with 2 sequences took 82 ms on the machine with the H200,
where the GPU waited for the host (the four steps there differ by a fifth), and 76 ms on the machine
with the H100. With `training.kernels: plain` the GPU never waited for the host, so the same value
is assumed.
"""
_H200_BANDWIDTH = 4.8e12
_BUSY_BANDWIDTH = 3.6e12
"""The kernels in a layer do not get faster above this memory bandwidth on an H100's 132 processors.

On an H100 with 3.35 TB/s, the kernels take 3 to 17 % longer than on an H200 with 4.8 TB/s
(docs/measurements/gpu-h100.md). With fewer or slower processors, the limit is lower.
"""
_PEAK_TFLOPS = 989.4
"""bf16 peak for an H100 with 132 processors, used to compare the number and clock of processors."""


def kernel_bandwidth(device: Accelerator) -> float:
    """Return the bandwidth used to scale kernel times measured on the H200.

    Only the H100 family was measured; for others, the datasheet bandwidth is used.

    >>> from runbook.planning.cost.accelerators import ACCELERATORS
    >>> names = ("H200-SXM", "H100-SXM5", "H100-NVL", "H100-PCIe")
    >>> [round(kernel_bandwidth(ACCELERATORS[name]) / 1e12, 2) for name in names]
    [4.8, 4.47, 4.05, 2.67]
    """
    if device.family != POWER_FAMILY:
        return device.memory_bandwidth
    busy_bandwidth = _BUSY_BANDWIDTH * min(1.0, device.peaks["bf16"] / _PEAK_TFLOPS)
    bandwidth = min(device.memory_bandwidth, busy_bandwidth)
    return _H200_BANDWIDTH * bandwidth / _BUSY_BANDWIDTH


def moving_seconds(device: Accelerator, measured_bytes: float, least_bytes: float) -> float:
    """Return how long a kernel takes that costs `measured_bytes` and must move `least_bytes`.

    The kernel takes at least as long as moving `least_bytes` at the datasheet bandwidth.
    """
    measured = measured_bytes / kernel_bandwidth(device)
    return max(measured, least_bytes / device.memory_bandwidth)


def attention_rate(product_rate: float, head_size: int) -> float:
    """Return the operations per second that cuDNN attention reaches over both passes.

    >>> round(attention_rate(742e12, 128) / 1e12), round(attention_rate(742e12, 64) / 1e12)
    (367, 332)
    """
    # Each score takes part in two products in the forward pass and in five in the backward pass.
    operations = 14 * head_size
    seconds = operations / (ATTENTION * product_rate) + 2 / EXPONENTIALS
    return operations / seconds
