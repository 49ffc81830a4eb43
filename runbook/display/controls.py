"""Buttons beside something that runs, where a person sits in front; their command-line twins everywhere else.

    with controls({"Stop": (stop, "runbook cancel RUN --gently")}):      stop() -> str, shown beside the button
        ...

A button works while its cell still runs, because JupyterLab and ipykernel 7 hand it to a thread of its own; with an
older one it is only heard when the cell has ended. What it can do is therefore always written as a command too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from runbook.display.place import Place, display_bundle, where_we_are
from runbook.errors import RunbookError

Actions = Mapping[str, tuple[Callable[[], str], str]]
WIDGET = "application/vnd.jupyter.widget-view+json"


@contextmanager
def controls(actions: Actions, place: Place | None = None) -> Iterator[None]:
    """Buttons for as long as the block runs; nothing but in a browser."""
    row = button_row(actions) if (place or where_we_are()) is Place.BROWSER else None
    if row is None:
        yield
        return
    handle = display_bundle(widget_bundle(row, as_text(actions)), updatable=True)
    try:
        yield
    finally:
        handle.update({"text/plain": ""}, raw=True)
        row.close_all()


def as_text(actions: Actions) -> str:
    """The same as commands.

    >>> as_text({"Stop": (str, "runbook cancel local --gently")})
    'Stop: runbook cancel local --gently'
    """
    return "; ".join(f"{name}: {command}" for name, (_, command) in actions.items())


def button_row(actions: Actions) -> Any:
    """A row of buttons and a line for what they say; None where ipywidgets is not installed."""
    try:
        import ipywidgets
    except ModuleNotFoundError:
        return None
    said = ipywidgets.HTML("", layout={"margin": "0 0 0 1em"})
    buttons = []
    for name, (action, command) in actions.items():
        button = ipywidgets.Button(description=name, tooltip=f"the same as: {command}", layout={"width": "auto"})
        button.on_click(_told(action, said))
        buttons.append(button)
    return ipywidgets.HBox([*buttons, said])


def widget_bundle(widget: Any, text: str) -> dict[str, Any]:
    """A widget with the text that stands where no widget can be drawn."""
    return {"text/plain": text, WIDGET: {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}}


def _told(action: Callable[[], str], said: Any) -> Callable[[Any], None]:
    from html import escape

    def clicked(_: Any) -> None:
        try:
            said.value = escape(action())
        except RunbookError as error:
            said.value = escape(str(error))

    return clicked
