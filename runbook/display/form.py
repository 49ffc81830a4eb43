"""A form of values where a person sits in front, a table of the same values everywhere else.

    show_form(sections, consider, write, table)

`consider(changes)` is asked at each change and answers with the errors that stand beside their fields and what follows
from the values; `write(name, changes)` keeps them and says where. The form itself does not know what the values mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from runbook.display.controls import widget_bundle
from runbook.display.place import Place, display_bundle, show, where_we_are
from runbook.display.table import Table
from runbook.display.verdict import BAD
from runbook.errors import RunbookError


@dataclass(frozen=True)
class Field:
    """One value a person may change."""

    key: str
    help: str
    value: str
    choices: tuple[str, ...] = ()
    """Empty where anything may be written."""


@dataclass(frozen=True)
class Answer:
    """What follows from the values as they are."""

    errors: Mapping[str, str] = field(default_factory=dict)
    """By key; those of no field in the form under an empty key."""
    follows: Table | None = None
    values: Mapping[str, str] = field(default_factory=dict)
    """What the values that a person did not touch have become."""


Changes = Mapping[str, str]
Consider = Callable[[Changes], Answer]
Write = Callable[[str, Changes], str]


def show_form(
    sections: Mapping[str, Sequence[Field]], consider: Consider, write: Write, table: Table, name: str
) -> Form | None:
    """The form in a browser, the table elsewhere; `name` is proposed for what is written."""
    if where_we_are() is not Place.BROWSER or not _has_widgets():
        show(table)
        return None
    form = Form(sections, consider, write, name)
    display_bundle({**widget_bundle(form.box, table.as_text()), "text/html": table.as_html()})
    return form


class Form:
    """The widgets, and what they know of the values."""

    def __init__(self, sections: Mapping[str, Sequence[Field]], consider: Consider, write: Write, name: str) -> None:
        import ipywidgets

        self._consider, self._write = consider, write
        self._start = {one.key: one.value for fields in sections.values() for one in fields}
        self._inputs = {one.key: _input(one) for fields in sections.values() for one in fields}
        self._errors = {key: ipywidgets.HTML() for key in self._start}
        self._quiet = False
        self._general, self._follows, self._said = ipywidgets.HTML(), ipywidgets.HTML(), ipywidgets.HTML()
        named = {"description": "file name", "style": STYLE, "layout": LAYOUT}
        self._name = ipywidgets.Text(name, continuous_update=False, **named)
        self._button = ipywidgets.Button(description="Write run file", layout={"width": "auto"})
        self._button.on_click(lambda _: self._keep())
        for widget in self._inputs.values():
            widget.observe(self._changed, names="value")
        first, *more = (self._section(ipywidgets, fields) for fields in sections.values())
        folded = [_folded(ipywidgets, title, part) for title, part in zip(list(sections)[1:], more, strict=True)]
        self._folds = {
            one.key: box.children[0]
            for box, title in zip(folded, list(sections)[1:], strict=True)
            for one in sections[title]
        }
        keep = ipywidgets.HBox([self._name, self._button])
        self.box = ipywidgets.VBox([first, *folded, self._general, self._follows, keep, self._said])
        self._answer()

    def changes(self) -> dict[str, str]:
        """The values a person changed, as they were written."""
        now = {key: str(widget.value) for key, widget in self._inputs.items()}
        return {key: value for key, value in now.items() if value != self._start[key]}

    def _section(self, widgets: Any, fields: Sequence[Field]) -> Any:
        return widgets.VBox([self._row(widgets, one) for one in fields])

    def _row(self, widgets: Any, one: Field) -> Any:
        words = f'<div style="opacity:.8;font-size:90%;line-height:1.4;padding-top:.4em">{escape(one.help)}</div>'
        help_text = widgets.HTML(words, layout={"flex": "1 1 20em"})  # beside its field, below it on a narrow page
        return widgets.VBox(
            [
                widgets.HBox([self._inputs[one.key], help_text], layout={"flex_flow": "row wrap"}),
                self._errors[one.key],
            ]
        )

    def _changed(self, _: Any) -> None:
        if not self._quiet:
            self._answer()

    def _answer(self) -> None:
        answer = self._consider(self.changes())
        for key, widget in self._errors.items():
            widget.value = _error(answer.errors.get(key, ""))
            if key in answer.errors and key in self._folds:
                self._folds[key].value = True  # an error that nobody sees would only be a dead button
        self._general.value = _error(answer.errors.get("", ""))
        self._follows.value = answer.follows.as_html() if answer.follows else ""
        self._button.disabled = bool(answer.errors)
        self._take(answer.values)

    def _take(self, values: Mapping[str, str]) -> None:
        """Show what untouched values have become: another site brings its own."""
        touched = self.changes()
        self._quiet = True
        for key, value in values.items():
            if key in self._inputs and key not in touched:
                self._start[key] = value
                self._inputs[key].value = value
        self._quiet = False

    def _keep(self) -> None:
        try:
            self._said.value = f"<b>{escape(self._write(self._name.value.strip(), self.changes()))}</b>"
        except RunbookError as error:
            self._said.value = _error(str(error))


def _folded(widgets: Any, title: str, part: Any) -> Any:
    """A part below a button that opens and folds it; an Accordion's headings cannot be reached by keyboard."""
    button = widgets.ToggleButton(False, description=f"{FOLDED} {title}", layout={"width": "32em"})
    part.layout.display = "none"

    def turn(change: Any) -> None:
        button.description = f"{OPEN if change['new'] else FOLDED} {title}"
        part.layout.display = None if change["new"] else "none"

    button.observe(turn, names="value")
    return widgets.VBox([button, part])


FOLDED, OPEN = "▸", "▾"
STYLE = {"description_width": "17em"}
LAYOUT = {"width": "32em"}


def _input(one: Field) -> Any:
    import ipywidgets

    common = {"description": one.key, "style": STYLE, "layout": LAYOUT}
    if one.choices:
        choices = one.choices if one.value in one.choices else (one.value, *one.choices)
        return ipywidgets.Dropdown(options=choices, value=one.value, **common)
    return ipywidgets.Text(one.value, **common)


def _error(text: str) -> str:
    style = f"border-left:.3em solid {BAD};padding-left:.5em;margin-left:17em;line-height:1.4;white-space:pre-wrap"
    return f'<div role="alert" style="{style}">✗ {escape(text)}</div>' if text else ""


def _has_widgets() -> bool:
    from importlib.util import find_spec

    return find_spec("ipywidgets") is not None
