"""Finds the nodes in a pipeline stage when a failure names ranks but no specific node."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class RankPlaces:
    """Tells which nodes and stages the ranks in an attempt belong to.

    Ranks are numbered node by node and stage by stage, because Megatron orders its groups so that
    the pipeline comes last.
    """

    nodes: Sequence[str]
    """The nodes, in rank order."""
    ranks_per_node: int
    stages: int
    """Number of pipeline stages."""

    @property
    def ranks_per_stage(self) -> int:
        """Return how many ranks a stage has."""
        return len(self.nodes) * self.ranks_per_node // self.stages

    def nodes_of(self, ranks: Iterable[int]) -> list[str]:
        """Return the nodes that have any of these ranks, without repetitions, in order."""
        places = sorted({rank // self.ranks_per_node for rank in ranks})
        return [self.nodes[place] for place in places if place < len(self.nodes)]

    def first_ranks(self, names: Sequence[str]) -> list[int]:
        """Return the first rank on each of these nodes. Unknown names are left out."""
        ranks = []
        for place, node in enumerate(self.nodes):
            if node in names:
                ranks.append(place * self.ranks_per_node)

        return ranks

    def suspect_stage(self, ranks: Sequence[int]) -> list[str]:
        """Return the nodes in the stage that all these ranks belong to.

        The result is empty if the ranks are on the same node, because then the stage does not
        matter. It is also empty if they belong to several stages, or if the stage spans all nodes.

        >>> places = RankPlaces(["n1", "n2", "n3", "n4"], ranks_per_node=2, stages=2)
        >>> places.suspect_stage([4, 7]), places.suspect_stage([4, 5]), places.suspect_stage([3, 4])
        (['n3', 'n4'], [], [])
        """
        if self.stages < 2 or len(self.nodes_of(ranks)) < 2:
            return []
        numbers = {rank // self.ranks_per_stage for rank in ranks}
        if len(numbers) > 1:
            return []
        first_rank = numbers.pop() * self.ranks_per_stage
        nodes = self.nodes_of(range(first_rank, first_rank + self.ranks_per_stage))
        return nodes if len(nodes) < len(self.nodes) else []
