"""Writes the sentences at the top of a report: the aim, the verdict and the next step."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from runbook.core.checks import Check, counted
from runbook.core.errors import RecordError
from runbook.core.units import show_count
from runbook.plan_file.phase_names import FULL
from runbook.plan_file.schema import PhasePlan
from runbook.planning.make_plan import parse_plan
from runbook.records.engine.execution_end import ExecutionState
from runbook.records.messages import RecordMessage
from runbook.records.run_state import NOT_RUN, OUTDATED, RECORD_MISSING, UNREADABLE, RunState
from runbook.results.scores import Change, Score, show_score

MOST_NAMED_SCORES = 3


class PhaseCheck(NamedTuple):
    """A check, and the phase that made the check."""

    phase: str
    check: Check


class Briefing(NamedTuple):
    """The facts that a reader should see within ten seconds."""

    asked: str
    answer: str
    """The verdict, in one sentence."""
    result: str
    """Loss and scores; empty before the first step."""
    next_step: str


def checks_of(run: RunState) -> list[PhaseCheck]:
    """Return the checks from all phases, in phase order."""
    checks = []
    for phase in run.phases:
        if phase.record is not None:
            checks += [PhaseCheck(phase.phase, check) for check in phase.record.checks]

    return checks


def summarize(
    run: RunState, losses: Sequence[tuple[float, float]], scores: Sequence[Score]
) -> Briefing:
    """Return the sentences about a run with these losses and scores."""
    result = []
    if losses:
        went = RecordMessage.LOSS_WENT.fill(first=losses[0][1], last=losses[-1][1])
        result.append(went)
    measured = [score for score in scores if score.change is not Change.UNKNOWN]
    result += [_score_sentence(score) for score in measured[:MOST_NAMED_SCORES]]
    return Briefing(
        _asked_sentence(run), _verdict_sentence(run), " ".join(result), _next_sentence(run)
    )


def _asked_sentence(run: RunState) -> str:
    spec = read_training_plan(run.folder)
    if spec is None:
        return RecordMessage.NOTHING_PLANNED.fill()
    model = f"{spec.model.label} ({show_count(spec.model.parameters)} parameters)"
    tokens = f"{show_count(spec.duration.tokens)} tokens"
    steps = counted(spec.duration.iterations, "step")
    devices = _devices_text(spec)
    return f"Train {model} on {tokens} in {steps}, on {devices} of site {_site_of(run)}."


def _devices_text(spec: PhasePlan) -> str:
    num_devices = spec.parallel.world_size
    if spec.device != "cpu":
        return counted(num_devices, "GPU")
    if num_devices == 1:
        return "one CPU process"
    return f"{num_devices:,} CPU processes"


def read_training_plan(run_folder: Path) -> PhasePlan | None:
    """Return the plan for full training, or None if it is missing or cannot be read."""
    plan_file = run_folder / "plan.json"
    try:
        return parse_plan(plan_file.read_text(encoding="utf-8"), plan_file).phases[FULL]
    except (RecordError, FileNotFoundError, KeyError):
        return None


def _site_of(run: RunState) -> str:
    for phase in run.phases:
        entry = phase.record.parameters.get("site") if phase.record else None
        if isinstance(entry, dict) and entry.get("value"):
            return str(entry["value"])

    return "unknown"


def _verdict_sentence(run: RunState) -> str:
    num_done = sum(phase.state == ExecutionState.DONE for phase in run.phases)
    done = f"{num_done} of {len(run.phases)} phases are done"
    if run.state == "running":
        return f"It is running {run.phase}; {done}."
    if num_done < len(run.phases):
        return f"It is not finished: {done}{_bad_end(run)}."
    checks = [phase_check.check for phase_check in checks_of(run)]
    num_open = sum(check.verdict != "pass" for check in checks)
    all_checks = counted(len(checks), "check")
    if run.verdict == "pass":
        return f"Yes: all {num_done} phases are done, and all {all_checks} passed."
    if run.verdict == "warn":
        return f"Done, with {num_open} of {all_checks} to look at: all {num_done} phases are done."
    return f"No: {num_open} of {all_checks} did not pass."


def _bad_end(run: RunState) -> str:
    ends = []
    for phase in run.phases:
        if phase.state == OUTDATED:
            ends.append(RecordMessage.OUTDATED.fill(phase=phase.phase))
        elif phase.state == RECORD_MISSING:
            ends.append(f"the record of {phase.phase} is missing")
        elif phase.state not in (ExecutionState.DONE, NOT_RUN):
            ends.append(f"{phase.phase} ended as: {phase.state}")

    return f"; {', '.join(ends)}" if ends else ""


def _score_sentence(score: Score) -> str:
    return RecordMessage.SCORE_WENT.fill(
        name=f"{score.what[:1].upper()}{score.what[1:]}",
        measure=score.measure,
        before=show_score(score.before),
        after=show_score(score.after),
        change=score.change,
    )


def _next_sentence(run: RunState) -> str:
    if run.state == "running":
        return f"Wait. `runbook status {run.name}` shows its progress."
    if run.state in (UNREADABLE, "no run.yaml"):
        return f"Restore the run's folder: {run.problem or 'a record cannot be read'}."
    unfinished = [phase for phase in run.phases if phase.state != ExecutionState.DONE]
    if any(phase.state not in (NOT_RUN, OUTDATED, RECORD_MISSING) for phase in unfinished):
        return f"Fix the cause that is shown below, then run `runbook run {run.name}` to continue."
    if unfinished:
        return f"`runbook run {run.name}` continues with {unfinished[0].phase}."
    if run.verdict == "pass":
        return f"Nothing needs repair. `runbook export {run.name} --out DIR` exports the weights."
    return "Decide whether the checks below matter for the purpose of the weights."
