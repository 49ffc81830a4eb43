"""Published results and datasheet peaks, and which of them compare with a run."""

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


@dataclass(frozen=True)
class Published:
    """One published result; None where its source does not say."""

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
    """Of published_results.csv."""


def _number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"[0-9.]+", text or "") else None


def read_table(name: str) -> list[dict[str, str]]:
    """The rows of a table that lies beside this module, as text."""
    text = files("runbook.results").joinpath("published", name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


@cache
def published_results() -> tuple[Published, ...]:
    """Every row of the table of published results."""
    found = []
    for line, row in enumerate(read_table(RESULTS), start=2):
        billions = _number(row["params_b"])
        sequence = _number(row["seq_len"])
        same = {
            name: row[name]
            for name in ("model", "accelerator", "precision", "date", "confidence", "source")
        }
        found.append(
            Published(
                **same,
                parameters=billions * 1e9 if billions else None,
                devices=row["n_accel"],
                sequence_length=int(sequence) if sequence else None,
                tokens_per_second_per_device=_number(row["tokens_s_per_accel"]),
                tflops_per_device=_number(row["tflops_per_accel"]),
                mfu_percent=_number(row["mfu_pct"]),
                hfu_percent=_number(row["hfu_pct"]),
                convention=row["flops_convention"] or "not stated",
                line=line,
            )
        )
    return tuple(found)


def same_device(one: str, other: str) -> bool:
    """Whether two names mean the same device, whatever network its machine has.

    >>> same_device("H100-SXM", "H100-SXM5-80GB"), same_device("A100-40GB", "A100-SXM4-80GB")
    (True, False)
    """
    kind = attrgetter("family", "peaks", "memory_bytes", "link_bandwidth")
    found = [device and kind(device) for device in map(find_accelerator, (one, other))]
    return found[0] == found[1] is not None


def peak_tflops(device: str, precision: str) -> float | None:
    """Datasheet peak of one device, dense; None where it is not known.

    >>> peak_tflops("H100-SXM", "bf16"), peak_tflops("MI250X-GCD", "fp16"), peak_tflops("cpu", "bf16")
    (989.4, 191.5, None)
    """
    found = find_accelerator(device)
    return found.peaks.get(precision) if found else None


def nearest(
    parameters: float, *, device: str, precision: str = "", sequence_length: int = 0
) -> list[Published]:
    """The five most like a run that give a speed: same device first, then size, precision and sequence length."""

    def distance(one: Published) -> tuple[float, int]:
        if one.parameters and parameters > 0:
            size = abs(math.log(one.parameters / parameters))
        else:
            size = 10.0
        away = 0.0 if same_device(device, one.accelerator) else 3.0
        number = 0.0 if precision and precision in one.precision else 0.5
        length = (
            abs(math.log((one.sequence_length or sequence_length or 1) / (sequence_length or 1)))
            / 4
        )
        return (size + away + number + (length if sequence_length else 0.0), one.line)

    with_speed = [one for one in published_results() if one.tokens_per_second_per_device]
    return sorted(with_speed, key=distance)[:5]
