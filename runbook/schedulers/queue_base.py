"""What each kind of queue answers, and how it says that it does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from runbook.errors import JobError
from runbook.render.folder import JobFolder
from runbook.schedulers.base import State

SUBMIT_SECONDS = 60.0
"""A submission takes no longer."""


class QueueSilentError(JobError):
    """The queue did not answer: whatever was asked is not known."""


class LostAnswerError(JobError):
    """A submission whose answer did not come: the job may be in the queue or not."""


@dataclass(frozen=True)
class QueueJob:
    """What a queue says of one job."""

    job: str
    state: State
    word: str
    """The queue's own word for the state."""
    reason: str
    exit_code: int | None = None
    partition: str = ""
    nodes: str = ""
    token: str = ""
    """What the job was marked with when it was submitted."""


class Queue(Protocol):
    """The programs of one kind of queue; each question raises `QueueSilentError` where the queue does not answer."""

    kind: str

    def refuse(self, script: str) -> None:
        """Raise `JobError` where a script asks for what the queue cannot give."""

    def submit(self, folder: JobFolder, token: str, after: Sequence[str]) -> str:
        """Submit job.sh, marked with the token, to start when the jobs `after` are done; returns the queue's id.

        `LostAnswerError` where it is not known whether it was taken, `JobError` where it was refused.
        """

    def find(self, folder: JobFolder, token: str) -> str | None:
        """The id of the job with that mark, or None if the queue has none."""

    def ask(self, job: str) -> QueueJob | None:
        """What the queue, or else its history, says of a job; None if neither knows it."""

    def end(self, job: str) -> None:
        """Take a job out of the queue, or end it with all its processes."""

    def send(self, job: str, signal_name: str) -> None:
        """Send a signal to a job's processes."""

    def queues(self, names: Sequence[str]) -> list[dict[str, str]]:
        """What is free in some partitions, a row each; which columns depends on the queue."""
