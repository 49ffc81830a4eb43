"""Curves: points thinned so that no spike is lost, and scaled into a picture."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

Points = Sequence[tuple[float, float]]


def finite_points(points: Iterable[tuple[float, float | None]]) -> list[tuple[float, float]]:
    """The points that can be drawn: those whose value is a number."""
    return [(x, y) for x, y in points if y is not None and math.isfinite(y)]


def thin(points: Points, most: int) -> list[tuple[float, float]]:
    """The curve by at most so many points: its ends, and of each stretch the lowest and the highest.

    >>> curve = [(float(n), 3.0) for n in range(100_000)]
    >>> curve[70_123] = (70_123.0, 9.0)
    >>> few = thin(curve, 4000)
    >>> len(few) <= 4000, (70_123.0, 9.0) in few, few[0], few[-1]
    (True, True, (0.0, 3.0), (99999.0, 3.0))
    """
    if len(points) <= most:
        return list(points)
    kept = [points[0]]
    stretch = math.ceil(2 * (len(points) - 2) / (most - 2))
    for start in range(1, len(points) - 1, stretch):
        part = points[start : min(start + stretch, len(points) - 1)]
        kept += sorted({min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])})
    return [*kept, points[-1]]


class Frame(NamedTuple):
    """Where values are on a picture whose y grows downwards."""

    left: float
    top: float
    width: float
    height: float
    x0: float
    x1: float
    y0: float
    y1: float

    def at(self, x: float, y: float) -> str:
        """A point as SVG has it.

        >>> Frame(0, 0, 100, 50, 0, 10, 0, 1).at(5, 1)
        '50.0,0.0'
        """
        across = self.left + self.width * (x - self.x0) / ((self.x1 - self.x0) or 1)
        down = self.top + self.height * (1 - (y - self.y0) / ((self.y1 - self.y0) or 1))
        return f"{across:.1f},{down:.1f}"

    def path(self, points: Points) -> str:
        """The points of a polyline."""
        return " ".join(self.at(x, y) for x, y in points)
