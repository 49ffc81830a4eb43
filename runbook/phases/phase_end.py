"""Ends a phase: closes its record, writes its done marker, and refreshes the report."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from runbook.core.errors import RecordError
from runbook.display import show_text
from runbook.display.output_place import ENGINE_VARIABLE
from runbook.phases.finished_training import refuse_running_job, why_not_finished
from runbook.phases.messages import PhaseMessage
from runbook.phases.phase_steps import StepWork, phase_end_work
from runbook.phases.run_report import write_report
from runbook.phases.steps import PhaseStep, step
from runbook.plan_file.phase_names import TRAINING_PHASES
from runbook.records.session import Session
from runbook.runs.planned_run import PlannedRun
from runbook.runs.step import StepOfRun


@dataclass(frozen=True)
class PhaseEnd:
    """Everything needed to end a phase."""

    step: StepOfRun
    """The phase as a step, with its current inputs."""
    session: Session
    """The record closed when the phase ends."""
    gate: Callable[[], None]
    """Raises an error if work in the phase is still running or is not done."""
    publish: Callable[[], object]
    """Rewrites the pages for the run from its files."""


def end_phase(end: PhaseEnd, repeat_because: str = "") -> None:
    """Write the record, mark the phase done with its outputs, and refresh the report.

    A failed verdict is an error. If the gate fails, nothing is written and the phase is not marked
    done. With `repeat_because`, the next `runbook run` repeats the phase.
    """
    end.gate()
    phase = end.step.name
    record = end.session.finish()
    if record.verdict == "fail":
        raise RecordError(PhaseMessage.PHASE_DID_NOT_PASS, phase=phase)
    if repeat_because:
        end.step.mark_for_repeat(repeat_because, verdict=record.verdict)
    else:
        end.step.mark_done(verdict=record.verdict)

    end.publish()
    open_checks = []
    for check in record.checks:
        if check.verdict != "pass":
            open_checks.append(f"{check.name} ({check.value}; rule: {check.rule})")

    show_text("; ".join([f"{phase}: {record.verdict}", *open_checks]))


def end_notebook(
    work: StepWork,
    run: PlannedRun,
    session: Session,
    repeat_because: str = "",
) -> None:
    """End the phase that a notebook carries out; see `end_phase`."""
    # The engine still has to write this notebook, and then the manifest. If the manifest recorded
    # the notebook here and the process were killed between the two writes, the notebook would seem
    # to have been edited.
    has_notebook = ENGINE_VARIABLE not in os.environ
    end = PhaseEnd(
        step=work.of(run),
        session=session,
        gate=partial(require_finished, run, work.phase),
        publish=partial(write_report, run.folder, manifest=has_notebook),
    )
    end_phase(end, repeat_because)


def plain_end(phase: str) -> PhaseStep[None]:
    """Return a last step that only writes the record and done marker for the phase."""
    work = phase_end_work(phase)

    @step(takes=lambda opened: (opened.run, opened.session), work=work)
    def finish(run: PlannedRun, session: Session) -> None:
        """Write the record and mark the phase done."""
        end_notebook(work, run, session)

    return finish


def require_finished(run: PlannedRun, phase: str) -> None:
    """Raise an error if a job of the phase is running, or if its training is not done."""
    refuse_running_job(run, phase)
    if phase not in TRAINING_PHASES:
        return
    missing = why_not_finished(run, phase)
    if missing:
        raise RecordError(PhaseMessage.TRAINING_NOT_FINISHED, phase=phase, missing=missing)
