"""Output places: browser, papermill, terminal or pipe, and how to show a thing in each.

where_we_are() -> Place      show(table)      show_text(text)
"""

import os
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from runbook.core.table import Row, Table
from runbook.results.figures.drawing import as_svg

ENGINE_VARIABLE = "RUNBOOK_ENGINE"
"""Our papermill engine sets it in its kernels (records/client.py): displays updated in place reach the log."""
SERVER_VARIABLE = "JPY_SESSION_NAME"  # Jupyter Server sets it in the kernels that a browser opened


class Place(StrEnum):
    """What takes the output."""

    BROWSER = "browser"  # a kernel with JupyterLab or Notebook in front
    ENGINE = "engine"  # a kernel of our papermill engine
    BATCH = "batch"  # any other kernel: stock papermill, nbconvert, an editor
    TERMINAL = "terminal"  # a person's screen
    PIPE = "pipe"  # a file or another program

    @property
    def is_kernel(self) -> bool:
        """Output goes into a notebook."""
        return self in (Place.BROWSER, Place.ENGINE, Place.BATCH)


def where_we_are() -> Place:
    """The place of this process's output, found without importing IPython."""
    shell = current_shell()
    if shell is not None and getattr(shell, "kernel", None) is not None:
        if os.environ.get(ENGINE_VARIABLE):
            return Place.ENGINE
        return Place.BROWSER if os.environ.get(SERVER_VARIABLE) else Place.BATCH
    return Place.TERMINAL if sys.stdout.isatty() else Place.PIPE


def current_shell() -> Any:
    """The IPython shell around us, or None."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None else None


def show(table: Table) -> None:
    """Show a table: in a notebook with all its forms, elsewhere as text."""
    if where_we_are().is_kernel:
        display_bundle(table.mime_bundle())
    else:
        show_text(table.as_text())


def display_bundle(bundle: Mapping[str, object], updatable: bool = False) -> Any:
    """Put a bundle into the notebook; where it is to be updated later, its handle."""
    import IPython.display

    display: Any = IPython.display.display
    return display(bundle, raw=True, display_id=True) if updatable else display(bundle, raw=True)


def show_table(rows: Table | Sequence[Row], title: str = "", notes: Sequence[str] = ()) -> None:
    """Show a table, or rows as one."""
    show(rows if isinstance(rows, Table) else Table(rows, title, notes))


class View(list[Any]):
    """What a cell shows, in order: tables, figures with their captions, text. It shows itself, and each can be used."""

    @property
    def tables(self) -> list[Table]:
        """The tables; `.to_frame()` gives one as a DataFrame."""
        return [part for part in self if isinstance(part, Table)]

    @property
    def figures(self) -> list[Any]:
        """The figures, as matplotlib has them."""
        return [part[0] for part in self if isinstance(part, tuple)]

    def _ipython_display_(self) -> None:
        for part in self:
            if isinstance(part, tuple):
                show_figure(*part)
            else:
                show(part) if isinstance(part, Table) else show_text(part)

    def _repr_html_(self) -> str:
        parts = (as_svg(part[0]) if isinstance(part, tuple) else part for part in self)
        return "<br>".join(part.as_html() if isinstance(part, Table) else part for part in parts)

    def __repr__(self) -> str:
        captions = (part[1] if isinstance(part, tuple) else part for part in self)
        return "\n\n".join(part.as_text() if isinstance(part, Table) else part for part in captions)


def show_text(text: str) -> None:
    """Print at once, in characters that the terminal has: a machine that knows only ASCII gets `?`, not a traceback."""
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding), flush=True)


def colour_is_wanted() -> bool:
    """Colour only for a person's screen, and not where NO_COLOR or a dumb terminal says otherwise."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return not plain and where_we_are() is Place.TERMINAL


def show_figure(figure: Any, caption: str) -> None:
    """Show a matplotlib figure with its numbers in words: these alone are what a terminal and a log get."""
    if where_we_are().is_kernel:
        display_bundle({"image/svg+xml": as_svg(figure), "text/plain": "(figure; its numbers follow)"})
    show_text(caption)


def show_html(html: str, text: str) -> None:
    """Show HTML where it can be seen, else the text that says the same."""
    if where_we_are().is_kernel:
        display_bundle({"text/html": html, "text/plain": text})
    else:
        show_text(text)
