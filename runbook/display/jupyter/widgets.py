"""Buttons next to a running cell, and a form for values. Outside a browser, text replaces them.

    with controls({"Stop": (stop, "runbook cancel RUN --gently")}):
        ...                                             # stop() -> str, shown next to the button
        ...

A button works while its cell still runs if the kernel can receive the click (`kernel`). With an
older ipykernel, it works only after the cell has ended. So every button action is also shown as a
command. If that command ends with "...", the action needs some text, which is typed next to its
button.

    show_form(sections, consider, write, table)

`consider(changes)` is called after each change. It returns the errors to show next to their fields,
and what follows from the values. `write(name, changes)` saves the values, and returns where they
are saved. The form itself does not know what the values mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from html import escape
from importlib.util import find_spec
from threading import Thread
from typing import Any

from runbook.core.errors import RunbookError
from runbook.core.table import Table
from runbook.display.jupyter.kernel import KernelMessage, listen, page_kernel
from runbook.display.jupyter.open_pages import show_to_new_pages
from runbook.display.messages import DisplayMessage
from runbook.display.output_place import BAD, Place, display_bundle, show_table, where_we_are

# Action for a click, by the id of the connection between button and page
Clicks = dict[str, Callable[[], None]]
# Widget for a text field, by connection id
TextFields = dict[str, Any]
Actions = Mapping[str, tuple[Callable[..., str], str]]
TYPED = '"..."'
WHOLE = {"width": "auto", "flex": "0 0 auto"}
"""Layout used to make a button as wide as its label, whatever is next to it."""
ANSWER_LINE = {
    "flex": "1 1 100%",
    "width": "100%",
    "max_height": "9em",
    "overflow": "auto",
}
"""Layout for the line with the result of an action.

Without it, a note of 10,000 characters would squeeze the buttons.
"""
WIDGET = "application/vnd.jupyter.widget-view+json"


@contextmanager
def controls(actions: Actions, place: Place | None = None) -> Iterator[None]:
    """Show buttons while the block runs. Do nothing outside a browser."""
    if (place or where_we_are()) is not Place.BROWSER or find_spec("ipywidgets") is None:
        yield
        return

    row, by_comm, fields = _buttons(actions)
    text = as_text(actions)
    # Start listening before the buttons are shown. Otherwise, an early click would wait until the
    # cell ends.
    close = listen(lambda message: _act_on_click(by_comm, message) or _take_typed(fields, message))
    handle = display_bundle(widget_bundle(row, text), updatable=True)
    # A page that is opened later cannot load widgets from a busy kernel, so it gets plain buttons
    # instead.
    plain = plain_buttons(by_comm, actions, fields)
    forget = show_to_new_pages(
        handle.display_id,
        lambda: {"text/plain": text},
        lambda: {"text/plain": text, "text/html": plain},
    )
    try:
        yield
    finally:
        close()
        forget()
        handle.update({"text/plain": ""}, raw=True)
        row.close_all()


def as_text(actions: Actions) -> str:
    """Return the commands used to perform the same actions.

    >>> as_text({"Stop": (str, "runbook cancel local --gently")})
    'Stop: runbook cancel local --gently'
    """
    texts = []
    for name, (_, command) in actions.items():
        texts.append(DisplayMessage.ACTION.fill(name=name, command=command))
    return "; ".join(texts)


def _buttons(actions: Actions) -> tuple[Any, Clicks, TextFields]:
    """Return a row of buttons, the actions for their clicks, and the text fields.

    The row ends with a line for the answers.
    """
    import ipywidgets

    answer_line = ipywidgets.HTML("", layout=ANSWER_LINE)
    widgets = []
    clicks = Clicks()
    fields = TextFields()
    for name, (action, command) in actions.items():
        button = ipywidgets.Button(
            description=name,
            tooltip=f"the same as: {command}",
            layout=WHOLE,
        )
        field = None
        if command.endswith(TYPED):
            field = ipywidgets.Text(
                placeholder=f"the same as: {command}",
                continuous_update=False,
                layout={"flex": "1 1 12em"},
            )
            fields[field.model_id] = field
            widgets.append(field)

        clicks[button.model_id] = partial(
            _act,
            action,
            answer_line,
            field,
            [],
        )
        button.on_click(lambda clicked: clicks[clicked.model_id]())
        widgets.append(button)

    row = ipywidgets.HBox([*widgets, answer_line], layout={"flex_flow": "row wrap"})
    return row, clicks, fields


def plain_buttons(comms: Iterable[str], actions: Actions, fields: Iterable[str] = ()) -> str:
    """Return buttons and text fields as HTML, for a page that opens once the widgets exist.

    `comms` are the ids of the connections for clicks.

    `fields` are the ids of the connections for typed text: one for each action that needs text, in
    order.

    >>> plain_buttons(["7f"], {"Stop": (str, "runbook cancel local")}).partition(" title")[0].partition("><")[2]
    'button type="button" class="jupyter-button" data-runbook-click="7f"'
    """
    of_texts = iter(fields)
    parts = []
    for comm, (label, (_, command)) in zip(comms, actions.items(), strict=True):
        title = f"the same as: {command}"
        typed = ""
        if command.endswith(TYPED):
            field = escape(next(of_texts, ""))
            typed = f' data-runbook-text="{field}"'
            parts.append(
                f'<input type="text" class="runbook-text-{field}" placeholder="{escape(title)}" '
                'style="flex:1 1 12em;min-width:0;line-height:26px">'
            )

        parts.append(
            '<button type="button" class="jupyter-button" '
            f'data-runbook-click="{escape(comm)}"{typed} title="{escape(title)}" style="padding:0 '
            f'10px;line-height:28px;flex:0 0 auto">{escape(label)}</button>'
        )

    return f'<div style="display:flex;flex-wrap:wrap;gap:4px">{"".join(parts)}</div>'


def _act_on_click(clicks: Clicks, message: KernelMessage) -> bool:
    """Perform the action for a click. Return whether the message was a click."""
    data = message.content.get("data", {})
    clicked = message.kind == "comm_msg" and data.get("content", {}).get("event") == "click"
    if not clicked or message.content.get("comm_id") not in clicks:
        return False
    clicks[message.content["comm_id"]]()
    return True


def _take_typed(fields: TextFields, message: KernelMessage) -> bool:
    """Store the text typed in a field, and tell its page that it may send the next one."""
    data = message.content.get("data", {})
    kernel = page_kernel()
    field = fields.get(message.content.get("comm_id", ""))
    if (
        message.kind != "comm_msg"
        or field is None
        or data.get("method") != "update"
        or kernel is None
    ):
        return False

    field.set_state(data.get("state", {}))
    kernel.publish(message.header, "status", execution_state="idle")
    return True


def widget_bundle(widget: Any, text: str) -> dict[str, object]:
    """Return a widget with the text shown where widgets cannot be drawn."""
    return {
        "text/plain": text,
        WIDGET: {"version_major": 2, "version_minor": 0, "model_id": widget.model_id},
    }


def _act(
    action: Callable[..., str],
    answer_line: Any,
    field: Any,
    sent: list[str],
) -> None:
    """Start the action for a click, using the current text in its field.

    The text stays in the field, because clearing it from here could lose characters typed since the
    click. If the same text is sent again, that is therefore treated as a double click. The action
    runs in its own thread, because the thread that received the click has other messages to pass
    on.
    """
    texts = [] if field is None else [field.value]
    if texts and texts == sent:
        return
    sent[:] = texts
    Thread(target=_act_and_say, args=(action, texts, answer_line, sent), daemon=True).start()


def _act_and_say(
    action: Callable[..., str],
    texts: list[str],
    answer_line: Any,
    sent: list[str],
) -> None:
    answer_line.value = "..."
    try:
        answer_line.value = escape(action(*texts))
    except RunbookError as error:
        answer_line.value = escape(str(error))
        sent.clear()


@dataclass(frozen=True)
class Field:
    """A value that the user may change."""

    key: str
    help: str
    value: str
    # Empty if writing is allowed
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """What follows from the current values."""

    # Error messages by key. Messages about keys that have no field are under an empty key.
    errors: Mapping[str, str] = field(default_factory=dict)
    follows: Table | None = None
    # Resulting values for fields that the user did not change.
    values: Mapping[str, str] = field(default_factory=dict)


Changes = Mapping[str, str]
Consider = Callable[[Changes], Answer]
Write = Callable[[str, Changes], str]


def show_form(
    sections: Mapping[str, Sequence[Field]],
    consider: Consider,
    write: Write,
    table: Table,
    name: str,
) -> Form | None:
    """Show the form in a browser, and the table elsewhere. `name` is the proposed file name."""
    if where_we_are() is not Place.BROWSER or find_spec("ipywidgets") is None:
        show_table(table)
        return None

    form = Form(sections, consider, write, name)
    display_bundle({**widget_bundle(form.box, table.as_text()), "text/html": table.as_html()})
    return form


FOLDED = "▸"
OPEN = "▾"
SHAPE: dict[str, Any] = {"style": {"description_width": "17em"}, "layout": {"width": "32em"}}


class Form:
    """Form widgets, with the values that they show and change."""

    def __init__(
        self,
        sections: Mapping[str, Sequence[Field]],
        consider: Consider,
        write: Write,
        name: str,
    ) -> None:
        import ipywidgets as widgets

        self._consider = consider
        self._write = write
        self._quiet = False
        entries = []
        for section in sections.values():
            for entry in section:
                entries.append(entry)

        self._start = {entry.key: entry.value for entry in entries}
        self._inputs = {entry.key: _input(entry) for entry in entries}
        self._errors = {key: widgets.HTML() for key in self._start}
        self._general, self._follows, self._said = widgets.HTML(), widgets.HTML(), widgets.HTML()
        self._name = widgets.Text(name, description="file name", continuous_update=False, **SHAPE)
        self._button = widgets.Button(description="Write run file", layout={"width": "auto"})
        self._button.on_click(lambda _: self._keep())
        for widget in self._inputs.values():
            widget.observe(lambda _: self._answer(), names="value")
        parts: list[Any] = []
        self._folds: dict[str, Any] = {}
        for title, section in sections.items():
            part = widgets.VBox([self._row(entry) for entry in section])
            # The first section is always open
            if parts:
                fold, part = _folded(title, part)
                self._folds |= {entry.key: fold for entry in section}

            parts.append(part)

        keep = widgets.HBox([self._name, self._button])
        self.box = widgets.VBox([*parts, self._general, self._follows, keep, self._said])
        self._answer()

    def changes(self) -> dict[str, str]:
        """Return the values that the user changed, as typed."""
        current_values = {key: str(widget.value) for key, widget in self._inputs.items()}
        changed_values: dict[str, str] = {}
        for key, value in current_values.items():
            if value != self._start[key]:
                changed_values[key] = value

        return changed_values

    def _row(self, entry: Field) -> Any:
        import ipywidgets as widgets

        html = (
            '<div style="opacity:.8;font-size:90%;line-height:1.4;padding-top:.4em">'
            f"{escape(entry.help)}</div>"
        )
        # The hint is next to the field, or below it on a narrow page.
        help_text = widgets.HTML(html, layout={"flex": "1 1 20em"})
        row = widgets.HBox([self._inputs[entry.key], help_text], layout={"flex_flow": "row wrap"})
        return widgets.VBox([row, self._errors[entry.key]])

    def _answer(self) -> None:
        if self._quiet:
            return
        changes = self.changes()
        verdict = self._consider(changes)
        for key, widget in self._errors.items():
            widget.value = _error(verdict.errors.get(key, ""))
            if key in verdict.errors and key in self._folds:
                # Without this text, the button would appear to do nothing.
                self._folds[key].value = True

        self._general.value = _error(verdict.errors.get("", ""))
        if verdict.follows:
            self._follows.value = verdict.follows.as_html()
        else:
            self._follows.value = ""

        self._button.disabled = bool(verdict.errors)
        # Fields that the user did not change show their new values. For example, a different site
        # sets its own values.
        self._quiet = True
        for key in verdict.values.keys() & self._inputs.keys() - changes.keys():
            self._start[key] = self._inputs[key].value = verdict.values[key]
        self._quiet = False

    def _keep(self) -> None:
        try:
            self._said.value = (
                f"<b>{escape(self._write(self._name.value.strip(), self.changes()))}</b>"
            )
        except RunbookError as error:
            self._said.value = _error(str(error))


def _folded(title: str, part: Any) -> tuple[Any, Any]:
    """Return a button used to unfold and fold part of the form, and a box with both.

    An Accordion is not used, because its headings cannot be reached by keyboard.
    """
    import ipywidgets as widgets

    button = widgets.ToggleButton(False, description=f"{FOLDED} {title}", layout={"width": "32em"})
    part.layout.display = "none"

    def turn(change: Any) -> None:
        button.description = f"{OPEN if change['new'] else FOLDED} {title}"
        part.layout.display = None if change["new"] else "none"

    button.observe(turn, names="value")
    return button, widgets.VBox([button, part])


def _input(entry: Field) -> Any:
    import ipywidgets as widgets

    if not entry.choices:
        return widgets.Text(entry.value, description=entry.key, **SHAPE)
    if entry.value in entry.choices:
        choices = entry.choices
    else:
        choices = (entry.value, *entry.choices)

    return widgets.Dropdown(
        options=choices,
        value=entry.value,
        description=entry.key,
        **SHAPE,
    )


def _error(text: str) -> str:
    if not text:
        return ""
    style = (
        f"border-left:.3em solid {BAD};padding-left:.5em;margin-left:17em;line-height:1.4;"
        "white-space:pre-wrap"
    )
    return f'<div role="alert" style="{style}">✗ {escape(text)}</div>'
