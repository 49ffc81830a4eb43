"""Where output goes - a notebook somebody watches, one that nobody does, a terminal, a file - and how to put it there.

where_we_are() -> Place      show(thing)      show_text(text)
"""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from typing import Any, Protocol

ENGINE_VARIABLE = "RUNBOOK_ENGINE"
"""Our papermill engine sets it in its kernels (records/client.py): displays updated in place reach the log."""
SERVER_VARIABLE = "JPY_SESSION_NAME"
"""Jupyter Server sets it in the kernels that a browser opened."""


class Place(StrEnum):
    """What takes the output."""

    BROWSER = "browser"
    """A kernel with JupyterLab or Notebook in front."""
    ENGINE = "engine"
    """A kernel of our papermill engine."""
    BATCH = "batch"
    """Any other kernel: stock papermill, nbconvert, an editor."""
    TERMINAL = "terminal"
    """A person's screen."""
    PIPE = "pipe"
    """A file or another program."""

    @property
    def is_kernel(self) -> bool:
        """Output goes into a notebook."""
        return self in (Place.BROWSER, Place.ENGINE, Place.BATCH)


class Showable(Protocol):
    """What can be shown: as text everywhere, as HTML in a notebook."""

    def as_text(self) -> str:
        """For terminal, log and text/plain."""

    def as_html(self) -> str:
        """For a notebook and its report."""


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


def mime_bundle(thing: Showable) -> dict[str, str]:
    """A thing in every form that notebooks know."""
    bundle = {"text/plain": thing.as_text(), "text/html": thing.as_html()}
    as_markdown = getattr(thing, "as_markdown", None)
    return bundle | ({"text/markdown": as_markdown()} if as_markdown else {})


def show(thing: Showable) -> None:
    """Show a thing: in a notebook with all its forms, elsewhere as text."""
    if where_we_are().is_kernel:
        display_bundle(mime_bundle(thing))
    else:
        write(thing.as_text())


def display_bundle(bundle: dict[str, str], updatable: bool = False) -> Any:
    """Put a bundle into the notebook; where it is to be updated later, its handle."""
    import IPython.display

    display: Any = IPython.display.display
    return display(bundle, raw=True, display_id=True) if updatable else display(bundle, raw=True)


def show_text(text: str) -> None:
    """Show a line or a paragraph."""
    write(text)


def write(text: str) -> None:
    """Print at once, in characters that the terminal has: a machine that knows only ASCII gets `?`, not a traceback."""
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding), flush=True)


def colour_is_wanted() -> bool:
    """Colour only for a person's screen, and not where NO_COLOR or a dumb terminal says otherwise."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return not plain and where_we_are() is Place.TERMINAL
