"""Estimates the energy for a training run, with all accelerators at full board power."""

from runbook.core.units import four_digits
from runbook.params.schema.site import Site
from runbook.planning.cost.step_inputs import device_of
from runbook.planning.messages import PlanningMessage


def estimate_energy(site: Site, device_hours: float | None) -> tuple[float | None, str]:
    """Return the kilowatt-hours and their source, or None and the reason why they are unknown."""
    device = device_of(site)
    watts = device.power_watts if device else None
    if watts is None:
        return None, PlanningMessage.POWER_NOT_KNOWN.fill(device=site.hardware.device)
    if device_hours is None:
        return None, "the time is unknown"
    basis = PlanningMessage.POWER.fill(watts=watts)
    return four_digits(watts * device_hours / 1000), basis
