"""Shared storage against what a run puts there: sizes, tiers and their checkpoint times, what documents measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runbook.params.catalogue import Site
from runbook.params.schema import Precision
from runbook.params.volumes import Tier, Volume
from runbook.plan.checkpoint import checkpoint_bytes, write_seconds
from runbook.plan.checks import Check, judge
from runbook.plan.choices import Chosen
from runbook.plan.table import UNKNOWN, Table
from runbook.units import show_bytes, show_count, show_duration

GIGABYTE = 10**9
TEBIBYTE = 2**40
STATED_PARAMETERS = range(174_000_000_000, 176_000_000_000)
"""The size that a document's stated times are for."""


@dataclass(frozen=True)
class TierTime:
    """Writing one checkpoint to one tier, all in bytes and seconds."""

    tier: str
    size_bytes: int
    """0: not known."""
    bytes_per_second: float
    checkpoint_bytes: int
    seconds: float
    stated_minutes: float
    """The document's own; 0: none for this size."""

    @property
    def row(self) -> dict[str, str]:
        """For people: each number with its one unit."""
        minutes = self.seconds / 60
        stated = (
            f"{self.stated_minutes:.2f} min ({self.stated_minutes / minutes - 1:+.1%})" if self.stated_minutes else ""
        )
        return {
            "tier": self.tier,
            "size": f"{self.size_bytes / TEBIBYTE:g} TiB" if self.size_bytes else UNKNOWN,
            "bandwidth": f"{self.bytes_per_second / GIGABYTE:g} GB/s",
            "checkpoint": f"{self.checkpoint_bytes / 1e12:.3f} TB = {self.checkpoint_bytes / TEBIBYTE:.3f} TiB",
            "least time to write": f"{minutes:.2f} min" if minutes >= 0.1 else f"{self.seconds:.2f} s",
            "the document says": stated,
        }


def tier_times(
    parameters: int, precision: Precision, bandwidths: Mapping[str, float], tiers: Mapping[str, Tier] | None = None
) -> tuple[TierTime, ...]:
    """Each tier's least time for a checkpoint of any model; `bandwidths` in GB/s of 10^9 bytes.

    >>> [round(one.seconds / 60, 3) for one in tier_times(174_615_846_912, Precision.FP16, {"a": 19.2, "b": 64})]
    [2.122, 0.637]
    """
    size = checkpoint_bytes(parameters, precision)
    known = tiers or {}
    stated = parameters in STATED_PARAMETERS
    return tuple(
        TierTime(
            name,
            known[name].size if name in known else 0,
            speed * GIGABYTE,
            size,
            write_seconds(size, speed * GIGABYTE),
            known[name].stated_minutes if stated and name in known else 0.0,
        )
        for name, speed in bandwidths.items()
    )


def tier_table(site: Site, parameters: int, precision: Precision) -> Table:
    """The site's tiers for a model; no rows where its storage is not sold in tiers."""
    tiers = {name: tier for volume in site.volumes.values() for name, tier in volume.tiers.items()}
    times = tier_times(parameters, precision, site.write_bandwidth, tiers)
    note = "All nodes writing at the tier's full bandwidth; 1 GB = 10^9 bytes, 1 TiB = 2^40 bytes."
    return Table(
        f"A checkpoint of {show_count(parameters)} parameters by storage tier", tuple(one.row for one in times), note
    )


def chosen_tier(site: Site, wanted: str) -> tuple[str, Tier | None]:
    """The tier of the site's storage that `jobs.storage` names, else the first; empty where there are none."""
    tiers = {name: tier for volume in site.volumes.values() for name, tier in volume.tiers.items()}
    if wanted in tiers:
        return wanted, tiers[wanted]
    return next(iter(tiers.items()), ("", None))


def needs(content: Mapping[str, Any]) -> dict[str, int]:
    """Bytes of each kind that the plan puts somewhere."""
    return {
        "checkpoints": sum(int(store["disk_bytes"]) for store in content["checkpoint"].values()),
        "data": int(content["data"]["estimated_bytes"]),
    }


def check_volumes(chosen: Chosen, content: Mapping[str, Any]) -> list[Check]:
    """Each shared file system against what is put there; one that is too small is warned of, since it can grow."""
    wanted = chosen.run.jobs.storage
    name, _ = chosen_tier(chosen.site, wanted)
    checks = []
    if wanted and wanted != name:
        tiers = ", ".join(tier for volume in chosen.site.volumes.values() for tier in volume.tiers) or "none"
        rule = "the tier is one of the site's"
        checks.append(Check("storage tier", "fail", f"jobs.storage={wanted}", rule, f"The tiers are: {tiers}."))
    wants = needs(content)
    for key, volume in chosen.site.volumes.items():
        if kinds := [kind for kind in volume.holds if kind in wants]:
            checks.append(_volume(key, volume, name, {kind: wants[kind] for kind in kinds}))
    return checks


def _volume(key: str, volume: Volume, tier: str, wants: Mapping[str, int]) -> Check:
    size = volume.size or (volume.tiers[tier].size if tier in volume.tiers else 0)
    name, rule = f"volume {key}", "data and kept checkpoints fit, the one being written too"
    parts = " + ".join(f"{show_bytes(count) if count else UNKNOWN} of {kind}" for kind, count in wants.items())
    if not size:
        return Check(name, "unknown", f"{parts}; the size of {volume.path} is not known", rule)
    needed = sum(wants.values())
    value = f"{parts} on {show_bytes(size)} ({volume.title}{', ' + tier if tier in volume.tiers else ''})"
    if not all(wants.values()) and needed <= size:
        return Check(name, "unknown", value, rule, "02-data counts the text.")
    remedy = f"Deploy at least {show_bytes(needed * 1.1)}, or lower training.keep_checkpoints."
    return judge(name, needed <= size, value, rule, remedy, otherwise="warn")


def site_tables(site: Site, content: Mapping[str, Any], precision: Precision) -> tuple[Table, ...]:
    """What the site adds to a plan: checkpoint times by tier, and its document's own numbers."""
    parameters = int(content["model"]["parameters"])
    found = (tier_table(site, parameters, precision), documents_table(site, content))
    return tuple(table for table in found if table.rows)


def documents_table(site: Site, content: Mapping[str, Any]) -> Table:
    """What the site's document measured or advises, and what that makes of this run."""
    rows = []
    if site.advised_batch:
        spec = content["phases"]["04-training"]
        world = int(spec["parallel"]["world_size"])
        said = f"{site.advised_batch} x {world} devices = {site.advised_batch * world:,} sequences"
        own = f"{int(spec['batch']['global']):,} sequences"
        rows.append({"what": "global batch, advised", "the document": said, "rate": "", "this run": own, "on": ""})
    for one in site.timings:
        rate = one.bytes / one.seconds if one.bytes else 0.0
        size = int(content["data"]["estimated_bytes"]) if one.like == "data" else 0
        rows.append(
            {
                "what": one.what,
                "the document": f"{show_bytes(one.bytes)} in {show_duration(one.seconds)}"
                if one.bytes
                else show_duration(one.seconds),
                "rate": f"{rate / 1e6:,.0f} MB/s" if rate else "",
                "this run": f"{show_bytes(size)} in {show_duration(size / rate)}" if size and rate else "",
                "on": one.machine,
            }
        )
    return Table("Beside it: the document's numbers", tuple(rows), "Measured or advised by its authors, not by us.")
