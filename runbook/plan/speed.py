"""Seconds of a step, of a phase, and what they cost.

On a CPU `cpu_speed` models the step, on an accelerator `iteration`; an accelerator that is not in its table, but whose
peak the site gives, runs at an assumed `ACCELERATOR_EFFICIENCY` of it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from runbook.params.schema import Recompute
from runbook.plan import flops
from runbook.plan.calibration import Calibration
from runbook.plan.choices import Choice
from runbook.plan.cpu_speed import cpu_step
from runbook.plan.iteration import iteration
from runbook.plan.layout import Layout
from runbook.plan.machine import Machine
from runbook.plan.schedule import Duration
from runbook.plan.sizes import Shape
from runbook.plan.step import device_of, setup_for, why_unknown

ACCELERATOR_EFFICIENCY = 0.35
"""Share of the datasheet's peak, in the megatron-full convention; published runs reach 0.29 (MI250X) to 0.5 (H100)."""

FORWARD_SHARE = 1 / 3
"""Of a step's operations; an evaluation batch costs this much."""


@dataclass(frozen=True)
class Speed:
    """Expected speed of one phase; every figure is None where `basis` says why it cannot be known."""

    seconds_per_iteration: float | None
    seconds: float | None
    tokens_per_second: float | None
    tflops_per_device: float | None
    tflops_convention: str
    device_hours: float | None
    cost: float | None
    basis: str
    mfu: float | None = None
    """Share of the datasheet's peak in our convention; None where the device has no datasheet's peak."""
    parts: dict[str, float] | None = None
    """Seconds of a step by what takes them; None where a step is not modelled part by part."""


def estimate(
    choice: Choice,
    layout: Layout,
    length: Duration,
    machine: Machine | None,
    calibration: Calibration | None = None,
) -> Speed:
    """Step time, and the time of the whole phase with its evaluations; loading and checkpoints come on top."""
    shape = choice.shape
    step, basis = step_seconds(choice, layout, shape, machine, calibration)
    if step is None:
        return Speed(None, None, None, None, flops.OURS, None, None, basis)
    model_flops = flops.flops(shape, layout.global_batch)
    seconds = step * (length.iterations + evaluation_batches(choice, length) * FORWARD_SHARE)
    hours = seconds * layout.world_size / 3600
    price = choice.site.price_per_device_hour
    per_device = model_flops / step / layout.world_size / 1e12
    peak = choice.site.hardware.peak_tflops.get(str(choice.training.precision))
    return Speed(
        seconds_per_iteration=_round(step),
        seconds=_round(seconds),
        tokens_per_second=_round(layout.global_batch * shape.sequence_length / step),
        tflops_per_device=_round(per_device),
        tflops_convention=flops.OURS,
        device_hours=_round(hours),
        cost=None if price is None else _round(hours * price),
        basis=basis,
        mfu=_round(per_device / peak) if peak else None,
        parts=step_parts(choice, layout, calibration),
    )


def step_parts(choice: Choice, layout: Layout, calibration: Calibration | None = None) -> dict[str, float] | None:
    """Seconds of one step by part, adding up to the step; None on a CPU and on devices that are not in our table."""
    if choice.on_cpu or why_unknown(choice):
        return None
    device = device_of(choice.site)
    assert device is not None
    factor = calibration.factor if calibration else 1.0
    parts = asdict(iteration(setup_for(choice, layout, device)))
    return {name: _round(seconds * factor) for name, seconds in parts.items() if seconds}


def step_seconds(
    choice: Choice,
    layout: Layout,
    shape: Shape,
    machine: Machine | None = None,
    calibration: Calibration | None = None,
) -> tuple[float | None, str]:
    """Seconds of one step and where they come from, a smoke test's measurement included where there is one."""
    factor, measured = (calibration.factor, f", {calibration.text}") if calibration else (1.0, "")
    if not choice.on_cpu and not why_unknown(choice):
        device = device_of(choice.site)
        assert device is not None
        step = iteration(setup_for(choice, layout, device))
        peak = device.peaks[str(choice.training.precision)]
        basis = f"modelled part by part for {device.name} ({peak:g} TFLOP/s, {choice.training.precision})"
        return step.seconds * factor, basis + measured
    if choice.on_cpu:
        own, basis = cpu_step(choice, layout, shape, machine)
        return (None, basis) if own is None else (own.seconds * factor, basis + measured)
    rate, basis = assumed_flops(choice, layout)
    if rate is None:
        return None, basis
    extra = 4 / 3 if choice.training.recompute is Recompute.FULL else 1.0
    return flops.flops(shape, layout.global_batch) * extra * (1 + layout.bubble) / rate * factor, basis + measured


def assumed_flops(choice: Choice, layout: Layout) -> tuple[float | None, str]:
    """Operations a second of all devices together where their steps are not modelled, and where the figure is from."""
    precision, hardware = choice.training.precision, choice.site.hardware
    peak = hardware.peak_tflops.get(str(precision))
    if peak is None:
        return None, f"no {precision} peak is known for {hardware.device}"
    basis = f"{ACCELERATOR_EFFICIENCY:.0%} of {peak:g} TFLOP/s ({hardware.device}, {precision}), assumed"
    return peak * 1e12 * ACCELERATOR_EFFICIENCY * layout.world_size, basis


def evaluation_batches(choice: Choice, length: Duration) -> int:
    """Batches of all evaluations of a phase; the smoke test evaluates one batch, at its end."""
    training = choice.training
    if not (training.eval_interval and training.eval_iterations):
        return 0
    if choice.smoke:
        return 1
    return length.iterations // training.eval_interval * training.eval_iterations


def _round(value: float) -> float:
    return float(f"{value:.4g}")
