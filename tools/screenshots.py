"""Draw docs/pictures from one small run in a real JupyterLab: python tools/screenshots.py.

The program needs chromium and takes a few minutes. The run is the small one that the tests use. It
is a real run, so the pictures are real too.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).parents[1]
sys.path += [str(ROOT / "tests" / name) for name in ("", "notebooks", "browser")]

from lab import Lab, Notebook, wait_until  # noqa: E402
from toy_project import RUN_FILE, Toy  # noqa: E402

PICTURES = ROOT / "docs" / "pictures"
WORDS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
COLOURS = 96
"""Number of colors in a picture. This is enough for pages of text, and makes files a third as
large.
"""
STEPS = 120
TEXT = RUN_FILE.replace("iterations: 48 ", f"iterations: {STEPS} ").replace(
    "rehearse_stop: 6", "rehearse_stop: 0"
)


def main() -> None:
    """Execute the run, take the screenshots, and save them."""
    browser_path = (
        os.environ.get("RUNBOOK_CHROMIUM")
        or shutil.which("chromium")
        or shutil.which("chromium-browser")
    )
    if not browser_path:
        sys.exit("No chromium on the PATH: install it, or name one by RUNBOOK_CHROMIUM.")
    PICTURES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as playwright:
        toy = Toy(Path(temporary) / "gpt3", TEXT)
        browser = playwright.chromium.launch(executable_path=browser_path, args=WORDS)
        try:
            made(toy, "local", "--to", "smoke")
            (Path(temporary) / "lab").mkdir()
            lab = Lab(toy.root, Path(temporary) / "lab", toy.environment())
            try:
                look_at_notebooks(browser, lab)
            finally:
                lab.close()
            made(toy, "local", "--as", "small", "--set", "model=small", "--to", "plan")
            made(
                toy,
                "local",
                "--as",
                "longer",
                "--set",
                "training.iterations=500",
                "--to",
                "environment",
            )
            made(toy, "local")
            look_at_reports(browser, toy.root / "runs")
        finally:
            browser.close()
            toy.end_all()


def made(toy: Toy, *words: str) -> None:
    """Execute `runbook run` until it succeeds."""
    ended = toy.call("runbook", "run", *words, timeout=900)
    if ended.code:
        sys.exit(f"runbook run {' '.join(words)}: {ended}")


def look_at_notebooks(browser: Browser, lab: Lab) -> None:
    """Take screenshots: the form in notebook 00, and a running job in notebook 04.

    The page with notebook 04 is closed and opened again first.
    """
    page = browser.new_page(viewport={"width": 1100, "height": 1300})
    notebook = Notebook(page, lab, "notebooks/00-plan.ipynb")
    for words in ("overrides: str", "phase.bind", "phase.choose"):
        notebook.run(words)
    cell = notebook.cell("phase.choose")
    field = cell.get_by_label("training.micro_batch", exact=True)
    field.fill("3")
    cell.get_by_role("alert").first.wait_for(timeout=60_000)
    keep(page, "form", cell.locator(".jp-OutputArea").first)
    page.close()
    page = browser.new_page(viewport={"width": 1000, "height": 700})
    notebook = Notebook(page, lab, "notebooks/04-training.ipynb")
    for words in ("overrides: str", "phase.bind", "phase.check_ready", "phase.launch"):
        notebook.run(words)
    cell = notebook.start("phase.watch")
    middle = [f"{number} of {STEPS}" for number in range(STEPS // 2, STEPS - 10)]
    wait_until(
        lambda: any(words in notebook.output(cell) for words in middle),
        600,
        "the middle of the run",
    )
    keep(page, "watching", cell)
    notebook.wait_for_end(cell, 600)
    page.close()


def look_at_reports(browser: Browser, runs: Path) -> None:
    """Take screenshots of the reports.

    They show the page for the run (light, and dark on a phone) and the index of runs.
    """
    for name, path, width, height, scheme in (
        ("report", runs / "local" / "index.html", 1000, 1250, "light"),
        ("phone", runs / "local" / "index.html", 390, 800, "dark"),
        ("runs", runs / "index.html", 1150, 260, "light"),
    ):
        page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
        page.goto(path.as_uri())
        keep(page, name)
        page.close()


def keep(page: Any, name: str, part: Any = None) -> None:
    """Save one picture with few colors."""
    path = PICTURES / f"{name}.png"
    (part or page).screenshot(path=path)
    Image.open(path).convert("RGB").quantize(COLOURS).save(path, optimize=True)
    sys.stdout.write(f"{path.relative_to(ROOT)}: {path.stat().st_size // 1024} kB\n")


if __name__ == "__main__":
    main()
