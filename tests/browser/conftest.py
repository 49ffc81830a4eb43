"""A browser, a JupyterLab with a toy project, and one run stepped through in it.

Skipped without Chromium.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

sys.path.append(
    str(Path(__file__).parents[1] / "notebooks")
)  # the notebook tests share the toy project

from toy_project import PHASES, RUN_FILE, Toy

REQUIRED = "RUNBOOK_REQUIRE_BROWSER"
"""If this is 1, these tests must run: without Chromium, they fail instead of being skipped."""
WORDS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
STEPS = 150
"""Enough steps that a page can be closed and reopened during training, even on a fast machine."""
LONG = RUN_FILE.replace("iterations: 48 ", f"iterations: {STEPS} ").replace(
    "rehearse_stop: 6", "rehearse_stop: 0"
)
"""The toy run without a planned stop, so that its training goes on while the page is closed."""
assert f"iterations: {STEPS}" in LONG


def chromium() -> str:
    """Return the installed browser. Skip or fail if there is no browser."""
    import shutil

    found = (
        os.environ.get("RUNBOOK_CHROMIUM")
        or shutil.which("chromium")
        or shutil.which("chromium-browser")
    )
    if not found:
        said = "no chromium is installed (apt-get install chromium)"
        if os.environ.get(REQUIRED) == "1":
            pytest.fail(said)
        pytest.skip(said)
    return found


@pytest.fixture(scope="package")
def browser():
    """Chromium, closed after the last test in this folder, because its event loop must not outlive
    them.
    """
    from playwright.sync_api import sync_playwright

    path = chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=WORDS)
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def toy(tmp_path_factory):
    """Return a project in which training takes long enough to be viewed twice."""
    chromium()
    toy = Toy(tmp_path_factory.mktemp("browser") / "project", LONG)
    yield toy
    toy.end_all()


@pytest.fixture(scope="package")
def lab(toy, tmp_path_factory):
    """Start JupyterLab with the project as its root."""
    from lab import Lab

    home = tmp_path_factory.mktemp("lab-home")
    lab = Lab(toy.root, home, toy.environment())
    yield lab
    lab.close()


@pytest.fixture
def page(browser):
    """Open a separate page for each test."""
    context = browser.new_context(viewport={"width": 1200, "height": 1000})
    yield context.new_page()
    context.close()


def cells_of(toy, phase: str) -> dict[str, str]:
    """Return the code cells in a notebook by id, each with text that identifies it on the page."""
    content = json.loads((toy.root / "notebooks" / f"{phase}.ipynb").read_text())
    code = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
    return {cell["id"]: _telling_line("".join(cell["source"]).splitlines()) for cell in code}


def step_through(notebook: Any, cells: dict[str, str], *, until: str = "") -> dict[str, str]:
    """Run the cells one after another. Return the output of each."""
    said = {}
    for name, words in cells.items():
        if name == until:
            break
        said[name] = notebook.run(words, 300)
    return said


@pytest.fixture(scope="package")
def by_hand(browser, toy, lab) -> SimpleNamespace:
    """Run all cells as a user does, from the first cell in 00 to the last cell in 06.

    The page is closed once in the middle of 04.
    """
    from lab import Notebook, wait_until

    context = browser.new_context(viewport={"width": 1200, "height": 1000})
    folder = toy.root / "runs" / "local"
    said: dict[str, dict[str, str]] = {}

    def whole(phase: str) -> None:
        page = context.new_page()
        notebook = Notebook(page, lab, f"notebooks/{phase}.ipynb")
        said[phase] = step_through(notebook, cells_of(toy, phase))
        notebook.save(toy.root / "notebooks" / f"{phase}.ipynb")
        page.close()

    for phase in PHASES[:4]:
        whole(phase)
    cells = cells_of(toy, "04-training")
    page = context.new_page()
    notebook = Notebook(page, lab, "notebooks/04-training.ipynb")
    said["04-training"] = step_through(notebook, cells, until="watch")
    cell = notebook.start(cells["watch"])
    seen: list[str] = []

    def look() -> bool:
        seen.append(notebook.output(cell))
        steps = set(re.findall(rf"(\d+) of {STEPS} iterations", " ".join(seen)))
        # Utilization is measured a moment after the first steps appear.
        return len(steps) >= 3 and "in use" in seen[-1]

    wait_until(look, 240, "the picture moves")
    page.close()
    running = not (folder / "jobs" / "04-training" / "exit_code").exists()
    page = context.new_page()
    began = time.monotonic()
    notebook = Notebook(page, lab, "notebooks/04-training.ipynb")
    cell = notebook.cell(cells["watch"])
    wait_until(
        lambda: "state" in notebook.output(cell),
        400,
        "the page that was opened again shows the job, untouched",
    )
    again = SimpleNamespace(seconds=time.monotonic() - began, text=notebook.output(cell))
    notebook.wait_for_end(cell, 900)
    again.end = notebook.output(cell)
    rest = dict(list(cells.items())[list(cells).index("watch") + 1 :])
    said["04-training"] |= step_through(notebook, rest)
    notebook.save(toy.root / "notebooks" / "04-training.ipynb")
    page.close()
    whole("05-analysis")
    whole("06-evaluation")
    context.close()
    return SimpleNamespace(folder=folder, said=said, seen=seen, running=running, again=again)


def _telling_line(lines: list[str]) -> str:
    """Return a line that only this cell has: its last line, or its first if the last is a bare name
    such as `gap`."""
    return lines[0] if lines[-1].isidentifier() else lines[-1]
