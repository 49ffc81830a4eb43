"""Ranges of measured memory peaks, relative to the plan, and what nvidia-smi is expected to report.

Nine of ten peaks lay in a range: it reaches from their 5th to their 95th percentile. The rows
include runs with features that the planner does not model. Their numbers are in
benchmarks/blind_memory.csv, tests/planning/measured_peaks.csv and docs/measurements/gpu-h200.md.
"""

from typing import NamedTuple

from runbook.planning.choice import Choice


class MeasuredRange(NamedTuple):
    """The range that held nine of ten measured values, relative to the plan."""

    low: float
    high: float

    def of(self, size: int) -> tuple[int, int]:
        """Return the range for a planned number of bytes.

        >>> MeasuredRange(0.5, 2.0).of(10)
        (5, 20)
        """
        return round(self.low * size), round(self.high * size)


ON_CPU = MeasuredRange(0.94, 1.06)
"""Resident memory for our trainer on a CPU, from 47 peaks, some of which were used in the fit."""

OWN_ON_GPU = MeasuredRange(0.99, 1.02)
"""Allocated memory for our trainer on a GPU. The range holds all eleven runs measured."""

ALLOCATED = MeasuredRange(0.96, 1.18)
"""Allocated memory for other programs, from 51 ranks.

They were planned before anything was changed for them. The range is that of the plan that included
what had caused the largest errors. The plan has improved since (0.96 to 1.07), but no new logs have
tested it.
"""

ON_DEVICE_BYTES = round(2.6 * 2**30)
ON_DEVICE_SHARE = 1.11
"""What nvidia-smi reports is this many bytes plus this share of what the allocator reserves.

The bytes are the context, libraries and communication buffers; the rest of the share are unused
blocks. Both were fitted to 130 readings (least absolute errors) on V100, A100, H100 and H200.
"""


ON_DEVICE = {
    "megatron-lm": MeasuredRange(0.92, 1.03),
    "megatron-deepspeed": MeasuredRange(0.91, 1.17),
}
"""What nvidia-smi reported, relative to what was expected, by framework, from 53 and 77 readings."""


def read_on_device(reserved_bytes: int) -> int:
    """Return what nvidia-smi is expected to report, for memory that the allocator reserves.

    >>> round(read_on_device(10 * 2**30) / 2**30, 2)
    13.7
    """
    return round(ON_DEVICE_BYTES + ON_DEVICE_SHARE * reserved_bytes)


def measured_range(choice: Choice) -> MeasuredRange:
    """Return the range of what a program allocates, relative to the plan."""
    if choice.on_cpu:
        return ON_CPU
    return OWN_ON_GPU if choice.own_trainer else ALLOCATED


def device_range(choice: Choice) -> MeasuredRange | None:
    """Return the range of what nvidia-smi reports, relative to what is expected; None if unknown."""
    if choice.on_cpu:
        return None
    framework = "megatron-lm" if choice.training.framework == "nemo" else choice.training.framework
    return ON_DEVICE.get(framework)
