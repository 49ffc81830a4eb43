"""Which steps of a run can be trained again."""

import json
import shutil
from pathlib import Path

import pytest
from suite.messages import refuses

from runbook.core.errors import ParamsError
from runbook.plan_file.phase_names import FULL
from runbook.tools.replay.again import replay_job
from runbook.tools.replay.messages import ReplayMessage

PLAN = Path(__file__).parents[2] / "planning" / "local_plan.json"
TRAINED_STEPS = 3


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Create a run that was planned for 100 steps and stopped after three."""
    shutil.copy(PLAN, tmp_path / "plan.json")
    lines = [
        json.dumps({"iteration": step, "loss": 10.0, "seconds": 0.5})
        for step in range(1, TRAINED_STEPS + 1)
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_a_step_that_was_trained_is_replayed_from_the_first_weights(run):
    assert replay_job(run, FULL, TRAINED_STEPS).begin == 0


def test_a_step_that_was_not_trained_is_refused_before_anything_starts(run):
    before = sorted(run.rglob("*"))
    with refuses(ParamsError, ReplayMessage.STEP_NOT_TRAINED, step=50, last=TRAINED_STEPS):
        replay_job(run, FULL, 50)
    assert sorted(run.rglob("*")) == before
