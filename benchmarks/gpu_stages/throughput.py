"""Times a training step: one program, one shape, one process.

If a model does not fit, the micro-batch is halved and the micro-batch count doubled, to keep the
same number of tokens. The row says so.
"""

from __future__ import annotations

import gc
import os
import statistics
import time
from typing import Any

import torch

from benchmarks import training_vs_plain
from benchmarks.gpu_stages import device, profiles
from benchmarks.gpu_stages.programs import SHAPES, Program, ProgramOptions, make_program
from benchmarks.gpu_stages.worker import Emit

WARM_UP_STEPS = 2
TIMED_STEPS = 4


def measure(arguments: dict[str, Any], emit: Emit) -> None:
    """Emit the row for a program, and a second row with its profile if the job asks for it."""
    options = ProgramOptions(**arguments["options"])
    begun = time.monotonic()
    program = make_program(options)
    device.wait()
    build_seconds = time.monotonic() - begun
    micro_batch = options.micro_batch
    count = options.num_micro_batches
    too_large: list[str] = []
    while True:
        micro_batches = program.micro_batches(micro_batch, count)
        try:
            row = timed_row(program, micro_batches, options)
            break
        except torch.OutOfMemoryError as error:
            if micro_batch == 1:
                raise
            too_large.append(f"micro-batch {micro_batch}: {error}"[:200])
        torch._dynamo.config.automatic_dynamic_shapes = (
            False  # torch compiles the next size from scratch
        )
        del micro_batches
        gc.collect()
        torch.cuda.empty_cache()
        device.reset_peak()
        micro_batch //= 2
        count *= 2
    row |= {
        "micro_batch": micro_batch,
        "num_micro_batches": count,
        "build_seconds": round(build_seconds, 2),
        "too_large": too_large,
    }
    emit(identity(arguments, options) | row)
    if arguments.get("profile"):
        table = profiles.profile(lambda: program.step(micro_batches))
        emit({"profile": options.program, "parts": parts_variable()} | table)


def identity(arguments: dict[str, Any], options: ProgramOptions) -> dict[str, Any]:
    """Return which program the row belongs to."""
    return {
        "program": options.program,
        "shape": options.shape,
        "engine": options.engine if options.program == "ours" else "",
        "precision": options.precision,
        "fp8": options.fp8,
        "recompute": options.recompute,
        "zero_stage": options.zero_stage,
        "parts": parts_variable() if options.program == "ours" else "",
        "kernels": options.kernels,
    }


def parts_variable() -> str:
    """Return the requested kernel parts, or `all` if the variable is not set."""
    return os.environ.get("RUNBOOK_KERNEL_PARTS", "all")


def timed_row(
    program: Program, micro_batches: list[Any], options: ProgramOptions
) -> dict[str, Any]:
    """Warm up, time some steps, and return their summary."""
    warm_up = [_seconds_of_step(program, micro_batches)[0] for _ in range(WARM_UP_STEPS)]
    seconds: list[float] = []
    losses: list[float] = []
    reader = None
    for number in range(TIMED_STEPS):
        if number == TIMED_STEPS - 1:
            reader = device.StateReader()
        step_seconds, loss = _seconds_of_step(program, micro_batches)
        seconds.append(step_seconds)
        losses.append(loss)
    assert reader is not None
    median = statistics.median(seconds)
    sequences = len(micro_batches) * options_sequences(micro_batches)
    length = SHAPES[options.shape]["sequence"]
    row: dict[str, Any] = {
        "median_seconds": median,
        "seconds": [round(value, 5) for value in seconds],
        "warm_up_seconds": [round(value, 3) for value in warm_up],
        "tokens_per_second": sequences * length / median,
        "mfu": mfu(options, sequences / median),
        "losses": losses,
        "gpu_state": reader.read(),
        "compiler": compiler_counts(),
    }
    update = getattr(program, "update", None)
    if update is not None:
        row["gradient_norm"] = float(update.gradient_norm)
        row["loss_scale"] = float(update.loss_scale)
    return row | device.peak_bytes()


def options_sequences(micro_batches: list[Any]) -> int:
    """Return how many sequences a micro-batch has."""
    first = micro_batches[0]
    ids = first["tokens"] if isinstance(first, dict) else first[0]
    return int(ids.shape[0])


def mfu(options: ProgramOptions, sequences_per_second: float) -> float | None:
    """Return the share of the datasheet peak by the PaLM formula, or None on a CPU.

    The peak is for the number format of the products: bf16, or fp8 for training in 8 bits.
    """
    if options.shape not in training_vs_plain.SHAPES:
        return None
    is_wide = options.fp8 == "none"
    precision = options.precision if is_wide else training_vs_plain.FP8 + options.fp8
    return training_vs_plain.mfu(options.shape, precision, sequences_per_second)


def compiler_counts() -> dict[str, Any]:
    """Return how many graphs torch.compile created, and where the graph breaks are."""
    from torch._dynamo.utils import counters

    stats = counters.get("stats", {})
    breaks = counters.get("graph_break", {})
    return {
        "unique_graphs": int(stats.get("unique_graphs", 0)),
        "calls_captured": int(stats.get("calls_captured", 0)),
        "graph_breaks": {str(reason)[:160]: int(count) for reason, count in breaks.items()},
    }


def _seconds_of_step(program: Program, micro_batches: list[Any]) -> tuple[float, float]:
    device.wait()
    start = time.perf_counter()
    loss = program.step(micro_batches)
    device.wait()
    return time.perf_counter() - start, float(loss)
