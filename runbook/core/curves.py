"""Thins curves but keeps their spikes, and draws them as SVG in the colours of the page."""

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from markupsafe import Markup, escape

from runbook.core.messages import CoreMessage

Points = Sequence[tuple[float, float]]


def finite_points(points: Iterable[tuple[float, float | None]]) -> list[tuple[float, float]]:
    """Return the points that can be drawn: those whose value is a finite number."""
    return [(x, y) for x, y in points if y is not None and math.isfinite(y)]


def thin(points: Points, max_points: int) -> list[tuple[float, float]]:
    """Return the curve with at most this many points.

    Both ends of the curve are kept, and the lowest and highest point in each stretch.

    >>> curve = [(float(n), 3.0) for n in range(100_000)]
    >>> curve[70_123] = (70_123.0, 9.0)
    >>> few = thin(curve, 4000)
    >>> len(few) <= 4000, (70_123.0, 9.0) in few, few[0], few[-1]
    (True, True, (0.0, 3.0), (99999.0, 3.0))
    """
    if len(points) <= max_points:
        return list(points)
    thinned = [points[0]]
    stretch = math.ceil(2 * (len(points) - 2) / (max_points - 2))
    for start in range(1, len(points) - 1, stretch):
        part = points[start : min(start + stretch, len(points) - 1)]
        lowest = min(part, key=lambda point: point[1])
        highest = max(part, key=lambda point: point[1])
        thinned += sorted({lowest, highest})

    thinned.append(points[-1])
    return thinned


BARS = "▁▂▃▄▅▆▇█"
# Shown for a missing value
GAP = "·"


def sparkline(values: Sequence[float | None], width: int = 40) -> str:
    """Return the values as at most `width` bars, scaled from the lowest value to the highest.

    A missing or infinite value leaves a gap. If there are more values than bars, equal groups are
    averaged, so a single spike in a long run becomes lower but stays visible.

    >>> sparkline([10.8, 9.0, None, 7.0, 3.6]), sparkline([2, 2, 2]), sparkline([])
    ('█▆·▄▁', '▁▁▁', '')
    >>> len(sparkline([float(n) for n in range(1000)]))
    40
    """
    num_bars = min(width, len(values))
    edges = [round(index * len(values) / max(1, num_bars)) for index in range(num_bars + 1)]
    means = [_finite_mean(values[start:end]) for start, end in itertools.pairwise(edges)]
    known_means = [mean for mean in means if mean is not None]
    low = min(known_means, default=0.0)
    high = max(known_means, default=0.0)
    return "".join(_bar(mean, low, high) for mean in means)


def _finite_mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the finite values, or None if there is none.

    The mean is used, because a bar cannot show both the lowest and the highest value in its group.
    """
    finite = []
    for value in values:
        if value is not None and math.isfinite(value):
            finite.append(value)

    return math.fsum(finite) / len(finite) if finite else None


def _bar(mean: float | None, low: float, high: float) -> str:
    if mean is None:
        return GAP
    if high <= low:
        return BARS[0]
    highest_bar = len(BARS) - 1
    return BARS[round((mean - low) / (high - low) * highest_bar)]


WIDTH = 720
HEIGHT = 300
LEFT = 52
RIGHT = 12
TOP = 12
BOTTOM = 44
"""Margins around the curves, with room for the axes' numbers and names."""


class Frame(NamedTuple):
    """Maps values to positions in a picture of this height. In the picture, y grows downwards."""

    height: int
    x0: float
    x1: float
    y0: float
    y1: float

    def at(self, x: float, y: float) -> str:
        """Return a point in SVG coordinates.

        >>> Frame(300, 0, 10, 0, 1).at(5, 1)
        '380.0,12.0'
        """
        x_span = (self.x1 - self.x0) or 1
        y_span = (self.y1 - self.y0) or 1
        across = LEFT + (WIDTH - LEFT - RIGHT) * (x - self.x0) / x_span
        down = TOP + (self.height - TOP - BOTTOM) * (1 - (y - self.y0) / y_span)
        return f"{across:.1f},{down:.1f}"

    def path(self, points: Points) -> str:
        """Return the points for a polyline."""
        return " ".join(self.at(x, y) for x, y in points)


# Maximum number of points in a curve. More would not be visible, and would make the page large
MOST_POINTS = 600
COLOURS = ("var(--good, #0072b2)", "var(--bad, #d55e00)", "var(--care, #b58900)", "currentColor")
"""Blue, orange, yellow and the text colour of the page, for light and dark mode.

Without colour, dashes distinguish the lines.
"""
DASHES = ("", "6 3", "2 2", "8 2 2 2")


def loss_curve(
    series: Sequence[tuple[str, Points]],
    untrained: float = 0.0,
    restarts: Sequence[int] = (),
    height: int = HEIGHT,
) -> Markup:
    """Draw loss over iterations for each named series as SVG, with axes and units.

    `untrained` is the loss for an untrained model, drawn as a horizontal line. `restarts` mark the
    iterations at which a job continued. Return an empty string if nothing can be drawn.
    """
    thinned = [(name, thin(finite_points(points), MOST_POINTS)) for name, points in series]
    curves = [(name, points) for name, points in thinned if len(points) > 1]
    if not curves:
        return Markup("")
    frame = _frame_around([points for _, points in curves], untrained, height)
    lines = [_line(frame, name, points, index) for index, (name, points) in enumerate(curves)]
    if untrained:
        level = [(frame.x0, untrained), (frame.x1, untrained)]
        lines.append(_mark(frame, f"untrained: ln V = {untrained:.4g}", level))

    for iteration in dict.fromkeys(restarts):
        if frame.x0 < iteration <= frame.x1:
            vertical = [(iteration, frame.y0), (iteration, frame.y1)]
            lines.append(_mark(frame, f"restart at {iteration}", vertical))

    ends = [_ends_in_words(name, points) for name, points in curves]
    start = Markup(
        '<svg role="img" viewBox="0 0 {} {}" width="100%" font-size="12" '
        'font-family="system-ui, sans-serif">'
        "<title>Loss over iterations. {}</title>"
    )
    opening = start.format(WIDTH, height, "; ".join(ends))
    return opening + _axes(frame) + Markup("").join(lines) + Markup("</svg>")


def _frame_around(curves: Sequence[Points], untrained: float, height: int) -> Frame:
    """Return a frame for all curves and the untrained loss, with 5 % margins above and below."""
    xs = []
    for points in curves:
        for x, _ in points:
            xs.append(x)

    ys = []
    for points in curves:
        for _, y in points:
            ys.append(y)

    if untrained:
        ys.append(untrained)
    margin = (max(ys) - min(ys)) * 0.05 or 0.1
    return Frame(
        height,
        min(xs),
        max(xs),
        min(ys) - margin,
        max(ys) + margin,
    )


def _ends_in_words(name: str, points: Points) -> str:
    return CoreMessage.CURVE_FROM_TO.fill(name=name, first=points[0][1], last=points[-1][1])


def ticks(low: float, high: float) -> list[float]:
    """Return round values inside a range.

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
        f'<text transform="translate(14 {middle}) rotate(-90)" text-anchor="middle">'
        f"{CoreMessage.LOSS_AXIS.fill()}</text>"
    )
    lines.append(f'<path d="M{LEFT} {TOP}V{bottom}H{right}" fill="none"/>')
    plain = "".join(lines).replace("<text ", '<text stroke="none" fill="currentColor" ')
    return Markup(f'<g stroke="currentColor">{plain}</g>')


def _mark(frame: Frame, name: str, points: Points) -> Markup:
    x, y = frame.at(*points[1]).split(",")
    line = (
        f'<polyline points="{frame.path(points)}" fill="none" stroke="currentColor" '
        'stroke-dasharray="2 4"/>'
    )
    label = (
        f'<text x="{x}" y="{float(y) - 4:.1f}" fill="currentColor" text-anchor="end">{name}</text>'
    )
    return Markup(line + label)


def _line(
    frame: Frame,
    name: str,
    points: Points,
    index: int,
) -> Markup:
    """Return a curve and its legend: the name, with a short piece of the line in front of it."""
    colour = COLOURS[index % len(COLOURS)]
    dashes = DASHES[index % len(DASHES)]
    look = f'stroke="{colour}" stroke-dasharray="{dashes}"'
    x = WIDTH - RIGHT - 150
    y = TOP + 14 + 18 * index
    return Markup(
        f'<polyline points="{frame.path(points)}" fill="none" stroke-width="1.8" {look}/><text '
        f'x="{x + 34}" y="{y}" fill="currentColor">{escape(name)}</text><line x1="{x}" '
        f'x2="{x + 28}" y1="{y - 4}" y2="{y - 4}" stroke-width="2" {look}/>'
    )
