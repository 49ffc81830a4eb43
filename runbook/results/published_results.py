"""Reads published results and datasheet peaks, and finds the results most similar to a run."""

import csv
import math
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from operator import attrgetter

from runbook.planning.cost.accelerators import find_accelerator

RESULTS = "published_results.csv"
PEAKS = "hardware_peaks.csv"
THIS_RUN = "this run"
"""Name used for this run in a table of published results."""


@dataclass(frozen=True)
class Published:
    """A published result. A field is None if the source does not state it."""

    model: str
    parameters: float | None
    accelerator: str
    devices: str
    precision: str
    sequence_length: int | None
    tokens_per_second_per_device: float | None
    tflops_per_device: float | None
    mfu_percent: float | None
    hfu_percent: float | None
    convention: str
    date: str = ""
    confidence: str = ""
    source: str = ""
    line: int = 0
    """Line number in published_results.csv."""


def _number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"[0-9.]+", text or "") else None


def read_table(name: str) -> list[dict[str, str]]:
    """Return the rows in a table from the folder `published`, as text."""
    text = files("runbook.results").joinpath("published", name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


@cache
def published_results() -> tuple[Published, ...]:
    """Return all rows in the table of published results."""
    rows = read_table(RESULTS)
    # Line 1 of the file contains the column names
    return tuple(_published_result(row, line) for line, row in enumerate(rows, start=2))


def _published_result(row: dict[str, str], line: int) -> Published:
    billions = _number(row["params_b"])
    sequence_length = _number(row["seq_len"])
    return Published(
        model=row["model"],
        parameters=billions * 1e9 if billions else None,
        accelerator=row["accelerator"],
        devices=row["n_accel"],
        precision=row["precision"],
        sequence_length=int(sequence_length) if sequence_length else None,
        tokens_per_second_per_device=_number(row["tokens_s_per_accel"]),
        tflops_per_device=_number(row["tflops_per_accel"]),
        mfu_percent=_number(row["mfu_pct"]),
        hfu_percent=_number(row["hfu_pct"]),
        convention=row["flops_convention"] or "not stated",
        date=row["date"],
        confidence=row["confidence"],
        source=row["source"],
        line=line,
    )


def same_device(first_name: str, second_name: str) -> bool:
    """Return whether two names denote the same device, regardless of the network.

    >>> same_device("H100-SXM", "H100-SXM5-80GB"), same_device("A100-40GB", "A100-SXM4-80GB")
    (True, False)
    """
    first = find_accelerator(first_name)
    second = find_accelerator(second_name)
    if first is None or second is None:
        return False
    hardware = attrgetter("family", "peaks", "memory_bytes", "link_bandwidth")
    return bool(hardware(first) == hardware(second))


def peak_tflops(device: str, precision: str) -> float | None:
    """Return the dense peak in TFLOP/s from the datasheet, or None if unknown.

    >>> peak_tflops("H100-SXM", "bf16"), peak_tflops("MI250X-GCD", "fp16")
    (989.4, 191.5)
    >>> peak_tflops("cpu", "bf16") is None
    True
    """
    accelerator = find_accelerator(device)
    return accelerator.peaks.get(precision) if accelerator else None


def nearest(
    parameters: float,
    *,
    device: str,
    precision: str = "",
    sequence_length: int = 0,
) -> list[Published]:
    """Return the five results with a speed that are most similar to a run.

    Similarity is judged first by device, then by size, precision and sequence length.
    """

    def distance(result: Published) -> tuple[float, int]:
        size = 10.0
        if result.parameters and parameters > 0:
            size = abs(math.log(result.parameters / parameters))
        other_device = 0.0 if same_device(device, result.accelerator) else 3.0
        if precision and precision in result.precision:
            other_precision = 0.0
        else:
            other_precision = 0.5

        length = 0.0
        if sequence_length:
            length_ratio = (result.sequence_length or sequence_length) / sequence_length
            length = abs(math.log(length_ratio)) / 4

        return (size + other_device + other_precision + length, result.line)

    with_speed = [result for result in published_results() if result.tokens_per_second_per_device]
    return sorted(with_speed, key=distance)[:5]
