"""A browser, a JupyterLab with a toy project, and one campaign stepped through in it; skipped where no Chromium is."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "notebooks"))  # the toy project is shared with the notebooks' tests

from toy_project import PAIR, RUN_FILE, Toy

REQUIRED = "RUNBOOK_REQUIRE_BROWSER"
"""Set to 1 where these tests must run: a missing Chromium then fails instead of being passed over."""
WORDS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
LONG = RUN_FILE.replace("iterations: 48 ", "iterations: 60 ").replace("rehearse_stop: 6", "rehearse_stop: 0")
"""The toy, not stopped on purpose: somebody watches it from a page that is closed meanwhile."""
assert "iterations: 60" in LONG
assert PAIR


def chromium() -> str:
    """The installed browser; skips or fails without one."""
    import shutil

    found = os.environ.get("RUNBOOK_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if not found:
        said = "no chromium is installed (apt-get install chromium)"
        if os.environ.get(REQUIRED) == "1":
            pytest.fail(said)
        pytest.skip(said)
    return found


@pytest.fixture(scope="package")
def browser():
    """Chromium; ended with this folder's tests, because its event loop must not outlive them."""
    from playwright.sync_api import sync_playwright

    path = chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=WORDS)
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def toy(tmp_path_factory):
    """A project whose training takes long enough to be looked at twice."""
    chromium()
    toy = Toy(tmp_path_factory.mktemp("browser") / "project", LONG)
    yield toy
    toy.end_all()


@pytest.fixture(scope="package")
def lab(toy, tmp_path_factory):
    """JupyterLab over the project."""
    from lab import Lab

    home = tmp_path_factory.mktemp("lab-home")
    lab = Lab(toy.root, home, toy.environment())
    yield lab
    lab.close()


@pytest.fixture
def page(browser):
    """A page of its own."""
    context = browser.new_context(viewport={"width": 1200, "height": 1000})
    yield context.new_page()
    context.close()
