"""Corrects predicted speeds using rows from the same system: `plan --predict --measured`."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from runbook.core.errors import ParamsError
from runbook.core.units import four_digits
from runbook.params.schema.entries import Model
from runbook.planning.cost import flops
from runbook.planning.cost.calibration import LIKE
from runbook.planning.cost.iteration import StepSetup
from runbook.planning.cost.measured_steps import MeasuredStep, correction, profile
from runbook.tools.speed.messages import SpeedMessage
from runbook.tools.speed.predict import Prediction, predict
from runbook.tools.speed.published_rows import read_row

Cells = Mapping[str, str | None]


def with_measurements(
    predictions: Sequence[Prediction],
    rows: Iterable[Cells],
    measured_rows: Iterable[Cells],
    models: Mapping[str, Model],
) -> list[Prediction]:
    """Return the predictions, each corrected using the measured rows from the same system.

    `rows` are the rows that the predictions belong to. A system is an accelerator with a number
    format and a program. Only steps with similar operation counts are used (`LIKE`). Raise
    `ParamsError` if no measured row states a speed and has a prediction.
    """
    systems = _systems(measured_rows, models)
    if not systems:
        raise ParamsError(SpeedMessage.NOTHING_MEASURED)
    return [
        _corrected(prediction, systems.get(_system(prediction.setup, cells), []))
        for prediction, cells in zip(predictions, rows, strict=True)
    ]


def _systems(
    rows: Iterable[Cells], models: Mapping[str, Model]
) -> dict[tuple[str, ...], list[tuple[StepSetup, MeasuredStep]]]:
    """Return the measured steps by system."""
    systems: dict[tuple[str, ...], list[tuple[StepSetup, MeasuredStep]]] = {}
    for number, cells in enumerate(rows, 1):
        prediction = predict(read_row(number, cells), models)
        slower = _slower(prediction, cells)
        if prediction.setup and slower:
            step = MeasuredStep(profile(prediction.setup), math.log(slower))
            system = _system(prediction.setup, cells)
            systems.setdefault(system, []).append((prediction.setup, step))

    return systems


def _system(setup: StepSetup | None, cells: Cells) -> tuple[str, ...]:
    """Return what a system is known by: its accelerator, number format and program."""
    if setup is None:
        return ()
    software = " ".join((cells.get("software") or "").lower().split())
    return setup.device.name, setup.precision, software


def _slower(prediction: Prediction, cells: Cells) -> float | None:
    """Return measured divided by predicted step time, or None if either is unknown."""
    pairs = (
        ("tokens_s_per_accel", prediction.tokens_s_per_accel),
        ("tflops_per_accel", prediction.tflops_per_accel),
    )
    for name, predicted in pairs:
        speed = _positive(cells.get(name))
        if predicted and speed:
            return predicted / speed

    return None


def _positive(text: str | None) -> float | None:
    """Return the number that a cell states, or None if it states no positive number."""
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if 0 < number < math.inf else None


def _corrected(
    prediction: Prediction, measured: Sequence[tuple[StepSetup, MeasuredStep]]
) -> Prediction:
    """Return the prediction, corrected by the measured steps that are similar in size."""
    setup = prediction.setup
    if setup is None:
        return prediction
    operations = _operations(setup)
    similar = [
        step for other, step in measured if 1 / LIKE <= operations / _operations(other) <= LIKE
    ]
    if not similar:
        return prediction
    found = correction(profile(setup), similar)
    return replace(
        prediction,
        tokens_s_per_accel=_slowed(prediction.tokens_s_per_accel, found.factor),
        tflops_per_accel=_slowed(prediction.tflops_per_accel, found.factor),
        seconds_per_step=four_digits((prediction.seconds_per_step or 0.0) * found.factor),
        correction=found,
    )


def _operations(setup: StepSetup) -> float:
    return flops.flops(setup.shape, setup.global_batch)


def _slowed(speed: float | None, factor: float) -> float | None:
    return None if speed is None else four_digits(speed / factor)
