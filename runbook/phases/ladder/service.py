"""Functions for `runbook ladder` and its notebook.

They plan a ladder, train it, forecast the run and store the results.
"""

import json
import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from runbook.core.errors import ParamsError
from runbook.core.files import replacing, utc_now, write_text
from runbook.core.locks import hold
from runbook.core.table import Table
from runbook.core.units import show_device_hours
from runbook.params import Settings
from runbook.phases.ladder.budget import LadderBudget
from runbook.phases.ladder.climb import FinishedRung, Say, TrainRung, climb, read_finished
from runbook.phases.ladder.forecast_record import RunForecast
from runbook.phases.ladder.ladder_plan import (
    Ladder,
    family_of,
    family_values,
    ladder_folder,
    plan_ladder,
    read_ladder,
    write_ladder,
)
from runbook.phases.ladder.run_forecast import forecast_run
from runbook.phases.ladder.rungs import Family
from runbook.phases.messages import PhaseMessage
from runbook.phases.run_plan import load_plan
from runbook.plan_file.phase_names import FULL
from runbook.plan_file.schema import read_plan
from runbook.planning import Plan
from runbook.records.done_marks import read_mark
from runbook.results.figures.ladder_figure import ForecastPoint, LadderPoint, ladder_figure
from runbook.results.history import read_validation
from runbook.runs.run_folder import runs_folder
from runbook.runs.run_names import named_run
from runbook.runs.this_machine import measure_core_flops

FORECAST_FILE = "forecast.json"
TABLE_FILE = "ladder.csv"
FIGURE_FILE = "ladder.svg"


@dataclass(frozen=True)
class LadderRequest:
    """The options that the user has set."""

    run: str
    set_words: tuple[str, ...] = ()
    name: str = "ladder"
    rungs: int = 0
    """Number of rungs. 0 means the number in the existing ladder, or five for a new ladder."""
    minutes: float = 0.0
    device_hours: float = 0.0
    """Budget for all rungs together.

    The default is 1 % of the run, and at least ten minutes.
    """


@dataclass(frozen=True)
class LadderState:
    """A ladder, its trained rungs, and the forecast if there are enough rungs."""

    ladder: Ladder
    folder: Path
    finished: tuple[FinishedRung, ...]
    forecast: RunForecast | None = None

    def as_dict(self) -> dict[str, object]:
        """Return the state for --json."""
        rungs = []
        for planned in self.ladder.rungs:
            rungs.append(
                {
                    "name": planned.name,
                    **asdict(planned.rung),
                    "planned_seconds": planned.seconds,
                    "planned_device_hours": planned.device_hours,
                    "planned_cost": planned.cost,
                }
            )

        losses = {rung.planned.name: rung.loss for rung in self.finished}
        for rung in rungs:
            rung["loss"] = losses.get(str(rung["name"]))
        return {
            "run": self.ladder.run,
            "parameters": self.ladder.parameters,
            "tokens": self.ladder.tokens,
            "flops": self.ladder.flops,
            "seconds": self.ladder.seconds,
            "device_hours": self.ladder.device_hours,
            "rungs": rungs,
            "forecast": None if self.forecast is None else asdict(self.forecast),
            "notes": self.ladder.notes,
        }


def find_ladder(request: LadderRequest) -> LadderState:
    """Return the existing ladder with this name, or else the one allowed by the budget.

    Nothing is written.
    """
    _refuse_named_folder(request.run)
    settings, plan = load_plan(request.run, request.set_words, measured=True)
    folder = ladder_folder(settings, _prefix(settings, request.name))
    ladder = read_ladder(folder)
    if ladder is None:
        ladder = plan_ladder(
            request.run,
            request.set_words,
            name=request.name,
            count=request.rungs or 5,
            budget_seconds=60 * request.minutes,
            budget_device_hours=request.device_hours,
            measure_core=measure_core_flops,
        )
        return LadderState(ladder, folder, ())

    if request.rungs not in (0, len(ladder.rungs)):
        raise ParamsError(
            PhaseMessage.LADDER_WITH_OTHER_RUNGS,
            folder_name=folder.name,
            number_of_rungs=len(ladder.rungs),
            rungs=request.rungs,
        )

    _refuse_other_budget(request, ladder, settings, folder)
    finished = read_finished(ladder, settings)
    forecast = None
    if len(finished) == len(ladder.rungs):
        forecast = _forecast(ladder, finished, settings, plan)
    return LadderState(ladder, folder, tuple(finished), forecast)


def _refuse_other_budget(
    request: LadderRequest,
    ladder: Ladder,
    settings: Settings,
    folder: Path,
) -> None:
    """Raise an error if the requested budget differs from the one for the existing rungs."""
    devices = settings.job(FULL).devices_per_node
    requested = request.device_hours or request.minutes * devices / 60
    recorded = ladder.budget_device_hours
    if not requested or recorded is None or math.isclose(requested, recorded):
        return
    designed_for = "no stated budget"
    if recorded:
        designed_for = f"a budget of {show_device_hours(recorded)}"
    raise ParamsError(
        PhaseMessage.LADDER_WITH_ANOTHER_BUDGET,
        folder_name=folder.name,
        designed_for=designed_for,
        requested=show_device_hours(requested),
    )


def _refuse_named_folder(run: str) -> None:
    """Raise an error if RUN is a folder made by `--as`, because its rungs would need other names."""
    named = named_run(run)
    if named.as_name:
        raise ParamsError(PhaseMessage.LADDER_OF_A_NAMED_SET, folder_name=run, run=named.run)


RungTrainers = Callable[[Settings, Path], AbstractContextManager[TrainRung]]
"""Returns a context manager that yields a function to train the rungs in this ladder folder.
"""


def climb_ladder(request: LadderRequest, trainers: RungTrainers, say: Say) -> LadderState:
    """Train the remaining rungs, forecast the run, and save the table, the figure and the forecast."""
    started = time.monotonic()
    state = find_ladder(request)
    settings, plan = load_plan(request.run, request.set_words, measured=True)
    state.folder.mkdir(parents=True, exist_ok=True)
    with hold(state.folder, f"runbook ladder {request.run}") as taken_over:
        if taken_over:
            say(taken_over)
        # Another call may have changed the remaining rungs before this one acquired the lock.
        ladder = read_ladder(state.folder) or state.ladder
        if not ladder.designed:
            ladder = write_ladder(ladder, state.folder)
        budget = LadderBudget(
            seconds=_budget_seconds(ladder, settings),
            spent_before=ladder.spent_seconds,
            started=started,
        )
        family = _family_of_ladder(ladder)
        with trainers(settings, state.folder) as train:
            ladder, finished = climb(ladder, family, settings, budget, state.folder, train, say)
        forecast = _forecast(ladder, finished, settings, plan)
        done = LadderState(ladder, state.folder, tuple(finished), forecast)
        _write_results(done, settings)

    return done


def _family_of_ladder(ladder: Ladder) -> Family | None:
    """Return the run that a ladder was planned for.

    Return None if the run file has changed since then: the rungs then stay as planned.
    """
    settings, plan = load_plan(ladder.run, ladder.set_words, measured=True)
    family = family_of(settings, plan)
    planned_for = (ladder.parameters, ladder.tokens, ladder.flops)
    if (family.parameters, family.tokens, family.flops) != planned_for:
        return None
    return family


def _budget_seconds(ladder: Ladder, settings: Settings) -> float | None:
    """Return the wall time requested for all rungs.

    Return None if no time was requested, or if rungs wait in a queue, because waiting uses no
    device-hours.
    """
    if not ladder.budget_device_hours or settings.site.scheduler != "local":
        return None
    return 3600 * ladder.budget_device_hours / settings.job(FULL).devices_per_node


def _prefix(settings: Settings, name: str) -> str:
    if settings.variant:
        return f"{settings.variant}-{name}"
    return name


def _forecast(
    ladder: Ladder,
    finished: Sequence[FinishedRung],
    settings: Settings,
    plan: Plan,
) -> RunForecast:
    family = family_of(settings, plan)
    values = family_values(settings, plan)
    return forecast_run(
        ladder,
        finished,
        family,
        values,
        epochs_of(plan),
    )


def epochs_of(plan: Plan) -> float | None:
    """Return how many times training reads its text, or None if the text size is unknown."""
    available = plan.data.estimated_tokens * plan.data.train_share
    if plan.data.mock or not available:
        return None
    return plan.phases[FULL].duration.tokens / available


def forecast_of_plan(settings: Settings, plan: Plan) -> RunForecast | None:
    """Return the forecast given by the finished ladder for the current plan.

    Return None if there is no such ladder.
    """
    ladder = read_ladder(ladder_folder(settings, _prefix(settings, "ladder")))
    if ladder is None:
        return None
    finished = read_finished(ladder, settings)
    if len(finished) < len(ladder.rungs):
        return None
    return _forecast(ladder, finished, settings, plan)


def figure_of(state: LadderState, settings: Settings) -> Any:
    """Draw the rungs in a ladder and its forecast."""
    points = [LadderPoint(rung.flops, rung.loss) for rung in state.finished]
    forecast = None
    if state.forecast is not None:
        forecast = ForecastPoint(
            flops=state.ladder.flops,
            loss=state.forecast.loss,
            low=state.forecast.low,
            high=state.forecast.high,
            reached=reached_loss(runs_folder(settings.project) / settings.name),
        )

    return ladder_figure(points, forecast, state.ladder.run)


def reached_loss(folder: Path) -> float | None:
    """Return the loss that a run reached.

    Return None if the run was not trained to completion, or was not evaluated after the last step.
    """
    if not read_mark(folder, f"{FULL}--train"):
        return None
    plan = read_plan(folder / "plan.json", FULL)
    evaluations = read_validation(plan.path(plan.log.validation))
    if not evaluations or evaluations[-1].iteration != plan.duration.iterations:
        return None
    return evaluations[-1].loss


def _write_results(state: LadderState, settings: Settings) -> None:
    rows: list[dict[str, object]] = []
    for rung in state.finished:
        rows.append(
            {
                "series": state.ladder.run,
                "params": rung.parameters,
                "params_no_embed": rung.parameters_no_embed,
                "tokens": rung.tokens,
                "flops": rung.flops,
                "loss": rung.loss,
                "extra": rung.planned.name,
            }
        )

    write_text(state.folder / TABLE_FILE, Table(rows).to_csv())
    content = {"made": utc_now(), "run": state.ladder.run, **asdict(state.forecast)}  # type: ignore[arg-type]
    write_text(state.folder / FORECAST_FILE, json.dumps(content, indent=1) + "\n")
    with replacing(state.folder / FIGURE_FILE) as stream:
        from runbook.results.figures.drawing import as_svg

        stream.write(as_svg(figure_of(state, settings)).encode())
