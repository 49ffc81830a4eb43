"""Draws loss charts for a run, together with losses from other runs."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup

from runbook.core.curves import MOST_POINTS, loss_curve, thin
from runbook.core.errors import RecordError
from runbook.core.units import four_digits, show_count
from runbook.plan_file.phase_names import FULL
from runbook.planning.make_plan import parse_plan
from runbook.records.run_state import METRICS

MOST_OTHER_RUNS = 5

LARGEST_METRICS = 64 * 2**20
"""Size limit in bytes. A larger file from another run is not read merely to draw its curve."""


class Chart(NamedTuple):
    """Losses from a training run, as a picture and as data for the script on the page."""

    title: str
    points: list[tuple[float, float]]
    picture: Markup
    content: Markup


class Curve(NamedTuple):
    """Restarts in a training run, and its losses and evaluations as (iteration, tokens, loss)."""

    name: str
    # Only curves with the same model and batch share an axis of iterations.
    model: str
    points: Sequence[tuple[float, int, float]]
    validation: Sequence[tuple[int, int, float]]
    restarts: Sequence[tuple[int, int, float]]
    # Loss of an untrained model, which is ln(vocabulary size); 0 if there is no plan
    untrained: float


def loss_charts(run_folder: Path, *, with_others: bool = True) -> list[Chart]:
    """Return a chart for each training phase. The full training comes first.

    This chart also contains the curves from other runs. The script on the page gives each model
    separate axes.
    """
    charts: list[Chart] = []
    for phase in reversed(METRICS):
        curve = read_curve(run_folder, phase, "this run")
        if curve is None:
            continue
        if with_others and phase == FULL:
            others = _other_curves(run_folder, phase)
        else:
            others = []

        chart = _chart(phase, curve, others)
        if chart.picture:
            charts.append(chart)

    return charts


def _other_curves(run_folder: Path, phase: str) -> list[Curve]:
    """Return curves from the neighbouring runs that have changed most recently."""
    paths = run_folder.parent.glob(f"*/{METRICS[phase]}")
    folders = [path.parent for path in paths if path.parent != run_folder]
    folders.sort(key=lambda folder: folder.stat().st_mtime, reverse=True)
    curves = (read_curve(folder, phase, folder.name) for folder in folders[:MOST_OTHER_RUNS])
    return [curve for curve in curves if curve is not None]


def _chart(phase: str, curve: Curve, others: Sequence[Curve]) -> Chart:
    training = [(iteration, loss) for iteration, _, loss in curve.points]
    validation = [(float(iteration), loss) for iteration, _, loss in curve.validation]
    picture = loss_curve(
        [("training loss", training), ("validation loss", validation)],
        curve.untrained,
        [iteration for iteration, _, _ in curve.restarts],
    )
    series = [drawn._asdict() for drawn in (curve, *others)]
    content = json.dumps({"series": series}, separators=(",", ":"))
    title = f"Loss of {phase}"
    if curve.model:
        title += f", {curve.model}"
    return Chart(title, training, picture, Markup(content.replace("<", "\\u003c")))


def read_curve(run_folder: Path, phase: str, name: str) -> Curve | None:
    """Read the losses from one of the training phases.

    Return None if there are fewer than two losses, or if the file is too large to be read for a
    chart.
    """
    from runbook.results.history import read_metrics, read_validation

    path = run_folder / METRICS[phase]
    if not path.exists() or path.stat().st_size > LARGEST_METRICS:
        return None
    model, untrained = _model_of_plan(run_folder, phase)
    try:
        history = read_metrics(path)
    except RecordError:
        return None

    tokens = {step.iteration: step.consumed_tokens for step in history.steps}
    points = [(x, tokens[int(x)], four_digits(y)) for x, y in thin(history.losses, MOST_POINTS)]
    if len(points) < 2:
        return None
    validation = []
    for evaluation in read_validation(path.with_name("validation.jsonl")):
        consumed = tokens.get(evaluation.iteration, 0)
        validation.append((evaluation.iteration, consumed, four_digits(evaluation.loss)))

    restarts = [(first, tokens.get(first, 0), 0.0) for first in history.restarts]
    return Curve(
        name,
        model,
        points,
        validation,
        restarts,
        untrained,
    )


def _model_of_plan(run_folder: Path, phase: str) -> tuple[str, float]:
    """Describe the model trained in a phase, and return its loss before training.

    Return an empty string and 0 if the plan cannot be read.
    """
    plan_file = run_folder / "plan.json"
    try:
        spec = parse_plan(plan_file.read_text(encoding="utf-8"), plan_file).phases[phase]
    except (RecordError, FileNotFoundError, KeyError):
        return "", 0.0

    parameters = show_count(spec.model.parameters)
    model = f"{parameters} parameters, {spec.batch.global_} sequences per step"
    return model, round(math.log(spec.model.shape.vocabulary), 4)
