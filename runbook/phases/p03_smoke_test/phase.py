"""03-smoke-test: a few real steps with a small model, and the gate to the long training."""

import json
import math
from collections.abc import Sequence
from typing import Any

from runbook.core import quantities
from runbook.core.checks import Check
from runbook.core.files import write_text
from runbook.core.table import Row
from runbook.core.units import show_duration
from runbook.display import Formula, Table, View
from runbook.phases import training_results
from runbook.phases.job_control import job_step, training_jobs
from runbook.phases.job_control.job_step import JobStep
from runbook.phases.job_control.training_jobs import training_step
from runbook.phases.open_phase import binder
from runbook.phases.phase_end import plain_end
from runbook.phases.phase_steps import GATE, SMOKE_TRAINING, phase_end_work
from runbook.phases.recorded_checks import record_checks
from runbook.phases.steps import PhaseStep, plan_only, step
from runbook.phases.training_results import show_loss as show_loss
from runbook.plan_file.phase_names import FULL, SMOKE
from runbook.planning import Plan
from runbook.planning.plan_tables import batch_sum
from runbook.records.session import Session
from runbook.results import gates
from runbook.results.figures import formulas
from runbook.runs import this_machine
from runbook.runs.planned_run import PlannedRun

PHASE = SMOKE
END = phase_end_work(PHASE)
bind = binder(PHASE)
finish = plain_end(PHASE)


@step(takes=plan_only)
def show_expectation(plan: Plan) -> View:
    """Show the plan for this test, for comparison with its results."""
    phase_plan = plan.phases[PHASE]
    planned = plan.time[PHASE]
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
    return View([table, Formula(*formulas.first_loss(plan, PHASE))])


@step(takes=lambda opened: (training_step(opened.training, opened.session),), work=SMOKE_TRAINING)
def launch(training_job: JobStep) -> None:
    """Submit the job for the test, find the running job, or report that it is done."""
    job_step.launch(training_job)


watch = step(
    takes=lambda opened: (opened.training, training_step(opened.training, opened.session)),
    work=SMOKE_TRAINING,
)(training_jobs.watch)


@step(takes=lambda opened: (opened.run, opened.session))
def gate(run: PlannedRun, session: Session) -> Table:
    """Check the test results, and store the verdict for the training phase."""
    settings = run.settings
    plan = run.plan
    test = training_results.read_results(run.folder, plan, PHASE)
    session.add_results(test.results())
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
    _write_verdict(run, checks)
    warned = any(check.verdict in ("warn", "fail") for check in checks)
    this_machine.keep_calibration(
        settings,
        plan,
        run.folder,
        test.history,
        warned=warned,
    )
    record_checks(session, checks)
    return Table(outlook(run), "What this means for the training")


def _write_verdict(run: PlannedRun, checks: Sequence[Check]) -> None:
    """Write the verdict to the file read by the training phase."""
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

    content = {"verdict": verdict, "fingerprint": END.fingerprint(run), "checks": rows}
    write_text(run.folder / GATE, json.dumps(content, indent=1) + "\n")


BY_MEASURED_STEPS = "by the measured steps"
"""Column with times computed from the measured steps."""


def outlook(run: PlannedRun) -> list[Row]:
    """Show the time planned for training next to the time that follows from the measured steps."""
    settings = run.settings
    planned = run.plan.time[FULL]
    measured = this_machine.known_calibrations(settings, run.folder.parent)
    corrected = this_machine.make_plan_here(settings, measured).time[FULL]
    return [
        {
            "what": "a step of the training",
            "planned": _duration_text(planned.seconds_per_iteration),
            BY_MEASURED_STEPS: _duration_text(corrected.seconds_per_iteration),
            "because": corrected.basis,
        },
        {
            "what": "the training",
            "planned": _duration_text(planned.seconds),
            BY_MEASURED_STEPS: _duration_text(corrected.seconds),
            "because": corrected.basis,
        },
    ]


def _duration_text(seconds: float | None) -> str:
    if seconds is None:
        return "not known"
    return show_duration(seconds)


STEPS: tuple[PhaseStep[Any], ...] = (show_expectation, launch, watch, show_loss, gate, finish)
