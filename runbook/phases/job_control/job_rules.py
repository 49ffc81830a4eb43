"""Rules for a phase's job: when it may start, how it ended, which training the next continues.

What follows a job: `runbook.next_job`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from runbook.core import processes
from runbook.core.checks import judge
from runbook.core.errors import JobError
from runbook.core.files import read_lines, write_text
from runbook.jobs import job_folder
from runbook.jobs.job_end import job_end
from runbook.jobs.job_folder import JobFolder, JobStatus, log_tail
from runbook.next_job import attempts
from runbook.next_job.attempts import LOG_LINES, EndedJob, JobEvent
from runbook.next_job.attempts import blamed_nodes as blamed_nodes
from runbook.next_job.decisions import RECOVERY_SECONDS as RECOVERY_SECONDS
from runbook.next_job.decisions import Action as Action
from runbook.next_job.decisions import Attempt as Attempt
from runbook.next_job.decisions import Decision as Decision
from runbook.next_job.decisions import decide_restart as decide_restart
from runbook.phases.messages import PhaseMessage
from runbook.phases.open_phase import OpenPhase
from runbook.phases.phase_steps import TOKENIZE, VERSIONS, output_checksums, phase_step
from runbook.plan_file.checkpoint_folder import METADATA, folder_name, saved_iterations
from runbook.plan_file.identity import same_training
from runbook.plan_file.json_records import as_json
from runbook.plan_file.schema import PhasePlan, parse
from runbook.planning import FULL, SMOKE, Check
from runbook.runs.bad_nodes import FoundBy
from runbook.runs.step import Reading, read_mark, step_status

GATE = "smoke/gate.json"
TOKENS = "token files"


def apply_waiver(
    open_phase: OpenPhase,
    gate: Check,
    key: str = "training.smoke.waived_by",
) -> Check:
    """Return the gate's verdict.

    A failed one becomes a warning if a person took responsibility for it. The person's name is kept
    in the record of this phase and, with the time and the account, once in events.jsonl.
    """
    if gate.verdict == "pass":
        return gate
    name = open_phase.settings.value(key).strip()
    if not name:
        hint = f"; or name who decides to train all the same: --set {key}=NAME, which is recorded"
        return replace(gate, rule=gate.rule + hint)

    account = processes.user_name()
    result_name = gate.name.replace(" ", "_")
    open_phase.session.add_results(
        {f"{result_name}_waived_by": name, f"{result_name}_waived_as": account}
    )
    facts = {
        "by": name,
        "account": account,
        "check": gate.name,
        "gate": gate.value,
    }
    waived = {"event": "gate_waived", "phase": open_phase.phase, **facts}
    events = read_lines(open_phase.folder / open_phase.phase_plan.log.events)
    if not any(waived.items() <= event.items() for event in events):
        open_phase.append_event("gate_waived", **facts)
    return replace(
        gate, verdict="warn", value=f"{gate.value}; waived by {name} (account {account})"
    )


def readiness_checks(open_phase: OpenPhase, *, by_content: bool = True) -> list[Check]:
    """Return the checks that must pass before the phase's job is submitted.

    With a check by content, every byte of the token files is read.
    """
    # The smoke test itself needs no earlier smoke test.
    is_training = open_phase.phase == FULL
    gates = [apply_waiver(open_phase, gate_check(open_phase))] if is_training else []
    return [*gates, data_check(open_phase, by_content=by_content)]


def require_ready(open_phase: OpenPhase) -> None:
    """Raise `JobError` if the job may not be submitted, whatever an earlier cell has shown.

    Token files that passed in this notebook are not read again: only their sizes are compared.
    """
    passed = open_phase.session.verdict(TOKENS) == "pass"
    checks = readiness_checks(open_phase, by_content=not passed)
    failed = [check for check in checks if check.verdict not in ("pass", "warn")]
    if failed:
        reasons = [f"{check.name}: {check.value} (rule: {check.rule})" for check in failed]
        raise JobError(
            PhaseMessage.NOTHING_SUBMITTED, phase=open_phase.phase, reasons="; ".join(reasons)
        )


def gate_check(open_phase: OpenPhase) -> Check:
    """Return the smoke test's verdict.

    It must belong to the smoke test that the plan now describes.
    """
    rule = f"{SMOKE} passed with these parameters"
    path = open_phase.folder / GATE
    if not path.exists():
        return Check("smoke test", "fail", "not done", f"{rule}; run {SMOKE}.ipynb first")
    gate = json.loads(path.read_text())
    run_again = f"{rule}; run {SMOKE}.ipynb again"
    if gate["fingerprint"] != phase_step(open_phase.run, SMOKE).fingerprint:
        return Check("smoke test", "fail", "done with other parameters", run_again)
    if step_status(open_phase.folder, SMOKE).lost_an_output:
        return Check("smoke test", "fail", "changed after it was judged", run_again)
    return Check("smoke test", gate["verdict"], gate["verdict"], rule)


def data_check(open_phase: OpenPhase, *, by_content: bool = True) -> Check:
    """Return the checks of the token files that the data phase made."""
    if open_phase.phase_plan.data.mock:
        return Check(
            TOKENS, "pass", "mock data", "token ids are made up while training: there are no files"
        )

    mark = read_mark(open_phase.folder, TOKENIZE)
    rule = "02-data made the token files and they are unchanged"
    if mark is None:
        return Check(TOKENS, "fail", "not made", f"{rule}; run 02-data.ipynb first")
    reading = Reading.EVERYTHING if by_content else Reading.SIZES
    fault = step_status(open_phase.folder, TOKENIZE, reading=reading).as_text()
    return judge(TOKENS, not fault, fault or f"{len(mark.outputs)} files", rule)


def read_attempt(
    folder: JobFolder,
    status: JobStatus,
    metrics: Path,
    events: Path,
) -> Attempt:
    """Read how a job ended from its status, its logs and the run's files."""
    job = EndedJob(
        name=folder.path.name,
        end=job_end(status),
        reason=status.reason,
        log_lines=[*log_tail(folder.err, LOG_LINES), *log_tail(folder.out, LOG_LINES)],
        nodes=nodes_of_job(folder),
    )
    lines = read_lines(events)
    slices = attempts.split_by_attempt(lines, folder.path.name)
    job_events = slices[-1] if slices else attempts.events_of_job(lines, folder.path.name)
    return attempts.read_attempt(job, job_events, metrics)


def decision_of_job(folder: JobFolder) -> Decision | None:
    """Return the decision that a job of a chain or with spare nodes took at its end, or None."""
    lines = job_folder.read_text(folder.decision).splitlines()
    if not folder.exit_code.exists() or len(lines) < 4 or lines[0] not in set(Action):
        return None
    # Jobs written by an earlier version have four lines.
    wait_seconds = float(lines[4]) if len(lines) > 4 else 0.0
    return Decision(Action(lines[0]), lines[3], wait_seconds)


def nodes_of_job(folder: JobFolder) -> list[str]:
    """Return the nodes that a job recorded; an empty list if it recorded none."""
    return job_folder.read_text(folder.hostfile).split()


ALARMS_OF_NODES = (FoundBy.SLOW_RANK, FoundBy.BIT_FLIP, FoundBy.CORRUPTION)
"""Alarms of the trainer that concern a rank's node.

If two concern the same node, the one later in this list counts.
"""


def nodes_with_alarms(
    events: Sequence[JobEvent],
    job: str,
    nodes: Sequence[str],
    ranks_per_node: int,
) -> dict[str, tuple[FoundBy, str]]:
    """Return the nodes of ranks that a job reported as slow or wrong, with the alarm's evidence."""
    reported: dict[str, tuple[FoundBy, str]] = {}
    of_job = attempts.events_of_job(events, job)
    # Use the nodes of the last attempt: an earlier one may have run on others.
    of_attempts = attempts.split_by_attempt(of_job, job)
    newest = of_attempts[-1] if of_attempts else of_job
    alarms = [event for event in newest if event.get("event") == "alarm"]
    for found_by in ALARMS_OF_NODES:
        for alarm in alarms:
            rank = alarm.get("rank")
            if alarm.get("kind") != found_by or not isinstance(rank, int):
                continue
            if rank // ranks_per_node < len(nodes):
                evidence = str(alarm.get("evidence", ""))
                reported[nodes[rank // ranks_per_node]] = (found_by, evidence)

    return reported


def started_path(folder: Path, phase: str) -> Path:
    """Return the path of the fingerprint of the training whose outputs are in the folder."""
    return folder / "steps" / f"{phase}--train.started"


def was_started_from(open_phase: OpenPhase, digest: str) -> bool:
    """Whether the outputs in the run's folder come from these inputs."""
    started = started_path(open_phase.folder, open_phase.phase)
    return started.exists() and started.read_text().partition("\n")[0] == digest


def note_start(open_phase: OpenPhase, digest: str) -> None:
    """Record the inputs with which the training was started, for later jobs."""
    facts = json.dumps({"inputs": _inputs(open_phase), "phase": as_json(open_phase.phase_plan)})
    write_text(started_path(open_phase.folder, open_phase.phase), f"{digest}\n{facts}\n")


def _inputs(open_phase: OpenPhase) -> dict[str, Any]:
    """Return what identifies a training beside its plan.

    These are our version of the phase, and the checksums of the tokens.
    """
    return {
        "version": VERSIONS[open_phase.phase],
        "data": output_checksums(open_phase.run, TOKENIZE),
    }


def _started_phase(open_phase: OpenPhase) -> PhasePlan | None:
    """Return the plan of the training whose outputs are in the folder.

    Return None if its inputs differ or are unknown.
    """
    started = started_path(open_phase.folder, open_phase.phase)
    if not started.exists():
        return None
    # The first line is the fingerprint; the second has the inputs and the plan.
    text = started.read_text().partition("\n")[2]
    facts = json.loads(text) if text else {}
    if facts.get("inputs") != _inputs(open_phase):
        return None
    return parse(facts["phase"])


def why_continued(open_phase: OpenPhase) -> str:
    """Return why the next job continues from the outputs in the folder although inputs changed.

    The text also explains the consequences. It is empty if the job starts from the beginning: this
    is another training, nothing was saved, or nothing is left to train.
    """
    # Only this phase may be prolonged: a smoke test is judged starting at its first step.
    if open_phase.phase != FULL or open_phase.settings.run.training.framework != "runbook":
        return ""
    before = _started_phase(open_phase)
    new_plan = open_phase.phase_plan
    checkpoints = open_phase.folder / new_plan.checkpoint.folder
    saved = max(saved_iterations(checkpoints), default=0)
    if (
        before is None
        or not same_training(before, new_plan)
        or not 0 < saved < new_plan.duration.iterations
    ):
        return ""

    old = _shown_values(before)
    new = _shown_values(new_plan)
    changed = ", ".join(
        f"{name} {old[name]} -> {new[name]}" for name in old if old[name] != new[name]
    )
    sentences = [
        (
            f"The training goes on from its checkpoint of iteration {saved:,}: "
            f"{changed or 'replanned'}."
        )
    ]
    if before.duration.iterations != new_plan.duration.iterations:
        try:
            metadata = json.loads((checkpoints / folder_name(saved) / METADATA).read_text())
            consumed = int(metadata["consumed_samples"])
        except (OSError, ValueError, KeyError, TypeError):  # the trainer itself judges this
            consumed = saved * new_plan.batch.global_

        sentences.append(_rate_text(before, new_plan, consumed))

    if before.engine != new_plan.engine:
        sentences.append(
            "Each engine's optimizer state is its own: the weights are taken up, and Adam "
            "begins anew."
        )

    return " ".join([*sentences, "To begin anew instead: runbook run with --redo training."])


def _shown_values(phase_plan: PhasePlan) -> dict[str, str]:
    parallel = phase_plan.parallel
    return {
        "iterations": f"{phase_plan.duration.iterations:,}",
        "engine": phase_plan.engine,
        "micro-batch": f"{phase_plan.batch.micro:,}",
        "tensor": f"{parallel.tensor:,}",
        "pipeline": f"{parallel.pipeline:,}",
        "virtual_pipeline": f"{parallel.virtual_pipeline:,}",
        "data": f"{parallel.data:,}",
        "zero_stage": f"{parallel.zero_stage:,}",
    }


def _rate_text(before: PhasePlan, new_plan: PhasePlan, consumed: int) -> str:
    if (
        before.learning_rate == new_plan.learning_rate
        or before.learning_rate.schedule == "constant"
    ):
        return (
            "The learning rate does not depend on the length: the losses are those of one "
            "undisturbed training."
        )

    next_samples = consumed + new_plan.batch.global_
    old = before.learning_rate.at(next_samples)
    new = new_plan.learning_rate.at(next_samples)
    return (
        f"The learning rate follows the new length from there: {new:.3g} in the next step, "
        f"where the old plan had "
        f"{old:.3g}. The steps before were made by the old one, so the losses are not those of "
        f"a training planned for "
        f"{new_plan.duration.iterations:,} from its start; "
        f"training.decay_samples={before.learning_rate.decay_samples} "
        f"would keep the old rate."
    )
