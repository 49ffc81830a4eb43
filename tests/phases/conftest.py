"""Run folders in a temporary place and a scheduler that only remembers."""

from __future__ import annotations

from pathlib import Path

import pytest
from toy_run import FakeScheduler

from runbook.phases import jobs, run, status, watching
from runbook.phases.campaign import HOLDER_VARIABLE, RUNS_VARIABLE


@pytest.fixture
def runs(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setenv(RUNS_VARIABLE, str(tmp_path / "runs"))
    monkeypatch.delenv(HOLDER_VARIABLE, raising=False)
    return tmp_path / "runs"


@pytest.fixture
def queue(monkeypatch) -> FakeScheduler:
    fake = FakeScheduler()
    for module in (jobs, run, status):
        monkeypatch.setattr(module, "get_scheduler", lambda site: fake)
    monkeypatch.setattr(watching, "POLL_SECONDS", 0.0)
    return fake
