"""GPT-3 pre-training as notebooks that run for real; see README.md."""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"


def open(run: str, phase: str = "04-training") -> Any:
    """Return a run as an object (`OpenRun`), given its name, `RUN:VARIANT` or its folder.

    docs/explore.md shows what it offers.
    """
    # Imported late, because the trainer starts in a vendor's container that lacks the packages
    # needed here.
    return import_module("runbook.phases.explore").OpenRun(run, phase)
