"""The device under test: its name and its clocks, and how to wait for it and time its work.

In a rehearsal the device is the CPU.
"""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

STATE_FIELDS = (
    "clocks.sm",
    "clocks.mem",
    "power.draw",
    "temperature.gpu",
    "utilization.gpu",
    "clocks_event_reasons.active",
)
PATIENCE_SECONDS = 10


def device() -> torch.device:
    """Return the GPU, or the CPU in a rehearsal."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def device_name() -> str:
    """Return the name that a plan gives this device."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def wait() -> None:
    """Wait until the GPU has finished its work."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def seconds_per_call(
    functions: Sequence[Callable[[], Any]], *, repeats: int = 5, calls: int = 10, warmup: int = 3
) -> float:
    """Return the median time for a call, in seconds.

    The functions take turns, so that none finds its data in the cache.

    On a GPU, events around a group of calls are used to time it, so that launching the next call
    costs nothing.
    """
    for number in range(warmup):
        functions[number % len(functions)]()
    wait()
    measure = _events_seconds if torch.cuda.is_available() else _clock_seconds
    groups = [measure(functions, calls) for _ in range(repeats)]
    return statistics.median(groups)


def _events_seconds(functions: Sequence[Callable[[], Any]], calls: int) -> float:
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    start.record()
    for number in range(calls):
        functions[number % len(functions)]()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1000 / calls


def _clock_seconds(functions: Sequence[Callable[[], Any]], calls: int) -> float:
    start = time.perf_counter()
    for number in range(calls):
        functions[number % len(functions)]()
    return (time.perf_counter() - start) / calls


class StateReader:
    """nvidia-smi, started while the GPU is busy, so that it sees the clocks under load."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        if torch.cuda.is_available():
            options = [f"--query-gpu={','.join(STATE_FIELDS)}", "--format=csv,noheader,nounits"]
            try:
                self._process = subprocess.Popen(
                    ["nvidia-smi", *options],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                )
            except OSError:
                self._process = None

    def read(self) -> dict[str, str]:
        """Return the output by field. The result is empty if nvidia-smi does not answer."""
        if self._process is None:
            return {}
        try:
            text, _ = self._process.communicate(timeout=PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return {}
        values = [value.strip() for value in text.strip().split(",")]
        return dict(zip(STATE_FIELDS, values, strict=False))


def reset_peak() -> None:
    """Reset the peak memory use on the device."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def peak_bytes() -> dict[str, int]:
    """Return peak allocated and peak reserved device memory or, on a CPU, peak resident memory."""
    if torch.cuda.is_available():
        return {
            "peak_bytes": torch.cuda.max_memory_allocated(),
            "reserved_bytes": torch.cuda.max_memory_reserved(),
        }
    import resource

    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"peak_bytes": resident, "reserved_bytes": resident}
