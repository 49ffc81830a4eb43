"""Options that several commands share, and the phase that --phase names."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

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
AT_LEAST_1 = click.IntRange(min=1)
RUNS = click.option("--runs", type=FOLDER, help="Where run folders are (default: runs/).")


def phase_option(words: str) -> Callable[[Command], Command]:
    """`--phase`, which of the two trainings a command is about; `words` say what it takes of it."""
    return click.option("--phase", default="04-training", show_default=True, metavar="PHASE", help=words)


def training_phase(word: str) -> str:
    """The phase that --phase names; an unknown one is wrong usage."""
    from runbook.params.schema.run_file import phase_name

    try:
        return phase_name(word)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
