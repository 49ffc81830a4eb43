"""A curve in one word."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

BARS = "▁▂▃▄▅▆▇█"
GAP = "·"
"""Stands where no value is known."""


def sparkline(values: Sequence[float | None], width: int = 40) -> str:
    """The values as bars from lowest to highest, at most `width` of them; a gap where a value is missing or no number.

    More values than bars are averaged in equal groups, so a single spike in a long run becomes lower, not lost.

    >>> sparkline([10.8, 9.0, None, 7.0, 3.6]), sparkline([2, 2, 2]), sparkline([])
    ('█▆·▄▁', '▁▁▁', '')
    >>> len(sparkline([float(n) for n in range(1000)]))
    40
    """
    shown = _grouped([value if value is not None and math.isfinite(value) else None for value in values], width)
    known = [value for value in shown if value is not None]
    if not known:
        return GAP * len(shown)
    low, span = min(known), max(known) - min(known)
    steps = len(BARS) - 1
    return "".join(
        GAP if value is None else BARS[round((value - low) / span * steps) if span > 0 else 0] for value in shown
    )


def _grouped(values: list[float | None], width: int) -> list[float | None]:
    if len(values) <= width:
        return values
    edges = [round(index * len(values) / width) for index in range(width + 1)]
    return [_mean(values[start:end]) for start, end in itertools.pairwise(edges)]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
