"""A small curve for a notebook's output: an SVG inside an image, readable on light and dark.

    curve_html(points, "loss (nat)") -> str      an <img> whose alt text says the numbers; empty below two points

As an image it survives what JupyterLab, GitHub and nbviewer take out of HTML, and needs no script.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from html import escape

Points = Sequence[tuple[float, float]]
WIDTH, HEIGHT = 640, 150
LEFT, RIGHT, TOP, BOTTOM = 52, 10, 10, 24
MOST_POINTS = 300
INK, LINE = "#7d8590", "#2f81c7"
"""Grey and blue with enough contrast on white and on black: an image does not know the page's colours."""


def curve_html(points: Points, label: str) -> str:
    """The curve as an image.

    >>> curve_html([(1, 2.0)], "loss"), curve_html([(1, 10.8), (2, 9.5)], "loss").partition(" src=")[0]
    ('', '<img alt="loss from 10.8 (iteration 1) to 9.5 (iteration 2)"')
    """
    kept = _thinned([(x, y) for x, y in points if math.isfinite(y)])
    if len(kept) < 2:
        return ""
    (x0, first), (x1, last) = kept[0], kept[-1]
    alt = f"{label} from {first:.4g} (iteration {x0:g}) to {last:.4g} (iteration {x1:g})"
    data = base64.b64encode(_svg(kept, label).encode()).decode()
    return f'<img alt="{escape(alt)}" src="data:image/svg+xml;base64,{data}" style="max-width:100%;height:auto">'


def _thinned(points: Points) -> list[tuple[float, float]]:
    step = max(1, math.ceil(len(points) / MOST_POINTS))
    return [*points[:-1:step], points[-1]] if points else []


def _svg(points: Points, label: str) -> str:
    xs, ys = [x for x, _ in points], [y for _, y in points]
    low, high = min(ys), max(ys)
    across, down = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    places = " ".join(
        f"{LEFT + across * (x - xs[0]) / ((xs[-1] - xs[0]) or 1):.1f},"
        f"{TOP + down * (1 - (y - low) / ((high - low) or 1)):.1f}"
        for x, y in points
    )
    bottom = HEIGHT - BOTTOM
    text = f'font-family="sans-serif" font-size="12" fill="{INK}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}">'
        f'<path d="M{LEFT} {TOP}V{bottom}H{WIDTH - RIGHT}" fill="none" stroke="{INK}"/>'
        f'<text {text} x="{LEFT - 5}" y="{TOP + 9}" text-anchor="end">{high:.4g}</text>'
        f'<text {text} x="{LEFT - 5}" y="{bottom}" text-anchor="end">{low:.4g}</text>'
        f'<text {text} x="{LEFT}" y="{HEIGHT - 7}">{xs[0]:g}</text>'
        f'<text {text} x="{LEFT + across / 2}" y="{HEIGHT - 7}" text-anchor="middle">'
        f"{escape(label)} by iteration</text>"
        f'<text {text} x="{WIDTH - RIGHT}" y="{HEIGHT - 7}" text-anchor="end">{xs[-1]:g}</text>'
        f'<polyline points="{places}" fill="none" stroke="{LINE}" stroke-width="2"/></svg>'
    )
