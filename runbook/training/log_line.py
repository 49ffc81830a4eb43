"""Lines for the job's output in Megatron-LM's own form, so that every tool that reads its logs reads ours."""

from __future__ import annotations

import datetime
import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Interval:
    """The steps since the last line, averaged; `loss` is None where no step had one."""

    iteration: int
    iterations: int
    consumed_samples: int
    seconds: float
    tflops: float
    learning_rate: float
    global_batch: int
    loss: float | None
    loss_scale: float
    gradient_norm: float
    skipped: int
    nan: int


def training_line(interval: Interval, now: datetime.datetime) -> str:
    """The line of megatron-core 0.16 with throughput (`--log-throughput`)."""
    loss = "" if interval.loss is None else f" lm loss: {interval.loss:.6E} |"
    norm = "" if math.isnan(interval.gradient_norm) else f" grad norm: {interval.gradient_norm:.3f} |"
    return (
        f" [{now:%Y-%m-%d %H:%M:%S.%f}] iteration {interval.iteration:8d}/{interval.iterations:8d} |"
        f" consumed samples: {interval.consumed_samples:12d} |"
        f" elapsed time per iteration (ms): {interval.seconds * 1000:.1f} |"
        f" throughput per GPU (TFLOP/s/GPU): {interval.tflops:.1f} |"
        f" learning rate: {interval.learning_rate:.6E} |"
        f" global batch size: {interval.global_batch:5d} |"
        f"{loss} loss scale: {interval.loss_scale:.1f} |{norm}"
        f" number of skipped iterations: {interval.skipped:3d} |"
        f" number of nan iterations: {interval.nan:3d} |"
    )


def validation_lines(iteration: int, loss: float) -> str:
    """The three lines Megatron-LM prints after an evaluation."""
    line = (
        f" validation loss at iteration {iteration} | lm loss value: {loss:.6E} | "
        f"lm loss PPL: {perplexity(loss):.6E} | "
    )
    rule = "-" * (len(line) + 1)
    return f"{rule}\n{line}\n{rule}"


def perplexity(loss: float) -> float:
    """The exponential of the loss, capped where Megatron-LM caps it."""
    return math.exp(min(20.0, loss))
