"""How figures are drawn: one style, colours that survive print, and SVG that is the same for the same figure."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Okabe and Ito's palette: told apart under all common colour blindness; line style or marker tells them apart in print.
BLUE, ORANGE, GREEN, VERMILION, SKY, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#666666"
SERIES = ((BLUE, "-"), (VERMILION, "--"), (GREEN, "-."), (ORANGE, ":"), (SKY, "-"), (GREY, "--"))
STYLE: Any = {
    "font.size": 9,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "figure.dpi": 100,
    "svg.hashsalt": "runbook",
}


@dataclass(frozen=True)
class Svg:
    """SVG text that a notebook shows as a picture."""

    text: str

    def _repr_svg_(self) -> str:
        return self.text


def as_svg(figure: Any) -> Svg:
    """The figure as SVG for a notebook; the same figure gives the same text."""
    import matplotlib as mpl

    out = io.StringIO()
    with mpl.rc_context(STYLE):
        figure.savefig(out, format="svg", metadata={"Date": None})
    return Svg(out.getvalue())


def save(figure: Any, path: Path) -> None:
    """Write the figure in the format its name ends with (.svg, .png, .pdf)."""
    import matplotlib as mpl

    with mpl.rc_context(STYLE):
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=150)


@contextmanager
def drawing(title: str, height: float = 3.4) -> Iterator[tuple[Any, Any]]:
    """A figure with one axes, in our style, without touching pyplot or the caller's settings."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.2, height), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        axes.set_title(title, loc="left", fontweight="bold")
        yield figure, axes


MOST_POINTS = 4000
"""Points of one curve that are drawn: more cannot be told apart in print, and make an SVG of many megabytes."""


def thin(points: Sequence[tuple[float, float]], most: int = MOST_POINTS) -> list[tuple[float, float]]:
    """The curve by fewer points: of each stretch its lowest and its highest, so that no spike is lost.

    >>> curve = [(float(n), 3.0) for n in range(100_000)]
    >>> curve[70_123] = (70_123.0, 9.0)
    >>> few = thin(curve)
    >>> len(few) <= 4002, (70_123.0, 9.0) in few, few[0], few[-1]
    (True, True, (0.0, 3.0), (99999.0, 3.0))
    """
    if len(points) <= most:
        return list(points)
    kept = [points[0]]
    stretch = -(-2 * len(points) // most)
    for start in range(1, len(points) - 1, stretch):
        part = points[start : min(start + stretch, len(points) - 1)]
        kept += sorted({min(part, key=lambda one: one[1]), max(part, key=lambda one: one[1])})
    return [*kept, points[-1]]


def columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Points as two lists."""
    return [x for x, _ in points], [y for _, y in points]


def time_unit(seconds: float) -> tuple[str, float]:
    """The unit in which so many seconds are read, and how many seconds it has.

    >>> time_unit(90), time_unit(7200), time_unit(90_000)
    (('s', 1.0), ('min', 60.0), ('h', 3600.0))
    """
    return ("s", 1.0) if seconds < 300 else ("min", 60.0) if seconds < 4 * 3600 else ("h", 3600.0)
