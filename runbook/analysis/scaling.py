"""How speed grows with devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
