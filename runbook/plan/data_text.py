"""The data phase before it is run, for people: both ways side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from runbook.plan.table import UNKNOWN, Table
from runbook.units import show_duration

TITLE = "Preparing the text"


def data_table(plan: Mapping[str, Any]) -> Table:
    """Bytes, disk and hours of one pass and of the documents' three steps; no row where no text is tokenized."""
    ways = plan["data_work"]
    if not ways:
        return Table(TITLE, (), "No text is tokenized in this run.")

    def row(what: str, key: str, show: Callable[[Any], str]) -> dict[str, str]:
        return {"what": what} | {way["name"]: UNKNOWN if way[key] is None else show(way[key]) for way in ways}

    rows = (
        row("steps", "steps", str),
        row("read", "read_bytes", decimal_bytes),
        row("written", "written_bytes", decimal_bytes),
        row("disk at its fullest", "disk_bytes", decimal_bytes),
        row("core hours", "core_hours", lambda hours: f"{hours:,.3g}"),
        row("time on the job's cores", "hours", lambda hours: show_duration(3600 * hours)),
        row("least by the storage's speed", "storage_hours", lambda hours: show_duration(3600 * hours)),
    )
    return Table(TITLE, rows, "Rates measured on one core of an AMD Zen 5; downloads come on top.")


def decimal_bytes(count: float) -> str:
    """Bytes in the decimal units that disks are sold by.

    >>> decimal_bytes(7.08e12), decimal_bytes(4e6), decimal_bytes(12)
    ('7.08 TB', '4 MB', '12 B')
    """
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:g} B"
