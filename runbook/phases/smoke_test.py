"""03-smoke-test: a few real steps of a model that fails cheaply, and the gate to the long run."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from runbook.analysis import gates
from runbook.display import show_table
from runbook.phases import calibrations, closing, jobs, trained
from runbook.phases import campaign as campaigns
from runbook.phases.campaign import Campaign
from runbook.plan import FULL, Check
from runbook.records.files import write_text
from runbook.units import show_duration

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
    checks = gates.smoke_gate(
        test.history,
        test.validation,
        test.events,
        test.spec,
        seconds_band=band(test.planned),
        require_reload=True,
        network_bytes_per_second=campaign.settings.site.hardware.network * 1e9,
    )
    checks = [only_warn(check) if check.name == "step time" else check for check in checks]
    if campaign.settings.job(PHASE).nodes == 1:
        checks = [inside_a_node(check) if check.name == "network bandwidth" else check for check in checks]
    verdict = "fail" if any(check.verdict == "fail" for check in checks) else "pass"
    rows = [{"name": c.name, "verdict": c.verdict, "value": c.value, "rule": c.rule} for c in checks]
    digest = campaigns.phase_fingerprint(campaign.settings, campaign.plan, campaign.folder, PHASE)
    content = {"verdict": verdict, "fingerprint": digest, "checks": rows}
    write_text(campaign.folder / GATE, json.dumps(content, indent=1) + "\n")
    calibrations.keep(campaign.settings, campaign.plan, campaign.folder, test.history)
    campaign.check(checks)
    show_table(outlook(campaign), title="What this means for the training")


def outlook(campaign: Campaign) -> list[dict[str, Any]]:
    """The training's planned time beside the time that the measured steps promise."""
    planned = campaign.plan.as_dict()["time"][FULL]
    corrected = calibrations.corrected(campaign.settings, campaign.folder)["time"][FULL]
    return [
        {
            "what": what,
            "planned": seconds_text(planned[key]),
            "by the measured steps": seconds_text(corrected[key]),
            "because": corrected["basis"],
        }
        for what, key in (("a step of the training", "seconds_per_iteration"), ("the training", "seconds"))
    ]


def finish(campaign: Campaign) -> None:
    """Write the record and mark the phase done."""
    found = [path for name in (GATE, calibrations.FILE) if (path := campaign.folder / name).exists()]
    closing.finish(campaign, found)


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


def seconds_text(seconds: float | None) -> str:
    """A time for people, or that it is not known."""
    return "not known" if seconds is None else show_duration(seconds)


def batch_sum(spec: Mapping[str, Any]) -> str:
    """The sum behind the global batch."""
    batch, copies = spec["batch"], spec["parallel"]["data"]
    return f"{batch['micro']} micro x {copies} copies x {batch['num_microbatches']} steps"


def only_warn(check: Check) -> Check:
    """The plan's step time is an estimate, and a busy machine is slow: far off is worth a question, not a failure."""
    return replace(check, verdict="warn") if check.verdict == "fail" else check


def inside_a_node(check: Check) -> Check:
    """On one node no network is used: nothing is promised that a measured bandwidth could be held against."""
    measured = check.verdict == "unknown" and "GB/s" in check.value
    return replace(check, verdict="pass", rule="one node: no network between nodes is used") if measured else check


def band(planned: Mapping[str, Any]) -> tuple[float, float] | None:
    """The step times the plan would believe: three times faster to three times slower than its estimate."""
    seconds = planned.get("seconds_per_iteration")
    return (seconds / 3, seconds * 3) if seconds else None
