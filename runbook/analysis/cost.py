"""What a run cost, and what training on a number of tokens will: device-hours, energy if known, money if priced."""

from __future__ import annotations

from dataclasses import dataclass

from runbook.analysis.metrics import Goodput, Summary
from runbook.analysis.table import Table

UNPRICED = "no price is known: set jobs.price_per_device_hour"
UNMEASURED = "not measured"


@dataclass(frozen=True)
class Rates:
    """What a device costs; None where nobody said."""

    price_per_device_hour: float | None = None
    currency: str = ""
    watts_per_device: float | None = None
    """Measured or of the data sheet; `watts_source` says which."""
    watts_source: str = ""


def cost_table(summary: Summary, parts: Goodput, rates: Rates) -> Table:
    """Device-hours, energy and money of the run so far, by its wall time."""
    hours = parts.wall_seconds * summary.world_size / 3600
    useful = parts.training_seconds * summary.world_size / 3600
    rows = [
        _row("device-hours", hours, "h", f"wall time x {summary.world_size} devices"),
        _row("device-hours in steps that count", useful, "h", "without restarts, saving, evaluation, waiting"),
        *_energy_and_money(hours, rates),
    ]
    return Table("What it cost", tuple(rows), "metrics.jsonl, events.jsonl")


def projection_table(
    summary: Summary, *, target_tokens: int, goodput: float | None = None, rates: Rates | None = None
) -> Table:
    """Days, device-hours, energy and money to train on a number of tokens at this speed.

    `goodput` is the share of wall time that trains: without it the projection is the best case, and says so.
    """
    speed = summary.tokens_per_second
    seconds = target_tokens / speed if speed else None
    wall = seconds / goodput if seconds is not None and goodput else seconds
    hours = wall * summary.world_size / 3600 if wall is not None else None
    rows = [
        _row("tokens", target_tokens, "tokens", ""),
        _row("speed", speed, "tokens/s", "median after warm-up"),
        _row("time", wall / 86400 if wall is not None else None, "days", ""),
        _row("device-hours", hours, "h", f"{summary.world_size} devices"),
        *_energy_and_money(hours, rates or Rates()),
    ]
    note = (
        f"with a goodput of {goodput:.1%}" if goodput else "without evaluation, checkpoints and restarts: the best case"
    )
    return Table("To train on a number of tokens", tuple(rows), "metrics.jsonl", (note,))


def _energy_and_money(hours: float | None, rates: Rates) -> list[dict[str, object]]:
    energy = hours * rates.watts_per_device / 1000 if hours is not None and rates.watts_per_device else None
    money = hours * rates.price_per_device_hour if hours is not None and rates.price_per_device_hour else None
    how = f"{rates.watts_per_device:g} W a device, {rates.watts_source}" if energy is not None else UNMEASURED
    price = f"{rates.price_per_device_hour:g} a device-hour" if money is not None else UNPRICED
    return [_row("energy", energy, "kWh", how), _row("cost", money, rates.currency or "currency", price)]


def _row(what: str, value: float | None, unit: str, how: str) -> dict[str, object]:
    return {"what": what, "value": value, "unit": unit, "how": how}
