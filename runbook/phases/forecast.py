"""What a training that was not run would do: speeds of the rows of a table."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from runbook.errors import ParamsError
from runbook.params.catalogue import Model
from runbook.params.catalogues import read_models
from runbook.params.project import project_root
from runbook.plan.predict import check_columns, predict_rows

MAX_BYTES = 64 * 2**20


def predict_file(path: Path) -> list[dict[str, Any]]:
    """A prediction for each row of a table in the columns of published_results.csv; `ParamsError` for another file."""
    reader = csv.DictReader(io.StringIO(_text(path), newline=""))
    try:
        check_columns(reader.fieldnames)
        rows = list(reader)
    except csv.Error as error:
        raise ParamsError(f"{path}, line {reader.line_num}: {error}. Save the table as CSV with commas.") from error
    return [prediction.as_dict() for prediction in predict_rows(rows, _models())]


def predictions_text(rows: list[dict[str, Any]]) -> str:
    """The predictions for a terminal."""
    lines = []
    for row in rows:
        speed = (
            f"{row['tokens_s_per_accel']:g} tokens/s, {row['tflops_per_accel']:g} TFLOP/s ({row['flops_convention']})"
            if row["tokens_s_per_accel"] is not None
            else f"unknown: {row['reason']}"
        )
        lines.append(f"{row['row']:4d}  {row['model']} on {row['accelerator']}: {speed}")
    return "\n".join(lines)


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ParamsError(f"{path} has more than {MAX_BYTES // 2**20} MiB: that is no table of results.")
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ParamsError(f"{path} is not UTF-8 text (byte {error.start}). Save the table as CSV in UTF-8.") from error
    except OSError as error:
        raise ParamsError(f"{path}: {error.strerror}. Give the path of a CSV file.") from error


def _models() -> dict[str, Model]:
    catalogue = read_models(project_root())
    return {name: catalogue.get(name) for name in catalogue.names}
