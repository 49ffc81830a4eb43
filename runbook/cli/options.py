"""Options that several commands share, such as those for a run folder or a phase."""

import math
from collections.abc import Callable
from functools import update_wrapper
from pathlib import Path
from typing import Any

import click

from runbook.cli.messages import CliMessage
from runbook.core.errors import ParamsError
from runbook.plan_file.phase_names import FULL, TRAINING_PHASES

Command = Callable[..., Any]

SET = click.option(
    "--set",
    "set_words",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a value, for example training.iterations=10.",
)
FOLDER = click.Path(file_okay=False, path_type=Path)
FILE = click.Path(dir_okay=False, path_type=Path)
EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


class NumberRange(click.FloatRange):
    """A number in a range. The type in click accepts `nan`, which is in no range, and `inf`."""

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:
        """Return the number, or report wrong usage."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a number in the range {self._describe_range()}.", param, ctx)
        return number


AS_JSON = click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object; docs/json.md lists its fields.",
)
WAIT = click.option(
    "--wait",
    "wait_minutes",
    type=click.FloatRange(0.1),
    default=10.0,
    show_default=True,
    metavar="MINUTES",
    help="Cancel the job if it has not started after this time.",
)
AT_LEAST_1 = click.IntRange(min=1)
RUNS = click.option(
    "--runs", type=FOLDER, help="Folder that contains the run folders (default: runs/)."
)


def on_run_folder(command: Command) -> Command:
    """Add RUN and --runs to a command that works on a run folder.

    The command receives the folder as `folder`.
    """

    def call(run_name: str, runs: Path | None, **options: Any) -> Any:
        from runbook.runs.status import run_folder

        return command(folder=run_folder(run_name, runs), **options)

    return click.argument("run_name", metavar="RUN")(RUNS(update_wrapper(call, command)))


def phase_option(
    help_text: str,
    *names: str,
    default: str,
) -> Callable[[Command], Command]:
    """Return an option with these names that takes a phase. An unknown phase is a usage error."""
    settings = {
        "default": default,
        "show_default": bool(default),
        "metavar": "PHASE",
        "help": help_text,
    }
    return click.option(*names, callback=_phase_named, **settings)  # type: ignore[arg-type]


def _phase_named(_: click.Context, option: click.Parameter, word: str) -> str:
    from runbook.params.schema.run_file import phase_name

    try:
        return phase_name(word) if word else ""
    except ValueError as error:
        raise ParamsError(CliMessage.BAD_OPTION, opts=option.opts[0], error=error) from None


def training_phase_option(help_text: str) -> Callable[[Command], Command]:
    """Return the option `--phase`, which takes a phase that trains a model."""
    return click.option(
        "--phase",
        default=FULL,
        show_default=True,
        metavar="PHASE",
        help=help_text,
        callback=_training_phase_named,
    )


def _training_phase_named(context: click.Context, option: click.Parameter, word: str) -> str:
    phase = _phase_named(context, option, word)
    if phase not in TRAINING_PHASES:
        phases = " or ".join(TRAINING_PHASES)
        raise click.UsageError(CliMessage.PHASE_TRAINS_NOTHING.fill(phase=phase, phases=phases))
    return phase


TRAINING_PHASE = training_phase_option("Training phase whose checkpoint is used: 3 or 4.")
ITERATION = click.option(
    "--iteration",
    type=click.IntRange(1),
    help="Use the checkpoint from this step (default: the newest).",
)
