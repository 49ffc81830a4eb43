"""Costs a long training run has besides the steps: saves, consecutive jobs and energy."""

import math
from dataclasses import dataclass, field

from runbook.core.units import GIGABYTE, four_digits, parse_duration
from runbook.params.schema.run_file import Job
from runbook.params.schema.site import Site
from runbook.plan_file.json_records import OMIT_DEFAULT
from runbook.planning.choice import Choice
from runbook.planning.cost.energy import estimate_energy
from runbook.planning.cost.failure_rate import FAILURE_SOURCE, seconds_between_failures
from runbook.planning.cost.save_interval import Saves, saves_to_tier
from runbook.planning.cost.time_and_money import Speed


@dataclass(frozen=True)
class LongTraining:
    """Costs a training phase has besides the steps.

    A cost is None if it is unknown. `plan.json` lists the costs under `endurance`.
    """

    saves: tuple[Saves, ...]
    interval_seconds: float | None
    """Time between two saves, as chosen by the run, in seconds."""
    hours_between_failures: float | None
    failure_source: str
    walltime_seconds: int
    """Time limit for each job in seconds, set for the job itself or else by the queue.

    The value is 0 if no limit is known.
    """
    jobs: int | None
    """Number of consecutive jobs, each of which resumes where the previous one ended."""
    energy_kwh: float | None
    """Energy used if all accelerators run at full board power.

    Other parts in the nodes, and cooling, use additional energy.
    """
    energy_basis: str
    spares: int = field(default=0, metadata=OMIT_DEFAULT)
    """Nodes the job holds in reserve and does not train on."""
    devices_per_node: int = field(default=0, metadata=OMIT_DEFAULT)
    """Devices that the job uses on each node. 0 means all devices in the node."""


def jobs_in_a_row(seconds: float, walltime: float, reserve: float) -> int | None:
    """Return how many jobs a training run needs if each job reserves time for a last save.

    Return None if no job makes progress.

    >>> jobs_in_a_row(30 * 86400, 2 * 86400, 600), jobs_in_a_row(3600, 7200, 600), jobs_in_a_row(9999, 600, 600)
    (16, 1, None)
    """
    useful = walltime - reserve
    return math.ceil(seconds / useful) if useful > 0 else None


def estimate_long_training(
    choice: Choice,
    job: Job,
    checkpoint_bytes: int,
    time: Speed,
) -> LongTraining:
    """Return the costs a training phase has besides the steps, at the expected speed."""
    site = choice.site
    step_seconds = time.seconds_per_iteration
    between_failures = None if choice.on_cpu else seconds_between_failures(choice.layout.world_size)
    interval = None
    if step_seconds and choice.training.save_interval:
        interval = step_seconds * choice.training.save_interval
    saves = tuple(
        saves_to_tier(tier, bandwidth * GIGABYTE, checkpoint_bytes, interval, between_failures)
        for tier, bandwidth in site.write_bandwidth.items()
    )
    walltime = _walltime(site, job)
    reserve = 2 * min((save.write_seconds for save in saves), default=0.0)
    jobs = None
    if time.seconds is not None and walltime:
        jobs = jobs_in_a_row(time.seconds, walltime, reserve)
    hours_between_failures = None
    failure_source = ""
    if between_failures is not None:
        hours_between_failures = four_digits(between_failures / 3600)
        failure_source = FAILURE_SOURCE

    energy, basis = estimate_energy(site, time.device_hours)
    per_node = choice.devices_per_node
    return LongTraining(
        saves=saves,
        interval_seconds=None if interval is None else four_digits(interval),
        hours_between_failures=hours_between_failures,
        failure_source=failure_source,
        walltime_seconds=walltime,
        jobs=jobs,
        energy_kwh=energy,
        energy_basis=basis,
        spares=job.spares,
        devices_per_node=0 if per_node == site.hardware.devices_per_node else per_node,
    )


def _walltime(site: Site, job: Job) -> int:
    """Return the time limit for a job in seconds, from the job itself or else from the queue.

    Return 0 if no limit is known.
    """
    if job.walltime:
        return job.walltime
    queue = site.queues.get(job.partition)
    if queue and queue.max_walltime:
        return parse_duration(queue.max_walltime)
    return 0
