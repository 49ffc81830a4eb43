"""A training without a passed smoke test needs a name, and the name is recorded."""

from __future__ import annotations

import json

import pytest
from toy_run import open_run

from runbook.errors import RecordError
from runbook.phases import steps, training

PHASE = "04-training"
NAME = "training.smoke.waived_by=A. Person"


def ready(campaign):
    mark = campaign.folder / "tokens"
    mark.write_text("made")
    steps.write_mark(campaign.folder, "02-data--tokenize", 1, "abc", [mark])
    return campaign


def waivers(campaign):
    path = campaign.folder / "events.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [line for line in lines if line["event"] == "gate_waived"]


def test_an_absent_gate_stops_and_says_what_to_set(runs, queue):
    campaign = ready(open_run(PHASE, runs=runs))
    with pytest.raises(RecordError, match=r"--set training\.smoke\.waived_by=NAME, which is recorded"):
        training.check_ready(campaign)
    assert waivers(campaign) == []


def test_a_name_lets_it_go_on_and_is_recorded_once(runs, queue):
    ready(open_run(PHASE, runs=runs))
    campaign = open_run(PHASE, NAME, runs=runs)
    training.check_ready(campaign)
    training.check_ready(campaign)
    (event,) = waivers(campaign)
    assert (event["by"], event["phase"], event["gate"]) == ("A. Person", PHASE, "not done")
    assert campaign.session.results["smoke_gate_waived_by"] == "A. Person"
    (gate,) = [check for check in campaign.session.finish().checks if check.name == "smoke test"]
    assert (gate.verdict, gate.value) == ("warn", f"not done; waived by A. Person (account {event['account']})")


def test_a_failed_gate_can_be_waived_and_a_passed_one_needs_no_name(runs, queue):
    campaign = ready(open_run(PHASE, NAME, runs=runs))
    path = campaign.folder / "smoke" / "gate.json"
    path.parent.mkdir(exist_ok=True)
    digest = training.campaigns.phase_fingerprint(campaign.settings, campaign.plan, campaign.folder, "03-smoke-test")
    path.write_text(json.dumps({"verdict": "pass", "fingerprint": digest}))
    training.check_ready(campaign)
    assert waivers(campaign) == []
    path.write_text(json.dumps({"verdict": "fail", "fingerprint": digest}))
    training.check_ready(campaign)
    assert [event["gate"] for event in waivers(campaign)] == ["fail"]
