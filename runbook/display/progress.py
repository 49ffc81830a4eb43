"""Shows progress during long work in JupyterLab, in a log, on a terminal and in the saved notebook.

    progress = Progress("04-training", total=100, unit="iterations")
    progress.update(done=12, loss=9.8, losses=sparkline(values))   # at most one drawing per second
    progress.finish(done=100, loss=3.6)                            # the final picture, always drawn

`done` counts up to `total`. Every other name is a fact shown next to `done`. The newest
value for each fact is kept, and None removes the fact. `draw_beside` adds a curve, if drawings can
be shown, and lines below it. This module only shows the work, so a later call (from a re-run cell,
or on a different machine) shows the same picture. `timed` adds how long this call took.

A curve is an image whose alt text contains the numbers. JupyterLab, GitHub and nbviewer do not
remove images, and no script is needed. Our own pages draw the same curve inline instead, in their
own colours.
"""

from __future__ import annotations

import base64
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from html import escape
from typing import Any, TextIO

from runbook.core.curves import Points, finite_points, loss_curve, thin
from runbook.core.table import show_value
from runbook.core.units import show_bytes, show_duration
from runbook.display.jupyter.open_pages import show_to_new_pages
from runbook.display.messages import DisplayMessage
from runbook.display.output_place import Place, display_bundle, show_text, where_we_are

MOST_POINTS = 300
HEIGHT = 200
INK = "#7d8590"
"""Grey with enough contrast on white and on black, because an image cannot adapt to the page's
colours."""


def curve_html(points: Points, label: str) -> str:
    """Return the curve as an image, or an empty string if fewer than two points can be drawn.

    >>> curve_html([(1, 2.0)], "loss")
    ''
    >>> curve_html([(1, 10.8), (2, 9.5)], "loss").partition(" src=")[0]
    '<img alt="loss from 10.8 (iteration 1) to 9.5 (iteration 2)"'
    """
    drawn = thin(finite_points(points), MOST_POINTS)
    if len(drawn) < 2:
        return ""
    first_iteration, first = drawn[0]
    last_iteration, last = drawn[-1]
    alt = DisplayMessage.CURVE_LABEL.fill(
        label=label,
        first=first,
        first_iteration=first_iteration,
        last=last,
        last_iteration=last_iteration,
    )
    start = f'<svg xmlns="http://www.w3.org/2000/svg" color="{INK}" '
    drawing = str(loss_curve([(label, drawn)], height=HEIGHT)).replace("<svg ", start, 1)
    data = base64.b64encode(drawing.encode()).decode()
    return (
        f'<img alt="{escape(alt)}" src="data:image/svg+xml;base64,{data}" width="720" '
        'style="max-width:100%">'
    )


SECONDS_BETWEEN_DRAWINGS = 1.0
# Time between two printed lines if a drawing cannot be updated in place
SECONDS_BETWEEN_LINES = 10.0
BAR_WIDTH = 24
SHORTEST_SHOWN = 0.01
"""Shortest duration shown, in seconds. Less means that there was nothing to do."""


class Progress:
    """Live display that shows progress during some work.

    It is also a context manager, which draws the final picture when the block ends.

    >>> Progress("data", total=200, unit="documents", place=Place.PIPE).update(50, rate="3 MB/s")
    data: 50 of 200 documents (25 %), rate 3 MB/s
    """

    def __init__(
        self,
        title: str,
        total: float | None = None,
        unit: str = "",
        *,
        timed: bool = True,
        place: Place | None = None,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.title = title
        self.total = total
        self.unit = unit
        self.timed = timed
        self.done: float | None = None
        self.facts: dict[str, Any] = {}
        self.curve: tuple[str, Points] = ("", ())
        self.events: tuple[str, ...] = ()
        self.ended = False
        self._place = place or where_we_are(stream)
        self._clock = clock
        self._started = clock()
        self._stream = stream
        self._drawn = self._printed = float("-inf")
        self._handle: Any = None
        self._line_width = 0

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, *_: object
    ) -> None:
        was_drawn = self._drawn > float("-inf")
        # If an error occurs before anything was drawn, there is nothing to show.
        if self.ended or (kind is not None and not was_drawn):
            return
        if kind is not None:
            # Make a new dictionary, because a page may be reading the old one.
            self.facts = self.facts | {"stopped by": _name_of_stop(kind, error)}

        self.finish()

    def draw_beside(self, curve: tuple[str, Points], events: Sequence[str] = ()) -> None:
        """Store the curve (label and points) and the lines that the next drawing shows below it."""
        self.curve = curve
        self.events = tuple(events)

    def update(
        self,
        done: float | None = None,
        total: float | None = None,
        **facts: Any,
    ) -> None:
        """Update the progress, and draw it if the last drawing is old enough."""
        self._note(done, total, facts)
        now = self._clock()
        if now - self._drawn >= SECONDS_BETWEEN_DRAWINGS:
            self._drawn = now
            self._draw()

    def finish(
        self,
        done: float | None = None,
        total: float | None = None,
        **facts: Any,
    ) -> None:
        """Draw the final picture, which stays in the notebook, the scroll-back and the log."""
        self._note(done, total, facts)
        self.ended = True
        self._draw()

    def as_text(self) -> str:
        """Return a line with the title, the progress, and the facts."""
        facts = [f"{name} {show_value(value)}" for name, value in self.facts.items()]
        parts = [self._how_far(), *facts]
        return f"{self.title}{self._took()}: " + ", ".join(filter(None, parts))

    def as_long_text(self) -> str:
        """Return the line from `as_text`, with the last events below it."""
        return "\n".join([self.as_text(), *[f"  {event}" for event in self.events]])

    def as_html(self) -> str:
        """Return a bar, the progress, the facts, the curve and the last events."""
        head = f"<b>{escape(self.title)}</b>{self._took()} {escape(self._how_far())}"
        facts = "".join(_fact_html(name, show_value(value)) for name, value in self.facts.items())
        curve = curve_html(self.curve[1], self.curve[0])
        below = f'<div style="margin-top:.4em">{curve}</div>' if curve else ""
        if self.events:
            lines = "".join(f"<div>{escape(event)}</div>" for event in self.events)
            below += f'<div style="opacity:.75;font-size:90%">{lines}</div>'

        return (
            f'<div style="font-variant-numeric:tabular-nums">{head}{self._bar_html()}'
            f"<div>{facts}</div>{below}</div>"
        )

    def _bar_html(self) -> str:
        share = self._share()
        if share is None:
            return ""
        return (
            '<div style="background:rgba(128,128,128,.25);border-radius:.3em;height:.7em;'
            'max-width:40em"><div style='
            f'"width:{100 * share:.1f}%;background:#0072b2;border-radius:.3em;height:.7em">'
            "</div></div>"
        )

    def _note(
        self,
        done: float | None,
        total: float | None,
        facts: dict[str, Any],
    ) -> None:
        if done is not None:
            self.done = done
        if total is not None:
            self.total = total
        merged = self.facts | facts
        self.facts = {name: value for name, value in merged.items() if value is not None}

    def _took(self) -> str:
        seconds = self._clock() - self._started
        if self.ended and self.timed and seconds >= SHORTEST_SHOWN:
            return f" (after {show_duration(seconds)})"
        return ""

    def _share(self) -> float | None:
        if not self.total or self.done is None:
            return None
        return min(1.0, max(0.0, self.done / self.total))

    def _how_far(self) -> str:
        if self.done is None:
            return ""
        # show_bytes adds the unit itself
        is_bytes = self.unit == "bytes"
        as_text = show_bytes if is_bytes else show_value
        unit = f" {self.unit}" if self.unit and not is_bytes else ""
        share = self._share()
        if share is None:
            return f"{as_text(self.done)}{unit}"
        return DisplayMessage.AMOUNT_DONE.fill(
            done=as_text(self.done), total=as_text(self.total or 0), unit=unit, percent=100 * share
        )

    def _draw(self) -> None:
        if self._place.is_kernel:
            self._show_in_notebook()
        elif self._place is Place.TERMINAL:
            self._redraw_line()

        # Unmodified papermill logs only the first value if a display is updated. So under
        # papermill, as in a pipe, also print lines.
        now = self._clock()
        is_first = self._printed == float("-inf")
        is_due = self.ended or now - self._printed >= SECONDS_BETWEEN_LINES
        if self._place in (Place.BATCH, Place.PIPE) and is_due:
            if self._place is Place.PIPE or not is_first:
                show_text(self.as_text(), self._stream)
            self._printed = now

    def _bundle(self) -> dict[str, str]:
        return {"text/plain": self.as_long_text(), "text/html": self.as_html()}

    def _show_in_notebook(self) -> None:
        if self._handle is None:
            self._handle = display_bundle(self._bundle(), updatable=True)
            if self._place is Place.BROWSER:
                show_to_new_pages(self._handle.display_id, self._bundle)
        elif self._place is Place.BROWSER and self.ended:
            # Server-side execution in JupyterLab loses updates, so empty the old picture and insert
            # the last one again.
            self._handle.update({"text/plain": "", "text/html": ""}, raw=True)
            display_bundle(self._bundle())
        else:
            self._handle.update(self._bundle(), raw=True)

    def _redraw_line(self) -> None:
        line = self.as_text()
        if not self.ended:
            line = self._bar_text() + line
            line = line[: shutil.get_terminal_size().columns - 1]

        # Spaces overwrite the rest of a longer previous line.
        padded = line.ljust(self._line_width)
        show_text("\r" + padded, self._stream, end="\n" if self.ended else "")
        self._line_width = len(line)

    def _bar_text(self) -> str:
        share = self._share()
        if share is None:
            return ""
        filled = round(share * BAR_WIDTH)
        return f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}] "


def _fact_html(name: str, value: str) -> str:
    return (
        '<span style="display:inline-block;margin-right:1.4em"><span '
        f'style="opacity:.75">{escape(name)}</span> {escape(value)}</span>'
    )


def _name_of_stop(kind: type[BaseException], error: BaseException | None) -> str:
    """Return the signal that an error stands for, such as SIGTERM, or else the error's name."""
    number = getattr(error, "number", 0)
    return signal.Signals(number).name if number else kind.__name__
