"""A run opened for a phase, with a queue that only remembers, for tests of the phases without a training process."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from runbook import params
from runbook.phases import campaign as campaigns
from runbook.phases.campaign import Campaign
from runbook.schedulers.base import ACTIVE, JobFolder, JobStatus, State

PROJECT = Path(__file__).parents[2]
TOY = (
    "model=tiny",
    "training.smoke.model=tiny",
    "training.iterations=6",
    "training.warmup_iterations=2",
    "training.rehearse_stop=0",
)


@dataclass
class FakeScheduler:
    """A queue whose jobs are what a test says they are."""

    states: dict[str, State] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    after_submit: State = State.RUNNING
    after_signal: State = State.STOPPED
    kind: str = "fake"

    def submit(self, folder: JobFolder) -> str:
        self.calls.append(f"submit {folder.path.name}")
        self.states[folder.path.name] = self.after_submit
        folder.record.write_text(json.dumps({"job_id": f"fake-{folder.path.name}"}))
        return f"fake-{folder.path.name}"

    def state(self, folder: JobFolder) -> JobStatus:
        state = self.states[folder.path.name]
        return JobStatus(state, f"fake-{folder.path.name}", {State.DONE: 0, State.STOPPED: 75}.get(state), "told so")

    def cancel(self, folder: JobFolder, *, grace_seconds: float = 20) -> JobStatus:
        self.calls.append(f"cancel {folder.path.name}")
        if self.states[folder.path.name] in ACTIVE:
            self.states[folder.path.name] = State.CANCELLED
        return replace(self.state(folder), reason="cancelled")

    def signal(self, folder: JobFolder, signal_name: str) -> None:
        self.calls.append(f"{signal_name} {folder.path.name}")
        self.states[folder.path.name] = self.after_signal


def open_run(phase: str, *words: str, runs: Path) -> Campaign:
    """The toy run opened for a phase; `runs` is where its folder is made."""
    settings = params.load("local", set_words=[*TOY, *words], project=PROJECT)
    return campaigns.open_campaign(settings, phase)


def write_metrics(campaign: Campaign, iterations: int, **changes: Any) -> Path:
    """What a trainer would have written so far."""
    path = campaign.folder / campaign.spec["log"]["metrics"]
    path.parent.mkdir(parents=True, exist_ok=True)
    row = {"loss": 10.0, "seconds": 0.1, "tokens_per_second": 100.0, "segment": 0, "world_size": 2} | changes
    path.write_text("".join(json.dumps({"iteration": n + 1} | row) + "\n" for n in range(iterations)))
    return path


def events(campaign: Campaign) -> list[str]:
    """Names of the run's events, in order."""
    path = campaign.folder / campaign.spec["log"]["events"]
    return [json.loads(line)["event"] for line in path.read_text().splitlines()] if path.exists() else []
