"""Locates the folders of runs, and locks one for a process."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runbook.core.locks import HOLDER_VARIABLE, hold
from runbook.display import show_text

RUNS_VARIABLE = "RUNBOOK_RUNS"
"""Where run folders are, if not in runs/ next to params/ (`runbook run --runs DIR`)."""


def runs_folder(project: Path) -> Path:
    """Where run folders are: $RUNBOOK_RUNS, else runs/ next to params/."""
    return Path(os.environ.get(RUNS_VARIABLE) or project / "runs").absolute()


@contextmanager
def hold_run(folder: Path, purpose: str) -> Iterator[None]:
    """Lock a run, unless `runbook run` already holds it for this notebook.

    A message reports a lock that was taken over.
    """
    if os.environ.get(HOLDER_VARIABLE) == str(folder):
        yield
        return

    with hold(folder, purpose) as taken_over:
        if taken_over:
            show_text(taken_over)
        yield
