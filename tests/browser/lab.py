"""A real JupyterLab on a free port, and a simulated user who works with one notebook."""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect

BIN = Path(sys.executable).parent
SECONDS = 240
"""The longest time that a cell of the toy project may take on a busy machine."""
expect.set_options(timeout=1000 * SECONDS)
QUIET = {"fetchNews": "false", "checkForUpdates": False}
"""No prompt about news, and no requests to other hosts."""


class Lab:
    """A JupyterLab server that writes all its files to a separate folder."""

    def __init__(
        self, root: Path, home: Path, environment: Mapping[str, str], run: str = ""
    ) -> None:
        """Start `jupyter lab` with this root, or `runbook lab RUN` in it."""
        self.token = secrets.token_hex(16)
        settings = home / "settings" / "@jupyterlab" / "apputils-extension"
        settings.mkdir(parents=True)
        (settings / "notification.jupyterlab-settings").write_text(json.dumps(QUIET))
        places = {
            "JUPYTER_CONFIG_DIR": home / "config",
            "JUPYTER_DATA_DIR": home / "data",
            "JUPYTER_RUNTIME_DIR": home / "runtime",
            "JUPYTERLAB_SETTINGS_DIR": home / "settings",
            "JUPYTERLAB_WORKSPACES_DIR": home / "workspaces",
            "IPYTHONDIR": home / "ipython",
        }
        if run:
            program = [BIN / "runbook", "lab", run]
        else:
            program = [BIN / "jupyter", "lab", f"--ServerApp.root_dir={root}"]
        words = ["--no-browser", "--allow-root", "--ServerApp.port=0", "--ServerApp.ip=127.0.0.1"]
        with (home / "log").open("w") as log:
            self.process = subprocess.Popen(
                [*program, *words],
                cwd=root,
                env={
                    **environment,
                    **{name: str(place) for name, place in places.items()},
                    "JUPYTER_TOKEN": self.token,
                },
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        told = home / "runtime" / f"jpserver-{self.process.pid}.json"
        wait_until(
            lambda: told.exists() and told.read_text().endswith("}"), 400, "JupyterLab starts"
        )
        self.url = json.loads(told.read_text())["url"]

    def close(self) -> None:
        """Stop the server and its kernels."""
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Notebook:
    """A notebook that is open in a page, operated by keyboard and mouse."""

    def __init__(self, page: Page, lab: Lab, path: str) -> None:
        self.page = page
        page.set_default_timeout(1000 * SECONDS)
        # If a cell runs before the page has found its kernel, JupyterLab runs it in a new, second
        # kernel.
        with page.expect_event(
            "websocket", lambda socket: "/api/kernels/" in socket.url, timeout=1000 * SECONDS
        ):
            page.goto(f"{lab.url}doc/tree/{path}?token={lab.token}")
        self.cells = page.locator(".jp-Notebook .jp-Cell")
        expect(self.cells.first).to_be_visible(timeout=1000 * SECONDS)

    def cell(self, source: str) -> Any:
        """Return the code cell with these words in its input."""
        return self.page.locator(
            ".jp-CodeCell", has=self.page.locator(".jp-InputArea", has_text=source)
        ).first

    def start(self, source: str) -> Any:
        """Run a cell with Shift+Enter, and return immediately.

        Press again if the page was not ready.
        """
        cell = self.cell(source)
        prompt = cell.locator(".jp-InputPrompt")
        before = prompt.inner_text()

        def heard() -> bool:
            cell.scroll_into_view_if_needed()
            cell.locator(".jp-InputArea-editor").click()
            self.page.keyboard.press("Shift+Enter")
            end = time.monotonic() + 5
            while prompt.inner_text() == before and time.monotonic() < end:
                self.page.wait_for_timeout(50)
            return bool(prompt.inner_text() != before)

        wait_until(heard, SECONDS, f"{source} starts")
        return cell

    def run(self, source: str, seconds: float = SECONDS) -> str:
        """Run a cell to its end. Return its output as a person reads it."""
        cell = self.start(source)
        self.wait_for_end(cell, seconds)
        return self.output(cell)

    def wait_for_end(self, cell: Any, seconds: float = SECONDS) -> None:
        """Wait until the cell prompt shows its execution number."""
        prompt = cell.locator(".jp-InputPrompt")
        expect(prompt).to_have_text(re.compile(r"\[\d+\]:"), timeout=1000 * seconds)

    def save(self, file: Path) -> None:
        """Save as a user does, and wait until the output from the last cell is on disk."""
        self.page.keyboard.press("Control+s")

        def saved() -> bool:
            try:
                content = json.loads(file.read_text())
            except ValueError:  # the file is still being written
                return False
            return bool(
                [cell for cell in content["cells"] if cell["cell_type"] == "code"][-1]["outputs"]
            )

        wait_until(saved, SECONDS, f"{file.name} is saved")

    def output(self, cell: Any) -> str:
        """Return the output of a cell."""
        return str(cell.locator(".jp-OutputArea").first.inner_text())


def wait_until(true: Callable[[], Any], seconds: float, what: str) -> None:
    """Wait for a condition to become true."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"{what}: not within {seconds:.0f} s"
        time.sleep(0.05)


def chromium() -> str:
    """Return the path to the installed browser, or an empty string."""
    import shutil

    return (
        os.environ.get("CHROMIUM")
        or shutil.which("chromium")
        or shutil.which("chromium-browser")
        or ""
    )
