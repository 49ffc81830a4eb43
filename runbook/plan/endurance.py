"""What a long training needs beside its steps: saves, failures, jobs in a row, energy; all in bytes and seconds."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from runbook.params.catalogue import Site
from runbook.params.schema import Job
from runbook.plan.checkpoint import write_seconds
from runbook.plan.choices import Choice
from runbook.plan.speed import Speed
from runbook.plan.step import device_of
from runbook.units import parse_duration

DEVICE_HOURS_PER_FAILURE = 50_677
"""Llama 3 (arXiv 2407.21783): 419 unexpected stops in 54 days on 16,384 H100, all causes."""
FAILURE_SOURCE = "Llama 3: 419 unexpected stops in 54 days on 16,384 H100"
GIGABYTE = 10**9


@dataclass(frozen=True)
class Saves:
    """Saving to one storage tier."""

    tier: str
    bytes_per_second: float
    write_seconds: float
    best_interval_seconds: float | None
    """By Daly, where the failure rate is known."""
    best_interval_iterations: int | None
    added_share: float | None
    """At the best interval, relative to the steps: writing, and steps done again after failures."""
    added_share_as_chosen: float | None
    """The same at the interval that the run chose."""


@dataclass(frozen=True)
class Endurance:
    """What comes on top of the steps; None where it cannot be known."""

    saves: tuple[Saves, ...]
    interval_seconds: float | None
    """Between two saves, as chosen."""
    hours_between_failures: float | None
    failure_source: str
    walltime_seconds: int
    """Of one job; 0: no limit known."""
    jobs: int | None
    """In a row, each resuming from the one before."""
    energy_kwh: float | None
    """At the accelerators' full board power; other parts of the nodes and cooling come on top."""
    energy_basis: str

    def as_dict(self) -> dict[str, Any]:
        """Plain values for plan.json."""
        return asdict(self)


def young(write: float, between_failures: float) -> float:
    """The interval that loses least, first order; both and the result in the same unit.

    >>> round(young(2.195 / 60, 396), 2)
    5.38
    """
    return math.sqrt(2 * write * between_failures)


def daly(write: float, between_failures: float) -> float:
    """The same to a higher order; where a write takes longer than two times between failures, that time.

    >>> [round(daly(2.195 / 60, hours), 2) for hours in (396, 49.5, 3.09)]
    [5.36, 1.88, 0.45]
    """
    if write >= 2 * between_failures:
        return between_failures
    ratio = write / (2 * between_failures)
    return young(write, between_failures) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - write


def added_share(write: float, interval: float, between_failures: float, restart: float = 0.0) -> float:
    """What saving, repeating and restarting add to the steps, relative to them.

    >>> [round(added_share(2.195 / 60, daly(2.195 / 60, hours), hours), 3) for hours in (396, 49.5, 3.09)]
    [0.014, 0.038, 0.154]
    """
    return write / interval + interval / (2 * between_failures) + restart / between_failures


def seconds_between_failures(devices: int, device_hours: float = DEVICE_HOURS_PER_FAILURE) -> float:
    """Mean time between failures of so many devices.

    >>> round(seconds_between_failures(128) / 3600)
    396
    """
    return device_hours / devices * 3600


def jobs_in_a_row(seconds: float, walltime: float, reserve: float) -> int | None:
    """Jobs that a training takes where each keeps a reserve for its last save; None where none makes progress.

    >>> jobs_in_a_row(30 * 86400, 2 * 86400, 600), jobs_in_a_row(3600, 7200, 600), jobs_in_a_row(9999, 600, 600)
    (16, 1, None)
    """
    useful = walltime - reserve
    return math.ceil(seconds / useful) if useful > 0 else None


def endurance(choice: Choice, job: Job, devices: int, checkpoint_bytes: int, time: Speed) -> Endurance:
    """Everything of one training phase at its expected speed."""
    site = choice.site
    step = time.seconds_per_iteration
    between = None if choice.on_cpu else seconds_between_failures(devices)
    interval = step * choice.training.save_interval if step and choice.training.save_interval else None
    tiers = site.write_bandwidth.items()
    saves = tuple(_saves(tier, speed * GIGABYTE, checkpoint_bytes, (step, interval, between)) for tier, speed in tiers)
    walltime = _walltime(job, site)
    reserve = 2 * min((save.write_seconds for save in saves), default=0.0)
    seconds = time.seconds
    energy, basis = _energy(site, time.device_hours)
    return Endurance(
        saves=saves,
        interval_seconds=None if interval is None else _round(interval),
        hours_between_failures=None if between is None else _round(between / 3600),
        failure_source="" if between is None else FAILURE_SOURCE,
        walltime_seconds=walltime,
        jobs=jobs_in_a_row(seconds, walltime, reserve) if seconds is not None and walltime else None,
        energy_kwh=energy,
        energy_basis=basis,
    )


def _saves(
    tier: str, speed: float, checkpoint_bytes: int, known: tuple[float | None, float | None, float | None]
) -> Saves:
    step, chosen, between = known
    write = write_seconds(checkpoint_bytes, speed)
    best = None if between is None else daly(write, between)
    return Saves(
        tier=tier,
        bytes_per_second=speed,
        write_seconds=_round(write),
        best_interval_seconds=None if best is None else _round(best),
        best_interval_iterations=max(1, round(best / step)) if best and step else None,
        added_share=None if best is None or between is None else _round(added_share(write, best, between)),
        added_share_as_chosen=None
        if chosen is None or between is None
        else _round(added_share(write, chosen, between)),
    )


def _walltime(job: Job, site: Site) -> int:
    """The job's own time limit, else its queue's."""
    limit = site.queues.get(job.partition)
    return job.walltime or (parse_duration(limit.max_walltime) if limit and limit.max_walltime else 0)


def _energy(site: Site, device_hours: float | None) -> tuple[float | None, str]:
    device = device_of(site)
    if device is None or device.power_watts is None:
        return None, f"the power of {site.hardware.device} is not known"
    if device_hours is None:
        return None, "the time is not known"
    return _round(device.power_watts * device_hours / 1000), (
        f"{device.power_watts:.0f} W a device (board power of the datasheet) for all of the time"
    )


def _round(value: float) -> float:
    return float(f"{value:.4g}")
