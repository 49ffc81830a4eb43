"""Handles signals so that a command releases its locks and jobs before it ends."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any

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


def ended_in_order(command: Callable[..., Any]) -> Callable[..., Any]:
    """On SIGTERM or SIGHUP, end the programs that a command started before the command itself.

    Otherwise they would continue on their own, as the ranks in `runbook replay` would.
    """

    @wraps(command)
    def call(*args: Any, **options: Any) -> Any:
        with released_by_signals():
            return command(*args, **options)

    return call
