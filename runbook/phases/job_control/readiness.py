"""Gates: conditions for submitting a job, and waivers for them."""

import json
from dataclasses import replace

from runbook.core import processes
from runbook.core.checks import counted, judge
from runbook.core.errors import JobError
from runbook.core.files import read_lines
from runbook.phases.messages import PhaseMessage
from runbook.phases.phase_steps import GATE, TOKENIZE, phase_step
from runbook.phases.recorded_checks import describe_failure
from runbook.plan_file.phase_names import FULL, SMOKE
from runbook.planning import Check
from runbook.records.done_marks import read_mark
from runbook.records.session import Session
from runbook.runs.planned_run import PlannedRun, PlannedTraining
from runbook.runs.step import Reading, step_status

TOKENS = "token files"


def apply_waiver(
    training: PlannedTraining,
    session: Session,
    gate: Check,
    key: str = "training.smoke.waived_by",
) -> Check:
    """Return the verdict at the gate.

    A failed gate becomes a warning if someone waived it. The name of that person goes into the
    record for this phase, and once into events.jsonl together with the time and the account.
    """
    if gate.verdict == "pass":
        return gate
    name = training.settings.value(key).strip()
    if not name:
        hint = f"; or record who decides to train anyway: --set {key}=NAME"
        return replace(gate, rule=gate.rule + hint)

    account = processes.user_name()
    result_name = gate.name.replace(" ", "_")
    session.add_results({f"{result_name}_waived_by": name, f"{result_name}_waived_as": account})
    facts = {
        "by": name,
        "account": account,
        "check": gate.name,
        "gate": gate.value,
    }
    waived = {"event": "gate_waived", "phase": training.phase, **facts}
    events = read_lines(training.events_path)
    if not any(waived.items() <= event.items() for event in events):
        training.append_event("gate_waived", **facts)
    return replace(
        gate,
        verdict="warn",
        value=PhaseMessage.GATE_WAIVED.fill(gate=gate.value, name=name, account=account),
    )


def readiness_checks(
    training: PlannedTraining,
    session: Session,
    *,
    by_content: bool = True,
) -> list[Check]:
    """Return the checks that must pass before the job for a phase is submitted.

    With `by_content`, every byte in the token files is read.
    """
    # The smoke test itself needs no earlier smoke test.
    gates = []
    if training.phase == FULL:
        gates.append(apply_waiver(training, session, gate_check(training.run)))
    return [*gates, data_check(training, by_content=by_content)]


def require_ready(training: PlannedTraining, session: Session) -> None:
    """Raise `JobError` if the job must not be submitted now, even if an earlier cell passed.

    Token files that passed in this notebook are not read again; only their sizes are compared.
    """
    passed = session.verdict(TOKENS) == "pass"
    checks = readiness_checks(training, session, by_content=not passed)
    failed = [check for check in checks if check.verdict not in ("pass", "warn")]
    if failed:
        reasons = [describe_failure(check) for check in failed]
        raise JobError(
            PhaseMessage.NOTHING_SUBMITTED, phase=training.phase, reasons="; ".join(reasons)
        )


def gate_check(run: PlannedRun) -> Check:
    """Return the verdict on the smoke test.

    The check fails if the verdict is for a smoke test with a different plan.
    """
    rule = f"{SMOKE} passed with these parameters"
    path = run.folder / GATE
    if not path.exists():
        return Check("smoke test", "fail", "not done", f"{rule}; run {SMOKE}.ipynb first")
    gate = json.loads(path.read_text())
    run_again = f"{rule}; run {SMOKE}.ipynb again"
    if gate["fingerprint"] != phase_step(run, SMOKE).fingerprint:
        return Check("smoke test", "fail", PhaseMessage.GATE_OF_OTHER_PARAMETERS.fill(), run_again)
    if step_status(run.folder, SMOKE).lost_an_output:
        return Check("smoke test", "fail", "changed after it was judged", run_again)
    return Check("smoke test", gate["verdict"], gate["verdict"], rule)


def data_check(training: PlannedTraining, *, by_content: bool = True) -> Check:
    """Return the check of the token files made in the data phase."""
    if training.phase_plan.data.mock:
        return Check(
            TOKENS,
            "pass",
            "mock data",
            "token ids are generated during training: there are no files",
        )

    mark = read_mark(training.folder, TOKENIZE)
    rule = "the token files of 02-data exist and are unchanged"
    if mark is None:
        return Check(TOKENS, "fail", "not made", f"{rule}; run 02-data.ipynb first")
    reading = Reading.EVERYTHING if by_content else Reading.SIZES
    fault = step_status(training.folder, TOKENIZE, reading=reading).as_text()
    return judge(TOKENS, not fault, fault or counted(len(mark.outputs), "file"), rule)
