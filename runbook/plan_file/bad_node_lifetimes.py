"""How long a bad node is left out of jobs, depending on how it was identified.

A job and the process that watches it both list bad nodes, so they share these times.
"""

from __future__ import annotations

from runbook.plan_file.text_enum import StrEnum


class FoundBy(StrEnum):
    """How a node was identified as bad."""

    PREFLIGHT = "preflight"
    FAILURE = "failure"
    """A job log blames the node, for example with an Xid."""
    SLOW_RANK = "slow rank"
    BIT_FLIP = "transient corruption"
    CORRUPTION = "persistent corruption"
    PERSON = "person"


_DAY_SECONDS = 86_400.0
LIFETIMES = {
    FoundBy.PREFLIGHT: 2 * _DAY_SECONDS,
    FoundBy.FAILURE: 7 * _DAY_SECONDS,
    FoundBy.SLOW_RANK: 1 * _DAY_SECONDS,
    FoundBy.BIT_FLIP: 1 * _DAY_SECONDS,
    FoundBy.CORRUPTION: 30 * _DAY_SECONDS,
    FoundBy.PERSON: 30 * _DAY_SECONDS,
}
"""Seconds after which a node is used again.

A slow node is often slow because of a different job, whereas a broken GPU waits for repair. A
device that computes wrong results passes the site's tests, so nobody repairs it.
"""
