"""What else the training could be, for people."""

from __future__ import annotations

from collections.abc import Sequence

from runbook.plan.table import UNKNOWN, Table
from runbook.plan.what_if import Alternative
from runbook.units import show_bytes, show_duration


def what_if_table(alternatives: Sequence[Alternative], currency: str = "") -> Table:
    """One row a change, those that break a rule at the end with the rule."""
    planned = alternatives[0].seconds if alternatives else None
    rows = [
        {
            "change": one.change,
            "devices": f"{one.devices:,}",
            "memory": _memory(one),
            "a step": _shown(one.seconds_per_iteration),
            "the whole training": _shown(one.seconds),
            "against the plan": "" if not (one.seconds and planned) else f"{one.seconds / planned:.2f} x",
            "device hours": UNKNOWN if one.device_hours is None else f"{one.device_hours:,.4g}",
            "cost": UNKNOWN if one.cost is None else f"{one.cost:,.0f} {currency}".strip(),
        }
        for one in alternatives
        if not one.problem
    ]
    broken = [f"{one.change}: {one.problem}" for one in alternatives if one.problem]
    return Table("What if", tuple(rows), "\n".join(["Not possible:", *broken]) if broken else "")


def _memory(one: Alternative) -> str:
    if one.memory_bytes is None:
        return UNKNOWN
    share = f" ({one.memory_bytes / one.memory_limit_bytes:.0%})" if one.memory_limit_bytes else ""
    return show_bytes(one.memory_bytes) + share


def _shown(seconds: float | None) -> str:
    return UNKNOWN if seconds is None else show_duration(seconds)
