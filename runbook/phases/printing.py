"""A page as PDF, by the Chromium that is installed; no browser is downloaded."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from runbook import shell
from runbook.errors import RunbookError

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome", "microsoft-edge")
VARIABLE = "RUNBOOK_CHROMIUM"
"""Names the browser where it is not on the PATH."""
WORDS = ("--headless", "--disable-gpu", "--no-pdf-header-footer", "--disable-dev-shm-usage")


def print_page(page: Path) -> Path:
    """Print a page to a PDF beside it; the error says which browsers were looked for."""
    browser = os.environ.get(VARIABLE) or next((found for name in BROWSERS if (found := shutil.which(name))), "")
    if not browser:
        raise RunbookError(
            f"No browser to print {page.name} with: {', '.join(BROWSERS)}: none is on the PATH. Install Chromium, name "
            f"one by {VARIABLE}, or open the page and print it."
        )
    pdf = page.with_suffix(".pdf")
    # A sandbox needs rights that containers and root do not have; the page is our own and fetches nothing.
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with tempfile.TemporaryDirectory() as profile:
        command = [browser, *WORDS, *sandbox, f"--user-data-dir={profile}", f"--print-to-pdf={pdf}", page.as_uri()]
        ended = shell.run(command, timeout=120, check=False)
    if not pdf.exists() or not pdf.read_bytes().startswith(b"%PDF"):
        words = "\n".join(ended.err.splitlines()[-5:])
        raise RunbookError(
            f"{browser} printed no PDF of {page} (exit code {ended.exit_code}). Its last words:\n{words}"
        )
    return pdf
