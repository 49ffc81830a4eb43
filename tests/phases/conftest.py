"""Run folders in a temporary place, and a scheduler that only records its calls."""

from __future__ import annotations

from pathlib import Path

import pytest
from toy_run import FakeScheduler

from runbook.core.locks import HOLDER_VARIABLE
from runbook.phases import finished_training
from runbook.phases import runner as run
from runbook.phases.job_control import live_view, task_jobs
from runbook.phases.job_control import training_jobs as jobs
from runbook.runs import status
from runbook.runs.run_folder import RUNS_VARIABLE


@pytest.fixture
def runs(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setenv(RUNS_VARIABLE, str(tmp_path / "runs"))
    monkeypatch.delenv(HOLDER_VARIABLE, raising=False)
    return tmp_path / "runs"


@pytest.fixture
def queue(monkeypatch) -> FakeScheduler:
    fake = FakeScheduler()
    for module in (finished_training, jobs, run, task_jobs):
        monkeypatch.setattr(module, "get_scheduler", lambda site: fake)
    monkeypatch.setattr(status, "scheduler_named", lambda name: fake)
    monkeypatch.setattr(live_view, "POLL_SECONDS", 0.0)
    return fake
