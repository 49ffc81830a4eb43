"""Trains the rungs of a ladder, each as a recorded run, and reads the losses that they reach."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from runbook.core.errors import ParamsError, RunbookError
from runbook.core.units import show_duration
from runbook.forecast.laws import Runs
from runbook.forecast.tables import TrainingRow, as_runs
from runbook.params import Settings
from runbook.phases.ladder.budget import LadderBudget, Pace, fit_rungs_left, pace_of
from runbook.phases.ladder.ladder_plan import Ladder, PlannedRung, write_ladder
from runbook.phases.ladder.rungs import Family
from runbook.phases.messages import PhaseMessage
from runbook.phases.phase_steps import TOKENIZE
from runbook.plan_file.phase_names import FULL
from runbook.plan_file.schema import read_plan
from runbook.records.done_marks import read_mark, train_name
from runbook.results.history import read_validation
from runbook.runs.run_folder import runs_folder
from runbook.runs.step import Reading, step_status

Say = Callable[[str], None]
TrainRung = Callable[[Ladder, PlannedRung, Say], None]
"""Function used to train a rung or to continue it.

It raises `RunbookError` if the rung fails.
"""


@dataclass(frozen=True)
class FinishedRung:
    """A trained rung, with its held-out loss after the last step."""

    planned: PlannedRung
    folder: Path
    parameters: int
    parameters_no_embed: int
    tokens: int
    flops: float
    loss: float


def climb(
    ladder: Ladder,
    family: Family | None,
    settings: Settings,
    budget: LadderBudget,
    folder: Path,
    train: TrainRung,
    say: Say,
) -> tuple[Ladder, list[FinishedRung]]:
    """Train every rung that is not yet trained, the smallest first.

    Return the finished rungs, and the ladder as it was trained. Later rungs may be smaller than
    planned, so that they end in time. Without `family`, all rungs stay as planned. Raise
    `RunbookError` if a rung fails.
    """
    finished: list[FinishedRung] = []
    while len(finished) < len(ladder.rungs):
        position = len(finished)
        planned = ladder.rungs[position]
        rung_path = rung_folder(ladder, settings, planned)
        say(
            f"{planned.name}: {planned.rung.parameters:,} parameters, {planned.rung.tokens:,} "
            f"tokens"
        )
        was_done = read_rung(rung_path, planned) is not None
        if was_done and read_mark(rung_path, FULL) is not None:
            _refuse_changed(rung_path)
        else:
            # If a call was killed during a rung, the time for this rung is unknown.
            is_time_known = planned.measured_seconds is not None or not is_begun(rung_path)
            started = time.monotonic()
            try:
                train(ladder, planned, say)
            finally:
                if not was_done:
                    seconds = time.monotonic() - started
                    ladder = _with_time(ladder, position, seconds if is_time_known else None)
                    ladder = write_ladder(replace(ladder, spent_seconds=budget.spent), folder)

        done = read_rung(rung_path, planned)
        if done is None:
            raise RunbookError(PhaseMessage.RUNG_WITHOUT_LOSS, folder_name=rung_path.name)
        say(f"{planned.name}: loss {done.loss:.4f}")
        finished.append(done)
        if was_done:
            continue
        _report_time(ladder.rungs[position], say)
        pace = pace_of(ladder.rungs[: position + 1])
        if family is not None:
            ladder = write_ladder(_keep_to_budget(ladder, family, pace, budget, say), folder)
        _report_time_left(ladder.rungs[position + 1 :], pace, budget, say)

    return ladder, finished


def is_begun(rung_path: Path) -> bool:
    """Return whether an earlier call has planned or trained a rung in this folder."""
    return (rung_path / "plan.json").exists()


def _with_time(ladder: Ladder, position: int, seconds: float | None) -> Ladder:
    """Return the ladder with `seconds` added to the time of a rung.

    None means that the time is unknown.
    """
    rungs = list(ladder.rungs)
    if seconds is not None:
        earlier = rungs[position].measured_seconds or 0.0
        rungs[position] = replace(rungs[position], measured_seconds=earlier + seconds)
    return replace(ladder, rungs=tuple(rungs))


def _keep_to_budget(
    ladder: Ladder,
    family: Family,
    pace: Pace,
    budget: LadderBudget,
    say: Say,
) -> Ladder:
    """Return the ladder with its remaining rungs changed to fit the remaining budget."""
    if budget.left is None or not pace.num_rungs:
        return ladder
    fitted = fit_rungs_left(ladder, family, pace.num_rungs, budget.left, pace.slowest)
    if fitted != ladder:
        say(
            PhaseMessage.RUNGS_FITTED_AGAIN.fill(
                rungs=len(fitted.rungs) - pace.num_rungs,
                time=show_duration(max(budget.left, 0.0)),
                before=ladder.rungs[-1].rung.parameters,
                largest=fitted.rungs[-1].rung.parameters,
            )
        )
    return fitted


def _report_time(planned: PlannedRung, say: Say) -> None:
    """Report planned and actual time for a rung."""
    if planned.seconds is None or planned.measured_seconds is None:
        return
    say(
        PhaseMessage.RUNG_TOOK.fill(
            name=planned.name,
            measured=show_duration(planned.measured_seconds),
            planned=show_duration(planned.seconds + planned.start_seconds),
        )
    )


def _report_time_left(
    rungs_left: Sequence[PlannedRung],
    pace: Pace,
    budget: LadderBudget,
    say: Say,
) -> None:
    """Report the remaining time at this pace, and by how much it exceeds the budget."""
    seconds_left = pace.seconds_left(rungs_left)
    if not rungs_left or seconds_left is None:
        return
    say(
        PhaseMessage.LADDER_TIME_LEFT.fill(
            rungs=len(rungs_left),
            time=show_duration(seconds_left),
        )
    )
    if budget.left is not None and seconds_left > budget.left:
        over = show_duration(seconds_left - budget.left)
        say(PhaseMessage.LADDER_OVER_BUDGET.fill(time=over))


def _refuse_changed(rung_path: Path) -> None:
    """Raise `RunbookError` if the losses from a finished rung have changed or are lost."""
    status = step_status(rung_path, train_name(FULL), reading=Reading.LINE_FILES)
    if status.lost_an_output:
        raise RunbookError(
            PhaseMessage.RUNG_STOPPED,
            folder_name=rung_path.name,
            to_phase=FULL,
            message=status.as_text(),
        )


def rung_folder(ladder: Ladder, settings: Settings, planned: PlannedRung) -> Path:
    """Return the run folder for a rung."""
    return runs_folder(settings.project) / f"{settings.run.run}--{planned.name}"


def share_tokens(settings: Settings, ladder: Ladder, folder: Path) -> None:
    """Give a rung the token files from the run, or from the first rung, as hard links.

    02-data then treats them as done.
    """
    data = folder / "data"
    run_folder = runs_folder(settings.project) / settings.name
    first = rung_folder(ladder, settings, ladder.rungs[0])
    sources = []
    for source in (run_folder, first):
        if source != folder and _has_tokens(source):
            sources.append(source)

    if data.exists() or not sources:
        return
    data.mkdir(parents=True)
    for path in sorted((sources[0] / "data").iterdir()):
        if path.is_file() and not path.is_symlink():
            os.link(path, data / path.name)


def _has_tokens(folder: Path) -> bool:
    """Return whether a run has token files in its own folder.

    A site may store them elsewhere.
    """
    return read_mark(folder, TOKENIZE) is not None and (folder / "data").is_dir()


def read_rung(folder: Path, planned: PlannedRung) -> FinishedRung | None:
    """Return the results from a rung, or None if its training is not finished."""
    if not read_mark(folder, train_name(FULL)):
        return None
    plan = read_plan(folder / "plan.json", FULL)
    evaluations = read_validation(plan.path(plan.log.validation))
    if not evaluations or evaluations[-1].iteration != plan.duration.iterations:
        return None
    return FinishedRung(
        planned=planned,
        folder=folder,
        parameters=plan.model.parameters,
        parameters_no_embed=planned.rung.parameters_no_embed,
        tokens=plan.duration.tokens,
        flops=plan.duration.samples * plan.model.shape.flops_per_sequence(),
        loss=evaluations[-1].loss,
    )


def read_finished(ladder: Ladder, settings: Settings) -> list[FinishedRung]:
    """Return the trained rungs, the smallest first."""
    rungs = []
    for planned in ladder.rungs:
        finished = read_rung(rung_folder(ladder, settings, planned), planned)
        if finished is not None:
            rungs.append(finished)

    return rungs


def training_rows(rungs: list[FinishedRung], series: str) -> list[TrainingRow]:
    """Return the rungs as rows for the table that `runbook forecast --fit` reads."""
    rows = []
    for rung in rungs:
        rows.append(
            TrainingRow(
                series=series,
                params=rung.parameters,
                params_no_embed=rung.parameters_no_embed,
                tokens=rung.tokens,
                flops=rung.flops,
                loss=rung.loss,
            )
        )

    return rows


def as_fit(rungs: list[FinishedRung]) -> Runs:
    """Return the rungs as arrays for a fit.

    Raise `ParamsError` if no rung is trained.
    """
    if not rungs:
        raise ParamsError(PhaseMessage.NO_RUNG_TRAINED)
    return as_runs(training_rows(rungs, "ladder"))
