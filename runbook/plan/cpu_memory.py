"""What a training process on a CPU takes beyond its tensors, fitted to the peaks of real trainings.

tests/plan/measured_peaks.csv has them (torch 2.13, gloo, Linux, one to four processes, 2026-11-22), and the test beside
it says how near this comes. A tensor's bytes are not all: oneDNN copies matrices into its own order, and a freed block
is not always the right size for the next.
"""

from __future__ import annotations

from runbook.params.schema import Precision

PROCESS_BYTES = 450 * 2**20
"""Python, torch and megatron-core loaded (360 MiB), and buffers."""

ACTIVATIONS = 2.07
"""Bytes taken for a byte of activations."""

DROPPED_SCORES = 4.4
"""Bytes taken for a byte of 16-bit attention scores where some are dropped; else our attention keeps none."""

LOGITS = 1.14
"""The same for the logits, whose gradient takes their place (`training/cross_entropy.py`)."""


def moment_bytes(precision: Precision, *, deepspeed: bool, zero_stage: int, data: int) -> float:
    """Bytes a parameter that the optimizer's step takes for a moment, when activations are gone.

    megatron-core's distributed optimizer copies its share of the gradients, and in 16 bits gathers the new weights.

    >>> moment_bytes(Precision.BF16, deepspeed=False, zero_stage=1, data=2)
    6.0
    """
    half = precision is not Precision.FP32
    if deepspeed:  # ZeRO 3 has its buckets all the time: `gathered_bytes`
        whole = 0.0 if zero_stage == 3 else 5.0 if zero_stage == 0 else 10.5 / data
        return whole if half else 2 * whole
    if zero_stage == 0:
        return 2.0
    if data == 1:  # nothing is shared out
        return 5.5 if half else 8.0
    return (4.0 if half else 0.0) + (4.0 if half else 8.0) / data


def gathered_bytes(parameters: float, *, deepspeed: bool, zero_stage: int) -> float:
    """Bytes that ZeRO 3 holds all the time for gathering weights and for buckets; measured on two and four ranks."""
    return 140 * 2**20 + 6.8 * parameters if deepspeed and zero_stage == 3 else 0.0
