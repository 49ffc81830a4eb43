"""Node memory for copies of the newest state: how much is needed, and whether nodes have it."""

from collections.abc import Iterator, Sequence

from runbook.core.checks import Check, check_of, counted
from runbook.core.units import show_bytes
from runbook.plan_file.diagnostics import RuleResult
from runbook.plan_file.kept_checkpoints import NEAR_COPIES
from runbook.plan_file.schema import NEAR_FOLDER
from runbook.planning.choice import Choice
from runbook.planning.cost.memory import StageMemory
from runbook.planning.rule_codes import PlanCode

DEFAULT_SHARE = 0.5
"""By default, /dev/shm may use this share of the node memory (tmpfs(5), size=)."""


def near_bytes(choice: Choice, stages: Sequence[StageMemory]) -> int:
    """Return the bytes of all copies on a node: weights, master weights and moments for each rank.

    If there are multiple nodes, each also keeps the same amount for its partner.
    """
    largest = max(stage.weights + stage.optimizer for stage in stages)
    holders = 2 if choice.nodes > 1 else 1
    return NEAR_COPIES * holders * choice.devices_per_node * largest


def check_near_copies(
    choice: Choice, stages: Sequence[StageMemory], node_memory: int
) -> Iterator[Check]:
    """Check that a node has enough memory for the copies. A memory of 0 means unknown."""
    interval = choice.training.near_interval
    if not interval or choice.smoke or not choice.own_trainer:
        return
    needed = near_bytes(choice, stages)
    is_default = choice.training.near_folder == NEAR_FOLDER
    room = node_memory * (DEFAULT_SHARE if is_default else 1.0)
    result = RuleResult(
        code=PlanCode.NEAR_ROOM,
        holds=0 < needed <= room,
        values={
            "interval": interval,
            "needed": show_bytes(needed),
            "folder": choice.training.near_folder,
            "memory": f"has {show_bytes(node_memory)}" if node_memory else "has an unknown memory",
            "partner": "for itself and a partner" if choice.nodes > 1 else "without a partner",
            "nodes": counted(choice.nodes, "node"),
        },
        keys=("training.near_interval", "training.near_folder"),
    )
    fits_nowhere = node_memory and needed > node_memory
    yield check_of(result, choice.phase, otherwise="fail" if fits_nowhere else "warn")
