"""`runbook ladder`: train small models from the same family as a run to forecast its loss."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from runbook.cli.messages import CliMessage
from runbook.cli.options import RUNS, SET, NumberRange
from runbook.cli.output import print_while_read
from runbook.cli.signals import released_by_signals

if TYPE_CHECKING:
    from runbook.phases.ladder.service import LadderState


@click.command()
@click.argument("run_name", metavar="RUN")
@click.option(
    "--plan",
    "only_plan",
    is_flag=True,
    help="Show the rungs and their cost; train nothing.",
)
@click.option(
    "--rungs", type=click.IntRange(5, 8), metavar="5..8", help="Number of rungs (default: 5)."
)
@click.option(
    "--minutes",
    type=NumberRange(0.1),
    metavar="M",
    help="Budget for all rungs together, on one node.",
)
@click.option(
    "--device-hours",
    type=NumberRange(0.001),
    metavar="H",
    help="Budget for all rungs together, in device-hours.",
)
@click.option(
    "--as",
    "name",
    default="ladder",
    show_default=True,
    metavar="NAME",
    help="Name of the ladder: its rungs are RUN--NAME-1, RUN--NAME-2 ...",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object: the rungs, their losses, the forecast.",
)
@SET
@RUNS
def ladder(
    run_name: str,
    only_plan: bool,
    rungs: int | None,
    minutes: float | None,
    device_hours: float | None,
    name: str,
    as_json: bool,
    set_words: tuple[str, ...],
    runs: Path | None,
) -> None:
    """Train a ladder of small models from RUN's family, and forecast RUN's loss from them.

    Rungs have RUN's text, tokenizer, sequence length and schedule shape; each is a recorded run.
    The same command continues where it stopped, and trains nothing twice. The default budget is 1%
    of RUN's device-hours, but at least ten minutes.
    """
    from runbook.phases.ladder.service import LadderRequest, climb_ladder, find_ladder
    from runbook.runs.run_folder import RUNS_VARIABLE

    if minutes and device_hours:
        raise click.UsageError("Give the budget in --minutes or in --device-hours, not in both.")
    if runs is not None:
        os.environ[RUNS_VARIABLE] = str(runs.absolute())
    request = LadderRequest(
        run=run_name,
        set_words=set_words,
        name=name,
        rungs=rungs or 0,
        minutes=minutes or 0.0,
        device_hours=device_hours or 0.0,
    )

    # Standard output is reserved for the JSON.
    say = partial(click.echo, err=True) if as_json else print_while_read
    if only_plan:
        state = find_ladder(request)
    else:
        from runbook.phases.ladder.rung_training import rung_trainer

        with released_by_signals(CliMessage.RUN_STOPPED_BY_SIGNAL):
            state = climb_ladder(request, rung_trainer, say)

    if as_json:
        click.echo(json.dumps(state.as_dict(), indent=1))
    else:
        print_while_read(_state_text(state))


def _state_text(state: LadderState) -> str:
    """Return the ladder for a terminal: its plan, then the trained rungs and the forecast."""
    from runbook.phases.ladder.forecast_record import sizes_table
    from runbook.phases.ladder.ladder_plan import plan_table
    from runbook.phases.ladder.run_forecast import rungs_table

    parts = []
    if not state.finished:
        parts.append(plan_table(state.ladder).as_text())
        parts.append(f"Train them: runbook ladder {state.ladder.run}, with the same options.")
    else:
        parts.append(rungs_table(state.finished).as_text())

    forecast = state.forecast
    if forecast is not None:
        parts.append(f"{forecast.as_text()}.")
        if forecast.same_compute:
            parts.append(sizes_table(forecast).as_text())
        parts += [f"Note: {warning}." for warning in forecast.warnings]
        parts.append(f"Table, picture and forecast: {state.folder}")

    return "\n\n".join(parts)
