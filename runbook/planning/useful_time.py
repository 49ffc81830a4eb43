"""Estimates what faults cost in a planned training run, by simulating it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from runbook.core.units import GIGABYTE, show_duration
from runbook.plan_file.fewer_replicas import allowed_nodes
from runbook.plan_file.hang_limits import HangLimits
from runbook.plan_file.phase_names import FULL
from runbook.planning.cost.failure_rate import FAILURE_SOURCE, seconds_between_failures
from runbook.planning.cost.fault_simulation import (
    FAULT_KINDS,
    FAULT_SOURCE,
    NODE,
    CampaignParts,
    NearParts,
    Policy,
    UsefulTime,
    expected,
)
from runbook.planning.cost.start_up import START_UP_SECONDS
from runbook.planning.make_plan import Plan
from runbook.planning.messages import PlanningMessage

CRASH_SECONDS = 5.0
"""Time from when one process ends until the job ends.

In the drills on one machine this took 0.1 to 1.1 s; on many nodes, `CRASH_SECONDS` is assumed.
"""
LOST_NODE_SECONDS = 300.0
"""Time until an unresponsive node is noticed: the default Slurm SlurmdTimeout."""
COPY_BYTES_PER_SECOND = 10e9
"""Copy rate from a device to pinned memory; one H200 reaches 10 to 23 GB/s
(docs/measurements/gpu-h200.md).
"""
POSSIBLE_NEAR_SECONDS = 60.0
"""Interval between copies in seconds, assumed for a plan without copies."""
NEAR_BYTES_PER_SECOND = 2e9
"""Rate at which a rank writes its state to node memory with a checksum, or reads it; assumed."""
PARTNER_BYTES_PER_SECOND = 1e9
"""Rate at which a node sends the state of all its ranks to a partner over TCP; assumed."""
ASSUMED_GIGABYTES_A_NODE = 1.0
ASSUMED_GIGABYTES_AT_MOST = 20.0
"""Write speeds assumed if none is stated for the storage: per node, and for all nodes together."""


@dataclass(frozen=True)
class FaultCosts:
    """Input to the simulation for one plan."""

    parts: CampaignParts
    detection: Mapping[str, float]
    """Seconds until a failure is noticed, by kind."""
    training_seconds: float
    """Seconds needed for steps and evaluations only."""
    seconds_between: float
    assumptions: tuple[str, ...]
    fewer_nodes: tuple[int, ...] = ()
    """Smaller numbers of nodes, in descending order, that the run file lets training continue on.
    """


def fault_costs(plan: Plan) -> FaultCosts | None:
    """Return the simulation input for this training run.

    Return None if the training speed or the failure rate is unknown.
    """
    phase = plan.phases[FULL]
    speed = plan.time[FULL]
    hours_between = plan.endurance.hours_between_failures
    if hours_between is None or not speed.seconds or not speed.seconds_per_iteration:
        return None
    devices = phase.parallel.world_size
    per_node = plan.endurance.devices_per_node or max(1, plan.computes_on.devices_per_node)
    nodes = max(1, math.ceil(devices / per_node))
    write_seconds, storage = _write_seconds(plan, nodes)
    stall = write_seconds
    if phase.checkpoint.asynchronous:
        stall = plan.checkpoint[FULL].checkpoint_bytes / devices / COPY_BYTES_PER_SECOND
    near = near_parts(plan, nodes)
    parts = CampaignParts(
        step=speed.seconds_per_iteration,
        steps_between_saves=phase.checkpoint.interval or phase.duration.iterations,
        save_stall=stall,
        save_lag=max(stall, write_seconds),
        start=START_UP_SECONDS,
        resume=write_seconds,
        nodes=nodes,
        walltime=float(plan.endurance.walltime_seconds),
        near=near,
    )
    fewer_nodes = tuple(allowed_nodes(phase, per_node)[1:])
    assumptions = (
        f"failures: {FAILURE_SOURCE}",
        f"their kinds: {FAULT_SOURCE}",
        f"{show_duration(START_UP_SECONDS)} to start (assumed)",
        storage,
        *([_near_text(near)] if near is not None else []),
        *([_fewer_text(nodes, fewer_nodes)] if fewer_nodes else []),
    )
    return FaultCosts(
        parts=parts,
        detection=detection_seconds(
            float(phase.limits.process_group_timeout_seconds), speed.seconds_per_iteration
        ),
        training_seconds=speed.seconds,
        seconds_between=seconds_between_failures(devices),
        assumptions=assumptions,
        fewer_nodes=fewer_nodes,
    )


def possible_copies(plan: Plan, parts: CampaignParts) -> NearParts | None:
    """Return what copies in node memory would cost if they were written about once a minute."""
    return near_parts(plan, parts.nodes, max(1, round(POSSIBLE_NEAR_SECONDS / parts.step)))


def near_parts(plan: Plan, nodes: int, steps_between: int = 0) -> NearParts | None:
    """Return what copies in node memory cost, or None if there are none in the plan.

    `steps_between` replaces the interval in the plan.
    """
    steps_between = steps_between or plan.phases[FULL].checkpoint.near_interval
    if not steps_between:
        return None
    stage = plan.memory[FULL].fullest_stage
    rank_bytes = stage.weights + stage.optimizer
    stall = rank_bytes / NEAR_BYTES_PER_SECOND
    has_partner = nodes > 1
    ranks_of_a_node = math.ceil(plan.phases[FULL].parallel.world_size / nodes)
    if has_partner:
        sending = ranks_of_a_node * rank_bytes / PARTNER_BYTES_PER_SECOND
    else:
        sending = 0.0

    return NearParts(
        steps_between=steps_between,
        stall=stall,
        lag=stall + sending,
        resume=stall + sending,
        has_partner=has_partner,
    )


def _near_text(near: NearParts) -> str:
    speeds = f"{NEAR_BYTES_PER_SECOND / 1e9:g} GB/s a rank"
    if near.has_partner:
        speeds += f" and {PARTNER_BYTES_PER_SECOND / 1e9:g} GB/s to the partner of a node"
    return PlanningMessage.NEAR_COPIES.fill(interval=near.steps_between, speeds=speeds)


def _fewer_text(nodes: int, fewer_nodes: tuple[int, ...]) -> str:
    return (
        f"with {fewer_nodes[0]} of {nodes} nodes a step takes {nodes / fewer_nodes[0]:.3g} times as "
        f"long, down to {fewer_nodes[-1]} nodes; lost nodes stay allocated to the end of the job"
    )


def detection_seconds(timeout: float, step_seconds: float) -> dict[str, float]:
    """Return the seconds needed to notice each kind of failure.

    For hangs, the value is the time the watchdog allows for a step.
    """
    limits = HangLimits(timeout)
    limits.measured("step", step_seconds)
    hang = limits.limit("step")
    seconds = {}
    for kind in FAULT_KINDS:
        if kind.hangs:
            seconds[kind.name] = hang
        elif kind is NODE:
            seconds[kind.name] = LOST_NODE_SECONDS
        else:
            seconds[kind.name] = CRASH_SECONDS

    return seconds


def useful_time(plan: Plan) -> UsefulTime | None:
    """Return the expected share of useful time, or None if unknown.

    Also return None if a training run is shorter than the start-up, because the share would mostly
    reflect the assumed start-up time.
    """
    costs = fault_costs(plan)
    if costs is None or costs.training_seconds < costs.parts.start:
        return None
    policy = Policy(
        spares=plan.endurance.spares,
        fewer_nodes=costs.fewer_nodes,
        detection=costs.detection,
    )
    return expected(costs.parts, policy, costs.training_seconds, costs.seconds_between)


def _write_seconds(plan: Plan, nodes: int) -> tuple[float, str]:
    """Return the seconds a complete save to the fastest tier takes, and their source."""
    fastest = min(plan.endurance.saves, key=lambda save: save.write_seconds, default=None)
    if fastest is not None:
        return fastest.write_seconds, f"saves to {fastest.tier}"
    gigabytes = min(ASSUMED_GIGABYTES_AT_MOST, ASSUMED_GIGABYTES_A_NODE * nodes)
    seconds = plan.checkpoint[FULL].checkpoint_bytes / (gigabytes * GIGABYTE)
    return seconds, PlanningMessage.SPEED_OF_SAVES.fill(gigabytes=gigabytes)
