"""03-smoke-test: a few real steps of a model that fails cheaply, and the gate to the long run."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from runbook.analysis import gates
from runbook.display import show_table
from runbook.phases import campaign as campaigns
from runbook.phases import closing, jobs, trained
from runbook.phases.campaign import Campaign
from runbook.plan import Check
from runbook.records.files import write_text

PHASE = "03-smoke-test"
GATE = "smoke/gate.json"


def bind(namespace: Mapping[str, Any]) -> Campaign:
    """Check the parameters and open the record."""
    return campaigns.bind(PHASE, namespace)


def show_expectation(campaign: Campaign) -> None:
    """What the plan says of this test, to hold against what comes."""
    show_table(expectation(campaign), title="Expected")


def launch(campaign: Campaign) -> None:
    """Submit the job, or find it."""
    jobs.launch(campaign)


def watch(campaign: Campaign) -> None:
    """Follow the job to its end."""
    jobs.watch(campaign)


def show_loss(campaign: Campaign) -> None:
    """The loss curve."""
    trained.show_loss(campaign, [PHASE])


def gate(campaign: Campaign) -> None:
    """Judge the test; the verdict is kept for the training phase."""
    test = trained.read(campaign, PHASE)
    for key, value in test.results().items():
        campaign.session.result(key, value)
    checks = gates.smoke_gate(test.history, test.validation, test.events, test.spec, seconds_band=band(test.planned))
    checks = [only_warn(check) if check.name == "step time" else check for check in checks]
    verdict = "fail" if any(check.verdict == "fail" for check in checks) else "pass"
    rows = [{"name": c.name, "verdict": c.verdict, "value": c.value, "rule": c.rule} for c in checks]
    digest = campaigns.phase_fingerprint(campaign.settings, campaign.plan, campaign.folder, PHASE)
    content = {"verdict": verdict, "fingerprint": digest, "checks": rows}
    write_text(campaign.folder / GATE, json.dumps(content, indent=1) + "\n")
    campaign.check(checks)


def finish(campaign: Campaign) -> None:
    """Write the record and mark the phase done."""
    closing.finish(campaign, [campaign.folder / GATE])


def expectation(campaign: Campaign) -> list[dict[str, Any]]:
    """First loss, batch, iterations and time as the plan has them."""
    spec = campaign.spec
    planned = campaign.plan.as_dict()["time"].get(PHASE, {})
    vocabulary = spec["model"]["padded_vocabulary"]
    rows = [
        ("first loss (nat/token)", f"{math.log(vocabulary):.2f}", f"ln {vocabulary:,}: every token equally likely"),
        ("parameters", f"{spec['model']['parameters']:,}", f'the documents\' label: "{spec["model"]["label"]}"'),
        ("batch", f"{spec['batch']['global']} sequences", batch_sum(spec)),
        ("iterations", str(spec["duration"]["iterations"]), f"{spec['duration']['tokens']:,} tokens in all"),
    ]
    if planned.get("seconds_per_iteration"):
        rows.append(
            ("seconds per iteration", f"{planned['seconds_per_iteration']:.2f}", planned.get("basis", "estimate"))
        )
    return [{"what": what, "expected": value, "why": why} for what, value, why in rows]


def batch_sum(spec: Mapping[str, Any]) -> str:
    """The sum behind the global batch."""
    batch, copies = spec["batch"], spec["parallel"]["data"]
    return f"{batch['micro']} micro x {copies} copies x {batch['num_microbatches']} steps"


def only_warn(check: Check) -> Check:
    """The plan's step time is an estimate, and a busy machine is slow: far off is worth a question, not a failure."""
    return replace(check, verdict="warn") if check.verdict == "fail" else check


def band(planned: Mapping[str, Any]) -> tuple[float, float] | None:
    """The step times the plan would believe: three times faster to three times slower than its estimate."""
    seconds = planned.get("seconds_per_iteration")
    return (seconds / 3, seconds * 3) if seconds else None
