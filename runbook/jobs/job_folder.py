"""Job folders, their files, job states, and the operations common to all schedulers."""

from __future__ import annotations

import json
import math
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pydantic import ConfigDict, TypeAdapter

from runbook.core.errors import JobError
from runbook.core.files import read_json_record, write_text
from runbook.core.locks import hold_file
from runbook.core.processes import Identity, boot_id, uptime_seconds
from runbook.jobs.messages import JobMessage, JobReason
from runbook.plan_file.errors import STOPPED
from runbook.plan_file.job_ends import JobState as JobState


class _File:
    """Descriptor that gives the path to a file in a job folder."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, folder: JobFolder, owner: type[JobFolder]) -> Path:
        return folder.path / self.name


@dataclass(frozen=True)
class JobFolder:
    """A folder jobs/<phase>[-n] in a run folder, with the submitted files and the job records."""

    path: Path

    # The script exactly as it was submitted
    script = _File("job.sh")
    # The arguments for the training program, as a list
    arguments = _File("arguments.json")
    # Written by the submitter: id, host, process, time
    record = _File("job.json")
    out = _File("out")
    err = _File("err")
    # Written before the submission: the folders of the jobs that must succeed first, one per line
    after = _File("after")
    # Written by the job at its start: its process and machine
    started = _File("started")
    # Written by the job every few seconds: the time, and the seconds since the machine was booted
    heartbeat = _File("heartbeat")
    # Exists only in a queue: the allocated hosts, one per line
    hostfile = _File("hostfile")
    # Written by the submitter: the ids of all queued jobs that share this folder, one per line
    chain = _File("chain")
    # The decision after the newest attempt of a job in a chain or with spare nodes; see next_job
    decision = _File("decision")
    # The exit code from rank 0; in a queued job, rank 0 writes it itself
    rank_0 = _File("rank-0")
    # The first rank whose program a signal ended, and the signal; that rank writes it if the job is
    # in a queue
    rank_signal = _File("rank-signal")
    timed_out = _File("timed_out")  # Exists once the job has run out of walltime
    reason = _File("reason")  # One sentence about how the job ended
    # The signal number if a signal ended a rank; otherwise the file is absent
    signal = _File("signal")
    exit_code = _File("exit_code")  # Written by rename, as the last action of the job
    # Created on any host, as a message to the job:
    cancelled = _File("cancelled")
    # Asks a queued job to save and stop; every rank on every node sees it
    stop = _File("stop")
    # Exists if a user asked the job to stop, so that watchers do not resume it
    stop_requested = _File("stop_requested")
    # Exists while a watcher waits before submitting the next job: see watcher_wait
    watcher_waits = _File("watcher_waits")
    # Exists once every process left over from a LOST local job has been ended
    nothing_left = _File("nothing_left")

    def __post_init__(self) -> None:
        # Make the path absolute, so that it stays valid if this process changes its working
        # directory.
        object.__setattr__(self, "path", self.path.absolute())

    @property
    def run_folder(self) -> Path:
        """Return the run folder, which is the job's working directory."""
        return self.path.parent.parent

    def decision_kept_for(self, job_id: str) -> Path:
        """Return the path to which the next job of a chain moves the decision file."""
        return self.path / f"{self.decision.name}.{job_id}"

    def was_submitted(self) -> bool:
        """Return whether a job was ever submitted from this folder, by the runbook or by hand."""
        return self.record.exists() or self.started.exists()


ACTIVE = frozenset({JobState.PENDING, JobState.RUNNING})
"""The states in which a job may still change files in its run folder."""
WORST_FIRST = (
    JobState.FAILED,
    JobState.TIMEOUT,
    JobState.LOST,
    JobState.CANCELLED,
    JobState.STOPPED,
    JobState.DONE,
)
"""The states in which jobs end, from worst to best.

An array takes the worst state among its elements.
"""


@dataclass(frozen=True)
class JobStatus:
    """The status of a job at one point in time."""

    state: JobState
    job_id: str
    exit_code: int | None
    reason: str
    started: float | None = None
    """Unix time at which the job started, by the clock on the machine that runs it."""
    ended: float | None = None
    signal: int | None = None
    """The signal number, if the job ended because a signal killed a rank."""

    @property
    def final(self) -> bool:
        """Whether the job has reached its final state."""
        return self.state not in ACTIVE and self.state is not JobState.UNKNOWN


@dataclass(frozen=True)
class EarlierJob:
    """An ended job from the same phase."""

    folder: JobFolder
    status: JobStatus


def next_job_folder(run_folder: Path, phase: str) -> JobFolder:
    """Return the folder for the next job in a phase, but do not create it.

    It is jobs/<phase>, then -2, -3 and so on. A folder whose job was never submitted is reused.
    """
    number = 1
    while (folder := _job_folder(run_folder, phase, number)).was_submitted():
        number += 1
    return folder


def latest_job_folder(run_folder: Path, phase: str) -> JobFolder | None:
    """Return the folder for the newest submitted job in a phase, or None."""
    submitted = submitted_job_folders(run_folder, phase)
    return submitted[-1] if submitted else None


def submitted_job_folders(run_folder: Path, phase: str) -> list[JobFolder]:
    """Return all submitted jobs for a phase, oldest first."""
    numbers = [1]
    for path in (run_folder / "jobs").glob(f"{phase}-*"):
        suffix = path.name.removeprefix(f"{phase}-")
        if suffix.isascii() and suffix.isdigit() and suffix == str(int(suffix)):
            numbers.append(int(suffix))

    folders = [_job_folder(run_folder, phase, number) for number in sorted(numbers)]
    return [folder for folder in folders if folder.was_submitted()]


def _job_folder(run_folder: Path, phase: str, number: int) -> JobFolder:
    return JobFolder(run_folder / "jobs" / (phase if number == 1 else f"{phase}-{number}"))


FUTURE_SECONDS = 60.0
"""Seconds by which a heartbeat from another machine may lie in the future, as clocks differ."""

FRESH_SECONDS = 120.0
"""Seconds after a heartbeat during which a job counts as running, whatever the queue reports.

Network file systems may show changes up to 60 s late.
"""


@dataclass(frozen=True)
class Started:
    """The record that a job writes at its start."""

    job_id: str
    identity: Identity
    time: float


_IDENTITY = TypeAdapter(Identity)


def read_started(folder: JobFolder) -> Started | None:
    """Return the record that a job wrote at its start.

    Return None if it is missing or incomplete.
    """
    lines = (line.partition(" ") for line in read_text(folder.started).splitlines())
    content = {key: value for key, _, value in lines}
    try:
        return Started(content["job"], _IDENTITY.validate_python(content), float(content["time"]))
    except (KeyError, ValueError):
        return None


@dataclass(frozen=True, kw_only=True)
class JobRecord:
    """The record stored in job.json.

    The submitter writes it before the submission, and again with the job id afterwards.
    """

    __pydantic_config__ = ConfigDict(allow_inf_nan=False)
    job_id: str
    kind: str = ""
    submitted: float = 0.0
    """Unix time at which the job was submitted."""
    host: str = ""
    token: str = ""
    """Token by which the job can be found in the queue if its submission was interrupted."""
    queue_id: str = ""
    boot_id: str = ""
    uptime: float = 0.0
    process: Identity | None = None

    def write(self, folder: JobFolder) -> JobRecord:
        """Write job.json, leaving out unknown values."""
        known_values = {}
        for name, value in asdict(self).items():
            if value or name == "job_id":
                known_values[name] = value

        text = json.dumps({"schema": 1, **known_values}, indent=2) + "\n"
        write_text(folder.record, text, error=JobError)
        return self


def read_record(folder: JobFolder) -> JobRecord | None:
    """Load the record from job.json.

    Return None if the file is missing, or was left empty when the machine crashed.
    """
    if not read_text(folder.record):
        return None
    remedy = "It was edited by hand, or the disk is damaged."
    return read_json_record(
        folder.record,
        JobRecord,
        "the record of a job",
        remedy,
        JobError,
    )


BEAT_SECONDS = 5
"""Seconds between two heartbeats from a job.

For the heartbeats of ranks, see `training/health/heartbeat.py`.
"""


def heartbeat_age(folder: JobFolder) -> float | None:
    """Return the seconds since the job's last heartbeat.

    Return None if there was no heartbeat, or if its time is too far ahead of our clock. If the
    heartbeat was written on this machine since its last boot, uptimes are compared, because clock
    changes do not affect them. Between machines, only clock times can be compared.
    """
    try:
        unix_time, uptime, writer_boot_id = read_text(folder.heartbeat).split()
        if writer_boot_id == boot_id():
            age = uptime_seconds() - float(uptime)
        else:
            age = time.time() - float(unix_time)
    except ValueError:
        return None

    if not math.isfinite(age) or age <= -FUTURE_SECONDS:
        return None
    return max(0.0, age)


def last_seen(folder: JobFolder) -> float | None:
    """Return when the job last wrote a heartbeat, by the clock on the machine that runs it.

    If there was none since the job started, return the start time.
    """
    start = read_started(folder)
    try:
        beat_time = float(read_text(folder.heartbeat).split()[0])
    except (ValueError, IndexError):
        return start.time if start else None

    return beat_time if math.isfinite(beat_time) else None


def read_end(folder: JobFolder, job_id: str) -> JobStatus | None:
    """Return the status of a job that has written its exit code, or None if it has not done so."""
    code = _whole_number(read_text(folder.exit_code))
    if code is None:
        return None
    state = _end_state(folder, code)
    reason = read_text(folder.reason).strip() or JobReason.EXIT_CODE.fill(code=code)
    status = status_by_files(folder, job_id, state, reason)
    signal = _read_signal(folder, code) if state is JobState.FAILED else None
    return replace(status, exit_code=code, ended=_exit_time(folder), signal=signal)


COPIED_SECONDS = 300.0
"""A file whose modification time differs by more from the time in it was copied.

File servers' clocks may differ from the node's by less.
"""


def _exit_time(folder: JobFolder) -> float:
    """Return when the exit code was written, or the last heartbeat if the folder was copied.

    A copy gets new modification times, so a job of a minute seemed to have run until the copy.
    """
    written = folder.exit_code.stat().st_mtime
    start = read_started(folder)
    if start is None or not folder.heartbeat.exists():
        return written
    if abs(folder.started.stat().st_mtime - start.time) < COPIED_SECONDS:
        return written
    return last_seen(folder) or written


def _end_state(folder: JobFolder, code: int) -> JobState:
    # A job that succeeded before a request to cancel reached it is done. One that failed counts as
    # cancelled.
    if code == 0:
        return JobState.DONE
    if folder.cancelled.exists():
        return JobState.CANCELLED
    if folder.timed_out.exists():
        return JobState.TIMEOUT
    if code == STOPPED:
        return JobState.STOPPED
    return JobState.FAILED


def signal_of_code(code: int | None) -> int | None:
    """Return the signal that a shell exit code stands for.

    Return None if the program ended without a signal.

    >>> signal_of_code(137), signal_of_code(1), signal_of_code(None)
    (9, None, None)
    """
    if code is not None and 128 < code < 256:
        return code - 128
    return None


def _read_signal(folder: JobFolder, code: int) -> int | None:
    """Return the signal that ended a rank.

    Jobs from older versions did not write the file `signal`, so their exit codes are used.
    """
    if folder.signal.exists():
        return _whole_number(read_text(folder.signal))
    rank_0_code = _whole_number(read_text(folder.rank_0))
    return signal_of_code(code if rank_0_code is None else rank_0_code)


def _whole_number(text: str) -> int | None:
    digits = text.strip()
    if digits.isascii() and digits.isdigit():
        return int(digits)
    return None


def status_by_files(
    folder: JobFolder,
    job_id: str,
    state: JobState,
    reason: str,
) -> JobStatus:
    """Return a status with this state and with the times recorded in the job folder."""
    began = read_started(folder)
    status = JobStatus(
        state,
        job_id,
        None,
        reason,
        began.time if began else None,
    )
    if status.final:
        return replace(status, ended=last_seen(folder))
    return status


def log_tail(path: Path, count: int = 12) -> list[str]:
    """Return the last lines from a log of any length."""
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - 20_000))
            return stream.read().decode("utf-8", errors="replace").splitlines()[-count:]
    except FileNotFoundError:
        return []


def read_text(path: Path) -> str:
    """Read a file in a job folder; return an empty string if it does not exist."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""


class Scheduler(ABC):
    """Interface to the local machine or to a queue.

    Every operation takes a job folder, so any process can use it at any time. The job's own files
    are read first. The queue is queried only if they do not determine the state. If the queue does
    not answer, the state is UNKNOWN.
    """

    kind: str
    submit_seconds: float
    """Time limit for a submission."""

    def submit(self, folder: JobFolder, *, after: Sequence[JobFolder] = ()) -> str:
        """Submit the folder's job.sh and return the job id.

        If the folder already has an active job, return its id instead of submitting a second job. A
        folder whose job has ended is refused, because its files are needed as evidence. With
        `after`, which only queues support, the job starts once the jobs or arrays in these folders
        have succeeded.
        """
        if not folder.script.is_file():
            raise JobError(JobMessage.SCRIPT_MISSING, script=folder.script)

        with hold_file(
            folder.path / "submit.lock",
            f"submitting {folder.path}",
            wait_seconds=2 * self.submit_seconds,
        ):
            existing_job = self._existing_job(folder) if folder.was_submitted() else None
            if existing_job and existing_job.state in ACTIVE:
                return existing_job.job_id
            if existing_job:
                raise JobError(
                    JobMessage.FOLDER_HOLDS_JOB,
                    folder=folder.path,
                    state=existing_job.state,
                    reason=existing_job.reason,
                )

            return self._start(folder, self._earlier_jobs(folder), after)

    def _earlier_jobs(self, folder: JobFolder) -> list[EarlierJob]:
        """Return the other jobs for the same phase, each with its final status.

        Raise `JobError` if one of them has not ended.
        """
        phase = re.sub(r"-\d+$", "", folder.path.name)
        folders = submitted_job_folders(folder.run_folder, phase)
        earlier_jobs = []
        for job in folders:
            if job.path == folder.path:
                continue

            status = self.state(job)
            if not status.final:
                raise JobError(
                    JobMessage.SAME_FILES, job=job.path, state=status.state, reason=status.reason
                )
            earlier_jobs.append(EarlierJob(job, status))

        return earlier_jobs

    def queue_followers(self, folder: JobFolder, count: int) -> list[str]:
        """Queue this many more jobs from a folder, and return their ids.

        Each job starts after the previous one has ended. Raise `JobError` if the scheduler does not
        support chains, or if the queue refuses a job.
        """
        raise JobError(JobMessage.NO_QUEUE_FOR_A_CHAIN, jobs=count + 1)

    def end_followers(self, folder: JobFolder) -> int:
        """Remove the waiting jobs in a chain from the queue, and return how many there were."""
        return 0

    def request_stop(self, folder: JobFolder) -> None:
        """Ask the training processes, not the script around them, to save and stop."""
        status = self.state(folder)
        if status.state not in ACTIVE:
            raise JobError(
                JobMessage.NOT_RUNNING, folder=folder.path, state=status.state, reason=status.reason
            )

        self._request_stop(folder, status)

    @abstractmethod
    def state(self, folder: JobFolder) -> JobStatus:
        """Return the status of the folder's job. Raise `JobError` if no job was ever submitted."""

    @abstractmethod
    def cancel(self, folder: JobFolder, *, grace_seconds: float = 20) -> JobStatus:
        """End the job and everything that it started, first by request and then by force.

        A job that has already ended keeps its state.
        """

    @abstractmethod
    def _existing_job(self, folder: JobFolder) -> JobStatus | None:
        """Return the status of this job, or None if its submission was interrupted."""

    @abstractmethod
    def _start(
        self,
        folder: JobFolder,
        earlier: Sequence[EarlierJob],
        after: Sequence[JobFolder],
    ) -> str:
        """Submit job.sh. `earlier` contains the other jobs for this phase, which have ended."""

    @abstractmethod
    def _request_stop(self, folder: JobFolder, status: JobStatus) -> None:
        """Ask an active job to save and stop."""
