"""Figures of long trainings: checkpoints, failures, consecutive jobs and energy."""

import math
from dataclasses import dataclass, field

from runbook.core.units import four_digits, parse_duration
from runbook.params.schema.run_file import Job
from runbook.params.schema.site import Site
from runbook.plan_file.json_records import OMIT_DEFAULT
from runbook.plan_file.kept_checkpoints import all_saves, most_at_once
from runbook.plan_file.schema import PhasePlan, Precision
from runbook.planning.cost.speed import Speed
from runbook.planning.cost.step_inputs import device_of
from runbook.planning.layout import Choice
from runbook.planning.messages import PlanningMessage


def bytes_per_parameter(precision: Precision) -> int:
    """Return the checkpoint bytes a parameter.

    They cover the weights in the training format, fp32 master weights unless that format is fp32,
    and Adam's two moments.

    >>> bytes_per_parameter("bf16"), bytes_per_parameter("fp32")
    (14, 12)
    """
    return 4 + 8 if precision == "fp32" else 2 + 12


def checkpoint_bytes(parameters: int, precision: Precision) -> int:
    """Return the bytes of one complete checkpoint.

    >>> checkpoint_bytes(174_615_846_912, "bf16")
    2444621856768
    """
    return parameters * bytes_per_parameter(precision)


@dataclass(frozen=True)
class Storage:
    """The disk space that the checkpoints of one phase need."""

    bytes_per_parameter: int
    checkpoint_bytes: int
    num_checkpoints: int
    """Largest number of checkpoints at once: the retained ones, and the one being written.

    It is 0 if nothing is saved.
    """
    disk_bytes: int


KEEPS_ALL = ("megatron-lm", "megatron-deepspeed")
"""Programs that never delete a checkpoint.

Megatron-LM's `--save-retain-interval` is off by default, and Megatron-DeepSpeed has no such option.
"""


def storage(phase: PhasePlan, program: str) -> Storage:
    """Return the largest disk usage of a phase's checkpoints.

    `program` is the engine or framework that writes them.
    """
    size = checkpoint_bytes(phase.model.parameters, phase.precision.format)
    count_most = all_saves if program in KEEPS_ALL else most_at_once
    num_checkpoints = count_most(phase.checkpoint, phase.duration.iterations)
    return Storage(
        bytes_per_parameter=bytes_per_parameter(phase.precision.format),
        checkpoint_bytes=size,
        num_checkpoints=num_checkpoints,
        disk_bytes=size * num_checkpoints,
    )


DEVICE_HOURS_PER_FAILURE = 50_677
"""Failure rate of Llama 3 (arXiv 2407.21783): 419 unexpected stops in 54 days on 16,384 H100, of
all causes."""
FAILURE_SOURCE = "Llama 3: 419 unexpected stops in 54 days on 16,384 H100"
GIGABYTE = 10**9


@dataclass(frozen=True)
class Saves:
    """Times and costs of saving to one storage tier."""

    tier: str
    bytes_per_second: float
    write_seconds: float
    best_interval_seconds: float | None = None
    """Daly's interval, if the failure rate is known."""
    added_share: float | None = None
    """Cost of the best interval, relative to the steps.

    It includes writing, and repeating steps after failures.
    """
    added_share_as_chosen: float | None = None
    """The same cost for the interval that the run chose."""


@dataclass(frozen=True)
class Endurance:
    """Costs of one training phase in addition to its steps; None for costs that cannot be known."""

    saves: tuple[Saves, ...]
    interval_seconds: float | None
    """Chosen time between two saves, in seconds."""
    hours_between_failures: float | None
    failure_source: str
    walltime_seconds: int
    """Time limit of one job, by its own setting or its queue's. It is 0 if no limit is known."""
    jobs: int | None
    """Number of consecutive jobs, each resuming from the one before."""
    energy_kwh: float | None
    """Energy at the accelerators' full board power.

    The other parts of the nodes, and cooling, use more.
    """
    energy_basis: str
    spares: int = field(default=0, metadata=OMIT_DEFAULT)
    """Nodes that the job occupies in addition to those that train."""
    devices_per_node: int = field(default=0, metadata=OMIT_DEFAULT)
    """Devices of a node that the job uses. 0 means all devices of a node of the site."""


def daly(write: float, between_failures: float) -> float:
    """Return Daly's interval between saves, which loses the least time.

    If a write takes at least twice the time between failures, the result is the time between
    failures. All times are in the same unit. The first order is Young's square root.

    >>> [round(daly(2.195 / 60, hours), 2) for hours in (396, 49.5, 3.09)]
    [5.36, 1.88, 0.45]
    """
    if write >= 2 * between_failures:
        return between_failures
    ratio = write / (2 * between_failures)
    return math.sqrt(2 * write * between_failures) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - write


def added_share(write: float, interval: float, between_failures: float) -> float:
    """Return the cost of saving and repeating, relative to the steps.

    >>> [round(added_share(2.195 / 60, daly(2.195 / 60, hours), hours), 3) for hours in (396, 49.5, 3.09)]
    [0.014, 0.038, 0.154]
    """
    return write / interval + interval / (2 * between_failures)


def seconds_between_failures(devices: int) -> float:
    """Return the mean time between failures of this many devices.

    >>> round(seconds_between_failures(128) / 3600)
    396
    """
    return DEVICE_HOURS_PER_FAILURE / devices * 3600


def jobs_in_a_row(seconds: float, walltime: float, reserve: float) -> int | None:
    """Return the number of jobs for a training if each reserves time for its last save.

    Return None if no job makes progress.

    >>> jobs_in_a_row(30 * 86400, 2 * 86400, 600), jobs_in_a_row(3600, 7200, 600), jobs_in_a_row(9999, 600, 600)
    (16, 1, None)
    """
    useful = walltime - reserve
    return math.ceil(seconds / useful) if useful > 0 else None


def endurance(
    choice: Choice,
    job: Job,
    checkpoint_bytes: int,
    time: Speed,
) -> Endurance:
    """Return what one training phase needs in addition to its steps, at its expected speed."""
    site = choice.site
    step_seconds = time.seconds_per_iteration
    between_failures = None if choice.on_cpu else seconds_between_failures(choice.layout.world_size)
    interval = None
    if step_seconds and choice.training.save_interval:
        interval = step_seconds * choice.training.save_interval
    saves = tuple(
        _saves(tier, bandwidth * GIGABYTE, checkpoint_bytes, interval, between_failures)
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

    energy, basis = _energy(site, time.device_hours)
    per_node = choice.devices_per_node
    return Endurance(
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


def _saves(
    tier: str,
    bytes_per_second: float,
    checkpoint_bytes: int,
    interval: float | None,
    between_failures: float | None,
) -> Saves:
    """Return the saves to one tier.

    `interval` and `between_failures` are in seconds, or None if they are not known.
    """
    write_seconds = checkpoint_bytes / bytes_per_second
    if between_failures is None:
        return Saves(tier, bytes_per_second, four_digits(write_seconds))
    best_interval = daly(write_seconds, between_failures)
    share_as_chosen = None
    if interval is not None:
        share_as_chosen = four_digits(added_share(write_seconds, interval, between_failures))
    return Saves(
        tier=tier,
        bytes_per_second=bytes_per_second,
        write_seconds=four_digits(write_seconds),
        best_interval_seconds=four_digits(best_interval),
        added_share=four_digits(added_share(write_seconds, best_interval, between_failures)),
        added_share_as_chosen=share_as_chosen,
    )


def _walltime(site: Site, job: Job) -> int:
    """Return the seconds that one job may take, by its own limit or its queue's.

    Return 0 if no limit is known.
    """
    if job.walltime:
        return job.walltime
    queue = site.queues.get(job.partition)
    if queue and queue.max_walltime:
        return parse_duration(queue.max_walltime)
    return 0


def _energy(site: Site, device_hours: float | None) -> tuple[float | None, str]:
    device = device_of(site)
    watts = device.power_watts if device else None
    if watts is None:
        return None, PlanningMessage.POWER_NOT_KNOWN.fill(device=site.hardware.device)
    if device_hours is None:
        return None, "the time is not known"
    basis = PlanningMessage.POWER.fill(watts=watts)
    return four_digits(watts * device_hours / 1000), basis
