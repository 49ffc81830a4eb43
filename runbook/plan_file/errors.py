"""Errors that end a training, each with the exit code that a job script acts on."""

from __future__ import annotations

from collections.abc import Mapping

from runbook.plan_file.diagnostics import Message, Statement

FINISHED = 0
FAILED = 1
REFUSED = 2
CANNOT_REHEARSE = 3
"""Of `python -m runbook.training.rehearsal`: what is installed here cannot say whether the job
would work.
"""
STOPPED = 75
"""Saved and stopped by a signal or by the time limit: the same command goes on from there
(EX_TEMPFAIL).
"""


class CodedError(Exception):
    """An error made of a message and its values, or of plain text.

    Its text is for people. Programs and tests ask for `message` and `values`.
    """

    def __init__(self, message: Message | Statement | str, /, **values: object) -> None:
        if isinstance(message, Statement):
            values = dict(message.values)
            message = message.message

        # Another error is kept as its text: not every error can cross to another process.
        plain_values = {
            name: str(value) if isinstance(value, BaseException) else value
            for name, value in values.items()
        }
        self.message: Message | None = None
        """What the error is about; None where it was made of plain text."""
        self.values: Mapping[str, object] = plain_values
        """Values by the names that the message's text uses."""
        if isinstance(message, Message):
            self.message = message
            super().__init__(message.fill(**plain_values))
        else:
            super().__init__(message)


class TrainingError(CodedError):
    """Training cannot go on; the text is all that is shown."""

    exit_code = FAILED
    on_all_ranks = False
    """Whether every rank has this same error, so that it is enough when rank 0 shows it."""


class RefusedError(TrainingError):
    """What was asked for cannot be trained; said before the first step, and nothing was changed."""

    exit_code = REFUSED
    on_all_ranks = True
