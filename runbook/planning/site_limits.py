"""Limits of the site: queues, disk and shared storage compared with what the run needs."""

from collections.abc import Mapping
from difflib import get_close_matches

from runbook.core.checks import Check, counted, judge
from runbook.core.table import UNKNOWN, Table
from runbook.core.units import parse_duration, show_bytes, show_clock, show_count
from runbook.params.schema.run_file import JOB_SECTIONS, Job
from runbook.params.schema.site import QueueLimit, Site, Tier, Volume
from runbook.params.settings import Settings
from runbook.plan_file.schema import Precision
from runbook.planning.cost.endurance import GIGABYTE, checkpoint_bytes


def check_queues(settings: Settings) -> list[Check]:
    """Nodes and time limit of each job that names a queue, against that queue's limits."""
    jobs = [
        (phase, section, getattr(settings.run.jobs, section))
        for phase, section in JOB_SECTIONS.items()
    ]
    return [_queue(phase, section, job, settings) for phase, section, job in jobs if job.partition]


def _queue(phase: str, section: str, job: Job, settings: Settings) -> Check:
    name = f"{phase}: queue"
    rule = "nodes and walltime are within what the queue accepts"
    site = settings.site.site
    queues = settings.site.queues
    names = [word for word in job.partition.split(",") if word]
    missing = next((word for word in names if word not in queues), "")
    if missing and not queues:
        return Check(
            name, "unknown", f"the limits of {job.partition} on {site} are not known", rule
        )
    if missing:
        near = get_close_matches(missing, list(queues), 1, 0.5)
        meant = f"Did you mean {near[0]}?" if near else f"There are {', '.join(queues)}."
        value = f"{missing} is not among the queues of params/sites/{site}.yaml"
        return Check(
            name,
            "warn",
            value,
            rule,
            f"{meant} Change jobs.{section}.partition, or add it below queues.",
        )
    limit = min((queues[word] for word in names), key=lambda limit: len(_faults(job, limit)))
    faults = [f"jobs.{section}.{fault}" for fault in _faults(job, limit)]
    limits = [
        f"at least {limit.min_nodes}" if limit.min_nodes else "",
        f"at most {limit.max_nodes} nodes" if limit.max_nodes else "",
        f"at most {limit.max_walltime}" if limit.max_walltime else "",
    ]
    clock = show_clock(job.walltime) if job.walltime else "the queue's own time"
    accepted = ", ".join(filter(None, limits)) or "no limit known"
    value = f"{counted(job.nodes, 'node')} for {clock} in {job.partition} ({accepted})"
    return judge(name, not faults, value, rule, f"Change {' and '.join(faults)}.")


def _faults(job: Job, limit: QueueLimit) -> list[str]:
    faults = {
        "nodes": job.nodes < limit.min_nodes or (limit.max_nodes and job.nodes > limit.max_nodes),
        "walltime": limit.max_walltime and job.walltime > parse_duration(limit.max_walltime),
    }
    return [key for key, broken in faults.items() if broken]


TEBIBYTE = 2**40
STATED_PARAMETERS = range(174_000_000_000, 176_000_000_000)
"""The size that a document's stated times are for."""


def tier_table(site: Site, parameters: int, precision: Precision) -> Table:
    """Each of the site's tiers with the least time that a checkpoint of this model takes; no rows without tiers.

    Beside it the document's own time, for the size that it states one for.
    """
    size = checkpoint_bytes(parameters, precision)
    tiers = _tiers(site)
    rows = []
    for name, gigabytes in site.write_bandwidth.items():
        seconds = size / (gigabytes * GIGABYTE)
        tier = tiers.get(name)
        minutes = seconds / 60
        stated = tier.stated_minutes if tier and parameters in STATED_PARAMETERS else 0.0
        rows.append(
            {
                "tier": name,
                "size": f"{tier.size / TEBIBYTE:g} TiB" if tier and tier.size else UNKNOWN,
                "bandwidth": f"{gigabytes:g} GB/s",
                "checkpoint": f"{size / 1e12:.3f} TB = {size / TEBIBYTE:.3f} TiB",
                "least time to write": f"{minutes:.2f} min"
                if minutes >= 0.1
                else f"{seconds:.2f} s",
                "the document says": f"{stated:.2f} min ({stated / minutes - 1:+.1%})"
                if stated
                else "",
            }
        )
    note = "All nodes writing at the tier's full bandwidth; 1 GB = 10^9 bytes, 1 TiB = 2^40 bytes."
    return Table(
        rows, f"A checkpoint of {show_count(parameters)} parameters by storage tier", [note]
    )


def _tiers(site: Site) -> dict[str, Tier]:
    return {name: tier for volume in site.volumes.values() for name, tier in volume.tiers.items()}


def chosen_tier(site: Site, wanted: str) -> tuple[str, Tier | None]:
    """The tier of the site's storage that `jobs.storage` names, else the first; empty where there are none."""
    tiers = _tiers(site)
    if wanted in tiers:
        return wanted, tiers[wanted]
    return next(iter(tiers.items()), ("", None))


def check_volumes(
    settings: Settings, wants: Mapping[str, int], texts: Mapping[str, int]
) -> list[Check]:
    """Each shared file system against what is put there; one that is too small is warned of, since it can grow.

    `wants` has bytes by what a volume holds, `texts` those of each text that is fetched to the folder for data. 0 is
    unknown.
    """
    wanted = settings.run.jobs.storage
    name, _ = chosen_tier(settings.site, wanted)
    checks = []
    if wanted and wanted != name:
        tiers = ", ".join(_tiers(settings.site)) or "none"
        rule = "the tier is one of the site's"
        checks.append(
            Check(
                "storage tier", "fail", f"jobs.storage={wanted}", rule, f"The tiers are: {tiers}."
            )
        )
    for key, volume in settings.site.volumes.items():
        if kinds := [kind for kind in volume.holds if kind in wants]:
            sizes = {kind: wants[kind] for kind in kinds}
            if "data" in kinds:
                sizes |= {f"text {text}": size for text, size in texts.items()}
            checks.append(_volume(key, volume, name, sizes))
    return checks


def _volume(key: str, volume: Volume, tier: str, wants: Mapping[str, int]) -> Check:
    size = volume.size or (volume.tiers[tier].size if tier in volume.tiers else 0)
    name = f"volume {key}"
    rule = "text, token files and kept checkpoints fit, the one being written too"
    parts = " + ".join(
        f"{show_bytes(count) if count else UNKNOWN} of {kind}" for kind, count in wants.items()
    )
    if not size:
        return Check(name, "unknown", f"{parts}; the size of {volume.path} is not known", rule)
    needed = sum(wants.values())
    value = f"{parts} on {show_bytes(size)} ({volume.title}{', ' + tier if tier in volume.tiers else ''})"
    if not all(wants.values()) and needed <= size:
        return Check(name, "unknown", value, rule, "02-data counts the text.")
    remedy = (
        f"Deploy at least {show_bytes(needed * 1.1)}, or keep fewer checkpoints (training.keep_checkpoints, "
        "training.keep_every, training.save_interval)."
    )
    return judge(name, needed <= size, value, rule, remedy, otherwise="warn")
