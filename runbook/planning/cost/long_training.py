"""Costs of a long training run in addition to its steps: saves, consecutive jobs and energy."""

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
    """Costs of a training phase in addition to its steps.

    A cost is None if it is unknown. `plan.json` lists the costs under `endurance`.
    """

    saves: tuple[Saves, ...]
    interval_seconds: float | None
    """Time between two saves, as chosen by the run, in seconds."""
    hours_between_failures: float | None
    failure_source: str
    walltime_seconds: int
    """Time limit of one job in seconds, from its own setting or from its queue.

    The value is 0 if no limit is known.
    """
    jobs: int | None
    """Number of consecutive jobs, each of which resumes where the previous one ended."""
    energy_kwh: float | None
    """Energy at the full board power of the accelerators.

    The other parts of the nodes, and cooling, use additional energy.
    """
    energy_basis: str
    spares: int = field(default=0, metadata=OMIT_DEFAULT)
    """Nodes that the job occupies without training on them."""
    devices_per_node: int = field(default=0, metadata=OMIT_DEFAULT)
    """Number of devices that the job uses on each node. 0 means all devices of the node."""


def jobs_in_a_row(seconds: float, walltime: float, reserve: float) -> int | None:
    """Return how many jobs a training run needs if each job reserves time for its last save.

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
    """Return the costs of one training phase in addition to its steps, at its expected speed."""
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
    """Return the time limit of one job in seconds, from its own setting or from its queue.

    Return 0 if no limit is known.
    """
    if job.walltime:
        return job.walltime
    queue = site.queues.get(job.partition)
    if queue and queue.max_walltime:
        return parse_duration(queue.max_walltime)
    return 0
