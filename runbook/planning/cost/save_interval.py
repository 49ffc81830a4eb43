"""The interval between saves that costs the least time, and the cost of any interval."""

import math
from dataclasses import dataclass

from runbook.core.units import four_digits


@dataclass(frozen=True)
class Saves:
    """Time and cost to save to a storage tier."""

    tier: str
    bytes_per_second: float
    write_seconds: float
    best_interval_seconds: float | None = None
    """Daly's interval; None if the failure rate is unknown."""
    added_share: float | None = None
    """Cost of saves at the best interval, relative to the steps.

    The cost includes writing checkpoints, and repeating steps after failures.
    """
    added_share_as_chosen: float | None = None
    """Cost of saves at the interval set in the run file, relative to the steps."""


def daly(write: float, between_failures: float) -> float:
    """Return Daly's interval between saves, which costs the least time.

    If a write takes at least twice the time between failures, the result is the time between
    failures. All times are in the same unit. To first order, the interval is Young's, a square
    root.

    >>> [round(daly(2.195 / 60, hours), 2) for hours in (396, 49.5, 3.09)]
    [5.36, 1.88, 0.45]
    """
    if write >= 2 * between_failures:
        return between_failures
    ratio = write / (2 * between_failures)
    return math.sqrt(2 * write * between_failures) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - write


def added_share(write: float, interval: float, between_failures: float) -> float:
    """Return the cost of saves and repeated steps, relative to the steps.

    >>> [round(added_share(2.195 / 60, daly(2.195 / 60, hours), hours), 3) for hours in (396, 49.5, 3.09)]
    [0.014, 0.038, 0.154]
    """
    return write / interval + interval / (2 * between_failures)


def saves_to_tier(
    tier: str,
    bytes_per_second: float,
    checkpoint_bytes: int,
    interval: float | None,
    between_failures: float | None,
) -> Saves:
    """Return the save time and the best save interval for one storage tier.

    `interval` and `between_failures` are in seconds; None means unknown.
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
