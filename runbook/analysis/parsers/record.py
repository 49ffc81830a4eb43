"""What every parser produces: records, evaluations, and the log as one object."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from runbook.analysis.known_failures import Failure

KEYS = (
    "iteration",
    "loss",
    "grad_norm",
    "learning_rate",
    "loss_scale",
    "seconds",
    "samples_per_second",
    "tokens_per_second",
    "tflops",
    "tflops_convention",
    "skipped",
    "nan",
    "segment",
    "states",
)
"""Keys of a record in JSON and CSV, in order; `source` (file and line) follows."""


@dataclass(slots=True)
class Record:
    """One iteration as the log tells it; None where the log does not say."""

    iteration: int
    loss: float | None = None
    grad_norm: float | None = None
    learning_rate: float | None = None
    loss_scale: float | None = None
    seconds: float | None = None
    samples_per_second: float | None = None
    tokens_per_second: float | None = None
    tflops: float | None = None
    tflops_convention: str | None = None
    skipped: int | None = None
    nan: int | None = None
    segment: int = 0
    states: tuple[str, ...] = ()
    line: int = 0
    file: int = 0


@dataclass(frozen=True, slots=True)
class Validation:
    """One evaluation as the log tells it."""

    iteration: int | None
    loss: float
    perplexity: float | None
    name: str
    """Which set: validation, test, or the name the log gives."""
    line: int
    file: int


@dataclass
class ParsedLog:
    """A log, or several files of one run, understood."""

    format: str = "unknown"
    records: list[Record] = field(default_factory=list)
    validation: list[Validation] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unread_lines: int = 0
    files: list[str] = field(default_factory=list)
    arguments: dict[str, str] = field(default_factory=dict)
    """What the program printed of its own arguments."""
    failures: list[Failure] = field(default_factory=list)
    """Known failures that the lines between the records name."""

    @property
    def segments(self) -> int:
        """How often training was started in this log."""
        return 1 + max((record.segment for record in self.records), default=-1)

    def source(self, one: Record | Validation) -> str:
        """File and line a record or evaluation was read from."""
        return f"{self.files[one.file]}:{one.line}" if self.files else str(one.line)


_LEADING = re.compile(r"\s*([-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?nan|[-+]?inf)", re.IGNORECASE)


def number(text: str) -> float | None:
    """The number a value begins with, as logs write it; None where it begins with none.

    >>> number(" 1.5E-04 "), number("10,050"), number("1467.8/1466.1"), number("112.9TFLOPS"), number("abc")
    (0.00015, 10050.0, 1467.8, 112.9, None)
    >>> number("nan.0")
    nan
    """
    try:
        return float(text)
    except ValueError:
        match = _LEADING.match(text)
        return float(match[1].replace(",", "")) if match else None


def milliseconds(text: str) -> float | None:
    """Seconds; the exponent is written rather than divided by, so that 150471.3 ms is 150.4713 s and no digit more.

    >>> milliseconds(" 150471.3 "), milliseconds(" 1467.8/1466.1 "), milliseconds("9371.81ms"), milliseconds("nanms")
    (150.4713, 1.4678, 9.37181, nan)
    """
    match = _LEADING.match(text)
    if match is None:
        return None
    digits = match[1].replace(",", "")
    return float(digits) / 1000 if "e" in digits.lower() or "n" in digits.lower() else float(digits + "e-3")


def finite(value: float | None, name: str, states: list[str]) -> float | None:
    """The value where it is a number; else None, and what it was is added to `states` (`nan_loss`, `infinite_loss`)."""
    if value is None:
        return None
    if value != value:
        states.append(f"nan_{name}")
        return None
    if value in (float("inf"), float("-inf")):
        states.append(f"infinite_{name}")
        return None
    return value


def as_dict(record: Record) -> dict[str, Any]:
    """The record under the keys of `runbook logs --json`."""
    values = {key: getattr(record, key) for key in KEYS}
    values["states"] = list(record.states)
    return values
