"""Ranges of numbers in the plan, with their descriptions for messages."""

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Range:
    """The range of numbers that a value of the plan may have. NaN is outside every range."""

    text: str
    holds: Callable[[float], bool]


AT_LEAST_ONE = Range("a positive number", lambda value: value >= 1)
NOT_NEGATIVE = Range("0 or more", lambda value: 0 <= value < math.inf)
POSITIVE = Range("more than 0", lambda value: 0 < value < math.inf)
BELOW_ONE = Range("at least 0 and below 1", lambda value: 0 <= value < 1)


def within(allowed: Range) -> dict[str, Range]:
    """Return the metadata for a field whose values are limited to this range.

    `limits.check` reads this metadata.
    """
    return {"range": allowed}
