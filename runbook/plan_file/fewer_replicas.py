"""Adapts a plan to train with fewer data-parallel replicas than planned.

The global batch stays the same: each replica processes more micro-batches. The losses change only
because sums are computed in a different order.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from runbook.plan_file.schema import PhasePlan

REPLICAS_CHANGED = "replicas_changed"
"""Event that records that a start changed the number of data-parallel replicas."""


def plan_of_attempt(phase: PhasePlan, world_size: int) -> PhasePlan:
    """Return the plan for training on this many ranks.

    If the ranks form a number of replicas that `limits.fewer_replicas` allows, the plan is adapted;
    otherwise it is returned unchanged.
    """
    planned = phase.parallel
    ranks_per_replica = planned.world_size // planned.data
    replicas, ranks_over = divmod(world_size, ranks_per_replica)
    if ranks_over or replicas not in phase.limits.fewer_replicas:
        return phase
    sequences_at_once = phase.batch.micro * replicas
    return dataclasses.replace(
        phase,
        parallel=dataclasses.replace(planned, data=replicas, world_size=world_size),
        batch=dataclasses.replace(
            phase.batch, num_microbatches=phase.batch.global_ // sequences_at_once
        ),
        planned_replicas=planned.data,
    )


def allowed_nodes(phase: PhasePlan, devices_per_node: int) -> list[int]:
    """Return the allowed numbers of nodes: the planned number, then the smaller ones."""
    parallel = phase.parallel
    ranks_per_replica = parallel.world_size // parallel.data
    numbers = [parallel.data, *phase.limits.fewer_replicas]
    return [replicas * ranks_per_replica // devices_per_node for replicas in numbers]


@dataclass(frozen=True)
class ReplicasChange:
    """A change in the number of data-parallel replicas when training starts."""

    replicas: int
    planned_replicas: int
    world_size: int
    num_microbatches: int
    """Micro-batches each replica processes in a step."""


def replicas_change(
    phase: PhasePlan, events: Iterable[Mapping[str, object]]
) -> ReplicasChange | None:
    """Return how a start with this plan changes the number of replicas, or None if it does not.

    `events` lists all events in the training run, oldest first.
    """
    planned = phase.planned_replicas or phase.parallel.data
    newest = newest_change(events)
    before = planned if newest is None else newest["replicas"]
    parallel = phase.parallel
    if parallel.data == before:
        return None
    return ReplicasChange(
        replicas=parallel.data,
        planned_replicas=planned,
        world_size=parallel.world_size,
        num_microbatches=phase.batch.num_microbatches,
    )


def newest_change(events: Iterable[Mapping[str, object]]) -> Mapping[str, object] | None:
    """Return the newest event that changed the number of replicas, or None if there is none."""
    newest = None
    for event in events:
        if event.get("event") == "begun":
            newest = None
        elif event.get("event") == REPLICAS_CHANGED:
            newest = event

    return newest
