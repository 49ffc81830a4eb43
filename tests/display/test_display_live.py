"""The parts around a live picture: the curve, the buttons, and requests from a page while a cell
runs.
"""

from __future__ import annotations

import base64
import json
import re
from html import escape
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from runbook.core.errors import RecordError
from runbook.core.processes import wait_until
from runbook.core.table import Table
from runbook.display import Place, Progress
from runbook.display.jupyter import kernel
from runbook.display.jupyter.widgets import (
    WIDGET,
    Answer,
    Field,
    Form,
    _buttons,
    _take_typed,
    as_text,
    controls,
    plain_buttons,
    show_form,
    widget_bundle,
)
from runbook.display.messages import DisplayMessage
from runbook.display.progress import MOST_POINTS, curve_html


def svg_of(html: str) -> ElementTree.Element:
    """Return the drawing inside an image."""
    return ElementTree.fromstring(base64.b64decode(re.search(r"base64,([^\"]+)", html)[1]))


def test_a_curve_is_an_image_with_its_numbers_in_words_and_stays_small():
    html = curve_html([(n, 10 - n / 1000) for n in range(1, 5001)], "loss")
    assert html.startswith('<img alt="loss from 9.999 (iteration 1) to 5 (iteration 5000)"')
    assert len(html) < 12_000
    line = svg_of(html).find("{http://www.w3.org/2000/svg}polyline")
    places = line.get("points").split()
    assert len(places) <= MOST_POINTS + 1
    assert places[0].startswith("52.0,18.5")
    assert curve_html([(1, float("nan")), (2, 3.0)], "loss") == ""


def test_a_picture_holds_curve_and_events_and_a_fact_that_is_gone_is_not_shown():
    progress = Progress("04-training", total=10, unit="iterations", timed=False, place=Place.PIPE)
    event = "12:00:00 UTC saved, iteration 2"
    progress.draw_beside(("loss", [(1, 3.0), (2, 2.0)]), [event])
    progress.update(done=2, queue="PENDING (Priority)", left="3 s")
    assert progress.facts["queue"] in progress.as_text()
    progress.finish(done=10, queue=None, left=None)
    all_done = DisplayMessage.AMOUNT_DONE.fill(done=10, total=10, unit=" iterations", percent=100)
    assert progress.as_text() == f"04-training: {all_done}"
    assert progress.as_long_text().splitlines()[-1] == f"  {event}"
    html = progress.as_html()
    label = DisplayMessage.CURVE_LABEL.fill(
        label="loss", first=3, first_iteration=1, last=2, last_iteration=2
    )
    assert f'alt="{label}"' in html
    assert event in html
    assert "queue" not in html


def test_buttons_are_for_browsers_and_their_commands_for_all():
    actions = {
        "Save and stop": (str, "runbook cancel local --gently"),
        "Cancel": (str, "runbook cancel local"),
    }
    commands = dict(part.split(": ") for part in as_text(actions).split("; "))
    assert commands == {name: command for name, (_, command) in actions.items()}
    with controls(actions, Place.ENGINE):
        pass
    bundle = widget_bundle(type("Widget", (), {"model_id": "7"})(), as_text(actions))
    assert bundle["text/plain"].startswith("Save and stop: ")
    assert bundle[WIDGET]["model_id"] == "7"


def test_a_note_is_typed_while_its_cell_runs_and_handed_on_by_its_button(monkeypatch):
    """Acknowledge each change to a field, because the page waits for that before it sends the next."""
    answers = []
    noted = []
    idle = SimpleNamespace(
        publish=lambda cause, kind, **content: answers.append((cause, kind, content))
    )
    monkeypatch.setattr("runbook.display.jupyter.widgets.page_kernel", lambda: idle)

    def note(text):
        if not text:
            raise refusal
        noted.append(text)
        return f"Noted: {text}"

    refusal = RecordError("a note has 1 to 10,000 characters")

    row, clicks, fields = _buttons(
        {"Stop": (str, "runbook cancel x"), "Note": (note, 'runbook note x "..."')}
    )
    ((comm, field),) = fields.items()
    said = row.children[-1]
    for typed in ("node n7 was", "node n7 was <replaced>"):
        content = {"comm_id": comm, "data": {"method": "update", "state": {"value": typed}}}
        assert _take_typed(
            fields, kernel.KernelMessage([], {"msg_type": "comm_msg", "msg_id": typed}, content)
        )
    assert [(cause["msg_id"], content) for cause, _, content in answers][1] == (
        typed,
        {"execution_state": "idle"},
    )
    press = [*clicks.values()][1]
    press()
    press()
    assert field.value == typed, "emptied from here, it could lose what was typed since the click"
    assert wait_until(lambda: said.value == escape(f"Noted: {typed}"), 60) and noted == [typed], (
        "a double click is one note"
    )
    field.value = ""
    press()
    assert wait_until(lambda: said.value == str(refusal), 60) and len(noted) == 1
    other = kernel.KernelMessage(
        [], {"msg_type": "comm_msg"}, {"comm_id": "another", "data": {"method": "update"}}
    )
    assert not _take_typed(fields, other)
    text = plain_buttons(
        clicks, {"Stop": (str, "c"), "Note": (note, 'runbook note x "..."')}, fields
    )
    assert text.count("<button") == 2 and text.count("<input") == 1
    assert f'data-runbook-click="{[*clicks][1]}" data-runbook-text="{comm}"' in text
    assert row.layout.flex_flow == "row wrap" and said.layout.flex == "1 1 100%", (
        "a long answer takes a line of its own"
    )
    row.close_all()


def frames(kind: str, content: object) -> list[bytes]:
    """Return a message from a page in the parts that it arrives in."""
    parts = [{"msg_type": kind}, {}, {}, content]
    return [
        b"address",
        kernel.DELIMITER,
        b"signature",
        *[json.dumps(part).encode() for part in parts],
    ]


@pytest.mark.parametrize(
    "message", [[], [b"x"], [kernel.DELIMITER, b"s"], frames("execute_request", ["no content"])]
)
def test_a_message_that_cannot_be_read_is_passed_on(message, monkeypatch):
    passed = []
    monkeypatch.setattr(kernel, "_listeners", [lambda message: pytest.fail("was heard")])
    kernel.pass_on(message, passed.append)
    assert passed == [message]


def test_what_is_dealt_with_is_not_passed_on(monkeypatch):
    passed = []
    heard = []

    def hear(message):
        heard.append((message.addresses, message.kind, message.content["comm_id"]))
        return message.content["comm_id"] == "mine"

    monkeypatch.setattr(kernel, "_listeners", [hear])
    for name in ("mine", "another"):
        kernel.pass_on(frames("comm_msg", {"comm_id": name}), passed.append)
    assert heard == [([b"address"], "comm_msg", "mine"), ([b"address"], "comm_msg", "another")]
    assert len(passed) == 1
    assert kernel.listen(lambda message: False)() is None, (
        "outside a kernel there is nothing to hear"
    )


ODD_SUM = "the sum must be even"
WRITTEN = "{name} is written"


@pytest.fixture
def form():
    """Return a form with two numbers that must add up to an even number."""
    asked = []
    kept = []

    def consider(changes):
        asked.append(dict(changes))
        values = {"a": 1, "b": 3} | {key: int(value) for key, value in changes.items()}
        if sum(values.values()) % 2:
            return Answer({next(reversed(changes), ""): ODD_SUM})
        return Answer({}, Table([{"sum": sum(values.values())}]), {"a": "1", "b": "3"})

    def write(name, changes):
        kept.append((name, dict(changes)))
        return WRITTEN.format(name=name)

    fields = {
        "": [Field("a", "a number", "1")],
        "more": [Field("b", "<another>", "3", ("3", "5", "6"))],
    }
    return Form(fields, consider, write, "mine"), asked, kept


def test_a_form_tells_errors_at_their_field_and_writes_only_what_fits(form):
    form, asked, kept = form
    assert asked == [{}]
    form._inputs["a"].value = "2"
    assert ODD_SUM in form._errors["a"].value
    assert form._errors["b"].value == ""
    assert form._button.disabled
    assert not form._folds["b"].value
    form._inputs["a"].value = "1"
    form._inputs["b"].value = "6"
    assert ODD_SUM in form._errors["b"].value
    assert form._folds["b"].value, "the section of an error opens by itself"
    form._inputs["b"].value = "3"
    form._inputs["a"].value = "2"
    form._inputs["b"].value = "6"
    assert asked[-1] == {"a": "2", "b": "6"}
    assert form._errors["a"].value == form._general.value == ""
    assert "<td" in form._follows.value
    form._keep()
    assert kept == [("mine", {"a": "2", "b": "6"})]
    assert WRITTEN.format(name="mine") in form._said.value


def test_outside_a_browser_a_form_is_a_table(capsys):
    table = Table([{"key": "a", "value": "1"}])
    assert (
        show_form({"": []}, lambda changes: Answer(), lambda name, changes: "", table, "x") is None
    )
    assert capsys.readouterr().out == f"{table.as_text()}\n"
