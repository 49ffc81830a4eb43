"""03-smoke-test: a few real steps of a model that fails cheaply, and the gate to the long run."""

import json
import math

from runbook.core.files import write_text
from runbook.core.table import Row
from runbook.core.units import show_duration
from runbook.display import Formula, Table, View
from runbook.phases import report, training_results
from runbook.phases.job_control.job_rules import GATE
from runbook.phases.job_control.training_jobs import launch as launch
from runbook.phases.job_control.training_jobs import watch as watch
from runbook.phases.open_phase import OpenPhase, binder
from runbook.phases.training_results import show_loss as show_loss
from runbook.planning import FULL
from runbook.planning.plan_tables import batch_sum
from runbook.results import gates
from runbook.results.figures import formulas
from runbook.runs import machine

PHASE = "03-smoke-test"
bind = binder(PHASE)


def show_expectation(open_phase: OpenPhase) -> View:
    """What the plan says of this test, to hold against what comes."""
    phase_plan = open_phase.phase_plan
    planned = open_phase.plan.time[PHASE]
    vocabulary = phase_plan.model.vocabulary
    rows = [
        (
            "first loss (nat/token)",
            f"{math.log(vocabulary):.2f}",
            f"ln {vocabulary:,}: every token equally likely",
        ),
        (
            "parameters",
            f"{phase_plan.model.parameters:,}",
            f'the documents\' label: "{phase_plan.model.label}"',
        ),
        (
            "batch",
            f"{phase_plan.batch.global_} sequences",
            batch_sum(phase_plan).partition(" =")[0],
        ),
        (
            "iterations",
            str(phase_plan.duration.iterations),
            f"{phase_plan.duration.tokens:,} tokens in all",
        ),
    ]
    if planned.seconds_per_iteration:
        rows.append(
            ("seconds per iteration", f"{planned.seconds_per_iteration:.2f}", planned.basis)
        )
    table = Table(
        [{"what": what, "expected": value, "why": why} for what, value, why in rows], "Expected"
    )
    return View([table, Formula(*formulas.first_loss(open_phase.plan, PHASE))])


def gate(open_phase: OpenPhase) -> Table:
    """Judge the test; the verdict is kept for the training phase."""
    settings = open_phase.settings
    plan = open_phase.plan
    test = training_results.read_results(open_phase.folder, plan, PHASE)
    open_phase.session.add_results(test.results())
    checks = gates.smoke_gate(
        test.history,
        test.validation,
        test.events,
        test.phase_plan,
        seconds_band=gates.credible_step_seconds(test.planned.seconds_per_iteration),
        network_bytes_per_second=None
        if settings.job(PHASE).nodes == 1
        else settings.site.hardware.network * 1e9,
    )
    verdict = "fail" if any(check.verdict == "fail" for check in checks) else "pass"
    rows = [
        {"name": c.name, "verdict": c.verdict, "value": c.value, "rule": c.rule} for c in checks
    ]
    content = {"verdict": verdict, "fingerprint": open_phase.fingerprint, "checks": rows}
    write_text(open_phase.folder / GATE, json.dumps(content, indent=1) + "\n")
    warned = any(check.verdict in ("warn", "fail") for check in checks)
    machine.keep_calibration(settings, plan, open_phase.folder, test.history, warned=warned)
    open_phase.check(checks)
    return Table(outlook(open_phase), "What this means for the training")


def outlook(open_phase: OpenPhase) -> list[Row]:
    """The training's planned time beside the time that the measured steps promise."""
    settings = open_phase.settings
    planned = open_phase.plan.time[FULL]
    measured = machine.known_calibrations(settings, open_phase.folder.parent)
    corrected = machine.make_plan_here(settings, measured).time[FULL]
    rows: list[Row] = []
    for what, key in (
        ("a step of the training", "seconds_per_iteration"),
        ("the training", "seconds"),
    ):
        found = [getattr(speed, key) for speed in (planned, corrected)]
        before, now = (
            "not known" if seconds is None else show_duration(seconds) for seconds in found
        )
        rows.append(
            {
                "what": what,
                "planned": before,
                "by the measured steps": now,
                "because": corrected.basis,
            }
        )
    return rows


def finish(open_phase: OpenPhase) -> None:
    """Write the record and mark the phase done."""
    found = [
        path
        for name in (GATE, machine.CALIBRATION_FILE)
        if (path := open_phase.folder / name).exists()
    ]
    report.finish(open_phase, found)
