"""Buttons beside something that runs, where a person sits in front; their command-line twins everywhere else.

    with controls({"Stop": (stop, "runbook cancel RUN --gently")}):      stop() -> str, shown beside the button
        ...

A button works while its cell still runs where the kernel hears it then (`kernel`); with an older ipykernel only
when the cell has ended. What it can do is therefore always written as a command too.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from html import escape
from importlib.util import find_spec
from threading import Thread
from typing import Any

from runbook.core.errors import RunbookError
from runbook.display.jupyter.kernel import Message, listen
from runbook.display.jupyter.open_pages import show_to_new_pages
from runbook.display.output_place import Place, display_bundle, where_we_are

Clicks = dict[str, Callable[[], None]]  # what a click does, by the id of the button's connection to the page
Actions = Mapping[str, tuple[Callable[[], str], str]]
WIDGET = "application/vnd.jupyter.widget-view+json"


@contextmanager
def controls(actions: Actions, place: Place | None = None) -> Iterator[None]:
    """Buttons for as long as the block runs; nothing but in a browser."""
    if (place or where_we_are()) is not Place.BROWSER or find_spec("ipywidgets") is None:
        yield
        return
    row, by_comm = _buttons(actions)
    text = as_text(actions)
    handle = display_bundle(widget_bundle(row, text), updatable=True)
    # A page that is opened later can load no widget from a kernel that works: there plain buttons do the same.
    plain = plain_buttons(by_comm, actions)
    forget = show_to_new_pages(
        handle.display_id, lambda: {"text/plain": text}, lambda: {"text/plain": text, "text/html": plain}
    )
    close = listen(lambda message: _act_on_click(by_comm, message))
    try:
        yield
    finally:
        close()
        forget()
        handle.update({"text/plain": ""}, raw=True)
        row.close_all()


def as_text(actions: Actions) -> str:
    """The same as commands.

    >>> as_text({"Stop": (str, "runbook cancel local --gently")})
    'Stop: runbook cancel local --gently'
    """
    return "; ".join(f"{name}: {command}" for name, (_, command) in actions.items())


def _buttons(actions: Actions) -> tuple[Any, Clicks]:
    """A row of buttons with a line for what they say, and what a click on each does."""
    import ipywidgets

    said = ipywidgets.HTML("", layout={"margin": "0 0 0 1em"})
    buttons, clicks = [], Clicks()
    for name, (action, command) in actions.items():
        button = ipywidgets.Button(description=name, tooltip=f"the same as: {command}", layout={"width": "auto"})
        clicks[button.model_id] = partial(_act_and_say, action, said)
        button.on_click(lambda clicked: clicks[clicked.model_id]())
        buttons.append(button)
    return ipywidgets.HBox([*buttons, said]), clicks


def plain_buttons(comms: Iterable[str], actions: Actions) -> str:
    """Buttons for a page that joined, by the ids of the connections that hear their clicks.

    >>> plain_buttons(["7f"], {"Stop": (str, "runbook cancel local")}).partition(" title")[0]
    '<button type="button" class="jupyter-button" data-runbook-click="7f"'
    """
    return " ".join(
        f'<button type="button" class="jupyter-button" data-runbook-click="{escape(name)}" '
        f'title="the same as: {escape(command)}" style="padding:0 10px;line-height:28px">{escape(words)}</button>'
        for name, (words, (_, command)) in zip(comms, actions.items(), strict=True)
    )


def _act_on_click(clicks: Clicks, message: Message) -> bool:
    """Do what a click asks for in a thread of its own: the thread that heard it has other messages to pass on."""
    data = message.content.get("data", {})
    clicked = message.kind == "comm_msg" and data.get("content", {}).get("event") == "click"
    if not clicked or message.content.get("comm_id") not in clicks:
        return False
    Thread(target=clicks[message.content["comm_id"]], daemon=True).start()
    return True


def widget_bundle(widget: Any, text: str) -> dict[str, object]:
    """A widget with the text that stands where no widget can be drawn."""
    return {"text/plain": text, WIDGET: {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}}


def _act_and_say(action: Callable[[], str], said: Any) -> None:
    said.value = "..."
    try:
        said.value = escape(action())
    except RunbookError as error:
        said.value = escape(str(error))
