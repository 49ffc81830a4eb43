"""Starting a training run without a passed smoke test requires a person's name, which is
recorded."""

from __future__ import annotations

import json

from suite.messages import containing, refuses
from toy_run import open_run

from runbook.core.errors import RecordError
from runbook.phases.messages import PhaseMessage
from runbook.phases.p04_training import phase as training
from runbook.phases.phase_steps import phase_step
from runbook.runs.step import write_mark

PHASE = "04-training"
NAME = "training.smoke.waived_by=A. Person"


def ready(open_phase):
    mark = open_phase.folder / "tokens"
    mark.write_text("made")
    write_mark(open_phase.folder, "02-data--tokenize", 1, "abc", [mark])
    return open_phase


def waivers(open_phase):
    path = open_phase.folder / "events.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [line for line in lines if line["event"] == "gate_waived"]


def test_an_absent_gate_stops_and_says_what_to_set(runs, queue):
    open_phase = ready(open_run(PHASE, runs=runs, ready=False))
    with refuses(
        RecordError,
        PhaseMessage.CHECKS_FAILED,
        failures=containing("--set training.smoke.waived_by=NAME"),
    ):
        training.check_ready(open_phase)
    assert waivers(open_phase) == []


def test_a_name_lets_it_go_on_and_is_recorded_once(runs, queue):
    ready(open_run(PHASE, runs=runs, ready=False))
    open_phase = open_run(PHASE, NAME, runs=runs, ready=False)
    training.check_ready(open_phase)
    training.check_ready(open_phase)
    (event,) = waivers(open_phase)
    assert (event["by"], event["phase"], event["gate"]) == ("A. Person", PHASE, "not done")
    assert open_phase.session.results["smoke_test_waived_by"] == "A. Person"
    (gate,) = [check for check in open_phase.session.finish().checks if check.name == "smoke test"]
    assert (gate.verdict, gate.value) == (
        "warn",
        PhaseMessage.GATE_WAIVED.fill(gate="not done", name="A. Person", account=event["account"]),
    )


def test_a_failed_gate_can_be_waived_and_a_passed_one_needs_no_name(runs, queue):
    open_phase = ready(open_run(PHASE, NAME, runs=runs, ready=False))
    path = open_phase.folder / "smoke" / "gate.json"
    path.parent.mkdir(exist_ok=True)
    digest = phase_step(open_phase.run, "03-smoke-test").fingerprint
    path.write_text(json.dumps({"verdict": "pass", "fingerprint": digest}))
    training.check_ready(open_phase)
    assert waivers(open_phase) == []
    path.write_text(json.dumps({"verdict": "fail", "fingerprint": digest}))
    training.check_ready(open_phase)
    assert [event["gate"] for event in waivers(open_phase)] == ["fail"]
