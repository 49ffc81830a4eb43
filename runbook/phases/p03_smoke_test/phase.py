"""03-smoke-test: a few real steps of a model that fails cheaply, and the gate to the long run."""

import json
import math
from collections.abc import Sequence

from runbook.core import quantities
from runbook.core.checks import Check
from runbook.core.files import write_text
from runbook.core.table import Row
from runbook.core.units import show_duration
from runbook.display import Formula, Table, View
from runbook.phases import phase_end, training_results
from runbook.phases.job_control.readiness import GATE
from runbook.phases.job_control.training_jobs import launch as launch
from runbook.phases.job_control.training_jobs import watch as watch
from runbook.phases.open_phase import OpenPhase, binder
from runbook.phases.training_results import show_loss as show_loss
from runbook.plan_file.phase_names import FULL
from runbook.planning.plan_tables import batch_sum
from runbook.results import gates
from runbook.results.figures import formulas
from runbook.runs import machine

PHASE = "03-smoke-test"
bind = binder(PHASE)


def show_expectation(open_phase: OpenPhase) -> View:
    """Show the plan of this test, to compare with its results."""
    phase_plan = open_phase.phase_plan
    planned = open_phase.plan.time[PHASE]
    vocabulary = phase_plan.model.shape.vocabulary
    rows = [
        {
            "what": quantities.FIRST_LOSS,
            "expected": f"{math.log(vocabulary):.2f}",
            "why": f"ln {vocabulary:,}: every token equally likely",
        },
        {
            "what": "parameters",
            "expected": f"{phase_plan.model.parameters:,}",
            "why": f'the documents\' label: "{phase_plan.model.label}"',
        },
        {
            "what": "batch",
            "expected": f"{phase_plan.batch.global_} sequences",
            "why": batch_sum(phase_plan).partition(" =")[0],
        },
        {
            "what": "iterations",
            "expected": str(phase_plan.duration.iterations),
            "why": f"{phase_plan.duration.tokens:,} tokens in all",
        },
    ]
    if planned.seconds_per_iteration:
        rows.append(
            {
                "what": "seconds per iteration",
                "expected": f"{planned.seconds_per_iteration:.2f}",
                "why": planned.basis,
            }
        )

    table = Table(rows, "Expected")
    return View([table, Formula(*formulas.first_loss(open_phase.plan, PHASE))])


def gate(open_phase: OpenPhase) -> Table:
    """Judge the test. The verdict is kept for the training phase."""
    settings = open_phase.settings
    plan = open_phase.plan
    test = training_results.read_results(open_phase.folder, plan, PHASE)
    open_phase.session.add_results(test.results())
    network_bytes_per_second = None
    if settings.job(PHASE).nodes > 1:
        network_bytes_per_second = settings.site.hardware.network * 1e9
    checks = gates.smoke_gate(
        test.history,
        test.validation,
        test.events,
        test.phase_plan,
        seconds_band=gates.credible_step_seconds(test.planned.seconds_per_iteration),
        network_bytes_per_second=network_bytes_per_second,
    )
    _write_verdict(open_phase, checks)
    warned = any(check.verdict in ("warn", "fail") for check in checks)
    machine.keep_calibration(
        settings,
        plan,
        open_phase.folder,
        test.history,
        warned=warned,
    )
    open_phase.check(checks)
    return Table(outlook(open_phase), "What this means for the training")


def _write_verdict(open_phase: OpenPhase, checks: Sequence[Check]) -> None:
    """Write the gate's verdict to the place from which the training phase reads it."""
    verdict = "pass"
    rows = []
    for check in checks:
        if check.verdict == "fail":
            verdict = "fail"
        rows.append(
            {
                "name": check.name,
                "verdict": check.verdict,
                "value": check.value,
                "rule": check.rule,
            }
        )

    content = {"verdict": verdict, "fingerprint": open_phase.fingerprint, "checks": rows}
    write_text(open_phase.folder / GATE, json.dumps(content, indent=1) + "\n")


def outlook(open_phase: OpenPhase) -> list[Row]:
    """Show the training's planned time next to the time that the measured steps predict."""
    settings = open_phase.settings
    planned = open_phase.plan.time[FULL]
    measured = machine.known_calibrations(settings, open_phase.folder.parent)
    corrected = machine.make_plan_here(settings, measured).time[FULL]
    return [
        {
            "what": "a step of the training",
            "planned": _duration_text(planned.seconds_per_iteration),
            "by the measured steps": _duration_text(corrected.seconds_per_iteration),
            "because": corrected.basis,
        },
        {
            "what": "the training",
            "planned": _duration_text(planned.seconds),
            "by the measured steps": _duration_text(corrected.seconds),
            "because": corrected.basis,
        },
    ]


def _duration_text(seconds: float | None) -> str:
    if seconds is None:
        return "not known"
    return show_duration(seconds)


def finish(open_phase: OpenPhase) -> None:
    """Write the record and mark the phase done."""
    outputs = [open_phase.folder / GATE, open_phase.folder / machine.CALIBRATION_FILE]
    phase_end.finish(open_phase, [path for path in outputs if path.exists()])
