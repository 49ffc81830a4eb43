"""Ranges of measured memory peaks, relative to the plan.

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

OWN_ON_GPU = MeasuredRange(0.96, 1.0)
"""Allocated memory for our trainer on a GPU. The range holds all eight sizes measured."""

ALLOCATED = MeasuredRange(0.96, 1.18)
"""Allocated memory for other programs, from 51 ranks.

They were planned before anything was changed for them, but the plan now includes what caused the
largest errors.
"""

ON_DEVICE = {
    "megatron-lm": MeasuredRange(1.07, 1.28),
    "megatron-deepspeed": MeasuredRange(1.17, 1.92),
}
"""Memory that nvidia-smi reports, by framework, from 53 and 77 readings.

It includes contexts, communication buffers and unused allocator blocks. The DeepSpeed readings are
from 2021 and 2022.
"""


def measured_range(choice: Choice) -> MeasuredRange:
    """Return the range of what a program allocates, relative to the plan."""
    if choice.on_cpu:
        return ON_CPU
    return OWN_ON_GPU if choice.own_trainer else ALLOCATED


def device_range(choice: Choice) -> MeasuredRange | None:
    """Return the range of what nvidia-smi reports, relative to the plan, or None if unknown."""
    if choice.on_cpu:
        return None
    framework = "megatron-lm" if choice.training.framework == "nemo" else choice.training.framework
    return ON_DEVICE.get(framework)
