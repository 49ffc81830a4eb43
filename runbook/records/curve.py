"""A loss curve drawn as SVG inside the page: no library, no script, the page's own colours.

loss_curve([("04-training", points)]) -> Markup      points: (iteration, loss)
spark(points) -> Markup                              the same, the size of a word
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup, escape

Points = Sequence[tuple[float, float]]
MOST_POINTS = 600
"""Points drawn; more would not be seen and make the page large."""
COLOURS = ("var(--good, #0072b2)", "var(--bad, #d55e00)", "var(--care, #b58900)", "currentColor")
"""Blue, orange, yellow and ink of the page, light or dark; the dashes tell them apart without any colour."""
DASHES = ("", "6 3", "2 2", "8 2 2 2")


class Frame(NamedTuple):
    """Where values lie on the picture."""

    left: float
    top: float
    width: float
    height: float
    x0: float
    x1: float
    y0: float
    y1: float

    def at(self, x: float, y: float) -> str:
        """The place of a point."""
        across = self.left + self.width * (x - self.x0) / ((self.x1 - self.x0) or 1)
        down = self.top + self.height * (1 - (y - self.y0) / ((self.y1 - self.y0) or 1))
        return f"{across:.1f},{down:.1f}"


def loss_curve(series: Sequence[tuple[str, Points]], width: int = 720, height: int = 300) -> Markup:
    """Loss over iterations for each named series, with axes and their units; empty where nothing can be drawn."""
    drawn = [(name, _finite(points)) for name, points in series]
    drawn = [(name, points) for name, points in drawn if len(points) > 1]
    if not drawn:
        return Markup("")
    frame = _frame([point for _, points in drawn for point in points], width, height)
    pieces = [_axes(frame)]
    for index, (name, points) in enumerate(drawn):
        pieces.append(_line(frame, points, index))
        pieces.append(_label(frame, name, index))
    told = "; ".join(f"{name}: from {points[0][1]:.3f} to {points[-1][1]:.3f}" for name, points in drawn)
    start = Markup(
        '<svg role="img" viewBox="0 0 {} {}" width="100%" font-size="12" font-family="system-ui, sans-serif">'
    )
    title = Markup("<title>Loss over iterations. {}</title>").format(told)
    return start.format(width, height) + title + Markup("").join(pieces) + Markup("</svg>")


def spark(points: Points, width: int = 140, height: int = 24) -> Markup:
    """A curve without axes, to stand in a line of text."""
    points = _finite(points)
    if len(points) < 2:
        return Markup("")
    xs, ys = [x for x, _ in points], [y for _, y in points]
    frame = Frame(2, 2, width - 4, height - 4, min(xs), max(xs), min(ys), max(ys))
    start = Markup('<svg role="img" viewBox="0 0 {0} {1}" width="{0}" height="{1}" style="vertical-align:middle">')
    title = Markup("<title>Loss from {} to {}</title>").format(f"{ys[0]:.3f}", f"{ys[-1]:.3f}")
    return start.format(width, height) + title + _line(frame, points, 0) + Markup("</svg>")


def ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Round values inside a range.

    >>> ticks(0, 100), ticks(2.31, 10.9)
    ([0.0, 20.0, 40.0, 60.0, 80.0, 100.0], [4.0, 6.0, 8.0, 10.0])
    """
    if high <= low:
        return [low]
    raw = (high - low) / wanted
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= raw * 0.999)
    first = math.ceil(low / step)
    return [round(n * step, 10) for n in range(first, math.floor(high / step + 1e-9) + 1)]


def _frame(points: Points, width: int, height: int) -> Frame:
    xs, ys = [x for x, _ in points], [y for _, y in points]
    margin = (max(ys) - min(ys)) * 0.05 or 0.1
    return Frame(52, 12, width - 64, height - 56, min(xs), max(xs), min(ys) - margin, max(ys) + margin)


def _finite(points: Points) -> list[tuple[float, float]]:
    kept = [(float(x), float(y)) for x, y in points if y is not None and math.isfinite(y)]
    step = max(1, math.ceil(len(kept) / MOST_POINTS))
    return kept[::step] + (kept[-1:] if (len(kept) - 1) % step else [])


def _axes(frame: Frame) -> Markup:
    bottom, right = frame.top + frame.height, frame.left + frame.width
    lines = []
    for value in ticks(frame.x0, frame.x1):
        x = frame.at(value, frame.y0).partition(",")[0]
        lines.append(f'<text x="{x}" y="{bottom + 16}" text-anchor="middle">{value:g}</text>')
    for value in ticks(frame.y0, frame.y1):
        y = frame.at(frame.x0, value).partition(",")[2]
        lines.append(f'<line x1="{frame.left}" x2="{right}" y1="{y}" y2="{y}" opacity="0.15"/>')
        lines.append(f'<text x="{frame.left - 6}" y="{y}" dy="4" text-anchor="end">{value:g}</text>')
    lines.append(f'<text x="{right}" y="{bottom + 34}" text-anchor="end">iteration</text>')
    middle = frame.top + frame.height / 2
    lines.append(f'<text transform="translate(14 {middle}) rotate(-90)" text-anchor="middle">loss (nat / token)</text>')
    lines.append(f'<path d="M{frame.left} {frame.top}V{bottom}H{right}" fill="none"/>')
    plain = "".join(lines).replace("<text ", '<text stroke="none" fill="currentColor" ')
    return Markup(f'<g stroke="currentColor">{plain}</g>')


def _line(frame: Frame, points: Points, index: int) -> Markup:
    path = " ".join(frame.at(x, y) for x, y in points)
    return Markup('<polyline points="{}" fill="none" stroke="{}" stroke-width="1.8" stroke-dasharray="{}"/>').format(
        path, COLOURS[index % len(COLOURS)], DASHES[index % len(DASHES)]
    )


def _label(frame: Frame, name: str, index: int) -> Markup:
    y = frame.top + 14 + 18 * index
    x = frame.left + frame.width - 150
    text = Markup('<text x="{}" y="{}" fill="currentColor">{}</text>').format(x + 34, y, escape(name))
    return text + Markup(
        '<line x1="{}" x2="{}" y1="{}" y2="{}" stroke="{}" stroke-width="2" stroke-dasharray="{}"/>'
    ).format(x, x + 28, y - 4, y - 4, COLOURS[index % len(COLOURS)], DASHES[index % len(DASHES)])
