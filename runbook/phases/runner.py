"""`runbook run`: executes and records the notebooks for all phases that are not done."""

import contextlib
import logging
import os
import re
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from runbook import params
from runbook.core.errors import ParamsError, RecordError, RunbookError
from runbook.core.locks import HOLDER_VARIABLE, hold
from runbook.core.processes import identify
from runbook.core.units import show_duration
from runbook.jobs import get_scheduler
from runbook.params import Settings
from runbook.params.schema.run_file import phase_name
from runbook.params.settings import require_values
from runbook.phases import open_phase
from runbook.phases.messages import PhaseMessage
from runbook.phases.phase_steps import (
    TRAININGS,
    phase_step,
    refuse_changed_results,
    work_within,
)
from runbook.phases.run_report import write_report
from runbook.phases.training_outputs import move_to_history, sealed_paths, training_paths
from runbook.plan_file.phase_names import DATA, PHASES, TRAINING_PHASES
from runbook.planning import Plan
from runbook.records.engine.execute import Outcome, execute_phase, refuse_hand_edits
from runbook.records.engine.execution_end import ExecutionState, ending_in_order
from runbook.records.run_state import UNREADABLE, read_run
from runbook.runs import run_files, run_folder, this_machine
from runbook.runs.messages import RunMessage
from runbook.runs.planned_run import PlannedRun
from runbook.runs.status import refuse_while_a_job_runs
from runbook.runs.step import StepState

Say = Callable[[str], None]


@dataclass(frozen=True)
class RunRequest:
    """Options given to `runbook run`."""

    run: str
    set_words: tuple[str, ...] = ()
    name: str = ""
    from_phase: str = PHASES[0]
    to_phase: str = PHASES[-1]
    redo: str = ""
    verbose: bool = False

    def phases(self) -> Sequence[str]:
        """The requested phases, in order."""
        first = PHASES.index(phase_name(self.from_phase))
        last = PHASES.index(phase_name(self.to_phase))
        if first > last:
            raise ParamsError(
                PhaseMessage.PHASES_OUT_OF_ORDER,
                from_phase=self.from_phase,
                to_phase=self.to_phase,
                phases=", ".join(PHASES),
            )

        return PHASES[first : last + 1]

    def words(self) -> list[str]:
        """The overrides, as the `overrides` parameter in notebooks expects them."""
        if not self.name:
            return [*self.set_words]
        return [*self.set_words, f"as={self.name}"]


def run_phases(request: RunRequest, say: Say) -> tuple[Outcome, Path]:
    """Execute the phases that are not done, up to the first failure.

    Return the outcome and the run folder.
    """
    redo = phase_name(request.redo) if request.redo else ""
    from_scratch = redo == PHASES[0]
    load = partial(params.load, request.run, set_words=request.words())
    if from_scratch:
        settings = load()
    else:
        settings = open_phase.with_values_given_before(load, say)

    require_values(settings)
    runs = run_folder.runs_folder(settings.project)
    folder = runs / settings.name
    if from_scratch:
        calibrations = this_machine.known_calibrations(settings, runs)
    else:
        calibrations = this_machine.calibrations_of_run(settings, folder)

    plan = this_machine.make_plan_here(settings, calibrations)
    # Before anything is written, refuse a request that cannot be carried out.
    for phase in request.phases():
        refuse_hand_edits(settings.project / "notebooks" / f"{phase}.ipynb")
    if not redo:
        open_phase.refuse_other_parameters(settings, folder)
    folder.mkdir(parents=True, exist_ok=True)
    with ending_in_order(), hold(folder, f"runbook run {request.run}") as taken_over:
        if taken_over:
            say(taken_over)
        for name in remove_leftovers(folder):
            say(f"{name}: removed, because a killed process left it half-written")
        # If training must be repeated, move its files aside.
        if redo and redo not in TRAINING_PHASES:
            refuse_changed_results(PlannedRun(settings, plan, folder), redo)
        if redo:
            forget(
                settings,
                plan,
                folder,
                redo,
                say,
            )

        run_files.write_plan_file(settings, plan, folder)
        run_files.write_overrides(settings, folder)
        os.environ[HOLDER_VARIABLE] = str(folder)
        os.environ[run_folder.RUNS_VARIABLE] = str(folder.parent)
        outcome = _run_to_first_failure(
            request,
            settings,
            plan,
            folder,
            say,
        )
        if not (folder / "run.yaml").exists():
            raise RecordError(RunMessage.RUN_FOLDER_MOVED, folder=folder, name=folder.name)
        write_report(folder)

    return outcome, folder


def _run_to_first_failure(
    request: RunRequest,
    settings: Settings,
    plan: Plan,
    folder: Path,
    say: Say,
) -> Outcome:
    """Execute the phases in order.

    Return the outcome for the first failed phase, or for the last phase.
    """
    for phase in request.phases():
        outcome = run_phase(
            request,
            settings,
            plan,
            folder,
            phase,
            say,
        )
        if outcome.exit_code:
            break

    return outcome


def run_phase(
    request: RunRequest,
    settings: Settings,
    plan: Plan,
    folder: Path,
    phase: str,
    say: Say,
) -> Outcome:
    """Execute and record a phase notebook, unless the phase is done and unchanged."""
    refuse_changed_results(PlannedRun(settings, plan, folder), phase)
    missing = why_not_done(settings, plan, folder, phase)
    if not missing:
        say(PhaseMessage.PHASE_VERIFIED.fill(phase=phase))
        return Outcome("done", 0, "", folder / "records" / f"{phase}.ipynb")

    say(PhaseMessage.PHASE_RUNS.fill(phase=phase, missing=missing))
    started = time.monotonic()
    parameters = {"run": request.run}
    if request.words():
        parameters["overrides"] = shlex.join(request.words())
    notebook = settings.project / "notebooks" / f"{phase}.ipynb"
    with repeat_output(phase, request.verbose, say):
        outcome = execute_phase(notebook, folder, phase, parameters)
    duration = show_duration(time.monotonic() - started)
    say(PhaseMessage.PHASE_ENDED.fill(phase=phase, state=outcome.state, duration=duration))
    if outcome.exit_code:
        say(PhaseMessage.PHASE_FAILED.fill(message=outcome.message, notebook=outcome.notebook))
    return outcome


@contextmanager
def repeat_output(phase: str, verbose: bool, say: Say) -> Iterator[None]:
    """Repeat notebook output on the terminal: everything, or only progress lines.

    The record contains everything.
    """

    class Repeat(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            for line in record.getMessage().splitlines():
                if verbose or (line.startswith((phase, "tokenize", "rehearsal")) and "%" in line):
                    say(line)

    logger = logging.getLogger("papermill")
    handler = Repeat()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def why_not_done(
    settings: Settings,
    plan: Plan,
    folder: Path,
    phase: str,
) -> str:
    """Return why a phase has to run.

    Return an empty string if the phase is done, with unchanged inputs and complete outputs.
    """
    run = PlannedRun(settings, plan, folder)
    missing = phase_step(run, phase).why_not_done()
    if missing:
        return missing
    for work in work_within(phase):
        status = work.status_of_outputs(run)
        # Work that the phase did not need has no marker. For example, synthetic data is not
        # tokenized.
        if status.state is StepState.NOT_DONE:
            continue
        if work in TRAININGS:
            work.of(run).refuse(status)

        missing = status.as_text()
        if missing:
            return missing

    (state,) = (state for state in read_run(folder).phases if state.phase == phase)
    if state.record is None:
        return "its record cannot be read" if state.state == UNREADABLE else "its record is missing"
    if state.record.state is not ExecutionState.DONE or state.record.is_open:
        return PhaseMessage.NEWEST_RECORD_SAYS.fill(state=state.record.state)
    # A record consists of three files: the executed notebook, its HTML page and the JSON.
    if len(state.files) != 3:
        return PhaseMessage.NOTEBOOK_NOT_AMONG_RECORDS.fill()
    return ""


def forget(
    settings: Settings,
    plan: Plan,
    folder: Path,
    phase: str,
    say: Say,
) -> None:
    """Let a phase run again.

    Remove its markers, and move its outputs and an older run.yaml into the history.
    """
    refuse_while_a_job_runs(folder, get_scheduler(settings.site))
    changed = run_files.changed_values(folder, settings)
    for key, old, new in changed:
        say(PhaseMessage.VALUE_REPLACED.fill(key=key, old=old, new=new))
    outdated = []
    if changed:
        outdated += ["run.yaml", "plan.json"]
    if changed or phase == PHASES[0]:
        outdated.append(run_files.OVERRIDES)
    move_to_history(folder, "run", [folder / name for name in outdated])
    for mark in (folder / "steps").glob(f"{phase}*"):
        mark.unlink()
    phase_plan = plan.phases.get(phase)
    if phase_plan:
        outputs = training_paths(folder, phase_plan)
        outputs += sealed_paths(folder, phase)
    elif phase == DATA:
        outputs = [folder / "data"]
    else:
        outputs = []

    moved = move_to_history(folder, phase, outputs)
    if moved:
        say(f"{phase}: earlier results are kept in {moved.relative_to(folder)}")


def expand_variants(run: str, all_variants: bool) -> list[str]:
    """Return the run itself, or the names of its variants."""
    if not all_variants:
        return [run]
    names = params.variant_names(run)
    if not names:
        raise RunbookError(PhaseMessage.NO_VARIANTS, run=run)
    return [f"{run}:{name}" for name in names]


_PART = re.compile(r"\..+\.(\d{1,9})\.part")
"""Names of temporary files made by `core.files`; the number is the process id of the writer."""
_ELSEWHERE = frozenset({"checkpoints", "data", "tensorboard", "trackers", "history"})
"""Folders left out here, because the trainer or the tokenizer cleans them up itself."""


def remove_leftovers(folder: Path) -> list[str]:
    """Remove temporary files left by processes that have ended, and return their names.

    The caller must hold the lock on the run.
    """
    removed = []
    for parent, subfolders, files in os.walk(folder):
        # os.walk visits only the folders that remain in this list.
        subfolders[:] = [name for name in subfolders if name not in _ELSEWHERE]
        for name in files:
            if not _is_abandoned(name):
                continue
            path = Path(parent, name)
            with contextlib.suppress(OSError):
                path.unlink()
                removed.append(path.relative_to(folder).as_posix())

    return sorted(removed)


def _is_abandoned(name: str) -> bool:
    """Return whether a file is incomplete and its writer has ended."""
    part = _PART.fullmatch(name)
    if not part:
        return False
    return identify(int(part[1])) is None
