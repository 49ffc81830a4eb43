"""Predicts a speed for each row in a table: `runbook plan --predict FILE.csv`."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from runbook.core.checks import counted
from runbook.core.errors import ParamsError
from runbook.params.catalogues import read_models
from runbook.params.project import project_root
from runbook.planning.cost.calibration import LIKE
from runbook.tools.speed.measured_rows import with_measurements
from runbook.tools.speed.messages import SpeedMessage
from runbook.tools.speed.predict import Prediction, check_columns, predict_rows

MAX_BYTES = 64 * 2**20
"""Maximum size of a table of results, in bytes."""


def predict_file(path: Path, measured: Path | None = None) -> list[Prediction]:
    """Predict each row of a table with the columns of published_results.csv.

    `measured` is another such table, with measured speeds that correct the predictions for the same
    system. Raise `ParamsError` for any other file.
    """
    rows = _read_table(path)
    catalogue = read_models(project_root())
    models = {name: catalogue.get(name) for name in catalogue.names}
    predictions = predict_rows(rows, models)
    if measured is None:
        return predictions
    return with_measurements(predictions, rows, _read_table(measured), models)


def _read_table(path: Path) -> list[dict[str, str | None]]:
    """Return the rows in a table of results, or raise `ParamsError` for any other file."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ParamsError(SpeedMessage.TABLE_TOO_LARGE, path=path, max_bytes=MAX_BYTES // 2**20)

        reader = csv.DictReader(io.StringIO(path.read_text(encoding="utf-8-sig"), newline=""))
        check_columns(reader.fieldnames)
        return list(reader)
    except csv.Error as error:
        raise ParamsError(
            SpeedMessage.ROW_NOT_READABLE, path=path, line_num=reader.line_num, error=error
        ) from error
    except UnicodeDecodeError as error:
        raise ParamsError(SpeedMessage.TABLE_NOT_UTF8, path=path, start=error.start) from error
    except OSError as error:
        raise ParamsError(
            SpeedMessage.TABLE_NOT_READABLE, path=path, reason=error.strerror
        ) from error


def predictions_text(predictions: Sequence[Prediction], *, are_corrected: bool = False) -> str:
    """Return the predictions as text for a terminal, one line each.

    If a table of measured speeds was given, a last line counts the rows that it did not correct.
    """
    lines = [_prediction_line(prediction) for prediction in predictions]
    predicted = [one for one in predictions if one.setup is not None]
    uncorrected = [one for one in predicted if one.correction is None]
    if are_corrected and uncorrected:
        lines.append(
            SpeedMessage.NOT_CORRECTED.fill(
                uncorrected=len(uncorrected), predicted=counted(len(predicted), "row"), like=LIKE
            )
        )

    return "\n".join(lines)


def _prediction_line(prediction: Prediction) -> str:
    """Return the speed for one row, or the reason why it is unknown."""
    row = prediction.row
    if prediction.tokens_s_per_accel is None:
        speed = f"unknown: {prediction.reason}"
    else:
        low, high = prediction.interval
        tokens = f"{prediction.tokens_s_per_accel:g} tokens/s ({low:g} to {high:g})"
        speed = f"{tokens}, {prediction.tflops_per_accel:g} TFLOP/s ({row.convention})"
        if prediction.correction:
            speed += SpeedMessage.CORRECTED.fill(count=prediction.correction.measurements)

    return f"{row.number:4d}  {row.model} on {row.accelerator}: {speed}"
