"""What every scheduler promises: the states of a job, how it is submitted, watched and ended, where its files lie."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from runbook.errors import JobError
from runbook.render.folder import JobFolder

__all__ = ["ACTIVE", "JobFolder", "JobStatus", "Scheduler", "State", "latest_job_folder", "next_job_folder", "watch"]


class State(StrEnum):
    """Where a job stands; what cannot be known is UNKNOWN and never guessed."""

    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    STOPPED = "stopped"  # saved and ended with exit code 75: a new job goes on from there
    LOST = "lost"  # the machine was started anew, or the job vanished without an exit code
    UNKNOWN = "unknown"


ACTIVE = frozenset({State.PENDING, State.RUNNING})
"""The states in which a job may still change its run's files, as far as is known."""


@dataclass(frozen=True)
class JobStatus:
    """What is known of a job at one moment."""

    state: State
    job_id: str
    exit_code: int | None
    reason: str
    started: float | None = None
    """Unix time by the job's own machine."""
    ended: float | None = None
    heartbeat_age_seconds: float | None = None
    """Time since the job last said that it lives; None: it never did, or the clocks do not fit together."""

    @property
    def final(self) -> bool:
        """Whether the job can not change any more."""
        return self.state not in ACTIVE and self.state is not State.UNKNOWN


class Scheduler(Protocol):
    """One kind of queue. Every question is asked of a job's folder, so that any process can ask it at any time.

    An adapter for a cluster reads the job's own files first (`files.ended`, `files.read_started`,
    `files.heartbeat_age`), asks the queue only for what they cannot say, and answers UNKNOWN when it does not answer.
    """

    kind: str

    def submit(self, folder: JobFolder) -> str:
        """Submit job.sh of the folder and return the job's id; an active job of that folder is found, not doubled.

        A folder whose job has ended is refused: its files are evidence.
        """

    def state(self, folder: JobFolder) -> JobStatus:
        """Where the folder's job stands; `JobError` if none was ever submitted."""

    def cancel(self, folder: JobFolder, *, grace_seconds: float = 20) -> JobStatus:
        """End the job with everything it started, first gently; what had ended before keeps its state."""

    def signal(self, folder: JobFolder, signal_name: str) -> None:
        """Send a signal such as SIGTERM to the training processes, not to the script around them."""


def next_job_folder(run_folder: Path, phase: str) -> JobFolder:
    """The folder for the phase's next job (jobs/<phase>, then -2, -3 ...); nothing is made.

    A folder that was written but never submitted is used again.
    """
    number = 1
    while _was_submitted(folder := _job_folder(run_folder, phase, number)):
        number += 1
    return folder


def latest_job_folder(run_folder: Path, phase: str) -> JobFolder | None:
    """The folder of the phase's newest submitted job, or None."""
    submitted = submitted_job_folders(run_folder, phase)
    return submitted[-1] if submitted else None


def submitted_job_folders(run_folder: Path, phase: str) -> list[JobFolder]:
    """All submitted jobs of a phase, oldest first."""
    numbers = [1]
    for path in (run_folder / "jobs").glob(f"{phase}-*"):
        suffix = path.name.removeprefix(f"{phase}-")
        if suffix.isascii() and suffix.isdigit() and suffix == str(int(suffix)):
            numbers.append(int(suffix))
    folders = [_job_folder(run_folder, phase, number) for number in sorted(numbers)]
    return [folder for folder in folders if _was_submitted(folder)]


def earlier_ends(folder: JobFolder, state: Callable[[JobFolder], JobStatus]) -> list[JobStatus]:
    """How the earlier jobs of the folder's phase ended; `JobError` where one has not: two would destroy their files."""
    phase = re.sub(r"-\d+$", "", folder.path.name)
    ends = []
    for earlier in submitted_job_folders(folder.run_folder, phase):
        if earlier.path == folder.path:
            continue
        status = state(earlier)
        if not status.final:
            raise JobError(
                f"{earlier.path} is {status.state} ({status.reason}), and two jobs would write to the same files. "
                "Wait for it, or end it with `runbook cancel`."
            )
        ends.append(status)
    return ends


def watch(scheduler: Scheduler, folder: JobFolder, *, interval_seconds: float = 1.0) -> Iterator[JobStatus]:
    """The job's status again and again until it has ended; the last one is final. Any process can attach so."""
    while True:
        status = scheduler.state(folder)
        yield status
        if status.final:
            return
        time.sleep(interval_seconds)


def _job_folder(run_folder: Path, phase: str, number: int) -> JobFolder:
    return JobFolder(run_folder / "jobs" / (phase if number == 1 else f"{phase}-{number}"))


def _was_submitted(folder: JobFolder) -> bool:
    return folder.record.exists() or folder.started.exists()
