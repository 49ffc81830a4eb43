"""What a command says that needs weights, if no checkpoint is there."""

from __future__ import annotations

import json

import pytest

from runbook.plan_file.errors import RefusedError
from runbook.plan_file.schema import read_plan
from runbook.training.messages import TrainingMessage

from . import specs


@pytest.mark.filterwarnings("ignore")  # torch and megatron-core warn when imported
def test_checkpoints_that_were_deleted_are_not_called_never_saved(tmp_path):
    """`runbook sample` said that nothing was saved yet, after a finished training had saved."""
    spec = read_plan(specs.write_plan(tmp_path, specs.spec()), "04-training")
    root = spec.path(spec.checkpoint.folder)
    nothing_saved = TrainingMessage.NOTHING_SAVED_YET.fill()
    assert refusal(spec) == f"{root} has {nothing_saved}"
    saved = {"time": 1.0, "event": "saved", "phase": "04-training"}
    events = [{**saved, "iteration": iteration} for iteration in (10, 5)]
    events.append({**saved, "phase": "03-smoke-test", "iteration": 3})
    lines = [json.dumps(event) for event in events]
    spec.path(spec.log.events).write_text("\n".join([*lines, '{"event": "sav']))
    gone = TrainingMessage.CHECKPOINTS_GONE.fill(
        events=spec.log.events, steps="5, 10", run=tmp_path.name, phase="04-training"
    )
    assert refusal(spec) == f"{root} has {gone}"


def refusal(spec) -> str:
    from runbook.training.checkpoints import weights

    with pytest.raises(RefusedError) as refused:
        weights.newest_weights(spec)
    return str(refused.value)
