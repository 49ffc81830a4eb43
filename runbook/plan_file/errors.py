"""Errors that end training, each with the exit code a job script uses."""

from __future__ import annotations

from collections.abc import Mapping

from runbook.plan_file.diagnostics import Message, Statement

FINISHED = 0
FAILED = 1
REFUSED = 2
CANNOT_REHEARSE = 3
"""Exit code used by `python -m runbook.training.rehearsal` if the installed packages cannot tell
whether the job would work.
"""
STOPPED = 75
"""Exit code after training has saved and stopped because of a signal or the time limit
(EX_TEMPFAIL).

Running the same command again continues the training.
"""


class CodedError(Exception):
    """An error with a message and values, or with plain text.

    The text is for display only. Programs and tests use `message` and `values`.
    """

    def __init__(self, message: Message | Statement | str, /, **values: object) -> None:
        if isinstance(message, Statement):
            values = dict(message.values)
            message = message.message

        # Exceptions are stored as text, since not every exception can be pickled and sent to
        # another process.
        plain_values = {
            name: str(value) if isinstance(value, BaseException) else value
            for name, value in values.items()
        }
        self.message: Message | None = None
        """The error message, or None if the error has plain text."""
        self.values: Mapping[str, object] = plain_values
        """Values for the message, by name."""
        if isinstance(message, Message):
            self.message = message
            super().__init__(message.fill(**plain_values))
        else:
            super().__init__(message)

    @property
    def code(self) -> str:
        """Return the name that programs use for the error message; empty for plain text."""
        return self.message.code if self.message is not None else ""


class TrainingError(CodedError):
    """Raised if training cannot continue. Only the error text is shown."""

    exit_code = FAILED
    on_all_ranks = False
    """Whether every rank has the same error, and only rank 0 needs to show it."""


class RefusedError(TrainingError):
    """Raised if the requested training is impossible.

    This error is raised before the first step, when nothing has been changed yet.
    """

    exit_code = REFUSED
    on_all_ranks = True
