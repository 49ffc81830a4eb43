"""Finds the smaller numbers of nodes that training may continue on after node failures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from runbook.core.checks import Check, counted
from runbook.params import Settings
from runbook.plan_file.phase_names import FULL
from runbook.planning.choice import Choice
from runbook.planning.cost import memory
from runbook.planning.layout_rules import check_layout
from runbook.planning.messages import PlanningMessage
from runbook.planning.schedule import check_schedule

MIN_NODES = "jobs.training.min_nodes"


@dataclass(frozen=True)
class FewerNodes:
    """How training can continue on fewer nodes than planned."""

    settings: Settings
    choice: Choice
    """The training run as planned."""

    @property
    def min_nodes(self) -> int:
        """Return the fewest nodes the run file allows, or 0 if all nodes are needed."""
        return self.settings.job(FULL).min_nodes

    @property
    def obstacle(self) -> str:
        """Return why training cannot continue with fewer nodes, or '' if it can."""
        site = self.settings.site
        if site.scheduler == "local":
            return f"site {site.site} is a single machine, so it has no nodes to lose"
        if not self.choice.own_trainer:
            framework = self.choice.training.framework
            return PlanningMessage.MIN_NODES_OF_FRAMEWORK.fill(framework=framework)

        if self.min_nodes >= self.choice.nodes:
            nodes = counted(self.choice.nodes, "node")
            return PlanningMessage.MIN_NODES_TOO_LARGE.fill(nodes=nodes, key=MIN_NODES)
        return ""

    @cached_property
    def choices(self) -> tuple[Choice, ...]:
        """Return the training run on each allowed smaller number of nodes, in descending order."""
        if self.choice.smoke or not self.min_nodes or self.obstacle:
            return ()
        return tuple(choice for choice in self.candidates if not _broken_rules(choice))

    @property
    def candidates(self) -> Iterator[Choice]:
        """Yield the training run on each smaller number of nodes that works, largest first."""
        for nodes in range(self.choice.nodes - 1, self.min_nodes - 1, -1):
            choice = self.choice.on_nodes(nodes)
            if _divides(choice):
                yield choice

    @property
    def reason(self) -> str:
        """Return a clause that names the rule which the largest candidate breaks.

        Return an empty string if there is no candidate.
        """
        for choice in self.candidates:
            broken = _broken_rules(choice)
            return f"; with {choice.nodes}, {broken[0].name}: {broken[0].value}"

        return ""

    @property
    def replicas(self) -> tuple[int, ...]:
        """Return the number of data-parallel replicas for each allowed number of nodes."""
        return tuple(choice.layout.data for choice in self.choices)


def _divides(choice: Choice) -> bool:
    """Return whether the nodes hold complete replicas and the global batch divides over them."""
    if choice.nodes % choice.node_multiple:
        return False
    return choice.global_batch % (choice.micro_batch * choice.layout.data) == 0


def _broken_rules(choice: Choice) -> list[Check]:
    """Return every rule this training run breaks."""
    checks = [*check_layout(choice), *check_schedule(choice)]
    broken = [check for check in checks if check.verdict == "fail"]
    if not broken:
        # With fewer replicas, each one holds a larger share of the optimizer states.
        needs = memory.phase_memory(choice, memory.all_stages(choice), machine=None)
        checks = [memory.check_memory(choice, needs)]
        broken = [check for check in checks if check.verdict == "fail"]

    return broken


def check_fewer_nodes(settings: Settings, choice: Choice) -> Iterator[Check]:
    """Describe how training continues with fewer nodes, if the run file allows it."""
    fewer = FewerNodes(settings, choice)
    if not fewer.min_nodes:
        return
    name = f"{FULL}: fewer nodes"
    value = f"{MIN_NODES}={fewer.min_nodes}"
    if fewer.obstacle:
        remedy = f"Set {MIN_NODES} to 0."
        yield Check(name, "fail", value, fewer.obstacle, remedy, keys=(MIN_NODES,))
        return

    rule = (
        "the nodes have room for whole replicas, the global batch is divisible by replicas x "
        "micro-batch, and their states fit into memory"
    )
    if not fewer.choices:
        remedy = f"Lower {MIN_NODES} to a number for which this holds, or set it to 0."
        value = PlanningMessage.NO_NUMBER_OF_NODES.fill(
            key=MIN_NODES,
            min_nodes=fewer.min_nodes,
            most=choice.nodes - 1,
            reason=fewer.reason,
        )
        yield Check(
            name,
            "fail",
            value,
            rule,
            remedy,
            keys=(MIN_NODES,),
        )
        return

    yield Check(
        name, "pass", f"if healthy nodes are missing, {_ways_text(choice, fewer.choices)}", rule
    )


SHOWN_WAYS = 4


def _ways_text(planned: Choice, choices: Sequence[Choice]) -> str:
    """Describe what changes with each of the first few numbers of nodes.

    A step with half the replicas takes twice as long, minus the communication that is no longer
    needed.
    """
    ways = []
    for choice in choices[:SHOWN_WAYS]:
        factor = planned.nodes / choice.nodes
        way = PlanningMessage.FEWER_NODES.fill(
            nodes=choice.nodes,
            planned_nodes=planned.nodes,
            replicas=counted(choice.layout.data, "replica"),
            num_microbatches=choice.num_microbatches,
            planned_microbatches=planned.num_microbatches,
            factor=factor,
        )
        ways.append(way)

    if len(choices) > SHOWN_WAYS:
        ways.append(f"and so on down to {choices[-1].nodes}")
    return "; ".join(ways)
