"""The form in 00-plan: a wrong value is reported next to its field, and a valid one is written to a
run file."""

from __future__ import annotations

import pytest
from lab import Notebook
from playwright.sync_api import expect

from runbook.phases.messages import PhaseMessage

pytestmark = [pytest.mark.notebooks, pytest.mark.browser, pytest.mark.timeout(1800)]


@pytest.fixture
def form(page, lab):
    """Open the cell with the form for the toy run."""
    notebook = Notebook(page, lab, "notebooks/00-plan.ipynb")
    for words in ("overrides: str", "phase.bind", "phase.choose"):
        notebook.run(words)
    cell = notebook.cell("phase.choose")
    expect(cell.get_by_label("training.micro_batch", exact=True)).to_be_visible(timeout=240_000)
    return cell


def row_of(form, key: str):
    """Return a field and the text below it."""
    return form.locator(".widget-vbox", has=form.page.get_by_label(key, exact=True)).last


def test_a_wrong_value_is_told_beside_its_field_and_nothing_can_be_written(form):
    field = form.get_by_label("training.micro_batch", exact=True)
    write = form.get_by_role("button", name="Write run file")
    for wrong, said in (
        ("3", "the global batch is divisible by micro-batch x data replicas"),
        ("x", "not a number"),
    ):
        field.fill(wrong)
        expect(row_of(form, "training.micro_batch").get_by_role("alert")).to_contain_text(
            said, timeout=240_000
        )
        expect(write).to_be_disabled(timeout=240_000)
    expect(form.get_by_role("alert")).to_have_count(1)
    field.fill("4")
    expect(form.get_by_role("alert")).to_have_count(0, timeout=240_000)


def test_every_key_is_reached_by_keyboard(form, page):
    form.get_by_label("training.recompute", exact=True).focus()
    page.keyboard.press("Tab")
    section = form.get_by_role("button", name="data", exact=False).first
    expect(section).to_be_focused()
    hidden = form.get_by_label("data.held_out", exact=True)
    expect(hidden).to_be_hidden()
    page.keyboard.press("Space")
    expect(hidden).to_be_visible(timeout=240_000)
    hidden.fill("nonsense")
    expect(row_of(form, "data.held_out").get_by_role("alert")).to_be_visible(timeout=240_000)
    section.focus()
    page.keyboard.press("Enter")
    expect(hidden).to_be_hidden(timeout=240_000)


def test_the_plan_moves_with_a_value_and_the_file_is_one_that_check_accepts(form, toy, page):
    output = form.locator(".jp-OutputArea").first
    expect(output).to_contain_text("7,248,640 parameters", timeout=240_000)
    form.get_by_label("model", exact=True).select_option("small")
    expect(output).to_contain_text("17,682,432 parameters", timeout=240_000)
    iterations = form.get_by_label("training.iterations", exact=True)
    iterations.fill("50")
    name = form.get_by_label("file name", exact=True)
    name.fill("by-hand")
    name.press("Tab")  # by keyboard: the button is next in tab order
    page.keyboard.press("Space")
    expect(output).to_contain_text(
        "params/by-hand.yaml is written and passes runbook check", timeout=240_000
    )
    said = toy.call("runbook", "check", "by-hand")
    assert (said.code, said.text.strip().splitlines()[-1]) == (
        0,
        f"by-hand: {PhaseMessage.EVERYTHING_FITS.fill()}",
    )
    shown = toy.call("runbook", "why", "by-hand", "training.iterations").text
    assert shown.startswith("training.iterations = 50")
    assert "model: small" in (toy.root / "params" / "by-hand.yaml").read_text()
