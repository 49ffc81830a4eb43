"""Draws losses from multiple runs in one chart, including runs that are still training."""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from markupsafe import Markup

from runbook.core.curves import thin
from runbook.core.files import write_text
from runbook.core.table import Row
from runbook.core.units import four_digits, show_count
from runbook.plan_file.phase_names import FULL
from runbook.plan_file.schema import PhasePlan
from runbook.records.pages.summary import read_training_plan
from runbook.records.run_state import METRICS, RunState
from runbook.results.history import read_validation

MOST_RUNS = 12
"""Maximum number of curves in a chart.

If there are more runs, the most recently changed are shown.
"""
MOST_POINTS = 600
"""Maximum number of points in a curve, so that twelve curves stay below half a megabyte."""
READ_BYTES = 8 * 2**20
"""About how many bytes of metrics to parse.

In a larger file, only every second line is parsed, or every third line, and so on.
"""
LIVE_FOLDER = ".live"
"""Folder next to the runs, with a small script for each training run that is being watched."""
SECONDS_BETWEEN_LIVE_WRITES = 5.0

Point = tuple[int, int, float, float]
"""Iteration, tokens seen, loss, seconds since the first step."""


@dataclass(frozen=True)
class OverlayCurve:
    """The curve for a training run. Field names are those used by the script on the page."""

    name: str
    model: str
    """Describes the model and the batch.

    Only curves with the same description share an axis of iterations.
    """
    points: Sequence[Point]
    validation: Sequence[Point]
    restarts: Sequence[Point]
    untrained: float
    """Loss of an untrained model, which is ln(vocabulary size); 0 if there is no plan."""
    running: bool
    iterations: int
    """Number of planned steps; 0 if there is no plan."""

    def as_json(self) -> Markup:
        """Return the curve as JSON that is safe inside a script."""
        text = json.dumps(asdict(self), separators=(",", ":"), allow_nan=False)
        return Markup(text.replace("<", "\\u003c"))


def overlay_curves(runs: Iterable[RunState]) -> list[OverlayCurve]:
    """Return the curves for all runs that have one, newest run first."""
    curves: list[OverlayCurve] = []
    for run in runs:
        if len(curves) == MOST_RUNS:
            break
        curve = read_overlay_curve(run.folder, is_running=run.state == "running")
        if curve.points or curve.running:
            curves.append(curve)

    return curves


def read_overlay_curve(run_folder: Path, *, is_running: bool) -> OverlayCurve:
    """Return the loss curve for full training; it is empty if training has not begun."""
    rows = _sampled_rows(run_folder / METRICS[FULL])
    return curve_of_rows(run_folder, rows, is_running=is_running)


def curve_of_rows(run_folder: Path, rows: Iterable[Row], *, is_running: bool) -> OverlayCurve:
    """Make the curve from rows in metrics.jsonl.

    A step repeated after a restart appears once.
    """
    spec = read_training_plan(run_folder)
    points, restarts = _joined(rows)
    by_iteration = {point[0]: point for point in points}
    validation = []
    for evaluation in read_validation(run_folder / "validation.jsonl"):
        near = by_iteration.get(evaluation.iteration)
        if near is not None and math.isfinite(evaluation.loss):
            validation.append((near[0], near[1], four_digits(evaluation.loss), near[3]))

    return OverlayCurve(
        name=run_folder.name,
        model=_model_text(spec) if spec else "",
        points=_thinned(points),
        validation=validation,
        restarts=restarts,
        untrained=round(math.log(spec.model.shape.vocabulary), 4) if spec else 0.0,
        running=is_running,
        iterations=spec.duration.iterations if spec else 0,
    )


def write_live_curve(run_folder: Path, curve: OverlayCurve) -> Path:
    """Write the script that the page for all runs reloads regularly while this run trains.

    A page that is opened as a file may load scripts, but may not read any other files.
    """
    path = run_folder.parent / LIVE_FOLDER / f"{run_folder.name}.js"
    path.parent.mkdir(exist_ok=True)
    write_text(path, f"receiveCurve({curve.as_json()});\n")
    return path


def _model_text(spec: PhasePlan) -> str:
    return (
        f"{show_count(spec.model.parameters)} parameters, {spec.batch.global_} sequences per step"
    )


def _sampled_rows(path: Path) -> Iterator[Row]:
    """Yield complete rows of a metrics file, but only as many as a chart needs."""
    if not path.exists():
        return
    every = 1 + path.stat().st_size // READ_BYTES
    with path.open(encoding="utf-8", errors="replace") as stream:
        for number, line in enumerate(stream):
            if number % every:
                continue
            try:
                row = json.loads(line)
            except ValueError:
                # The line was cut off when the writer was killed, or is still being written.
                continue

            if isinstance(row, dict):
                yield row


def _joined(rows: Iterable[Row]) -> tuple[list[Point], list[Point]]:
    """Return the points in order, and where each segment except the first starts."""
    points: list[Point] = []
    restarts: list[Point] = []
    first_time = 0.0
    summed_seconds = 0.0
    segment = None
    for row in rows:
        iteration = row.get("iteration")
        loss = row.get("loss")
        if not isinstance(iteration, int) or not _is_finite(loss):
            continue
        while points and points[-1][0] >= iteration:
            points.pop()
        moment = _number(row, "time")
        first_time = first_time or moment
        summed_seconds += _number(row, "seconds")
        elapsed = moment - first_time if moment else summed_seconds
        tokens = int(_number(row, "consumed_tokens"))
        point = (iteration, tokens, four_digits(_number(row, "loss")), round(elapsed, 1))
        if segment is not None and row.get("segment") != segment:
            restarts.append(point)
        segment = row.get("segment")
        points.append(point)

    return points, restarts


def _number(row: Row, key: str) -> float:
    """Return the number that a row has under this key, or 0 if there is none."""
    return float(row.get(key) or 0.0)


def _is_finite(value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value)  # type: ignore[arg-type]


def _thinned(points: Sequence[Point]) -> list[Point]:
    numbered = [(float(number), point[2]) for number, point in enumerate(points)]
    return [points[int(number)] for number, _ in thin(numbered, MOST_POINTS)]
