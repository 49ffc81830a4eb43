"""A run: its settings, the plan computed from them, and the folder with its results."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from runbook.params import Settings
from runbook.planning.make_plan import Plan
from runbook.runs.run_folder import hold_run


@dataclass(frozen=True)
class PlannedRun:
    """The parameters, the plan and the folder of a run."""

    settings: Settings
    plan: Plan
    folder: Path

    def hold(self, purpose: str) -> AbstractContextManager[None]:
        """Prevent other processes from changing the run in the meantime.

        `runbook run` already holds it for its own notebooks.
        """
        return hold_run(self.folder, purpose)
