"""The widgets next to a live picture: a user types notes and stops a job while the cell is still
running."""

from __future__ import annotations

import pytest
from lab import Notebook, wait_until
from playwright.sync_api import expect
from toy_project import lines_of

from runbook.display.messages import DisplayMessage

pytestmark = [pytest.mark.notebooks, pytest.mark.browser, pytest.mark.timeout(1800)]


def opened_again(context, lab, *, without_our_script: bool = False) -> Notebook:
    """Open the notebook in a new page, after all other pages were closed."""
    for page in context.pages:
        page.close()
    page = context.new_page()
    if without_our_script:  # as in a JupyterLab from another environment
        page.route("**/extensions/gpt3-runbook/**", lambda route: route.abort())
    return Notebook(page, lab, "notebooks/by-hand.ipynb")


def test_save_and_stop_is_heard_from_a_page_that_was_opened_again_and_nothing_resumes_the_job(
    page, lab, toy
):
    context = page.context
    text = (toy.root / "params" / "local.yaml").read_text().replace("run: local", "run: stopped")
    toy.write_run_file(text.replace("    iterations: 8\n", "    iterations: 5000\n"), "stopped")
    made = toy.call("runbook", "run", "stopped", "--from", "data", "--to", "data")
    assert made.code == 0, made
    folder = toy.root / "runs" / "stopped"
    master = (toy.root / "notebooks" / "03-smoke-test.ipynb").read_text()
    of_local = 'run: str = \\"local\\"'
    of_stopped = 'run: str = \\"stopped\\"'
    assert of_local in master
    (toy.root / "notebooks" / "by-hand.ipynb").write_text(master.replace(of_local, of_stopped))
    notebook = Notebook(page, lab, "notebooks/by-hand.ipynb")
    for words in ("overrides: str", "phase.bind", "phase.show_expectation", "phase.launch"):
        notebook.run(words)
    cell = notebook.start("phase.watch")
    wait_until(lambda: "of 5000 iterations" in notebook.output(cell), 400, "the job makes steps")
    expect(cell.get_by_role("button", name="Save and stop")).to_be_visible()
    notes = ("node n7 was replaced", "its fan is <loud>")
    for note in notes:  # one after another, while the cell is running
        cell.get_by_placeholder("runbook note").fill(note)
        cell.get_by_role("button", name="Note", exact=True).click()
    logbook = folder / "logbook.md"
    wait_until(
        lambda: "node n7 was replaced" in logbook.read_text(),
        60,
        "the first note is in the logbook",
    )
    wait_until(
        lambda: (
            [one["text"] for one in lines_of(folder / "events.jsonl") if one["event"] == "note"]
            == [*notes]
        ),
        60,
        "both notes are events, in order",
    )
    notebook = opened_again(context, lab, without_our_script=True)
    cell = notebook.start("phase.watch")
    wait_until(
        lambda: "of 5000 iterations" in notebook.output(cell),
        400,
        "the cell is answered while it runs",
    )
    action = DisplayMessage.ACTION.fill(
        name="Save and stop", command="runbook cancel stopped --gently"
    )
    assert action in notebook.output(cell)
    notebook = opened_again(context, lab)
    cell = notebook.cell("phase.watch")
    wait_until(
        lambda: "of 5000 iterations" in notebook.output(cell),
        400,
        "the page follows the cell that runs",
    )
    cell.get_by_role("button", name="Save and stop").click()
    notebook.wait_for_end(cell)
    said = notebook.output(cell)
    assert "statestopped" in said.replace(" ", "")
    assert "JobError" in said
    assert (folder / "jobs" / "03-smoke-test" / "exit_code").read_text().split()[0] == "75"
    assert not (folder / "jobs" / "03-smoke-test-2").exists(), (
        "somebody asked for the stop: nothing resumes it"
    )
    names = [one["event"] for one in lines_of(folder / "events.jsonl")]
    assert "stopped" in names
