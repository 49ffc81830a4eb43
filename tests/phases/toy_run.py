"""A run opened for a phase, with a queue that only records its calls, for tests without a training
process.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from runbook import params
from runbook.core.files import write_text
from runbook.jobs.job_folder import ACTIVE, JobFolder, JobState, JobStatus
from runbook.phases import open_phase as phases
from runbook.phases.job_control import job_step, readiness, training_jobs
from runbook.phases.open_phase import OpenPhase
from runbook.phases.phase_steps import TOKENIZE, phase_step
from runbook.runs.step import write_mark

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
    """A queue whose jobs have the states that a test sets."""

    states: dict[str, JobState] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    after_submit: JobState = JobState.RUNNING
    after_signal: JobState = JobState.STOPPED
    kind: str = "fake"

    def submit(self, folder: JobFolder) -> str:
        self.calls.append(f"submit {folder.path.name}")
        self.states[folder.path.name] = self.after_submit
        folder.record.write_text(json.dumps({"job_id": f"fake-{folder.path.name}"}))
        return f"fake-{folder.path.name}"

    def state(self, folder: JobFolder) -> JobStatus:
        state = self.states[folder.path.name]
        return JobStatus(
            state,
            f"fake-{folder.path.name}",
            {JobState.DONE: 0, JobState.STOPPED: 75}.get(state),
            "told so",
        )

    def cancel(self, folder: JobFolder, *, grace_seconds: float = 20) -> JobStatus:
        self.calls.append(f"cancel {folder.path.name}")
        if self.states[folder.path.name] in ACTIVE:
            self.states[folder.path.name] = JobState.CANCELLED
        return replace(self.state(folder), reason="cancelled")

    def request_stop(self, folder: JobFolder) -> None:
        self.calls.append(f"SIGTERM {folder.path.name}")
        self.states[folder.path.name] = self.after_signal


def open_run(phase: str, *words: str, runs: Path, ready: bool = True) -> OpenPhase:
    """Open the toy run for a phase, in the folder `runs`.

    With `ready`, the run has token files and a passed smoke test for these values. A job is
    submitted only with both.
    """
    settings = params.load("local", set_words=[*TOY, *words], project=PROJECT)
    open_phase = phases.open_run_phase(settings, phase)
    if ready and phase in ("03-smoke-test", "04-training"):
        make_ready(open_phase)
    return open_phase


def make_ready(open_phase: OpenPhase) -> None:
    """Create what 02-data and, for a training run, 03-smoke-test leave behind."""
    tokens = open_phase.folder / "data" / "tokens"
    if not tokens.exists():
        write_text(tokens, "made")
        write_mark(open_phase.folder, TOKENIZE, 1, "abc", [tokens])
    if open_phase.phase == "04-training":
        write_gate(open_phase, "pass")


def write_gate(open_phase: OpenPhase, verdict: str) -> Path:
    """Write the smoke test verdict that the open phase needs, and return the path to the file."""
    digest = phase_step(open_phase.run, "03-smoke-test").fingerprint
    path = open_phase.folder / readiness.GATE
    write_text(path, json.dumps({"verdict": verdict, "fingerprint": digest}))
    return path


def write_metrics(open_phase: OpenPhase, iterations: int, **changes: Any) -> Path:
    """Write what a trainer would have written so far."""
    path = open_phase.folder / open_phase.phase_plan.log.metrics
    path.parent.mkdir(parents=True, exist_ok=True)
    row = {
        "loss": 10.0,
        "seconds": 0.1,
        "tokens_per_second": 100.0,
        "segment": 0,
        "world_size": 2,
    } | changes
    path.write_text(
        "".join(json.dumps({"iteration": n + 1} | row) + "\n" for n in range(iterations))
    )
    return path


def launch_jobs(open_phase: OpenPhase) -> None:
    """Submit the training of the open phase, or find it, without a notebook cell."""
    job_step.launch(training_jobs.training_step(open_phase.training, open_phase.session))


def watch_jobs(open_phase: OpenPhase) -> None:
    """Watch the training of the open phase to its end."""
    training_job = training_jobs.training_step(open_phase.training, open_phase.session)
    training_jobs.watch(open_phase.training, training_job)


def events(open_phase: OpenPhase) -> list[str]:
    """Return the event names logged in the run, in order."""
    path = open_phase.folder / open_phase.phase_plan.log.events
    if path.exists():
        return [json.loads(line)["event"] for line in path.read_text().splitlines()]
    return []
