"""Time per step, from the model for the device.

On a CPU, `cpu` models the step; on an accelerator, `iteration` does. If an accelerator is unknown
to `iteration`, but the site states its peak, it is assumed to reach `ACCELERATOR_EFFICIENCY` of
that peak.
"""

from dataclasses import asdict

from runbook.planning.choice import Choice, Machine
from runbook.planning.cost import flops
from runbook.planning.cost.cpu import cpu_step
from runbook.planning.cost.iteration import iteration
from runbook.planning.cost.measured_steps import StepProfile, profile
from runbook.planning.cost.step_inputs import modelled_device, peak_of, setup_for
from runbook.planning.messages import PlanningMessage

ACCELERATOR_EFFICIENCY = 0.35
"""Assumed share of the datasheet peak, in the megatron-full convention.

Published runs reach 0.29 (MI250X) to 0.5 (H100).
"""


def modelled_step(
    choice: Choice, machine: Machine | None
) -> tuple[float | None, str, dict[str, float] | None]:
    """Return the step time in seconds, its source and, for a known accelerator, its parts."""
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
            basis += ", the host's time in ZeRO 3 according to one training run on one H200"
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


def planned_profile(choice: Choice) -> StepProfile | None:
    """Return how a step is planned to spend its time; None if it is not planned part by part."""
    device = modelled_device(choice)
    if isinstance(device, str):
        return None
    return profile(setup_for(choice, device))
