"""`runbook note`: show the logbook for a run, or add a note to it."""

import sys
from pathlib import Path

import click

from runbook.cli.options import on_run_folder


@click.command()
@on_run_folder
@click.argument("words", metavar="[TEXT]", nargs=-1)
def note(folder: Path, words: tuple[str, ...]) -> None:
    """Add TEXT to the logbook of RUN, even while it runs; `-` reads it from standard input.

    Without TEXT: show the logbook, with the run's own entries and people's notes.
    """
    from runbook.records import logbook

    if words:
        text = sys.stdin.read() if words == ("-",) else " ".join(words)
        click.echo(logbook.add_note(folder, text))
    elif logbook.write_logbook(folder):
        click.echo((folder / logbook.LOGBOOK).read_text(encoding="utf-8"), nl=False)
    else:
        click.echo(f"Nothing has happened in {folder.name} yet.")
