"""Jobs in any kind of queue.

A job is submitted once. Its state is read from its own files first, and then from the queue.
"""

import os
import re
import secrets
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from runbook.core import processes, shell
from runbook.core.errors import JobError, ProgramError
from runbook.core.files import write_text
from runbook.core.units import show_duration
from runbook.jobs import job_folder, job_request
from runbook.jobs.job_chain import chain_goes_on, chain_of, followers_of
from runbook.jobs.job_folder import (
    ACTIVE,
    EarlierJob,
    JobFolder,
    JobRecord,
    JobState,
    JobStatus,
    Scheduler,
)
from runbook.jobs.job_request import QueueLimits
from runbook.jobs.messages import JobMessage
from runbook.plan_file.errors import STOPPED

SUBMIT_SECONDS = 60.0
"""Time limit for a submission, in seconds."""

ANSWER_SECONDS = 30.0
"""Seconds after which a queue that does not answer counts as unresponsive.

Slurm clients give up earlier (MessageTimeout, 10 s).
"""

RETRY_SECONDS = (1.0, 4.0)
"""Seconds before each further attempt, if a queue is too busy to answer or is being restarted."""

RETRY_UNTIL_SECONDS = 8.0
"""A query is not repeated after this many seconds: Slurm's clients have then tried for 10 s themselves."""

LATE_SECONDS = 180.0
"""How long after an unanswered submission its job may still appear in the queue, in seconds.

sbatch itself gives up after 120 s at the latest (15 retries, each a second later than the last).
"""


class QueueSilentError(JobError):
    """The queue did not answer."""


class LostAnswerError(JobError):
    """A submission was not answered, so it is unknown whether the job is in the queue."""


class UnknownSubmissionError(JobError):
    """The queue did not tell later either whether it has a job whose submission was not answered."""


class NotReachedError(JobError):
    """A submission did not reach the queue, so the job is not in it."""


@dataclass(frozen=True)
class QueueJob:
    """A job as its queue describes it."""

    job: str
    state: JobState
    word: str
    """The state as the queue words it."""
    reason: str = ""
    exit_code: int | None = None
    partition: str = ""
    nodes: str = ""
    token: str = ""
    """The token that the job received at its submission."""


class Queue(ABC):
    """Base class for queues.

    Every query raises `QueueSilentError` if the queue does not answer.
    """

    kind: str
    name: str
    speaker: str
    """The program that should answer, named in errors about a missing answer."""
    queue_word: str
    """What the queue calls a partition."""
    end_word: str
    programs: tuple[str, ...]
    """Commands the queue must have. The last one ends a job."""
    limits_question: tuple[str, ...]
    job_id_line: re.Pattern[str]
    """Pattern for the line with the job id in the answer to a submission.

    The id is the first group.
    """
    unknown_job: tuple[str, ...]
    """Messages that the queue prints if it does not know a job."""
    environment: ClassVar[Mapping[str, str]] = {}
    """Variables for the queue's commands, in place of those that the user has set."""
    broken_off: tuple[str, ...]
    """Phrases printed by a failed submission after which the job may be in the queue anyway.

    A query with such an answer is repeated. Messages about a failed connection are not included.
    """
    unreached: tuple[str, ...] = ()
    """Phrases printed by a command that could not connect to the queue."""
    full: tuple[str, ...] = ()
    """Phrases printed by a submission that waits because the queue holds too many jobs."""

    def refuse(self, script: str) -> None:
        """Raise `JobError` if a script requests more than the queue allows at present."""
        missing = [name for name in self.programs if shutil.which(name) is None]
        if missing:
            raise JobError(JobMessage.NO_LOGIN_NODE, missing=", ".join(missing), name=self.name)

        problem = JobMessage.QUEUES_UNKNOWN.fill(speaker=self.speaker, queue_word=self.queue_word)
        limits = self.parse_limits(
            self.answer(*self.limits_question, problem=problem, error=JobError)
        )
        request = job_request.parse_job_request(script)
        problems = job_request.request_problems(request, limits, self.queue_word)
        if problems:
            text = "; ".join(problems)
            raise JobError(JobMessage.REQUEST_NOT_POSSIBLE, text=text)

    def submit(
        self,
        folder: JobFolder,
        token: str,
        after: Sequence[str],
        follows: str = "",
    ) -> str:
        """Submit job.sh with the token, and return the job id that the queue assigned.

        The job starts once the jobs in `after` have succeeded, or once the job `follows` has ended,
        however it ended. Raise `LostAnswerError` if it is unknown whether the queue accepted the
        job, `NotReachedError` if it could not be asked, and `JobError` if it refused the job.
        """
        argv, env = self.submission(token, after, follows)
        env |= dict.fromkeys(self.overriding_variables(folder.script.read_text(), os.environ))
        try:
            argv = [*argv, folder.script.name]
            ended = shell.run(
                argv,
                cwd=folder.path,
                env=env,
                timeout=SUBMIT_SECONDS,
                check=False,
            )
        except ProgramError as error:
            raise LostAnswerError(JobMessage.ANSWER_LOST, program=argv[0], error=error) from error

        number = self.parse_job_id(ended.out)
        if number and not ended.exit_code:
            return number
        last_words = self._last_words(ended)
        is_broken_off = any(sign in ended.err for sign in self.broken_off)
        if not ended.exit_code or is_broken_off:
            raise LostAnswerError(JobMessage.NO_JOB_ID, program=argv[0], last_words=last_words)
        if any(sign in ended.err for sign in self.unreached):
            raise NotReachedError(
                JobMessage.QUEUE_NOT_REACHED, speaker=self.speaker, last_words=last_words
            )
        inherited = {name: value for name, value in os.environ.items() if name not in env}
        variables = self.other_variables(inherited)
        if variables:
            names = ", ".join(variables)
            last_words += JobMessage.VARIABLES_READ.fill(program=argv[0], variables=names)
        raise JobError(
            JobMessage.JOB_REFUSED, name=self.name, folder=folder.path, last_words=last_words
        )

    def other_variables(self, environment: Mapping[str, str]) -> list[str]:
        """Return the variables by which a shell changes each submission, with their values."""
        return []

    def overriding_variables(self, script: str, environment: Mapping[str, str]) -> list[str]:
        """Return environment variables that would override requests in the job script."""
        return []

    def parse_job_id(self, text: str) -> str:
        """Return the id that the queue printed after a submission, or an empty string."""
        for line in reversed(text.splitlines()):
            match = self.job_id_line.fullmatch(line.strip())
            if match:
                return match[1]

        return ""

    def answer(
        self,
        *argv: str,
        accept: Sequence[str] = (),
        problem: str = "",
        error: type[JobError] = QueueSilentError,
    ) -> str:
        """Run one of the queue commands, and return its output.

        Raise `error` if the command fails, unless its stderr contains one of the texts in `accept`.
        The command changes nothing if it runs twice: it is repeated if the queue was too busy.
        """
        last_start = time.monotonic() + RETRY_UNTIL_SECONDS
        ended = self.run_once(*argv)
        passing_signs = (*self.broken_off, *self.unreached)
        for seconds in RETRY_SECONDS:
            is_passing = any(sign in ended.err for sign in passing_signs)
            is_late = time.monotonic() > last_start
            if not ended.exit_code or not is_passing or is_late:
                break
            time.sleep(seconds)
            ended = self.run_once(*argv)

        is_accepted = any(sign in ended.err for sign in accept)
        if ended.exit_code and not is_accepted:
            summary = problem or JobMessage.QUEUE_SILENT.fill(speaker=self.speaker)
            raise error(f"{summary} {self._last_words(ended)}")

        return ended.out

    def run_once(self, *argv: str) -> shell.Finished:
        """Run one of the queue commands. Raise `QueueSilentError` if it does not end in time."""
        try:
            return shell.run(argv, timeout=ANSWER_SECONDS, env=self.environment, check=False)
        except ProgramError as silent:
            raise QueueSilentError(str(silent)) from silent

    def end(self, job: str) -> None:
        """Remove a waiting job from the queue, or end a running job and all its processes.

        The queue sends TERM, and then KILL after a delay that it chooses.
        """
        problem = f"{self.name} did not {self.end_word} job {job}."
        self.answer(
            self.programs[-1],
            job,
            accept=self.unknown_job,
            problem=problem,
            error=JobError,
        )

    def _last_words(self, ended: shell.Finished) -> str:
        text = shell.last_lines(ended.err or ended.out, 6)
        ending = self.ending(ended.exit_code)
        return JobMessage.PROGRAM_ANSWERED.fill(
            program=ended.argv[0], ending=ending, last_words=text or "nothing"
        )

    def ending(self, exit_code: int) -> str:
        """Describe how a command ended."""
        return shell.how_it_ended(exit_code)

    @abstractmethod
    def parse_limits(self, text: str) -> list[QueueLimits]:
        """Parse the answer to `limits_question`."""

    @abstractmethod
    def submission(
        self,
        token: str,
        after: Sequence[str],
        follows: str = "",
    ) -> tuple[list[str], dict[str, str | None]]:
        """Return the command to submit job.sh, and changes to its environment."""

    @abstractmethod
    def find(self, folder: JobFolder, token: str) -> str | None:
        """Find the job with this token, and return its id, or None if the queue has no such job."""

    @abstractmethod
    def ask(self, job: str) -> QueueJob | None:
        """Return a job as described by the queue or its history, or None if neither knows it."""

    @abstractmethod
    def queues(self, names: Sequence[str]) -> list[dict[str, str]]:
        """Return the free resources in each partition, one row per partition.

        The columns depend on the queue.
        """


ALIVE_SECONDS = 4.0 * job_folder.BEAT_SECONDS
"""Seconds after a heartbeat during which a job counts as running, without a query to the queue."""

ASK_SECONDS = 5.0
"""Minimum seconds between two queries about the same job, because everyone shares the queue."""

COMPLETING_SECONDS = 600.0
"""Seconds within which a queue cleans up after a job.

After that, a job counts as ended even if the cleanup hangs on a node.
"""

CLEANUP_SECONDS = 300.0
"""Seconds within which the process starter ends after rank 0 has ended.

Before the starter ends, pyxis removes the unpacked image from each node.
"""

REQUEUED_SECONDS = 3600.0
"""How long after the end of an unfinished job the queue may still restart it, in seconds."""


@dataclass(frozen=True)
class _SignOfLife:
    """The last heartbeat from a job, or the most recent one from any element of an array."""

    start: job_folder.Started | None
    """The record that the job wrote at its start; None if it has not started."""
    age_seconds: float | None
    """Seconds since the last heartbeat; None if no heartbeat has a usable time."""

    @property
    def is_alive(self) -> bool:
        """Return whether the heartbeat is so recent that the queue need not be queried."""
        return self.age_seconds is not None and self.age_seconds < ALIVE_SECONDS

    @property
    def is_fresh(self) -> bool:
        """Return whether the job counts as running, whatever the queue reports."""
        return self.age_seconds is not None and self.age_seconds < job_folder.FRESH_SECONDS

    @property
    def text(self) -> str:
        """Describe how old the heartbeat is."""
        if self.age_seconds is None:
            return JobMessage.NO_DATED_SIGN_OF_LIFE.fill()
        return f"seen {show_duration(self.age_seconds)} ago"


def _read_sign_of_life(folder: JobFolder) -> _SignOfLife:
    parts = job_request.element_folders(folder) or [folder]
    heartbeat_ages = map(job_folder.heartbeat_age, parts)
    known_ages = [age for age in heartbeat_ages if age is not None]
    return _SignOfLife(job_folder.read_started(folder), min(known_ages, default=None))


class QueueScheduler(Scheduler):
    """Scheduler for jobs in a queue, each identified by its folder.

    Any process on any machine can query the state of a job.
    """

    submit_seconds = SUBMIT_SECONDS

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.kind = queue.kind
        self._answers: dict[str, tuple[float, QueueJob | None]] = {}

    def state(self, folder: JobFolder) -> JobStatus:
        """Read the job state from the job folder, the queue, or the queue history.

        Raise `JobError` if no job was submitted. If none of these sources knows the job, its state
        is UNKNOWN.
        """
        if not folder.was_submitted():
            raise JobError(
                JobMessage.NO_JOB_SUBMITTED, folder=folder.path, record_name=folder.record.name
            )

        try:
            number = self._number(folder)
        except QueueSilentError as silent:
            return self._status(folder, "", JobState.UNKNOWN, str(silent))

        if not number:
            return self._status_without_id(folder)
        status = self._status_of_newest(folder, number)
        if not status.final:
            return status
        follower = self._waiting_follower(folder, status)
        # The next job in the chain started while the queue was being queried.
        if self._number(folder) != number:
            return self.state(folder)
        return follower or status

    def _status_of_newest(self, folder: JobFolder, number: str) -> JobStatus:
        """Return the status of a folder's last started job, or of its first job if none started."""
        end = job_request.array_end(folder, self._id(number))
        if end:
            return self._unless_requeued(folder, number, end)
        status = self._status_by_queue(folder, number)
        if not status.final:
            return status
        # The job may have ended while the queue was being queried; its own exit code takes
        # precedence.
        return job_request.array_end(folder, self._id(number)) or status

    def queue_followers(self, folder: JobFolder, count: int) -> list[str]:
        """Queue more jobs for a chain.

        Each id is added to the `chain` file immediately.
        """
        record = job_folder.read_record(folder)
        if record is None or not record.queue_id:
            raise JobError(JobMessage.NOTHING_TO_FOLLOW, folder=folder.path)
        numbers = [record.queue_id]
        self._write_chain(folder, numbers)
        for number_in_chain in range(2, count + 2):
            number = self._submit(folder, f"{record.token}-{number_in_chain}", [], numbers[-1])
            numbers.append(number)
            self._write_chain(folder, numbers)

        return [self._id(number) for number in numbers[1:]]

    def end_followers(self, folder: JobFolder) -> int:
        """Remove the waiting jobs in a chain from the queue, and return how many there were."""
        numbers = [follower.partition("-")[2] for follower in followers_of(folder)]
        waiting = []
        for number in numbers:
            job = self._ask(number)
            if job is not None and job.state in ACTIVE:
                waiting.append(number)

        for number in waiting:
            self.queue.end(number)
        return len(waiting)

    def _write_chain(self, folder: JobFolder, numbers: Sequence[str]) -> None:
        ids = "".join(f"{self._id(number)}\n" for number in numbers)
        write_text(folder.chain, ids, error=JobError)

    def _waiting_follower(self, folder: JobFolder, status: JobStatus) -> JobStatus | None:
        """Return the status for the next job in the chain.

        Return None if the chain will not continue. If the queue does not answer, the status is
        UNKNOWN. If the chain then counted as ended, a second training run could start in the same
        folders.
        """
        if not chain_goes_on(folder):
            return None
        for follower in followers_of(folder):
            number = follower.partition("-")[2]
            try:
                job = self._ask(number)
            except JobError as silent:
                return self._status(folder, number, JobState.UNKNOWN, str(silent))

            if job is not None and job.state in ACTIVE:
                reason = JobMessage.CHAIN_STOPS_WAITING.fill(
                    follower=follower, job=job.word, reason=status.reason
                )
                return self._status(folder, number, JobState.PENDING, reason)

        return None

    def _status_without_id(self, folder: JobFolder) -> JobStatus:
        record = job_folder.read_record(folder)
        if record and time.time() - record.submitted < SUBMIT_SECONDS:
            return self._status(folder, "", JobState.PENDING, "being submitted")
        reason = JobMessage.SUBMISSION_CUT_OFF.fill()
        return self._status(folder, "", JobState.LOST, reason)

    def cancel(self, folder: JobFolder, *, grace_seconds: float = 20) -> JobStatus:
        """End the job and return its status.

        A running job is first asked to save. After `grace_seconds`, the queue ends it.
        """
        status = self.state(folder)
        if status.final:
            return status
        number = self._number(folder)
        if not number:
            raise JobError(JobMessage.NOTHING_TO_CANCEL, folder=folder.path, reason=status.reason)

        folder.cancelled.touch()
        for follower in followers_of(folder):
            self.queue.end(follower.partition("-")[2])

        def ended() -> bool:
            return job_request.array_end(folder, "") is not None

        def has_left() -> bool:
            try:
                job = self._ask(number)
            except QueueSilentError:
                return False

            return job is None or job.state not in ACTIVE

        # This also covers a job that has ended and is queued again.
        is_pending = status.state is JobState.PENDING
        if not is_pending:
            processes.wait_until(
                lambda: ended() or folder.rank_0.exists(), grace_seconds, interval=0.5
            )
            if folder.rank_0.exists():
                # Everything that can be saved has been saved, and the queue would only interrupt
                # the cleanup.
                processes.wait_until(ended, CLEANUP_SECONDS, interval=0.5)

        if is_pending or not ended():
            self.queue.end(number)
            self._answers.clear()
            processes.wait_until(lambda: ended() or has_left(), 60, interval=0.5)

        return self.state(folder)

    def _request_stop(self, folder: JobFolder, status: JobStatus) -> None:
        # Every rank sees this file, and saves.
        folder.stop.touch()

    def _start(
        self,
        folder: JobFolder,
        earlier: Sequence[EarlierJob],
        after: Sequence[JobFolder],
    ) -> str:
        self.queue.refuse(folder.script.read_text(encoding="utf-8"))
        dependencies = [self._number(job) for job in after]
        if after:
            # The job itself also checks these dependencies, because queues disagree about when an
            # array has succeeded.
            _write_dependencies(folder, after)

        token = f"runbook-{secrets.token_hex(8)}"
        record = JobRecord(
            job_id="",
            kind=self.kind,
            token=token,
            submitted=time.time(),
            host=processes.host_name(),
        )
        # Write the record first, so that the job can always be found later.
        record.write(folder)
        try:
            number = self._submit(folder, token, dependencies)
        except UnknownSubmissionError:
            raise
        except JobError:
            folder.record.unlink()
            raise

        job_id = self._id(number)
        replace(record, job_id=job_id, queue_id=number).write(folder)
        return job_id

    def _submit(
        self,
        folder: JobFolder,
        token: str,
        after: Sequence[str],
        follows: str = "",
    ) -> str:
        """Submit a job, again if the queue could not be reached, and return its queue id.

        Before each further attempt, the queue must answer that it has no job with this token.
        """
        others = [follows] if follows else []
        unreached: NotReachedError | None = None
        for seconds in (0.0, *RETRY_SECONDS):
            time.sleep(seconds)
            try:
                found = self.queue.find(folder, token) if unreached is not None else None
                return found or self.queue.submit(folder, token, after, *others)
            except LostAnswerError as lost:
                return self._find_lost_job(folder, token, lost)
            except NotReachedError as error:
                unreached = error
            except QueueSilentError:
                continue

        assert unreached is not None
        raise unreached

    def _find_lost_job(
        self,
        folder: JobFolder,
        token: str,
        lost: LostAnswerError,
    ) -> str:
        """Find the queue id for a job whose submission was not answered.

        A busy queue may list the job a few seconds later. Raise `UnknownSubmissionError` if the
        queue does not answer, or does not have the job (yet).
        """
        for seconds in (0.0, *RETRY_SECONDS):
            time.sleep(seconds)
            try:
                number = self.queue.find(folder, token)
            except QueueSilentError as silent:
                raise UnknownSubmissionError(
                    JobMessage.SUBMISSION_UNKNOWN, lost=lost, silent=silent
                ) from lost

            if number is not None:
                return number

        if any(sign in str(lost) for sign in self.queue.full):
            raise UnknownSubmissionError(
                JobMessage.QUEUE_FULL, name=self.queue.name, lost=lost
            ) from lost
        raise UnknownSubmissionError(
            JobMessage.NOT_IN_QUEUE_YET,
            lost=lost,
            token=token,
            wait=show_duration(LATE_SECONDS),
        ) from lost

    def _existing_job(self, folder: JobFolder) -> JobStatus | None:
        record = job_folder.read_record(folder)
        # Raises an error if the queue does not answer
        number = self._number(folder)
        if not number:  # The queue never accepted the job.
            _refuse_while_late(folder, record)
            folder.record.unlink()
            return None

        status = self.state(folder)
        if status.state in ACTIVE and (record is None or not record.job_id):
            record = replace(
                record or JobRecord(job_id=""),
                kind=self.kind,
                job_id=status.job_id,
                queue_id=number,
            )
            record.write(folder)

        return status

    def _number(self, folder: JobFolder) -> str:
        """Return the queue id for the job in this folder.

        Return an empty string if the job is not in the queue.
        """
        record = job_folder.read_record(folder)
        start = job_folder.read_started(folder)
        if start and start.job_id in chain_of(folder)[1:]:
            return start.job_id.partition("-")[2]
        if record and record.queue_id:
            return record.queue_id
        if start:
            return start.job_id.partition("-")[2]
        if record is None:
            return ""
        return self.queue.find(folder, record.token) or ""

    def _id(self, number: str) -> str:
        return f"{self.kind}-{number.partition('.')[0].removesuffix('[]')}"

    def _unless_requeued(
        self,
        folder: JobFolder,
        number: str,
        end: JobStatus,
    ) -> JobStatus:
        """Return the final status, or one that is not final if the queue may restart the job.

        While the queue reports that the job is completing, it may restart the job because a node
        was lost, and two jobs would then train in one folder. If the queue does not answer, the job
        is treated as ended, because a queue that does not answer accepts no second job either.
        """
        age = time.time() - (end.ended or 0.0)
        if end.state in (JobState.DONE, JobState.CANCELLED) or age > REQUEUED_SECONDS:
            return end
        try:
            job = self._ask(number)
        except JobError:
            return end

        if job is None:
            return end
        if job.state is JobState.PENDING:
            return self._status(
                folder, number, JobState.PENDING, JobMessage.QUEUED_AGAIN.fill(reason=end.reason)
            )

        if job.state is JobState.RUNNING and age < COMPLETING_SECONDS:
            reason = JobMessage.PERHAPS_QUEUED_AGAIN.fill(reason=end.reason, job=job.word)
            return self._status(folder, number, JobState.RUNNING, reason)

        return end

    def _status_by_queue(self, folder: JobFolder, number: str) -> JobStatus:
        """Return the status for a job that has not written an exit code.

        The status comes from the heartbeat if that is recent, and otherwise from the queue.
        """
        life = _read_sign_of_life(folder)
        if life.start and life.is_alive:
            reason = f"on {life.start.identity.host}, {life.text}"
            return self._status(folder, number, JobState.RUNNING, reason)

        try:
            job = self._ask(number)
        except QueueSilentError as silent:
            course = life.text if life.start else "not started"
            return self._status(folder, number, JobState.UNKNOWN, f"{course}; {silent}")

        if job is None and life.is_fresh:
            reason = f"the queue does not list the job, but it was {life.text}"
            return self._status(folder, number, JobState.UNKNOWN, reason)

        if job is None:
            return self._status(folder, number, *_forgotten(folder))
        if job.state is JobState.DONE and life.is_fresh:
            # Files written on a different machine arrive late, including the exit code.
            reason = f"the queue reports {job.word}; waiting for its files"
            return self._status(folder, number, JobState.RUNNING, reason)

        if job.state is JobState.DONE:
            unfinished = _unfinished_elements(folder)
        else:
            unfinished = []

        if unfinished:
            # PBS takes an array's exit status from the last element, so all elements are checked.
            reason = f"the queue reports {job.word}, but {', '.join(unfinished)} left no exit code"
            return self._status(folder, number, JobState.LOST, reason)

        return self._status_in_words_of_queue(folder, number, job, life)

    def _status_in_words_of_queue(
        self,
        folder: JobFolder,
        number: str,
        job: QueueJob,
        life: _SignOfLife,
    ) -> JobStatus:
        reasons = [job.word, job.reason]
        if job.partition:
            reasons.append(f"partition {job.partition}")
        if job.nodes:
            reasons.append(f"on {job.nodes}")
        if job.state is JobState.RUNNING and life.start:
            reasons.append(life.text)
        is_stopped = job.state is JobState.FAILED and job.exit_code == STOPPED
        state = JobState.STOPPED if is_stopped else job.state
        status = self._status(folder, number, state, ", ".join(filter(None, reasons)))
        signal = job_folder.signal_of_code(job.exit_code) if state is JobState.FAILED else None
        return replace(status, exit_code=job.exit_code, signal=signal)

    def _ask(self, number: str) -> QueueJob | None:
        now_seconds = time.monotonic()
        asked_at, job = self._answers.get(number, (now_seconds - 2 * ASK_SECONDS, None))
        if now_seconds - asked_at >= ASK_SECONDS:
            job = self.queue.ask(number)
            self._answers[number] = (time.monotonic(), job)

        return job

    def _status(
        self,
        folder: JobFolder,
        number: str,
        state: JobState,
        reason: str,
    ) -> JobStatus:
        return job_folder.status_by_files(folder, self._id(number) if number else "", state, reason)


def _refuse_while_late(folder: JobFolder, record: JobRecord | None) -> None:
    """Raise `JobError` if an unanswered submission is so recent that its job may still appear.

    A controller that is too busy to answer may accept the job after sbatch has given up.
    """
    if record is None:
        return
    age_seconds = time.time() - record.submitted
    if 0 <= age_seconds < LATE_SECONDS:
        raise JobError(
            JobMessage.SUBMISSION_MAY_BE_LATE,
            folder=folder.path,
            age=show_duration(age_seconds),
            wait=show_duration(LATE_SECONDS - age_seconds),
        )


def _unfinished_elements(folder: JobFolder) -> list[str]:
    """Return the names of array elements that have not written an exit code."""
    elements = job_request.element_folders(folder)
    return [element.path.name for element in elements if job_folder.read_end(element, "") is None]


def _write_dependencies(folder: JobFolder, after: Sequence[JobFolder]) -> None:
    """Write one line for each folder whose job must succeed before this job starts.

    Each array element has its own folder.
    """
    lines = []
    for job in after:
        parts = job_request.element_folders(job) or [job]
        lines += [f"{part.path}\n" for part in parts]

    write_text(folder.after, "".join(lines), error=JobError)


def _forgotten(folder: JobFolder) -> tuple[JobState, str]:
    """Return the state and the reason for a job that left the queue without an exit code."""
    if folder.cancelled.exists():
        return JobState.CANCELLED, JobMessage.CANCELLED_AND_FORGOTTEN.fill()
    start = job_folder.read_started(folder)
    last_seen = job_folder.last_seen(folder)
    # State the time when the job was last seen, not its age, so that the text does not change.
    if last_seen is None:
        sighting = "never seen"
    else:
        sighting = time.strftime("last seen %Y-%m-%d %H:%M:%S UTC", time.gmtime(last_seen))

    if start:
        course = f"began on {start.identity.host}, {sighting}"
    else:
        course = "never began"

    return JobState.LOST, JobMessage.FORGOTTEN_BY_QUEUE.fill(course=course)
