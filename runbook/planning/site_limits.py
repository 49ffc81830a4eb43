"""Compares the limits at the site (queues, disk and shared storage) with what the run needs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches

from runbook.core.checks import Check, check_of, counted, judge
from runbook.core.table import UNKNOWN, Table
from runbook.core.units import (
    GIGABYTE,
    parse_duration,
    show_bytes,
    show_clock,
    show_count,
    show_duration,
)
from runbook.params.schema.run_file import JOB_SECTIONS, Job
from runbook.params.schema.site import QueueLimit, Site, Tier, Volume
from runbook.params.settings import Settings
from runbook.plan_file.diagnostics import RuleResult
from runbook.plan_file.schema import ADAM_MOMENTS, Precision
from runbook.planning.choice import Choice
from runbook.planning.cost.checkpoint_size import checkpoint_bytes
from runbook.planning.cost.start_up import start_up_seconds
from runbook.planning.cost.time_and_money import Speed
from runbook.planning.messages import PlanningMessage
from runbook.planning.rule_codes import PlanCode


def check_queues(settings: Settings) -> list[Check]:
    """For each job that names a queue, compare nodes and time limit with what the queue allows."""
    jobs = []
    for phase, section in JOB_SECTIONS.items():
        jobs.append((phase, section, getattr(settings.run.jobs, section)))

    return [_queue(phase, section, job, settings) for phase, section, job in jobs if job.partition]


def _queue(
    phase: str,
    section: str,
    job: Job,
    settings: Settings,
) -> Check:
    name = f"{phase}: queue"
    rule = PlanningMessage.QUEUE_RULE.fill()
    site = settings.site.site
    queues = settings.site.queues
    partitions = [partition for partition in job.partition.split(",") if partition]
    unlisted = [partition for partition in partitions if partition not in queues]
    if unlisted and not queues:
        value = PlanningMessage.QUEUES_NOT_KNOWN.fill(partition=job.partition, site=site)
        return Check(name, "unknown", value, rule)

    if unlisted:
        value = PlanningMessage.QUEUE_NOT_LISTED.fill(queue=unlisted[0], site=site)
        suggestion = _suggested_queue(unlisted[0], queues)
        remedy = PlanningMessage.NAME_A_QUEUE.fill(suggestion=suggestion, section=section)
        return Check(
            name,
            "warn",
            value,
            rule,
            remedy,
        )

    # A job that names multiple partitions may start in any of them, so only the best fit is
    # compared.
    limits = [queues[partition] for partition in partitions]
    limit = min(limits, key=lambda limit: len(_exceeded_keys(job, limit)))
    exceeded = [f"jobs.{section}.{key}" for key in _exceeded_keys(job, limit)]
    if job.walltime:
        time_limit = show_clock(job.walltime)
    else:
        time_limit = PlanningMessage.QUEUE_TIME.fill()

    value = PlanningMessage.JOB_IN_QUEUE.fill(
        nodes=counted(job.nodes, "node"),
        time_limit=time_limit,
        partition=job.partition,
        limits=_accepted(limit),
    )
    remedy = PlanningMessage.CHANGE_KEYS.fill(keys=" and ".join(exceeded))
    return judge(
        name,
        not exceeded,
        value,
        rule,
        remedy,
        keys=tuple(exceeded),
    )


def check_nodes(settings: Settings, choice: Choice) -> list[Check]:
    """Compare the nodes of a training job with those of the site.

    Return no check if the site file does not state how many nodes there are.
    """
    site_nodes = settings.site.hardware.nodes
    if not site_nodes:
        return []
    nodes = settings.job(choice.phase).nodes
    result = RuleResult(
        code=PlanCode.NODES_OF_SITE,
        holds=nodes <= site_nodes,
        values={
            "nodes": counted(nodes, "node"),
            "site_nodes": site_nodes,
            "site": settings.site.site,
            "job_key": choice.keys.job,
        },
        keys=(f"{choice.keys.job}.nodes",),
    )
    return [check_of(result, choice.phase)]


def _suggested_queue(unlisted: str, queues: Mapping[str, QueueLimit]) -> str:
    close = get_close_matches(unlisted, list(queues), 1, 0.5)
    if close:
        return PlanningMessage.DID_YOU_MEAN.fill(name=close[0])
    return PlanningMessage.THERE_ARE.fill(names=", ".join(queues))


def _accepted(limit: QueueLimit) -> str:
    """Describe the jobs a queue accepts."""
    bounds = []
    if limit.min_nodes:
        bounds.append(PlanningMessage.FEWEST_NODES.fill(nodes=limit.min_nodes))
    if limit.max_nodes:
        bounds.append(PlanningMessage.MOST_NODES.fill(nodes=limit.max_nodes))
    if limit.max_walltime:
        bounds.append(PlanningMessage.LONGEST_JOB.fill(walltime=limit.max_walltime))
    return ", ".join(bounds) or PlanningMessage.NO_LIMIT.fill()


def _exceeded_keys(job: Job, limit: QueueLimit) -> list[str]:
    """Return the keys in the job that have values a queue does not accept."""
    exceeded = []
    too_few = job.nodes < limit.min_nodes
    too_many = limit.max_nodes and job.nodes > limit.max_nodes
    if too_few or too_many:
        exceeded.append("nodes")
    if limit.max_walltime and job.walltime > parse_duration(limit.max_walltime):
        exceeded.append("walltime")
    return exceeded


def check_time_limit(settings: Settings, choice: Choice, speed: Speed) -> list[Check]:
    """Warn of a job whose own time limit ends it before its first step is complete.

    The unit of the limit is probably wrong then. Return no check for any other job.
    """
    walltime = settings.job(choice.phase).walltime
    start_up = start_up_seconds(on_cpu=choice.on_cpu)
    step = speed.seconds_per_iteration
    if not walltime or walltime > start_up + (step or 0.0):
        return []
    result = RuleResult(
        code=PlanCode.TIME_LIMIT,
        holds=False,
        values={
            "job_key": choice.keys.job,
            "walltime": show_duration(walltime),
            "start_up": show_duration(start_up),
            "step": UNKNOWN if step is None else show_duration(step),
        },
        keys=(f"{choice.keys.job}.walltime",),
    )
    return [check_of(result, choice.phase, otherwise="warn")]


TEBIBYTE = 2**40
LEAST_WRITE_TIME = "least time to write"
"""Column in the table of storage tiers: the shortest time in which a checkpoint can be written."""
STATED_WRITE_TIME = "the document says"
"""Column in the same table: the time stated in the site's document, and how it differs from ours.
"""
STATED_PARAMETERS = range(174_000_000_000, 176_000_000_000)
"""Model sizes, in parameters, for which the documents state how long a checkpoint takes."""


def tier_table(
    site: Site,
    parameters: int,
    precision: Precision,
    moments: Sequence[str] = ADAM_MOMENTS,
) -> Table:
    """Return a table with the shortest time in which each tier can store this model's checkpoint.

    The time from the site's document is shown only for the model size it applies to. For a site
    without tiers, the table is empty.
    """
    checkpoint = checkpoint_bytes(parameters, precision, moments)
    tiers = _tiers(site)
    rows = []
    for name, gigabytes_per_second in site.write_bandwidth.items():
        tier = tiers.get(name)
        seconds = checkpoint / (gigabytes_per_second * GIGABYTE)
        is_stated = parameters in STATED_PARAMETERS
        stated_minutes = tier.stated_minutes if tier and is_stated else 0.0
        rows.append(
            {
                "tier": name,
                "size": f"{tier.size / TEBIBYTE:g} TiB" if tier and tier.size else UNKNOWN,
                "bandwidth": f"{gigabytes_per_second:g} GB/s",
                "checkpoint": f"{checkpoint / 1e12:.3f} TB = {checkpoint / TEBIBYTE:.3f} TiB",
                LEAST_WRITE_TIME: _write_time(seconds),
                STATED_WRITE_TIME: _stated_time(stated_minutes, seconds / 60),
            }
        )

    note = "All nodes write at the tier's full bandwidth; 1 GB = 10^9 bytes, 1 TiB = 2^40 bytes."
    title = PlanningMessage.TIER_TABLE.fill(parameters=show_count(parameters))
    return Table(rows, title, [note])


def _write_time(seconds: float) -> str:
    minutes = seconds / 60
    return f"{minutes:.2f} min" if minutes >= 0.1 else f"{seconds:.2f} s"


def _stated_time(stated_minutes: float, minutes: float) -> str:
    """Return the time from a document and how it differs from ours, or '' if none is stated."""
    if not stated_minutes:
        return ""
    return f"{stated_minutes:.2f} min ({stated_minutes / minutes - 1:+.1%})"


def _tiers(site: Site) -> dict[str, Tier]:
    tiers_by_name: dict[str, Tier] = {}
    for volume in site.volumes.values():
        for name, tier in volume.tiers.items():
            tiers_by_name[name] = tier

    return tiers_by_name


def chosen_tier(site: Site, tier_name: str) -> tuple[str, Tier | None]:
    """Return the storage tier that `jobs.storage` names, or else the first.

    Return an empty string if the site has no tiers.
    """
    tiers = _tiers(site)
    if tier_name in tiers:
        return tier_name, tiers[tier_name]
    return next(iter(tiers.items()), ("", None))


def check_volumes(
    settings: Settings, wants: Mapping[str, int], texts: Mapping[str, int]
) -> list[Check]:
    """Compare each shared file system with what is stored there.

    A file system that is too small only causes a warning, since it can be enlarged. `wants`
    contains the bytes needed for each kind of content, and `texts` those for each text downloaded
    to the data folder. A size of 0 means unknown.
    """
    storage = settings.run.jobs.storage
    name, _ = chosen_tier(settings.site, storage)
    checks = []
    if storage and storage != name:
        tiers = ", ".join(_tiers(settings.site)) or "none"
        result = RuleResult(
            code=PlanCode.STORAGE_TIER,
            holds=False,
            values={"tier": storage, "tiers": tiers},
            keys=("jobs.storage",),
        )
        checks.append(check_of(result))

    for key, volume in settings.site.volumes.items():
        sizes = {kind: wants[kind] for kind in volume.holds if kind in wants}
        if not sizes:
            continue
        if "data" in sizes:
            sizes |= {
                PlanningMessage.VOLUME_TEXT.fill(name=text): size for text, size in texts.items()
            }
        checks.append(_volume(key, volume, name, sizes))

    return checks


def _volume(
    key: str,
    volume: Volume,
    tier: str,
    wants: Mapping[str, int],
) -> Check:
    size = volume.size or (volume.tiers[tier].size if tier in volume.tiers else 0)
    code = PlanCode.VOLUME_FITS
    parts = " + ".join(
        PlanningMessage.VOLUME_PART.fill(size=show_bytes(count) if count else UNKNOWN, kind=kind)
        for kind, count in wants.items()
    )
    if not size:
        name = code.message.title.format(volume=key)
        value = PlanningMessage.VOLUME_SIZE_UNKNOWN.fill(parts=parts, path=volume.path)
        return Check(name, "unknown", value, code.message.rule, code=code, values={"parts": parts})

    needed = sum(wants.values())
    is_counted = all(wants.values())
    place = f"{volume.title}, {tier}" if tier in volume.tiers else volume.title
    result = RuleResult(
        code=code,
        holds=needed <= size,
        values={
            "volume": key,
            "parts": parts,
            "size": show_bytes(size),
            "place": place,
            "least": show_bytes(needed * 1.1),
        },
        keys=(),
    )
    check = check_of(result, otherwise="warn")
    if needed <= size and not is_counted:
        return replace(check, verdict="unknown", remedy=PlanningMessage.TEXT_NOT_COUNTED.fill())
    return check
