"""Records as columns and as curves: what every export writes, under the names of `runbook logs --json`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from runbook.analysis.parsers.record import ParsedLog, Record

NUMBERS = {
    "loss": "loss (nat/token)",
    "grad_norm": "gradient norm",
    "learning_rate": "learning rate",
    "loss_scale": "loss scale",
    "seconds": "step time (s)",
    "samples_per_second": "throughput (samples/s)",
    "tokens_per_second": "throughput (tokens/s)",
    "tflops": "speed (TFLOP/s/device)",
}
"""Numbers of a record that make a curve, and what they are called with their units."""
WHOLE = ("iteration", "skipped", "nan", "segment")
TEXTS = ("tflops_convention", "states", "source")


def column(log: ParsedLog, name: str) -> list[Any]:
    """One column over all records; None where the log does not say."""
    if name == "states":
        return [" ".join(record.states) for record in log.records]
    if name == "source":
        return [log.source(record) for record in log.records]
    return [getattr(record, name) for record in log.records]


def points(record: Record) -> Iterator[tuple[str, float]]:
    """Every number the record has."""
    for name in NUMBERS:
        value = getattr(record, name)
        if value is not None and value == value:
            yield name, float(value)


def wall_times(log: ParsedLog, end: float) -> list[float]:
    """When each record was made, counted back from the end of the log by the step times it tells."""
    seconds = [record.seconds or 0.0 for record in log.records]
    now = end - sum(seconds)
    times = []
    for one in seconds:
        now += one
        times.append(now)
    return times
