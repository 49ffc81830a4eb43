"""Locates run folders, and locks them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runbook.core.locks import HOLDER_VARIABLE, hold
from runbook.display import show_text

RUNS_VARIABLE = "RUNBOOK_RUNS"
"""Environment variable with the folder for all runs; by default, this is runs/ next to params/."""


def runs_folder(project: Path) -> Path:
    """Return the folder for all runs: $RUNBOOK_RUNS, or else runs/ next to params/."""
    return Path(os.environ.get(RUNS_VARIABLE) or project / "runs").absolute()


@contextmanager
def hold_run(folder: Path, purpose: str) -> Iterator[None]:
    """Lock a run, unless `runbook run` already holds the lock for this notebook.

    Print a message if the lock was taken over from a dead process.
    """
    if os.environ.get(HOLDER_VARIABLE) == str(folder):
        yield
        return

    with hold(folder, purpose) as taken_over:
        if taken_over:
            show_text(taken_over)
        yield
