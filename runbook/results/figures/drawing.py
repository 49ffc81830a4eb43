"""The style shared by all figures, with colours that survive printing, and reproducible SVG."""

import base64
import io
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

# The Okabe-Ito palette is readable with all common kinds of colour blindness. In print, line styles
# and markers distinguish the curves.
BLUE = "#0072B2"
ORANGE = "#E69F00"
GREEN = "#009E73"
VERMILION = "#D55E00"
SKY = "#56B4E9"
GREY = "#666666"
PURPLE = "#CC79A7"
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


def as_svg(figure: Any) -> str:
    """Return the figure as an SVG element. The same figure always gives the same text."""
    import matplotlib as mpl

    out = io.StringIO()
    with mpl.rc_context(STYLE):
        figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    return text[text.index("<svg") :]


def as_png(figure: Any) -> str:
    """Return the figure as a PNG in base64, for notebook viewers that cannot show SVG."""
    out = io.BytesIO()
    figure.savefig(out, format="png", metadata={"Software": None})
    return base64.b64encode(out.getvalue()).decode()


def save(figure: Any, path: Path) -> None:
    """Write the figure to a file, in the format given by the extension (.svg, .png, .pdf)."""
    import matplotlib as mpl

    with mpl.rc_context(STYLE):
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=150)


@contextmanager
def drawing(title: str, height: float = 3.4, *, panels: int = 1) -> Iterator[tuple[Any, Any]]:
    """Yield a figure in our style, with one or more axes.

    Settings made by the caller stay unchanged.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.2, height), layout="constrained")
        axes = figure.subplots(1, panels, sharey=True)
        if panels == 1:
            axes.set_title(title, loc="left", fontweight="bold")
        else:
            figure.suptitle(
                title,
                x=0.01,
                ha="left",
                fontweight="bold",
            )

        # A notebook also shows the figure if it is the last expression in a cell.
        vars(figure)["_repr_html_"] = partial(as_svg, figure)
        yield figure, axes
