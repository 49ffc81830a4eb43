"""Seconds of a step, of a phase, and what they cost.

On a CPU the products of matrices run at measured rates a core; they are only a part of the time, and `CPU_EFFICIENCY`
says how large a part. On an accelerator `iteration` models the step; one that is not in its table, but whose peak the
site gives, runs at an assumed `ACCELERATOR_EFFICIENCY` of it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from runbook.params.schema import Precision, Recompute
from runbook.plan import flops
from runbook.plan.calibration import Calibration
from runbook.plan.checks import Check, judge
from runbook.plan.choices import Choice
from runbook.plan.iteration import iteration
from runbook.plan.layout import Layout
from runbook.plan.machine import Machine
from runbook.plan.schedule import Duration
from runbook.plan.sizes import Shape
from runbook.plan.step import device_of, setup_for, why_unknown

BF16_UNITS = ("avx512_bf16", "amx_bf16")
"""Instructions that multiply bf16 directly."""

CORE_FLOPS = {
    "fp32": 56e9,
    "bf16": 215e9,
    "bf16 by AVX-512": 44e9,
    "bf16 by slow code": 1.4e9,
}
"""Products of matrices a second on one core, torch 2.13: 112 and 430 GFLOP/s measured on two cores; without bf16 units
oneDNN reaches 0.78 of fp32 where there is AVX-512, and 1.4 GFLOP/s a core where there is not (measured by
ONEDNN_MAX_CPU_ISA on the same machine)."""

CPU_EFFICIENCY = {"fp32": 0.75, "bf16": 0.47, "bf16 by AVX-512": 0.75, "bf16 by slow code": 0.95}
"""Share of a step that is products of matrices; 0.47 makes the 12 x 512 smoke test of 48 sequences take 110 s."""

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
    rate, basis = sustained_flops(choice, layout, machine)
    if rate is None:
        return None, basis
    extra = 4 / 3 if choice.training.recompute is Recompute.FULL else 1.0
    return flops.flops(shape, layout.global_batch) * extra * (1 + layout.bubble) / rate * factor, basis + measured


def sustained_flops(choice: Choice, layout: Layout, machine: Machine | None) -> tuple[float | None, str]:
    """Operations a second of all devices together, and where the figure comes from; None where it is not known."""
    precision = choice.training.precision
    if not choice.on_cpu:
        peak = choice.site.hardware.peak_tflops.get(str(precision))
        if peak is None:
            return None, f"no {precision} peak is known for {choice.site.hardware.device}"
        basis = (
            f"{ACCELERATOR_EFFICIENCY:.0%} of {peak:g} TFLOP/s ({choice.site.hardware.device}, {precision}), assumed"
        )
        return peak * 1e12 * ACCELERATOR_EFFICIENCY * layout.world_size, basis
    cores = (machine.cores if machine else 0) or choice.site.hardware.cores_per_node
    if not cores:
        return None, "how many cores this machine has is not known"
    path = cpu_path(precision, machine.flags if machine else frozenset())
    if path is None:
        return None, f"whether this CPU multiplies {precision} directly is not known"
    rate = cores * CORE_FLOPS[path] * CPU_EFFICIENCY[path]
    return rate * choice.nodes, (
        f"{cores} cores x {CORE_FLOPS[path] / 1e9:g} GFLOP/s ({path}, measured) x {CPU_EFFICIENCY[path]:g}"
    )


def check_cpu(choice: Choice, machine: Machine | None) -> list[Check]:
    """Says beforehand, once for both phases, when a CPU has no unit for the number format asked for."""
    if choice.smoke or not choice.on_cpu or choice.training.precision is not Precision.BF16:
        return []
    name, rule = "bf16 on this CPU", "the CPU multiplies bf16 directly (AVX-512 BF16 or AMX)"
    path = cpu_path(Precision.BF16, machine.flags if machine else frozenset())
    if path is None:
        return [Check(name, "unknown", "which instructions this CPU has is not known", rule)]
    times = CORE_FLOPS["fp32"] * CPU_EFFICIENCY["fp32"] / (CORE_FLOPS[path] * CPU_EFFICIENCY[path])
    slower = f"about {times:.1f} times as long as in fp32" if times > 1 else f"{1 / times:.1f} times as fast as fp32"
    return [
        judge(
            name,
            path == "bf16",
            f"{path}: {slower}",
            rule,
            "Set training.precision to fp32.",
            otherwise="warn",
        )
    ]


def cpu_path(precision: Precision, flags: frozenset[str]) -> str | None:
    """Which of the measured rates holds on a CPU with these instruction sets; None: not known.

    >>> cpu_path(Precision.BF16, frozenset({"avx512f", "avx512_bf16"})), cpu_path(Precision.BF16, frozenset({"avx2"}))
    ('bf16', 'bf16 by slow code')
    """
    if precision is Precision.FP32:
        return "fp32"
    if precision is Precision.FP16 or not flags:
        return None
    if any(unit in flags for unit in BF16_UNITS):
        return "bf16"
    return "bf16 by AVX-512" if "avx512f" in flags else "bf16 by slow code"


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
