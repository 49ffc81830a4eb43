"""Training without a passed smoke test: only on somebody's word, and whose word it was is recorded."""

from __future__ import annotations

import getpass
import json
import time
from dataclasses import replace

from runbook.phases.campaign import Campaign
from runbook.plan import Check

KEY = "training.smoke.waived_by"


def applied(campaign: Campaign, gate: Check) -> Check:
    """The gate's verdict; a failed one becomes a warning where a person took it upon themselves.

    The name stands in the record of this phase and, with the time and the account, in events.jsonl.
    """
    if gate.verdict == "pass":
        return gate
    name = campaign.settings.run.training.smoke.waived_by.strip()
    if not name:
        told = f"; or name who decides to train all the same: --set {KEY}=NAME, which is recorded"
        return replace(gate, rule=gate.rule + told)
    account = _account()
    campaign.session.result("smoke_gate_waived_by", name)
    campaign.session.result("smoke_gate_waived_as", account)
    _record(campaign, gate, name, account)
    return replace(gate, verdict="warn", value=f"{gate.value}; waived by {name} (account {account})")


def _account() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # an account without a name, as in some containers
        return "unknown"


def _record(campaign: Campaign, gate: Check, name: str, account: str) -> None:
    """Append the event, once for each decision."""
    path = campaign.folder / campaign.spec["log"]["events"]
    event = {"event": "gate_waived", "phase": campaign.phase, "by": name, "account": account, "gate": gate.value}
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    lines = [json.loads(line) for line in text.splitlines() if '"gate_waived"' in line]
    if any({key: line.get(key) for key in event} == event for line in lines):
        return
    with path.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps({"time": time.time(), **event}) + "\n")
