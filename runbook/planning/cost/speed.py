"""Time and money of a training phase, corrected by what a smoke test measured.

On a CPU `cpu` models the step, on an accelerator `iteration`; an accelerator that is not in its
table, but whose peak the site gives, runs at an assumed `ACCELERATOR_EFFICIENCY` of it.
"""

import contextlib
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from runbook.core.units import four_digits
from runbook.plan_file.errors import RefusedError
from runbook.plan_file.json_records import OMIT_DEFAULT, from_json
from runbook.planning.cost import flops
from runbook.planning.cost.cpu import FORWARD_SHARE, cpu_step
from runbook.planning.cost.iteration import iteration
from runbook.planning.cost.step_inputs import modelled_device, peak_of, setup_for
from runbook.planning.layout import Choice, Machine
from runbook.planning.messages import PlanningMessage
from runbook.planning.schedule import duration

LIKE = 30.0
"""A step of another run counts as similar to the measured one if its operations differ by at most
this factor. A toy model's steps are mostly overhead and are no evidence for a large one's.
"""

FEWEST = 3
"""Minimum number of steps for a factor, after the first, which loads and compiles."""


@dataclass(frozen=True)
class Calibration:
    """One smoke test's measured steps, compared with the plain plan for it."""

    factor: float
    measured_seconds: float
    predicted_seconds: float
    steps: int
    machine: str
    """Identifies the machine: its CPU and cores if the jobs run here, else site and device."""
    engine: str
    precision: str
    operations: float
    """Operations of one step, in our convention."""
    run: str
    measured: str
    """Time of the measurement, as an ISO date."""
    warned: bool = field(default=False, metadata=OMIT_DEFAULT)
    """The smoke test passed only with a warning, so it rescales no other run."""

    @property
    def text(self) -> str:
        """Return the factor and its source, for people."""
        return PlanningMessage.CORRECTED_BY_SMOKE_TEST.fill(
            factor=self.factor, run=self.run, measured=self.measured[:10]
        )


def read_calibration(content: Any) -> Calibration | None:
    """Return the calibration in the JSON that `as_json` wrote, or None if it is not one."""
    with contextlib.suppress(RefusedError):
        calibration = from_json(
            Calibration, content, name="the calibration", failure="this is no calibration:"
        )
        figures = (calibration.factor, calibration.predicted_seconds, calibration.operations)
        if all(0 < figure < math.inf for figure in figures):
            return calibration

    return None


def calibrate(measured_seconds: Sequence[float], predicted_seconds: float) -> float | None:
    """Return the factor for predicted steps.

    It is the median of the measured steps, without the first, over the prediction.

    Return None if there are too few steps, or if one of them or the prediction is no valid time.

    >>> calibrate([30.0, 12.0, 11.0, 13.0, 12.0], 10.0), calibrate([30.0, 12.0, 11.0], 10.0)
    (1.2, None)
    """
    steps = measured_seconds[1:]
    if len(steps) < FEWEST or predicted_seconds <= 0:
        return None
    if not all(0 < seconds < math.inf for seconds in steps):
        return None
    return statistics.median(steps) / predicted_seconds


@dataclass(frozen=True)
class Calibrations:
    """All measurements of smoke tests, and the machine that the plan is for."""

    machine: str
    found: tuple[Calibration, ...] = ()

    def holds_for(self, choice: Choice) -> Calibration | None:
        """Return the newest one for the same machine, engine and number format, or None.

        Its step must be similar to this phase's.
        """
        operations = flops.flops(choice.shape, choice.global_batch)
        circumstances = (self.machine, choice.program, choice.training.precision)
        like = [
            calibration
            for calibration in self.found
            if (calibration.machine, calibration.engine, calibration.precision) == circumstances
            and 1 / LIKE <= operations / calibration.operations <= LIKE
        ]
        return max(like, key=lambda calibration: calibration.measured, default=None)


ACCELERATOR_EFFICIENCY = 0.35
"""Share of the datasheet's peak, in the megatron-full convention.

Published runs reach 0.29 (MI250X) to 0.5 (H100).
"""


@dataclass(frozen=True)
class Speed:
    """Expected speed of one phase.

    Every figure is None if `basis` states why it cannot be known.
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
    """Share of the datasheet's peak in our convention; None if the device has no datasheet's
    peak."""
    parts: dict[str, float] | None = None
    """Seconds of a step by part; None if a step is not modelled part by part."""


def estimate(
    choice: Choice, machine: Machine | None, calibration: Calibration | None = None
) -> Speed:
    """Return the step time, and the time of the whole phase with its evaluations.

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
        factor = calibration.factor
        basis = f"{basis}, {calibration.text}"

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
    """Return the parts that take time, multiplied by the factor."""
    if parts is None:
        return None
    scaled: dict[str, float] = {}
    for name, seconds in parts.items():
        if seconds:
            scaled[name] = four_digits(seconds * factor)

    return scaled


def modelled_step(
    choice: Choice, machine: Machine | None
) -> tuple[float | None, str, dict[str, float] | None]:
    """Return the seconds of one step, their source, and its parts on a known accelerator."""
    if choice.on_cpu:
        step, basis = cpu_step(choice, machine)
        return (sum(step.values()) if step else None), basis, None

    precision = choice.training.precision
    hardware = choice.site.hardware
    device = modelled_device(choice)
    peak = peak_of(choice.site, precision)
    if peak is None:
        reason = PlanningMessage.NO_PEAK_OF_DEVICE.fill(
            precision=precision,
            device=hardware.device,
        )
        return None, reason, None
    if not isinstance(device, str):
        time = iteration(setup_for(choice, device))
        basis = PlanningMessage.MODELLED.fill(device=device.name, peak=peak, precision=precision)
        if choice.own_trainer and choice.deepspeed and choice.layout.zero_stage == 3:
            basis += ", the host's time in ZeRO 3 by one training on one H200"
        return time.seconds, basis, asdict(time)

    rate = peak * 1e12 * ACCELERATOR_EFFICIENCY * choice.layout.world_size
    operations = flops.flops(choice.shape, choice.global_batch)
    if choice.training.recompute == "full":
        extra = 1 + choice.recomputed / 3
    else:
        extra = 1.0

    basis = PlanningMessage.ASSUMED_SHARE.fill(
        share=ACCELERATOR_EFFICIENCY,
        peak=peak,
        device=hardware.device,
        precision=precision,
    )
    return operations * extra * (1 + choice.bubble) / rate, basis, None


def evaluation_batches(choice: Choice) -> int:
    """Return the number of batches in all evaluations of a phase."""
    training = choice.training
    if not (training.eval_interval and training.eval_iterations):
        return 0
    return duration(choice).iterations // training.eval_interval * training.eval_iterations
