"""All phases of a run in order: each is a notebook executed and recorded; what is finished is not repeated."""

from __future__ import annotations

import logging
import os
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from runbook import params
from runbook.errors import ParamsError, RunbookError
from runbook.params import Settings
from runbook.params.schema import PHASES, phase_name
from runbook.params.stage import require
from runbook.phases import calibrations, jobs, machine, steps
from runbook.phases.campaign import (
    HOLDER_VARIABLE,
    RUNS_VARIABLE,
    phase_fingerprint,
    refuse_other_parameters,
    runs_folder,
)
from runbook.phases.leftovers import remove_leftovers
from runbook.phases.plan_file import difference, write_plan_file
from runbook.phases.report import write_report
from runbook.phases.status import refuse_while_a_job_runs
from runbook.plan import Plan, make_plan
from runbook.records.execute import Outcome, execute_phase
from runbook.records.runs import read_run
from runbook.records.signals import NotebookStopped, ending_in_order
from runbook.records.state import State
from runbook.schedulers import get_scheduler
from runbook.schedulers.lock import hold
from runbook.units import show_duration

Say = Callable[[str], None]


@dataclass(frozen=True)
class Request:
    """What `runbook run` was asked for."""

    run: str
    set_words: tuple[str, ...] = ()
    name: str = ""
    from_phase: str = PHASES[0]
    to_phase: str = PHASES[-1]
    redo: str = ""
    verbose: bool = False

    def phases(self) -> Sequence[str]:
        """The phases asked for, in order."""
        first, last = (
            PHASES.index(phase_meant(*pair)) for pair in (("--from", self.from_phase), ("--to", self.to_phase))
        )
        if first > last:
            raise ParamsError(
                f"--from {self.from_phase} comes after --to {self.to_phase}; the order is {', '.join(PHASES)}."
            )
        return PHASES[first : last + 1]

    def words(self) -> list[str]:
        """The overrides as the notebooks' `overrides` parameter says them."""
        return [*self.set_words, *([f"as={self.name}"] if self.name else [])]


def phase_meant(option: str, word: str) -> str:
    """The phase an option names; a word that is none is wrong usage."""
    try:
        return phase_name(word)
    except ValueError as error:
        raise ParamsError(f"{option}: {error}.") from None


def run_phases(request: Request, say: Say) -> tuple[Outcome, Path]:
    """Execute the phases that are not done yet; the first that fails ends the run, with its record written.

    Returns how it ended, and the run's folder.
    """
    settings = params.load(request.run, set_words=request.words())
    require(settings)
    folder = runs_folder(settings.project) / settings.name
    redo = phase_meant("--redo", request.redo) if request.redo else ""
    anew = redo == PHASES[0]
    measured = calibrations.known(settings, folder.parent) if anew else calibrations.for_run(settings, folder)
    plan = make_plan(settings, machine.measure(settings.site), measured)
    request.phases()  # an order that is none is refused before anything is written
    if not redo:
        refuse_other_parameters(settings, folder)
    folder.mkdir(parents=True, exist_ok=True)
    with ending_in_order(), hold(folder, f"runbook run {request.run}") as taken_over:
        if taken_over:
            say(taken_over)
        for name in remove_leftovers(folder):
            say(f"{name}: half-written by a process that was killed, removed")
        if redo:
            forget(settings, plan, folder, redo, say)
        write_plan_file(settings, plan, folder)
        os.environ[HOLDER_VARIABLE] = str(folder)
        os.environ[RUNS_VARIABLE] = str(folder.parent)
        try:
            outcome = _in_order(request, settings, plan, folder, say)
            write_report(folder)
        except NotebookStopped as stopped:
            say(f"Stopped between two notebooks by signal {stopped.number}; the same command goes on from here.")
            raise
    return outcome, folder


def _in_order(request: Request, settings: Settings, plan: Plan, folder: Path, say: Say) -> Outcome:
    outcome = Outcome("done", 0, "", None)
    for phase in request.phases():
        outcome = run_phase(request, settings, plan, folder, phase, say)
        if outcome.exit_code:
            break
    return outcome


def run_phase(request: Request, settings: Settings, plan: Plan, folder: Path, phase: str, say: Say) -> Outcome:
    """One phase: nothing where it is done and unchanged, else its notebook, executed and recorded."""
    missing = why_not_done(settings, plan, folder, phase)
    if not missing:
        say(f"{phase:16} done, verified")
        return Outcome("done", 0, "", folder / "records" / f"{phase}.ipynb")
    say(f"{phase:16} {missing}: running")
    started = time.monotonic()
    parameters = {"run": request.run}
    if request.words():
        parameters["overrides"] = shlex.join(request.words())
    notebook = settings.project / "notebooks" / f"{phase}.ipynb"
    with shown(phase, request.verbose, say):
        outcome = execute_phase(notebook, folder, phase, parameters, log=True)
    say(f"{phase:16} {outcome.state} after {show_duration(time.monotonic() - started)}")
    if outcome.exit_code:
        say(f"\n{outcome.message}\n\nThe notebook as far as it came: {outcome.notebook}")
    return outcome


@contextmanager
def shown(phase: str, verbose: bool, say: Say) -> Iterator[None]:
    """Repeat a notebook's output on the terminal: all of it, or only the lines of progress; the record has the rest."""

    class Repeat(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            for line in record.getMessage().splitlines():
                if verbose or (line.startswith((phase, "tokenize")) and "%" in line):
                    say(line)

    logger, handler = logging.getLogger("papermill"), Repeat()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def why_not_done(settings: Settings, plan: Plan, folder: Path, phase: str) -> str:
    """Why a phase has to run, or an empty string where it is done, its inputs are unchanged and its outputs whole."""
    digest = phase_fingerprint(settings, plan, folder, phase)
    if missing := steps.what_is_missing(folder, phase, digest):
        return missing
    for mark in sorted((folder / "steps").glob(f"{phase}--*.json")):
        step = steps.read_mark(folder, mark.stem)
        assert step is not None
        if missing := steps.what_is_missing(folder, mark.stem, step.fingerprint):
            return missing
    return record_fault(folder, phase)


def record_fault(folder: Path, phase: str) -> str:
    """Why the newest record of a phase is not a whole one that says `done`, or an empty string."""
    state = next(one for one in read_run(folder).phases if one.phase == phase)
    if state.problem:
        return "its record cannot be read"
    if state.twin is None:
        return "its record is missing"
    if state.twin.state is not State.DONE or state.twin.is_open:
        return f"its newest record says {state.twin.state}"
    return "" if len(state.files) == 3 else "its executed notebook is not among the records"


def forget(settings: Settings, plan: Plan, folder: Path, phase: str, say: Say) -> None:
    """Make a phase run again: its marks go, its outputs and an older run.yaml move into the history."""
    refuse_while_a_job_runs(folder, get_scheduler(settings.site))
    changed = difference(folder, settings)
    for key, old, new in changed:
        say(f"{key}: {old} -> {new}")
    if changed:
        jobs.set_aside(folder, "run", [folder / "run.yaml", folder / "plan.json"])
    for mark in (folder / "steps").glob(f"{phase}*"):
        mark.unlink()
    spec = plan.as_dict()["phases"].get(phase)
    outputs = jobs.training_paths(folder, spec) if spec else [folder / "data"] if phase == "02-data" else []
    moved = jobs.set_aside(folder, phase, outputs)
    if moved:
        say(f"{phase}: earlier results are kept in {moved.relative_to(folder)}")


def expand(run: str, all_variants: bool) -> list[str]:
    """The run itself, or one word for each of its variants."""
    if not all_variants:
        return [run]
    names = params.variant_names(run)
    if not names:
        raise RunbookError(f"{run} has no variants: params/variants/{run}.yaml names none.")
    return [f"{run}:{name}" for name in names]
