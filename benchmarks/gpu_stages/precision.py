"""8-bit training without Transformer Engine.

The row contains the measurement, or the reason why the trainer refuses 8 bits.
"""

from __future__ import annotations

from typing import Any

from benchmarks.gpu_stages import throughput
from benchmarks.gpu_stages.worker import Emit
from runbook.plan_file.errors import TrainingError


def fp8(arguments: dict[str, Any], emit: Emit) -> None:
    """Emit a row for a program that computes in 8 bits, or why the trainer refused to do so."""
    try:
        throughput.measure(arguments, emit)
    except TrainingError as error:
        emit({"program": "ours", "fp8": arguments["options"]["fp8"], "refused": str(error)})
