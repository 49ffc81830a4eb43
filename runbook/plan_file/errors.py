"""Errors that end a training, each with the exit code that a job script acts on."""

from __future__ import annotations

from collections.abc import Mapping

from runbook.plan_file.diagnostics import Message, Statement

FINISHED = 0
FAILED = 1
REFUSED = 2
CANNOT_REHEARSE = 3
"""Exit code of `python -m runbook.training.rehearsal` if the installed packages cannot show whether
the job would work.
"""
STOPPED = 75
"""Saved and stopped by a signal or by the time limit. The same command continues from there
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

        # Any other error is kept as text, because not every error can be sent to another process.
        plain_values = {
            name: str(value) if isinstance(value, BaseException) else value
            for name, value in values.items()
        }
        self.message: Message | None = None
        """Return the subject of the error, or None if it was made of plain text."""
        self.values: Mapping[str, object] = plain_values
        """Return the values by the names that the message's text uses."""
        if isinstance(message, Message):
            self.message = message
            super().__init__(message.fill(**plain_values))
        else:
            super().__init__(message)

    @property
    def code(self) -> str:
        """Return the name of its message, as programs write it; empty for plain text."""
        return self.message.code if self.message is not None else ""


class TrainingError(CodedError):
    """Raised if the training cannot continue. Only its text is shown."""

    exit_code = FAILED
    on_all_ranks = False
    """Whether every rank has the same error, so that only rank 0 needs to show it."""


class RefusedError(TrainingError):
    """Raised if the requested training is impossible.

    It is raised before the first step, and nothing was changed.
    """

    exit_code = REFUSED
    on_all_ranks = True
