"""Small curves: a sparkline in one word, and an SVG for a notebook's output.

curve_html(points, "loss (nat)") -> str      an <img> whose alt text says the numbers; empty below two points

As an image it survives what JupyterLab, GitHub and nbviewer take out of HTML, and needs no script; a page of ours
(records/pages) draws its curve inline instead, in the page's colours and with ticks.
"""

import base64
import itertools
import math
import statistics
from collections.abc import Sequence
from html import escape

from runbook.core.curves import Frame, Points, finite_points, thin

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
    low, span, steps = min(known), max(known) - min(known), len(BARS) - 1
    return "".join(
        GAP if mean is None else BARS[round((mean - low) / span * steps) if span > 0 else 0] for mean in means
    )


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
    kept = thin(finite_points(points), MOST_POINTS)
    if len(kept) < 2:
        return ""
    (x0, first), (x1, last) = kept[0], kept[-1]
    alt = f"{label} from {first:.4g} (iteration {x0:g}) to {last:.4g} (iteration {x1:g})"
    data = base64.b64encode(_svg(kept, label).encode()).decode()
    return f'<img alt="{escape(alt)}" src="data:image/svg+xml;base64,{data}" style="max-width:100%;height:auto">'


def _svg(points: Points, label: str) -> str:
    xs, ys = [x for x, _ in points], [y for _, y in points]
    low, high = min(ys), max(ys)
    across = WIDTH - LEFT - RIGHT
    frame = Frame(LEFT, TOP, across, HEIGHT - TOP - BOTTOM, xs[0], xs[-1], low, high)
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
        f'<polyline points="{frame.path(points)}" fill="none" stroke="{LINE}" stroke-width="2"/></svg>'
    )
