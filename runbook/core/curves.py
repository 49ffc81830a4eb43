"""Curves: points thinned so that no spike is lost, and drawn as SVG in the colours of the page around them."""

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from markupsafe import Markup, escape

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
        kept += sorted(
            {min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])}
        )
    return [*kept, points[-1]]


BARS = "▁▂▃▄▅▆▇█"
GAP = "·"  # stands where no value is known


def sparkline(values: Sequence[float | None], width: int = 40) -> str:
    """The values as bars from lowest to highest, at most `width` of them; a gap where a value is missing or no number.

    More values than bars are averaged in equal groups, so a single spike in a long run becomes lower, not lost.

    >>> sparkline([10.8, 9.0, None, 7.0, 3.6]), sparkline([2, 2, 2]), sparkline([])
    ('█▆·▄▁', '▁▁▁', '')
    >>> len(sparkline([float(n) for n in range(1000)]))
    40
    """
    num_bars = min(width, len(values))
    edges = [round(index * len(values) / max(1, num_bars)) for index in range(num_bars + 1)]
    groups = [
        [value for value in values[start:end] if value is not None and math.isfinite(value)]
        for start, end in itertools.pairwise(edges)
    ]
    # The mean, because a bar has no room for both the lowest and the highest value of its group.
    means = [statistics.fmean(group) if group else None for group in groups]
    known = [mean for mean in means if mean is not None] or [0.0]
    low = min(known)
    span = max(known) - min(known)
    steps = len(BARS) - 1
    return "".join(
        GAP if mean is None else BARS[round((mean - low) / span * steps) if span > 0 else 0]
        for mean in means
    )


WIDTH = 720
HEIGHT = 300
LEFT = 52
RIGHT = 12
TOP = 12
BOTTOM = 44
"""Margins around the curves: the axes' numbers and names are there."""


class Frame(NamedTuple):
    """Where values are on a picture of this height, whose y grows downwards."""

    height: int
    x0: float
    x1: float
    y0: float
    y1: float

    def at(self, x: float, y: float) -> str:
        """A point as SVG has it.

        >>> Frame(300, 0, 10, 0, 1).at(5, 1)
        '380.0,12.0'
        """
        across = LEFT + (WIDTH - LEFT - RIGHT) * (x - self.x0) / ((self.x1 - self.x0) or 1)
        down = TOP + (self.height - TOP - BOTTOM) * (1 - (y - self.y0) / ((self.y1 - self.y0) or 1))
        return f"{across:.1f},{down:.1f}"

    def path(self, points: Points) -> str:
        """The points of a polyline."""
        return " ".join(self.at(x, y) for x, y in points)


MOST_POINTS = 600  # points drawn; more would not be seen and make the page large
COLOURS = ("var(--good, #0072b2)", "var(--bad, #d55e00)", "var(--care, #b58900)", "currentColor")
"""Blue, orange, yellow and ink of the page, light or dark; the dashes tell them apart without any colour."""
DASHES = ("", "6 3", "2 2", "8 2 2 2")


def loss_curve(
    series: Sequence[tuple[str, Points]],
    untrained: float = 0.0,
    restarts: Sequence[int] = (),
    height: int = HEIGHT,
) -> Markup:
    """Loss over iterations for each named series, with axes and their units; empty where nothing can be drawn.

    `untrained` is the loss of an untrained model, drawn as a level; `restarts` are drawn where a job went on.
    """
    drawn = [(name, thin(finite_points(points), MOST_POINTS)) for name, points in series]
    drawn = [(name, points) for name, points in drawn if len(points) > 1]
    if not drawn:
        return Markup("")
    xs, ys = zip(*[point for _, points in drawn for point in points], strict=True)
    ys += (untrained,) if untrained else ()
    margin = (max(ys) - min(ys)) * 0.05 or 0.1
    frame = Frame(height, min(xs), max(xs), min(ys) - margin, max(ys) + margin)
    lines = [_line(frame, name, points, index) for index, (name, points) in enumerate(drawn)]
    if untrained:
        marks = {
            f"untrained: ln V = {untrained:.4g}": [(frame.x0, untrained), (frame.x1, untrained)]
        }
    else:
        marks = {}
    marks |= {
        f"restart at {x}": [(x, frame.y0), (x, frame.y1)]
        for x in restarts
        if frame.x0 < x <= frame.x1
    }
    lines += [_mark(frame, name, points) for name, points in marks.items()]
    ends = "; ".join(
        f"{name}: from {points[0][1]:.4g} to {points[-1][1]:.4g}" for name, points in drawn
    )
    start = Markup(
        '<svg role="img" viewBox="0 0 {} {}" width="100%" font-size="12" font-family="system-ui, sans-serif">'
        "<title>Loss over iterations. {}</title>"
    )
    return (
        start.format(WIDTH, height, ends) + _axes(frame) + Markup("").join(lines) + Markup("</svg>")
    )


def ticks(low: float, high: float) -> list[float]:
    """Round values inside a range.

    >>> ticks(0, 100), ticks(2.31, 10.9)
    ([0.0, 20.0, 40.0, 60.0, 80.0, 100.0], [4.0, 6.0, 8.0, 10.0])
    """
    if high <= low:
        return [low]
    raw = (high - low) / 5
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= raw * 0.999)
    first = math.ceil(low / step)
    return [round(n * step, 10) for n in range(first, math.floor(high / step + 1e-9) + 1)]


def _axes(frame: Frame) -> Markup:
    bottom = frame.height - BOTTOM
    right = WIDTH - RIGHT
    lines = []
    for value in ticks(frame.x0, frame.x1):
        x = frame.at(value, frame.y0).partition(",")[0]
        lines.append(f'<text x="{x}" y="{bottom + 16}" text-anchor="middle">{value:g}</text>')
    for value in ticks(frame.y0, frame.y1):
        y = frame.at(frame.x0, value).partition(",")[2]
        lines.append(f'<line x1="{LEFT}" x2="{right}" y1="{y}" y2="{y}" opacity="0.15"/>')
        lines.append(f'<text x="{LEFT - 6}" y="{y}" dy="4" text-anchor="end">{value:g}</text>')
    lines.append(f'<text x="{right}" y="{bottom + 34}" text-anchor="end">iteration</text>')
    middle = (TOP + bottom) / 2
    lines.append(
        f'<text transform="translate(14 {middle}) rotate(-90)" text-anchor="middle">loss (nat / token)</text>'
    )
    lines.append(f'<path d="M{LEFT} {TOP}V{bottom}H{right}" fill="none"/>')
    plain = "".join(lines).replace("<text ", '<text stroke="none" fill="currentColor" ')
    return Markup(f'<g stroke="currentColor">{plain}</g>')


def _mark(frame: Frame, name: str, points: Points) -> Markup:
    x, y = frame.at(*points[1]).split(",")
    drawn = f'<polyline points="{frame.path(points)}" fill="none" stroke="currentColor" stroke-dasharray="2 4"/>'
    words = (
        f'<text x="{x}" y="{float(y) - 4:.1f}" fill="currentColor" text-anchor="end">{name}</text>'
    )
    return Markup(drawn + words)


def _line(frame: Frame, name: str, points: Points, index: int) -> Markup:
    """A curve, and its name with a piece of such a line before it."""
    look = (
        f'stroke="{COLOURS[index % len(COLOURS)]}" stroke-dasharray="{DASHES[index % len(DASHES)]}"'
    )
    x = WIDTH - RIGHT - 150
    y = TOP + 14 + 18 * index
    return Markup(
        f'<polyline points="{frame.path(points)}" fill="none" stroke-width="1.8" {look}/>'
        f'<text x="{x + 34}" y="{y}" fill="currentColor">{escape(name)}</text>'
        f'<line x1="{x}" x2="{x + 28}" y1="{y - 4}" y2="{y - 4}" stroke-width="2" {look}/>'
    )
