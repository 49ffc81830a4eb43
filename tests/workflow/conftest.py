"""Run folders in a temporary place and a scheduler that only remembers."""

from __future__ import annotations

from pathlib import Path

import pytest
from toy_run import FakeScheduler

from runbook.core.locks import HOLDER_VARIABLE
from runbook.workflow import report, run, status
from runbook.workflow.open_phase import RUNS_VARIABLE
from runbook.workflow.trainings import jobs, live_view, task_jobs


@pytest.fixture
def runs(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setenv(RUNS_VARIABLE, str(tmp_path / "runs"))
    monkeypatch.delenv(HOLDER_VARIABLE, raising=False)
    return tmp_path / "runs"


@pytest.fixture
def queue(monkeypatch) -> FakeScheduler:
    fake = FakeScheduler()
    for module in (report, jobs, run, status, task_jobs):
        monkeypatch.setattr(module, "get_scheduler", lambda site: fake)
    monkeypatch.setattr(live_view, "POLL_SECONDS", 0.0)
    return fake
