"""Output from commands: text or JSON."""

import json
import os
import sys
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
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
