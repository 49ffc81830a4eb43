"""The end of a phase: its record is closed, its done marker written, its report refreshed."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from runbook.core.errors import JobError, RecordError
from runbook.display import show_text
from runbook.display.output_place import ENGINE_VARIABLE
from runbook.jobs import get_scheduler
from runbook.phases.messages import PhaseMessage
from runbook.phases.open_phase import OpenPhase
from runbook.phases.phase_steps import phase_step, train_step
from runbook.phases.run_report import write_report
from runbook.plan_file.phase_names import TRAINING_PHASES
from runbook.records.session import Session
from runbook.runs.status import active_jobs
from runbook.runs.step import PhaseStep, Reading


@dataclass(frozen=True)
class PhaseEnd:
    """All that ending a phase needs."""

    step: PhaseStep
    """The phase as a step, with its inputs as they are now."""
    session: Session
    """The record that ends with the phase."""
    gate: Callable[[], None]
    """Raises an error while work of the phase continues, or is not done."""
    publish: Callable[[], object]
    """Rewrites the pages of the run from its files."""


def end_phase(end: PhaseEnd, outputs: Sequence[Path], repeat_because: str = "") -> None:
    """Write the record, mark the phase done with its outputs, and refresh the report.

    A failed verdict is an error. If the gate fails, nothing is finished or written. With
    `repeat_because`, the next `runbook run` does the phase again.
    """
    end.gate()
    phase = end.step.name
    twin = end.session.finish()
    if twin.verdict == "fail":
        raise RecordError(PhaseMessage.PHASE_DID_NOT_PASS, phase=phase)
    if repeat_because:
        end.step.mark_for_repeat(repeat_because, outputs, verdict=twin.verdict)
    else:
        end.step.mark_done(outputs, verdict=twin.verdict)

    end.publish()
    open_checks = []
    for check in twin.checks:
        if check.verdict != "pass":
            open_checks.append(f"{check.name} ({check.value}; rule: {check.rule})")

    show_text("; ".join([f"{phase}: {twin.verdict}", *open_checks]))


def finish(
    open_phase: OpenPhase,
    outputs: Sequence[Path] = (),
    repeat_because: str = "",
) -> None:
    """End a notebook's phase; see `end_phase`."""
    # Our engine still writes this notebook, and then the manifest. If it were recorded here, a kill
    # in between would look like an edit.
    has_notebook = ENGINE_VARIABLE not in os.environ
    end = PhaseEnd(
        step=phase_step(open_phase.run, open_phase.phase),
        session=open_phase.session,
        gate=partial(require_finished, open_phase),
        publish=partial(write_report, open_phase.folder, manifest=has_notebook),
    )
    end_phase(end, outputs, repeat_because)


def require_finished(open_phase: OpenPhase) -> None:
    """Raise while a job of the phase runs, or before its training is done."""
    phase = open_phase.phase
    for job, status in active_jobs(open_phase.folder, get_scheduler(open_phase.settings.site)):
        if f"{job.path.name}-".startswith(f"{phase}-"):
            raise JobError(
                PhaseMessage.JOB_NOT_FINISHED,
                phase=phase,
                job_name=job.path.name,
                state=status.state,
                reason=status.reason,
                settings_name=open_phase.settings.name,
            )

    if phase not in TRAINING_PHASES:
        return
    missing = train_step(open_phase.run, phase).why_not_done(Reading.SIZES)
    if missing:
        raise RecordError(PhaseMessage.TRAINING_NOT_FINISHED, phase=phase, missing=missing)
