"""Ranges for numbers in the plan, with descriptions used in messages."""

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Range:
    """A range that limits a value in the plan. NaN is outside every range."""

    text: str
    holds: Callable[[float], bool]


AT_LEAST_ONE = Range("a positive number", lambda value: value >= 1)
NOT_NEGATIVE = Range("0 or more", lambda value: 0 <= value < math.inf)
POSITIVE = Range("more than 0", lambda value: 0 < value < math.inf)
BELOW_ONE = Range("at least 0 and below 1", lambda value: 0 <= value < 1)


def within(allowed: Range) -> dict[str, Range]:
    """Return the metadata used to limit a field to this range.

    `limits.check` reads this metadata.
    """
    return {"range": allowed}
