"""All six notebooks by hand in a real JupyterLab, with a page closed in the middle of the training."""

from __future__ import annotations

import json
import re
import time
from types import SimpleNamespace

import pytest
from lab import Notebook, wait_until
from toy_project import PHASES, lines_of

pytestmark = [pytest.mark.notebooks, pytest.mark.browser]

SECONDS_UNTIL_SEEN = 5.0
"""What an idle machine keeps; a loaded one is given more, and the time is printed."""


def cells_of(toy, phase: str) -> dict[str, str]:
    """The code cells of a notebook by id, each with the words by which it is found on the page."""
    content = json.loads((toy.root / "notebooks" / f"{phase}.ipynb").read_text())
    code = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
    return {cell["id"]: "".join(cell["source"]).splitlines()[-1] for cell in code}


def step_through(notebook: Notebook, cells: dict[str, str], *, until: str = "") -> dict[str, str]:
    """Run one cell after the other; what each said."""
    said = {}
    for name, words in cells.items():
        if name == until:
            break
        said[name] = notebook.run(words, 300)
    return said


@pytest.fixture(scope="module")
def by_hand(browser, toy, lab) -> SimpleNamespace:
    """Everything one sees from the first cell of 00 to the last of 05."""
    context = browser.new_context(viewport={"width": 1200, "height": 1000})
    folder = toy.root / "runs" / "local"
    said: dict[str, dict[str, str]] = {}
    for phase in PHASES[:4]:
        page = context.new_page()
        said[phase] = step_through(Notebook(page, lab, f"notebooks/{phase}.ipynb"), cells_of(toy, phase))
        page.close()
    cells = cells_of(toy, "04-training")
    page = context.new_page()
    notebook = Notebook(page, lab, "notebooks/04-training.ipynb")
    said["04-training"] = step_through(notebook, cells, until="watch")
    cell = notebook.start(cells["watch"])
    seen: list[str] = []

    def look() -> bool:
        seen.append(notebook.output(cell))
        return len(set(re.findall(r"(\d+) of 60 iterations", " ".join(seen)))) >= 3

    wait_until(look, 120, "the picture moves")
    page.close()
    running = not (folder / "jobs" / "04-training" / "exit_code").exists()
    page = context.new_page()
    notebook = Notebook(page, lab, "notebooks/04-training.ipynb")
    began = time.monotonic()
    cell = notebook.start(cells["watch"])
    wait_until(lambda: "state" in notebook.output(cell), 60, "the page that was opened again shows the job")
    again = SimpleNamespace(seconds=time.monotonic() - began, text=notebook.output(cell))
    notebook.wait_for_end(cell, 300)
    again.end = notebook.output(cell)
    rest = dict(list(cells.items())[list(cells).index("watch") + 1 :])
    said["04-training"] |= step_through(notebook, rest)
    page.close()
    page = context.new_page()
    said["05-analysis"] = step_through(Notebook(page, lab, "notebooks/05-analysis.ipynb"), cells_of(toy, "05-analysis"))
    context.close()
    return SimpleNamespace(folder=folder, said=said, seen=seen, running=running, again=again)


def test_every_notebook_comes_to_its_end_cell_by_cell(by_hand):
    for phase in PHASES:
        assert re.search(rf"{phase}: (pass|warn)\s*$", by_hand.said[phase]["finish"]), by_hand.said[phase]
        twin = json.loads((by_hand.folder / "records" / f"{phase}.json").read_text())
        assert (twin["state"], twin["verdict"] in ("pass", "warn")) == ("done", True), twin["checks"]
        assert {cell["state"] for cell in twin["cells"]} == {"completed"}


def test_the_picture_moves_while_the_job_runs(by_hand):
    steps = [int(step) for text in by_hand.seen for step in re.findall(r"(\d+) of 60 iterations", text)]
    assert steps == sorted(steps)
    assert len(set(steps)) >= 3
    assert "Save and stop" in by_hand.seen[-1]
    for fact in ("state running", "loss ", "tokens/s ", "MFU ", "left ", "in use CPU ", " started, world_size 2"):
        assert fact in by_hand.seen[-1].replace("state", " state").replace("in use", " in use"), by_hand.seen[-1]


def test_a_page_opened_again_shows_the_running_job_and_then_its_end(by_hand):
    assert by_hand.running, "the job had ended before the page was opened again: nothing was tested"
    print(f"opened again: {by_hand.again.seconds:.1f} s until the running state was seen")
    assert "staterunning" in by_hand.again.text.replace(" ", "")
    assert by_hand.again.seconds < 4 * SECONDS_UNTIL_SEEN
    assert "60 of 60 iterations (100 %)" in by_hand.again.end
    assert "statedone" in by_hand.again.end.replace(" ", "")
    last = lines_of(by_hand.folder / "metrics.jsonl")[-1]
    assert f"loss {last['loss']:.6g}" in by_hand.again.end
    events = [one["event"] for one in lines_of(by_hand.folder / "events.jsonl") if one["phase"] == "04-training"]
    assert (events.count("submitted"), events.count("finished")) == (1, 1), "watched twice, run once"
