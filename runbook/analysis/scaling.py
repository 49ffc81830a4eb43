"""How speed grows with devices, what a run costs, and how long a number of tokens takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runbook.analysis.metrics import Summary
from runbook.analysis.table import Table


@dataclass(frozen=True)
class ScalePoint:
    """One measurement of a scaling study."""

    label: str
    devices: int
    samples_per_second: float


def scaling_table(points: Sequence[ScalePoint], *, source: str = "metrics.jsonl of each run") -> Table:
    """Efficiency of each point: samples/s/device over that of the point with the fewest devices.

    >>> one, two = ScalePoint("1 node", 8, 2.686), ScalePoint("2 nodes", 16, 4.711)
    >>> round(scaling_table([one, two]).rows[1]["efficiency (%)"], 1)
    87.7
    """
    if not points:
        return Table("Scaling", (), source, ("no point was given",))
    base = min(points, key=lambda point: point.devices)
    each = base.samples_per_second / base.devices
    rows = tuple(
        {
            "run": point.label,
            "devices": point.devices,
            "speed (samples/s)": point.samples_per_second,
            "speed (samples/s/device)": point.samples_per_second / point.devices,
            "speed-up": point.samples_per_second / base.samples_per_second,
            "ideal speed-up": point.devices / base.devices,
            "efficiency (%)": 100 * point.samples_per_second / point.devices / each,
        }
        for point in sorted(points, key=lambda point: point.devices)
    )
    return Table("Scaling", rows, source, (f"against {base.label} with {base.devices} devices",))


def projection_table(
    summary: Summary,
    *,
    target_tokens: int,
    goodput: float | None = None,
    price: float | None = None,
    currency: str = "",
) -> Table:
    """Days, device-hours and cost to train on a number of tokens at this speed; cost only where a price is given.

    `goodput` is the share of wall time that trains: without it the projection is the best case, and says so.
    """
    speed = summary.tokens_per_second
    seconds = target_tokens / speed if speed else None
    wall = seconds / goodput if seconds is not None and goodput else seconds
    hours = wall * summary.world_size / 3600 if wall is not None else None
    rows: list[dict[str, object]] = [
        {"what": "tokens", "value": target_tokens, "unit": "tokens"},
        {"what": "speed", "value": speed, "unit": "tokens/s"},
        {"what": "time", "value": wall / 86400 if wall is not None else None, "unit": "days"},
        {"what": "device-hours", "value": hours, "unit": "h"},
    ]
    if price is not None and hours is not None:
        rows.append({"what": "cost", "value": hours * price, "unit": currency or "of the price's currency"})
    note = (
        f"with a goodput of {goodput:.1%}" if goodput else "without evaluation, checkpoints and restarts: the best case"
    )
    return Table("To train on a number of tokens", tuple(rows), "metrics.jsonl", (note,))
