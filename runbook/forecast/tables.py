"""Tables read by `runbook forecast`: finished runs, planned runs, or a curve."""

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from runbook.core.errors import DataError
from runbook.forecast.laws import Runs
from runbook.forecast.messages import ForecastMessage

FLOPS_PER_PARAMETER_AND_TOKEN = 6
"""FLOPs in the forward and backward pass through a dense model (Kaplan et al., arXiv:2001.08361),
used if a table lists no FLOPs.
"""


@dataclass(frozen=True)
class TrainingRow:
    """A row in a table of training runs."""

    series: str
    params: float
    params_no_embed: float
    tokens: float
    flops: float
    loss: float
    """Final loss in nats; NaN for a planned run."""


@dataclass(frozen=True)
class CurvePoint:
    """A validation loss measured during a training run."""

    step: float
    val_loss: float


@dataclass(frozen=True)
class PartialCurve:
    """The first part of a validation curve."""

    points: tuple[CurvePoint, ...]
    total_steps: float
    decay_from: float
    """Share of steps after which the learning rate falls; NaN if unknown."""


def read_finished_trainings(path: Path) -> list[TrainingRow]:
    """Read a table of training runs with losses."""
    return [_training_row(path, line, row, finished=True) for line, row in _rows(path)]


def read_planned_trainings(path: Path) -> list[TrainingRow]:
    """Read a table of training runs. Any losses in it are ignored."""
    return [_training_row(path, line, row, finished=False) for line, row in _rows(path)]


def as_runs(rows: list[TrainingRow]) -> Runs:
    """Return the rows as arrays."""
    return Runs(
        params=np.array([row.params for row in rows]),
        params_no_embed=np.array([row.params_no_embed for row in rows]),
        tokens=np.array([row.tokens for row in rows]),
        flops=np.array([row.flops for row in rows]),
        loss=np.array([row.loss for row in rows]),
    )


def read_curve(path: Path) -> PartialCurve:
    """Read a partial validation curve from a table.

    Lines without a validation loss are skipped.
    """
    points = []
    total_steps = math.nan
    decay_from = math.nan
    for line, row in _rows(path):
        total_steps = _number(path, line, row, "total_steps")
        if row.get("decay_from"):
            decay_from = _number(
                path,
                line,
                row,
                "decay_from",
                may_be_zero=True,
            )
            if decay_from > 1:
                raise DataError(
                    ForecastMessage.DECAY_FROM_IS_A_SHARE,
                    path=path,
                    line=line,
                    decay_from=decay_from,
                    share=decay_from / total_steps,
                )

        if row.get("val_loss"):
            step = _number(
                path,
                line,
                row,
                "step",
                may_be_zero=True,
            )
            points.append(CurvePoint(step, _number(path, line, row, "val_loss")))

    if not points:
        raise DataError(ForecastMessage.NO_VALIDATION_LOSS, path=path)
    points.sort(key=lambda point: point.step)
    return PartialCurve(tuple(points), total_steps, decay_from)


def _rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(ForecastMessage.CURVE_NOT_READABLE, path=path, error=error) from error

    reader = csv.DictReader(text.splitlines())
    for row in reader:
        yield reader.line_num, {key: value or "" for key, value in row.items() if key}


def _training_row(
    path: Path,
    line: int,
    row: dict[str, str],
    *,
    finished: bool,
) -> TrainingRow:
    params = _number(path, line, row, "params")
    tokens = _number(path, line, row, "tokens")
    params_no_embed = params
    if row.get("params_no_embed"):
        params_no_embed = _number(path, line, row, "params_no_embed")
    flops = FLOPS_PER_PARAMETER_AND_TOKEN * params * tokens
    if row.get("flops"):
        flops = _number(path, line, row, "flops")
    return TrainingRow(
        series=row.get("series", ""),
        params=params,
        params_no_embed=params_no_embed,
        tokens=tokens,
        flops=flops,
        loss=_number(path, line, row, "loss") if finished else math.nan,
    )


def _number(
    path: Path,
    line: int,
    row: dict[str, str],
    column: str,
    *,
    may_be_zero: bool = False,
) -> float:
    text = row.get(column, "")
    try:
        number = float(text)
    except ValueError:
        number = math.nan

    allowed = number >= 0 if may_be_zero else number > 0
    if not allowed or math.isinf(number):
        raise DataError(
            ForecastMessage.NUMBER_NEEDED, path=path, line=line, column=column, text=text
        )

    return number
