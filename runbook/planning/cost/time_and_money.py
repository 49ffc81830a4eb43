"""Time and cost for a training phase: steps, evaluations, device-hours and price."""

from dataclasses import dataclass

from runbook.core.units import four_digits
from runbook.planning.choice import Choice, Machine
from runbook.planning.cost import flops
from runbook.planning.cost.calibration import Calibration
from runbook.planning.cost.cpu import FORWARD_SHARE
from runbook.planning.cost.step_inputs import peak_of
from runbook.planning.cost.step_time import modelled_step, planned_profile
from runbook.planning.schedule import duration


@dataclass(frozen=True)
class Speed:
    """Expected speed in one phase.

    If the speed is unknown, all numbers are None and `basis` states the reason.
    """

    seconds_per_iteration: float | None
    seconds: float | None
    tokens_per_second: float | None
    tflops_per_device: float | None
    tflops_convention: str
    device_hours: float | None
    cost: float | None
    basis: str
    mfu: float | None = None
    """Share of the peak FLOP/s that is used, in our convention; None if no peak is known."""
    parts: dict[str, float] | None = None
    """Step time in seconds by part; None if the step is not modelled part by part."""


def estimate(
    choice: Choice, machine: Machine | None, calibration: Calibration | None = None
) -> Speed:
    """Return the step time, and the time for the whole phase including evaluations.

    Loading and checkpoints are not included.
    """
    layout = choice.layout
    step, basis, parts = modelled_step(choice, machine)
    if step is None:
        return Speed(
            None,
            None,
            None,
            None,
            flops.OURS,
            None,
            None,
            basis,
        )

    factor = 1.0
    if calibration:
        planned = planned_profile(choice)
        factor = calibration.factor_for(planned)
        basis = f"{basis}, {calibration.text(planned)}"

    step *= factor
    seconds = step * (duration(choice).iterations + evaluation_batches(choice) * FORWARD_SHARE)
    device_hours = seconds * layout.world_size / 3600
    price = choice.site.price_per_device_hour
    step_flops = flops.flops(choice.shape, choice.global_batch)
    tflops_per_device = step_flops / step / layout.world_size / 1e12
    peak = peak_of(choice.site, choice.training.precision)
    return Speed(
        seconds_per_iteration=four_digits(step),
        seconds=four_digits(seconds),
        tokens_per_second=four_digits(choice.global_batch * choice.sequence_length / step),
        tflops_per_device=four_digits(tflops_per_device),
        tflops_convention=flops.OURS,
        device_hours=four_digits(device_hours),
        cost=None if price is None else four_digits(device_hours * price),
        basis=basis,
        mfu=four_digits(tflops_per_device / peak) if peak else None,
        parts=_scaled(parts, factor),
    )


def _scaled(parts: dict[str, float] | None, factor: float) -> dict[str, float] | None:
    """Return the nonzero parts of a step time, multiplied by the factor."""
    if parts is None:
        return None
    scaled: dict[str, float] = {}
    for name, seconds in parts.items():
        if seconds:
            scaled[name] = four_digits(seconds * factor)

    return scaled


def evaluation_batches(choice: Choice) -> int:
    """Return how many batches all evaluations in a phase have together."""
    training = choice.training
    if not (training.eval_interval and training.eval_iterations):
        return 0
    return duration(choice).iterations // training.eval_interval * training.eval_iterations
