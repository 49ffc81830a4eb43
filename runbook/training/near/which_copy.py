"""Chooses which copies in node memory a start loads.

The choice depends on the copies that exist, and on the copies that were already tried.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

MOST_LOADS = 2
"""At most this many starts load the same copies. Later starts load the shared checkpoint.

If a training run repeatedly fails soon after loading the same copies, the copies may be the cause.
"""


class CopyKey(NamedTuple):
    """Identifies a copy: by node, iteration, segment and rank."""

    node: int
    rank: int
    iteration: int
    lineage: str
    """Random name of the segment that wrote the copy, so that states from different segments are
    never mixed.
    """


@dataclass(frozen=True)
class HeldCopy:
    """A copy on a node, as described in the file header."""

    key: CopyKey
    shared_iteration: int
    """Iteration of the newest checkpoint the shared file system had when the copy was written.

    The value is 0 if there was no checkpoint.
    """


@dataclass(frozen=True)
class NearChoice:
    """Copies from one iteration, one for each rank."""

    iteration: int
    lineage: str
    copies: tuple[CopyKey, ...]
    """The copy each rank loads, by rank."""

    def from_other_nodes(self, node_of_rank: Sequence[int]) -> list[int]:
        """Return the ranks that load a copy from a node other than their own."""
        ranks: list[int] = []
        for copy in self.copies:
            if copy.node != node_of_rank[copy.rank]:
                ranks.append(copy.rank)

        return ranks


@dataclass(frozen=True)
class LoadHistory:
    """What has happened to the copies in a training run, according to the events."""

    lineages: frozenset[str]
    """Segments with copies that belong to the current course of training."""
    spent: frozenset[tuple[int, str]]
    """Iteration and lineage of copies not to be tried again."""


def load_history(events: Iterable[Mapping[str, object]]) -> LoadHistory:
    """Return the history of the copies, based on the events in a run, oldest first.

    A rollback skips samples, so copies from before it belong to an abandoned course of training.
    Copies are not tried again if no step was completed after they were loaded, and no copies are
    loaded more than `MOST_LOADS` times. The same limit applies to jobs that die at the start, while
    they verify or fetch copies.
    """
    lineages: set[str] = set()
    loads: dict[tuple[int, str], int] = {}
    looks: dict[tuple[int, str], int] = {}  # Starts that never recorded an end
    open_loads: set[tuple[int, str]] = set()
    for event in events:
        name = event.get("event")
        copy = (_whole(event.get("iteration")), str(event.get("near") or ""))
        if name == "rolled_back":
            lineages.clear()
        if name in ("started", "rolled_back") and copy[1]:
            lineages.add(copy[1])
        elif name == "near_verifying":
            looks[copy] = looks.get(copy, 0) + 1
        elif name == "near_broken":
            # The start did not crash, since it recorded faults in the copies
            looks.pop(copy, None)
        elif name == "near_loading":
            looks.pop(copy, None)
            loads[copy] = loads.get(copy, 0) + 1
            open_loads.add(copy)
        elif name == "near_continued":
            open_loads.discard(copy)

    often: set[tuple[int, str]] = set()
    for counts in (loads, looks):
        often.update(copy for copy, count in counts.items() if count >= MOST_LOADS)
    return LoadHistory(frozenset(lineages), frozenset(open_loads | often))


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0


def choose_copies(
    held: Iterable[HeldCopy],
    node_of_rank: Sequence[int],
    history: LoadHistory,
    *,
    newer_than: int,
    newest_shared: int,
    bad: Collection[CopyKey] = (),
) -> NearChoice | None:
    """Return the newest copies every rank can load, or None to use the shared checkpoint.

    Only copies newer than the iteration `newer_than` are used. Copies are ignored if the shared
    file system had a checkpoint newer than `newest_shared` when they were written. In that case,
    someone has removed that checkpoint to go back.
    """
    by_state: dict[tuple[int, str], dict[int, list[CopyKey]]] = {}
    for copy in held:
        key = copy.key
        state = (key.iteration, key.lineage)
        is_usable = key.lineage in history.lineages and state not in history.spent
        is_wanted = key.iteration > newer_than and copy.shared_iteration <= newest_shared
        if is_usable and is_wanted and key not in bad:
            by_state.setdefault(state, {}).setdefault(key.rank, []).append(key)

    for iteration, lineage in sorted(by_state, reverse=True):
        by_rank = by_state[iteration, lineage]
        if all(rank in by_rank for rank in range(len(node_of_rank))):
            copies = tuple(_nearest(by_rank[rank], node) for rank, node in enumerate(node_of_rank))
            return NearChoice(iteration, lineage, copies)

    return None


def _nearest(copies: Sequence[CopyKey], node: int) -> CopyKey:
    """Return the copy on the given node, or else a copy on the first node with one."""
    return min(copies, key=lambda copy: (copy.node != node, copy.node))
