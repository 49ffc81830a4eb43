"""The plan's promises under the names of the measured numbers, and why they differ."""

from __future__ import annotations

from typing import Any

from runbook.analysis import tables
from runbook.analysis.cost import Rates
from runbook.analysis.table import Table
from runbook.params import Settings
from runbook.phases.trained import Trained
from runbook.plan.accelerators import find_accelerator

NEAR = 0.05
"""A ratio within this of 1 needs no reason."""

MEMORY_REASON = "measured: the fullest process's peak, saves and evaluations included; the plan is for the steps"


def plan_versus_actual(one: Trained) -> Table:
    """The plan's numbers of one training phase beside the measured ones, with what explains a difference."""
    planned = {what: value for what, value in one.promised.items() if value is not None}
    actual = tables.actual_numbers(one.summary, one.parts)
    return tables.plan_versus_actual(planned, actual, remarks(one, planned, actual))


def remarks(one: Trained, planned: dict[str, Any], actual: dict[str, Any]) -> dict[str, str]:
    """A reason for each number that did not come out as planned; none where it did, or nothing was planned."""
    found = {}
    for what, reason in (
        ("step time (s/iteration)", _step_reason(one)),
        ("throughput (tokens/s)", _step_reason(one)),
        ("wall time (s)", _wall_reason(one)),
        ("memory of a process (B)", MEMORY_REASON),
    ):
        plan, real = planned.get(what), actual.get(what)
        if plan and real and abs(real / plan - 1) > NEAR:
            found[what] = reason
    return found


def _step_reason(one: Trained) -> str:
    summary = one.summary
    parts = [f"plan: {one.planned['basis']}"] if one.planned.get("basis") else []
    if summary.data_wait_share is not None and summary.data_wait_share >= 0.01:
        parts.append(f"{summary.data_wait_share:.0%} of a step waits for data")
    low, high = summary.seconds_low, summary.seconds_high
    if low and high and high > 1.3 * low:
        parts.append(f"uneven: 80 % of the steps take {low:.3g} to {high:.3g} s, as on a machine that others use too")
    parts.append("warm-up left out")
    return "; ".join(parts)


def _wall_reason(one: Trained) -> str:
    parts = one.parts
    wall = parts.wall_seconds or 1.0
    shares = [
        (name, seconds / wall) for name, seconds in parts.parts() if name != "training" and seconds / wall >= 0.02
    ]
    told = ", ".join(f"{name} {share:.0%}" for name, share in sorted(shares, key=lambda pair: -pair[1]))
    return f"of the wall time: {told}" if told else "the steps themselves: see step time"


def rates(settings: Settings) -> Rates:
    """Price and power of a device, as far as run file, site and data sheets say."""
    site = settings.site
    device = find_accelerator(site.hardware.device)
    return Rates(
        price_per_device_hour=settings.run.jobs.price_per_device_hour or site.price_per_device_hour,
        currency=site.currency,
        watts_per_device=device.power_watts if device else None,
        watts_source="board power of the data sheet, so at most",
    )
