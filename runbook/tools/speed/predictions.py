"""Predicted speeds of the rows of a table: `runbook plan --predict FILE.csv`."""

import csv
import io
from collections.abc import Iterable
from pathlib import Path

from runbook.core.errors import ParamsError
from runbook.params.catalogues import read_models
from runbook.params.project import project_root
from runbook.tools.speed.predict import Prediction, check_columns, predict_rows

MAX_BYTES = 64 * 2**20
"""Larger files are no tables of results."""


def predict_file(path: Path) -> list[Prediction]:
    """A prediction for each row of a table in the columns of published_results.csv; `ParamsError` for another file."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ParamsError(
                f"{path} has more than {MAX_BYTES // 2**20} MiB: that is no table of results."
            )
        reader = csv.DictReader(io.StringIO(path.read_text(encoding="utf-8-sig"), newline=""))
        check_columns(reader.fieldnames)
        rows = list(reader)
    except csv.Error as error:
        raise ParamsError(
            f"{path}, line {reader.line_num}: {error}. Save the table as CSV with commas."
        ) from error
    except UnicodeDecodeError as error:
        raise ParamsError(
            f"{path} is not UTF-8 text (byte {error.start}). Save the table as CSV in UTF-8."
        ) from error
    except OSError as error:
        raise ParamsError(f"{path}: {error.strerror}. Give the path of a CSV file.") from error
    catalogue = read_models(project_root())
    return predict_rows(rows, {name: catalogue.get(name) for name in catalogue.names})


def predictions_text(predictions: Iterable[Prediction]) -> str:
    """The predictions for a terminal."""
    lines = []
    for made in predictions:
        row = made.row
        speed = f"unknown: {made.reason}"
        if made.tokens_s_per_accel is not None:
            speed = f"{made.tokens_s_per_accel:g} tokens/s, {made.tflops_per_accel:g} TFLOP/s ({row.convention})"
        lines.append(f"{row.number:4d}  {row.model} on {row.accelerator}: {speed}")
    return "\n".join(lines)
