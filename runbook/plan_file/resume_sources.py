"""Where a resume can read the training state from, as recorded in the event `resumed`."""

from collections.abc import Sequence

SHARED = "shared"
"""A checkpoint on the shared file system."""
NEAR_OWN = "near own"
"""Each rank reads the copy in its own node's memory."""
_NEAR_PARTNER = "near partner"
"""Copies in memory on other nodes. The name is followed by the ranks that fetched them."""


def near_partner(ranks: Sequence[int]) -> str:
    """Return the source name for a resume where these ranks fetched copies from other nodes.

    >>> near_partner([1, 3]), is_from_partner(near_partner([1, 3])), is_near(NEAR_OWN)
    ('near partner (rank 1, 3)', True, True)
    """
    return f"{_NEAR_PARTNER} (rank {', '.join(map(str, ranks))})"


def is_from_partner(source: str) -> bool:
    """Return whether copies were fetched from other nodes."""
    return source.startswith(_NEAR_PARTNER)


def is_near(source: str) -> bool:
    """Return whether the state was read from node memory."""
    return source == NEAR_OWN or is_from_partner(source)
