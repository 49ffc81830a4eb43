"""Output from commands: text or JSON."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import click


def show(content: Any) -> None:
    """Print text unchanged, and anything else as JSON."""
    if not isinstance(content, str):
        content = json.dumps(content, indent=1, ensure_ascii=False)
    click.echo(content)


def print_while_read(line: str) -> None:
    """Print a line about work that goes on even if nobody reads about it any longer.

    `runbook run RUN | head` closes the pipe after ten lines. The lines report progress in a
    training run, and the records contain it as well, so a reader who leaves must not end the run.
    Later output from the command is dropped.
    """
    try:
        click.echo(line)
    except BrokenPipeError:
        drop_output()


def drop_output() -> None:
    """Drop what is still to be written to standard output, because its reader has left."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def open_closed_streams() -> None:
    """Replace a standard stream that is closed, as by `>&-` or under some daemons, by /dev/null."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
