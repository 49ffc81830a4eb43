"""The places where output can appear (browser, papermill, terminal, pipe), and how to use them."""

import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from html import escape
from typing import Any, Self, TextIO

from runbook.core.checks import Check, counted
from runbook.core.table import Row, Table
from runbook.results.figures.drawing import as_png, as_svg

ENGINE_VARIABLE = "RUNBOOK_ENGINE"
"""Environment variable set by our papermill engine in its kernels.

Displays updated in place then appear in the log (records/client.py).
"""
# Jupyter Server sets it in the kernels that a browser opened
SERVER_VARIABLE = "JPY_SESSION_NAME"


class Place(StrEnum):
    """Where output goes."""

    # A kernel used from JupyterLab or Notebook
    BROWSER = "browser"
    # A kernel started by our papermill engine
    ENGINE = "engine"
    # Any other kernel: stock papermill, nbconvert, an editor
    BATCH = "batch"
    TERMINAL = "terminal"  # a person's terminal
    PIPE = "pipe"  # a file or another program

    @property
    def is_kernel(self) -> bool:
        """Return whether output goes into a notebook."""
        return self in (Place.BROWSER, Place.ENGINE, Place.BATCH)


def where_we_are(stream: TextIO | None = None) -> Place:
    """Return where output from this process, or to `stream`, goes. IPython is not imported."""
    shell = current_shell()
    is_in_kernel = shell is not None and getattr(shell, "kernel", None) is not None
    if not is_in_kernel:
        if (stream or sys.stdout).isatty():
            return Place.TERMINAL
        return Place.PIPE

    if os.environ.get(ENGINE_VARIABLE):
        return Place.ENGINE
    if os.environ.get(SERVER_VARIABLE):
        return Place.BROWSER
    return Place.BATCH


def current_shell() -> Any:
    """Return the IPython shell in this process, or None."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None else None


def display_bundle(bundle: Mapping[str, object], updatable: bool = False) -> Any:
    """Display output in the notebook, given in several formats.

    Return the display handle if the display will be updated later.
    """
    import IPython.display

    display: Any = IPython.display.display
    if updatable:
        return display(bundle, raw=True, display_id=True)
    return display(bundle, raw=True)


def show_table(rows: Table | Sequence[Row], title: str = "", notes: Sequence[str] = ()) -> None:
    """Show a table, or rows as a table.

    Notebooks get all formats, and other places get text.
    """
    table = rows if isinstance(rows, Table) else Table(rows, title, notes)
    if where_we_are().is_kernel:
        display_bundle(table.mime_bundle())
    else:
        show_text(table.as_text())


class Formula(str):
    """A LaTeX formula with values from a run. Notebooks draw it as MathML, which needs no script.

    Other places show text.
    """

    def __new__(cls, latex: str, words: str) -> Self:
        """`words` is the text for a terminal and a log."""
        formula = super().__new__(cls, words)
        formula.latex = latex
        return formula

    latex: str

    def as_html(self) -> str:
        """Return the formula for a notebook and its report."""
        from latex2mathml.converter import convert

        return f"<p>{convert(self.latex, display='block')}</p>"


class View(list[Any]):
    """Output for a cell, in order: tables, formulas, figures with captions, text.

    A view displays itself, and each part can be used separately.
    """

    @property
    def tables(self) -> list[Table]:
        """Return the tables; `.to_frame()` turns one into a DataFrame."""
        return [part for part in self if isinstance(part, Table)]

    @property
    def figures(self) -> list[Any]:
        """Return the figures, as matplotlib objects."""
        return [part[0] for part in self if isinstance(part, tuple)]

    def _ipython_display_(self) -> None:
        for part in self:
            if isinstance(part, tuple):
                show_figure(*part)
            elif isinstance(part, Formula):
                show_html(part.as_html(), part)
            elif isinstance(part, Table):
                show_table(part)
            else:
                show_text(part)

    def _repr_html_(self) -> str:
        return "<br>".join(map(_part_html, self))

    def __repr__(self) -> str:
        return "\n\n".join(map(_part_text, self))


def _part_html(part: Any) -> str:
    if isinstance(part, tuple):
        return as_svg(part[0])
    if isinstance(part, Table | Formula):
        return part.as_html()
    return str(part)


def _part_text(part: Any) -> str:
    if isinstance(part, tuple):
        caption: str = part[1]
        return caption

    if isinstance(part, Table):
        return part.as_text()
    return str(part)


def show_text(text: str, stream: TextIO | None = None, end: str = "\n") -> None:
    """Print immediately, using only characters that the terminal supports.

    If only ASCII is supported, other characters become `?` instead of causing a traceback.
    """
    stream = stream or sys.stdout
    encoding = stream.encoding or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding), end=end, file=stream, flush=True)


def show_figure(figure: Any, caption: str) -> None:
    """Show a matplotlib figure, with its numbers as text.

    Terminals and logs get only the text.
    """
    if where_we_are().is_kernel:
        pictures = {"image/svg+xml": as_svg(figure), "image/png": as_png(figure)}
        display_bundle({**pictures, "text/plain": "(figure; its numbers follow)"})

    show_text(caption)


def show_html(html: str, text: str) -> None:
    """Show HTML if the output place can display it, or else the equivalent text."""
    if where_we_are().is_kernel:
        display_bundle({"text/html": html, "text/plain": text})
    else:
        show_text(text)


BAD = "#d55e00"
MARKS = {
    "fail": ("✗", BAD, "\x1b[1;33m"),
    "warn": ("!", "#b58900", "\x1b[33m"),
    "unknown": ("?", "currentColor", ""),
    "pass": ("✓", "#0072b2", "\x1b[34m"),
}
"""Symbol and colours (page, terminal) for each verdict, in reading order.

Blue and orange are from the palette by Okabe and Ito, so people with common forms of colour
blindness can tell them apart.
"""


REMEDY_COLUMN = "What to do"


class CheckTable(Table):
    """A table of checks; checks that need attention come first."""

    def __init__(self, checks: Iterable[Check], title: str = "Checks") -> None:
        self.checks = sorted(checks, key=lambda check: list(MARKS).index(check.verdict))
        needs_person = any(check.remedy for check in self.checks if check.verdict != "pass")
        rows = [_check_row(check, needs_person) for check in self.checks]
        super().__init__(rows, f"{title} ({self.summary()})")

    def summary(self) -> str:
        """Return a line with the number of checks for each verdict.

        >>> CheckTable([Check("a", "pass", "1", "1"), Check("b", "fail", "2", "1")]).summary()
        '2 checks: 1 fail, 1 pass'
        """
        counts = Counter(check.verdict for check in self.checks)
        by_verdict = ", ".join(f"{counts[name]} {name}" for name in MARKS if counts[name])
        total = counted(len(self.checks), "check")
        return f"{total}: {by_verdict}" if by_verdict else total

    def as_text(self, colour: bool = False) -> str:
        """Return the table for a terminal or a log.

        Coloured verdicts also have their symbol and word.
        """
        text = super().as_text()
        for verdict, (_, _, ansi) in MARKS.items():
            if colour and ansi:
                text = text.replace(f"{_text(verdict)} ", f"{ansi}{_text(verdict)}\x1b[0m ")

        return text

    def cell_html(self, column: str, text: str) -> str:
        """Return a verdict in bold with a coloured bar. The word keeps the page colour."""
        if column != "Verdict":
            return super().cell_html(column, text)
        colour = MARKS[text.partition(" ")[2]][1]
        style = (
            f"border-left:.3em solid {colour};padding-left:.4em;white-space:nowrap;font-weight:600"
        )
        return f'<span style="{style}">{escape(text)}</span>'


def show_checks(checks: Iterable[Check], title: str = "Checks") -> None:
    """Show checks as a table. Checks that need attention come first.

    On a terminal, verdicts are coloured unless NO_COLOR is set.
    """
    table = CheckTable(checks, title)
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    if where_we_are() is Place.TERMINAL and not plain:
        show_text(table.as_text(colour=True))
    else:
        show_table(table)


def _check_row(check: Check, has_remedies: bool) -> Row:
    row: Row = {
        "Check": check.name,
        "Verdict": _text(check.verdict),
        "Value": check.value,
        "Rule": check.rule,
    }
    if not has_remedies:
        return row
    remedy = check.remedy if check.verdict != "pass" else ""
    return {**row, REMEDY_COLUMN: remedy}


def _text(verdict: str) -> str:
    return f"{MARKS[verdict][0]} {verdict}"
