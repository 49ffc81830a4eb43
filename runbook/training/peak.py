"""What the machine reaches in one large matrix product: the measured peak that a training is held against."""

from __future__ import annotations

import time

import torch

from runbook.training import products
from runbook.training.distributed import device
from runbook.training.model import DTYPES

SIZES = {"cpu": 1024, "cuda": 8192}
REPEATS = 4
SHORTEST = 10
"""Trainings of fewer steps are not worth the measurement."""


def measured_tflops(number_format: str) -> float:
    """TFLOP/s of the best of a few square products in this number format, on all ranks at once as training does it."""
    size = SIZES[device().type]
    left = torch.rand(size, size, device=device()).to(DTYPES[number_format])
    right = left.T.contiguous()
    multiply = products.product if number_format == "fp32" and products.pays() else torch.matmul
    best = float("inf")
    for _ in range(REPEATS):
        _wait()
        begun = time.perf_counter()
        multiply(left, right)
        _wait()
        best = min(best, time.perf_counter() - begun)
    return 2 * size**3 / best / 1e12


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
