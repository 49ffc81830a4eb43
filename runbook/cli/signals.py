"""Handles signals so that a command releases its locks and jobs before it ends."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import click

from runbook.cli.messages import CliMessage


@contextmanager
def released_by_signals(message: CliMessage = CliMessage.STOPPED_BY_SIGNAL) -> Iterator[None]:
    """Let a signal that ends this process unwind the stack, and print one line about it.

    Locks are then released, and jobs are removed from the queue. The exit code belongs to the
    signal (143 for SIGTERM).
    """
    # The import is here because it takes 40 ms, and --help does not need it.
    from runbook.records.engine.execution_end import NotebookStopped, ending_in_order

    try:
        with ending_in_order():
            yield
    except NotebookStopped as stopped:
        # A terminal that was closed, which sends SIGHUP, takes no line.
        with suppress(OSError):
            click.echo(message.fill(signal=signal.Signals(stopped.number).name), err=True)
        raise
