"""Maps each rank to a node, and to a partner rank that keeps a copy on a different node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class NodeMap:
    """The node each rank runs on. Nodes are numbered from 0, ordered by their first ranks."""

    node_of_rank: tuple[int, ...]

    @classmethod
    def of(cls, names: Sequence[str]) -> NodeMap:
        """Return the map for ranks on nodes with these names.

        >>> NodeMap.of(["b", "b", "a", "a"]).node_of_rank
        (0, 0, 1, 1)
        """
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        return cls(tuple(numbers[name] for name in names))

    @property
    def num_nodes(self) -> int:
        """Return the number of nodes in the job."""
        return max(self.node_of_rank) + 1

    def ranks_on(self, node: int) -> list[int]:
        """Return the ranks on a node."""
        return [rank for rank, other in enumerate(self.node_of_rank) if other == node]

    def place(self, rank: int) -> int:
        """Return the position of a rank among the ranks on its node."""
        return self.ranks_on(self.node_of_rank[rank]).index(rank)

    @property
    def is_even(self) -> bool:
        """Return whether every node has the same number of ranks."""
        counts = {len(self.ranks_on(node)) for node in range(self.num_nodes)}
        return len(counts) == 1

    def rings(self) -> list[list[int]]:
        """Return the rings of ranks, one for each position on a node.

        A rank sends to the next rank in its ring.

        >>> NodeMap((0, 0, 1, 1, 2, 2)).rings()
        [[0, 2, 4], [1, 3, 5]]
        """
        nodes = [self.ranks_on(node) for node in range(self.num_nodes)]
        return [list(ring) for ring in zip(*nodes, strict=True)]

    def partners(self, rank: int) -> tuple[int, int]:
        """Return the rank this rank sends its state to, and the rank it receives from.

        >>> NodeMap((0, 0, 1, 1, 2, 2)).partners(0)
        (2, 4)
        """
        ring = self.rings()[self.place(rank)]
        index = ring.index(rank)
        return ring[(index + 1) % len(ring)], ring[index - 1]

    def holder(self, rank: int, node: int) -> int:
        """Return which rank on `node` reads the state of `rank`: the one at the same position."""
        return self.ranks_on(node)[self.place(rank)]


def transfer_rounds(pairs: Sequence[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Group transfers (from rank, to rank) into rounds with at most one transfer per rank.

    All ranks begin a round together, to avoid waiting for a partner busy with another transfer.

    >>> transfer_rounds([(0, 1), (1, 2), (2, 3), (3, 0)])
    [[(0, 1), (2, 3)], [(1, 2), (3, 0)]]
    """
    rounds: list[list[tuple[int, int]]] = []
    busy: list[set[int]] = []
    for pair in pairs:
        number = 0
        while number < len(rounds) and busy[number] & set(pair):
            number += 1
        if number == len(rounds):
            rounds.append([])
            busy.append(set())

        rounds[number].append(pair)
        busy[number].update(pair)

    return rounds
