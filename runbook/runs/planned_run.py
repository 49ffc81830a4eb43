"""A run: its settings, the plan computed from them, and the folder with its results."""

import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runbook.params import Settings
from runbook.params.schema.run_file import Job
from runbook.plan_file.json_records import append_line
from runbook.plan_file.schema import PhasePlan
from runbook.planning.make_plan import Plan
from runbook.runs.run_folder import hold_run


@dataclass(frozen=True)
class PlannedRun:
    """A run with its parameters, plan and folder."""

    settings: Settings
    plan: Plan
    folder: Path

    def hold(self, purpose: str) -> AbstractContextManager[None]:
        """Prevent other processes from changing the run within the block.

        `runbook run` already holds the run for its own notebooks.
        """
        return hold_run(self.folder, purpose)

    def training(self, phase: str) -> "PlannedTraining":
        """Return the training run for a phase."""
        return PlannedTraining(self, phase)


@dataclass(frozen=True)
class PlannedTraining:
    """One of the two training phases in a run: the smoke test or the full training."""

    run: PlannedRun
    phase: str

    @property
    def settings(self) -> Settings:
        """The run parameters."""
        return self.run.settings

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self.run.folder

    @property
    def phase_plan(self) -> PhasePlan:
        """The trainer inputs for this training run."""
        return self.run.plan.phases[self.phase]

    @property
    def job(self) -> Job:
        """The resources that jobs for this training run request."""
        return self.settings.job(self.phase)

    @property
    def events_path(self) -> Path:
        """Path to the event history."""
        return self.folder / self.phase_plan.log.events

    def append_event(self, event: str, **facts: Any) -> None:
        """Append an event from this training to the event history.

        The line is written in a single call, so that lines from different processes do not mix.
        """
        line = {
            "time": time.time(),
            "event": event,
            "phase": self.phase,
            **facts,
        }
        append_line(self.events_path, line)
