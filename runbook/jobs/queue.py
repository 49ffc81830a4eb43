"""Jobs of every queue: submitted once, known by their own files first and by the queue second."""

import re
import secrets
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

from runbook.core import processes, shell
from runbook.core.errors import JobError, ProgramError
from runbook.core.files import write_text
from runbook.core.units import show_duration
from runbook.jobs import job_folder, job_request
from runbook.jobs.job_folder import ACTIVE, JobFolder, JobRecord, JobState, JobStatus, Scheduler
from runbook.jobs.job_request import QueueLimits

SUBMIT_SECONDS = 60.0
"""A submission takes no longer."""

ANSWER_SECONDS = 30.0
"""A queue that takes longer does not answer. Slurm's clients give up sooner by themselves (MessageTimeout, 10 s)."""


class QueueSilentError(JobError):
    """The queue did not answer: whatever was asked is not known."""


class LostAnswerError(JobError):
    """A submission whose answer did not come: the job may be in the queue or not."""


@dataclass(frozen=True)
class QueueJob:
    """What a queue says of one job."""

    job: str
    state: JobState
    word: str
    """The queue's own word for the state."""
    reason: str = ""
    exit_code: int | None = None
    partition: str = ""
    nodes: str = ""
    token: str = ""
    """What the job was marked with when it was submitted."""


class Queue(ABC):
    """The programs of one kind of queue; each question raises `QueueSilentError` where the queue does not answer."""

    kind: str
    name: str
    speaker: str
    """Who does not answer, in an error."""
    queue_word: str
    """What this kind of queue calls a partition."""
    end_word: str
    programs: tuple[str, ...]
    """The last one ends a job."""
    limits_question: tuple[str, ...]
    job_id_line: re.Pattern[str]
    """The line of a submission's answer that holds the job's id, as its first group."""
    unknown_job: tuple[str, ...]
    """Words of a program that was asked for a job that is not in the queue."""
    broken_off: tuple[str, ...]
    """Words of a submission after which the job may be in the queue; a failed connection is none of them."""

    def refuse(self, script: str) -> None:
        """Raise `JobError` where a script asks for what the queue, as it describes itself now, cannot give."""
        missing = [name for name in self.programs if shutil.which(name) is None]
        if missing:
            raise JobError(
                f"{', '.join(missing)}: on no folder of PATH, so this is not a login node with {self.name}. Go to one, "
                f"or load the module that brings {self.name}. Nothing was submitted."
            )
        problem = f"{self.speaker} does not say which {self.queue_word}s there are, so nothing was submitted."
        limits = self.parse_limits(
            self.answer(*self.limits_question, problem=problem, error=JobError)
        )
        asked = job_request.parse_job_request(script)
        problems = job_request.request_problems(asked, limits, self.queue_word)
        if problems:
            text = "; ".join(problems)
            raise JobError(f"Nothing was submitted: {text}. Change jobs.<phase> in the run file.")

    def submit(self, folder: JobFolder, token: str, after: Sequence[str]) -> str:
        """Submit job.sh, marked with the token, to start when the jobs `after` are done; returns the queue's id.

        `LostAnswerError` where it is not known whether it was taken, `JobError` where it was refused.
        """
        argv, env = self.submission(token, after)
        try:
            argv = [*argv, folder.script.name]
            answer = shell.run(argv, cwd=folder.path, env=env, timeout=SUBMIT_SECONDS, check=False)
        except ProgramError as error:
            raise LostAnswerError(f"The answer of {argv[0]} was lost: {error}") from error
        number = self.parse_job_id(answer.out)
        if number and not answer.exit_code:
            return number
        words = self._last_words(answer)
        if not answer.exit_code or any(sign in answer.err for sign in self.broken_off):
            raise LostAnswerError(f"{argv[0]} did not say whether it submitted the job. {words}")
        raise JobError(
            f"{self.name} refused the job of {folder.path}; nothing was submitted. {words}"
        )

    def parse_job_id(self, text: str) -> str:
        """The id that the queue gave a job, of the words of its submission; empty where there is none."""
        matches = (self.job_id_line.fullmatch(line.strip()) for line in reversed(text.splitlines()))
        return next((match[1] for match in matches if match), "")

    def answer(
        self,
        *argv: str,
        accept: Sequence[str] = (),
        problem: str = "",
        error: type[JobError] = QueueSilentError,
    ) -> str:
        """What a program of the queue says; the error where it fails without one of the words `accept`."""
        try:
            answer = shell.run(argv, timeout=ANSWER_SECONDS, check=False)
        except ProgramError as silent:
            raise QueueSilentError(str(silent)) from silent
        if answer.exit_code and not any(sign in answer.err for sign in accept):
            raise error(
                f"{problem or f'{self.speaker} does not answer.'} {self._last_words(answer)}"
            )
        return answer.out

    def end(self, job: str) -> None:
        """Take a job out of the queue, or end it with all its processes: TERM, and KILL after the queue's own delay."""
        problem = f"{self.name} did not {self.end_word} job {job}."
        self.answer(
            self.programs[-1], job, accept=self.unknown_job, problem=problem, error=JobError
        )

    def _last_words(self, answer: shell.Finished) -> str:
        text = shell.last_lines(answer.err or answer.out, 6)
        return f"{answer.argv[0]} ended with {self.ending(answer.exit_code)} and said: {text or 'nothing'}"

    def ending(self, exit_code: int) -> str:
        """A program's exit code in words."""
        return shell.how_it_ended(exit_code)

    @abstractmethod
    def parse_limits(self, text: str) -> list[QueueLimits]:
        """The answer to `limits_question`."""

    @abstractmethod
    def submission(
        self, token: str, after: Sequence[str]
    ) -> tuple[list[str], dict[str, str | None]]:
        """The command to which job.sh is given, and changes to our environment for it."""

    @abstractmethod
    def find(self, folder: JobFolder, token: str) -> str | None:
        """The id of the job with that mark, or None if the queue has none."""

    @abstractmethod
    def ask(self, job: str) -> QueueJob | None:
        """What the queue, or else its history, says of a job; None if neither knows it."""

    @abstractmethod
    def queues(self, names: Sequence[str]) -> list[dict[str, str]]:
        """What is free in some partitions, a row each; which columns depends on the queue."""


ALIVE_SECONDS = 20.0
"""A job whose sign of life is younger runs, without a question to the queue; it gives one every five seconds."""

ASK_SECONDS = 5.0
"""A queue is asked about the same job no more often: it serves everybody."""

COMPLETING_SECONDS = 600.0
"""A queue has cleaned up after a job by then; a node that hangs in it does not keep the job from having ended."""

CLEANUP_SECONDS = 300.0
"""After rank 0 has ended, its starter has ended by then: pyxis first removes the unpacked image from each node."""

REQUEUED_SECONDS = 3600.0
"""For so long after its end a job that did not finish may be started again by its queue."""


class QueueScheduler(Scheduler):
    """Jobs of a queue, each known by its folder, so that any process on any machine can ask after it."""

    submit_seconds = SUBMIT_SECONDS

    def __init__(self, queue: Queue) -> None:
        self.queue, self.kind = queue, queue.kind
        self._answers: dict[str, tuple[float, QueueJob | None]] = {}

    def state(self, folder: JobFolder) -> JobStatus:
        """Where the job stands: by its own files, then by the queue, then by the queue's history; never a guess."""
        if not folder.was_submitted():
            raise JobError(
                f"No job was submitted from {folder.path}: it has no {folder.record.name}."
            )
        try:
            number = self._number(folder)
        except QueueSilentError as silent:
            return self._status(folder, "", JobState.UNKNOWN, str(silent))
        if not number:
            record = job_folder.read_record(folder)
            if record and time.time() - record.submitted < SUBMIT_SECONDS:
                return self._status(folder, "", JobState.PENDING, "being submitted")
            reason = (
                "its submission was cut off, and the queue has no job with its mark: it never began"
            )
            return self._status(folder, "", JobState.LOST, reason)
        if end := job_request.array_end(folder, self._id(number)):
            return self._unless_requeued(folder, number, end)
        status = self._status_by_queue(folder, number)
        # It may have ended while we asked: its own word counts more.
        return (job_request.array_end(folder, self._id(number)) if status.final else None) or status

    def cancel(self, folder: JobFolder, *, grace_seconds: float = 20) -> JobStatus:
        """End the job: a running one is asked to save first, and after `grace_seconds` the queue ends it."""
        status = self.state(folder)
        if status.final:
            return status
        number = self._number(folder)
        if not number:
            raise JobError(
                f"{folder.path}: {status.reason}. There is no job id that could be cancelled."
            )
        folder.cancelled.touch()

        def ended() -> bool:
            return job_request.array_end(folder, "") is not None

        def has_left() -> bool:
            try:
                job = self._ask(number)
            except QueueSilentError:
                return False
            return job is None or job.state not in ACTIVE

        is_pending = status.state is JobState.PENDING  # also one that waits again after an end
        if not is_pending:
            processes.wait_until(
                lambda: ended() or folder.rank_0.exists(), grace_seconds, interval=0.5
            )
            if (
                folder.rank_0.exists()
            ):  # what there is to save is saved: the queue would only cut the cleaning up short
                processes.wait_until(ended, CLEANUP_SECONDS, interval=0.5)
        if is_pending or not ended():
            self.queue.end(number)
            self._answers.clear()
            processes.wait_until(lambda: ended() or has_left(), 60, interval=0.5)
        return self.state(folder)

    def _request_stop(self, folder: JobFolder, status: JobStatus) -> None:
        folder.stop.touch()  # every rank sees it, and saves

    def _start(
        self, folder: JobFolder, earlier: Sequence[JobStatus], after: Sequence[JobFolder]
    ) -> str:
        self.queue.refuse(folder.script.read_text(encoding="utf-8"))
        dependencies = [self._number(other) for other in after]
        if (
            after
        ):  # the job itself asks them too: what a queue holds to be a good end of an array differs
            parts = [
                part for other in after for part in job_request.element_folders(other) or [other]
            ]
            write_text(folder.after, "".join(f"{part.path}\n" for part in parts), error=JobError)
        token = f"runbook-{secrets.token_hex(8)}"
        record = JobRecord(
            job_id="",
            kind=self.kind,
            token=token,
            submitted=time.time(),
            host=processes.host_name(),
        )
        record.write(folder)  # first: whatever happens next, the job can be found
        try:
            number = self.queue.submit(folder, token, dependencies)
        except LostAnswerError as lost:
            try:
                found = self.queue.find(folder, token)
            except QueueSilentError as silent:
                raise JobError(
                    f"{lost} Whether the job is in the queue is not known: {silent} Submit again later: a job that is "
                    "there is found by its mark, and none is submitted twice."
                ) from lost
            if found is None:
                raise JobError(
                    f"{lost} The queue has no job with the mark {token} yet. Submit again: one that came late is found."
                ) from lost
            number = found
        except JobError:
            folder.record.unlink()
            raise
        job_id = self._id(number)
        replace(record, job_id=job_id, queue_id=number).write(folder)
        return job_id

    def _existing_job(self, folder: JobFolder) -> JobStatus | None:
        record = job_folder.read_record(folder)
        number = self._number(folder)  # raises where the queue does not answer
        if not number:  # the queue never took it
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
        """The queue's id of the folder's job; empty where the queue does not have it."""
        record = job_folder.read_record(folder)
        if record and record.queue_id:
            return record.queue_id
        if began := job_folder.read_started(folder):
            return began.job_id.partition("-")[2]
        return (self.queue.find(folder, record.token) or "") if record else ""

    def _id(self, number: str) -> str:
        return f"{self.kind}-{number.partition('.')[0].removesuffix('[]')}"

    def _unless_requeued(self, folder: JobFolder, number: str, end: JobStatus) -> JobStatus:
        """A job that ended badly may be on its way back into its queue (a node was lost): the queue has to agree.

        While it says that the job is completing, that is not known yet; two jobs would train in one folder. A queue
        that does not answer changes nothing: it takes no second job either.
        """
        age = time.time() - (end.ended or 0.0)
        if end.state in (JobState.DONE, JobState.CANCELLED) or age > REQUEUED_SECONDS:
            return end
        try:
            job = self._ask(number)
        except JobError:
            return end
        if job is not None and job.state is JobState.PENDING:
            return self._status(
                folder, number, JobState.PENDING, f"queued again after: {end.reason}"
            )
        if job is not None and job.state is JobState.RUNNING and age < COMPLETING_SECONDS:
            reason = f"{end.reason}; the queue says {job.word}, so it may be queued again"
            return self._status(folder, number, JobState.RUNNING, reason)
        return end

    def _status_by_queue(self, folder: JobFolder, number: str) -> JobStatus:
        began = job_folder.read_started(folder)
        elements = job_request.element_folders(folder)
        ages = [
            age
            for part in elements or [folder]
            if (age := job_folder.heartbeat_age(part)) is not None
        ]
        age = min(ages, default=None)
        if age is not None:
            seen = f"seen {show_duration(age)} ago"
        else:
            seen = "no sign of life that could be dated"
        if began and age is not None and age < ALIVE_SECONDS:
            return self._status(
                folder, number, JobState.RUNNING, f"on {began.identity.host}, {seen}"
            )
        is_fresh = age is not None and age < job_folder.FRESH_SECONDS
        try:
            job = self._ask(number)
        except QueueSilentError as silent:
            return self._status(
                folder, number, JobState.UNKNOWN, f"{seen if began else 'not begun'}; {silent}"
            )
        if job is None and is_fresh:
            return self._status(
                folder, number, JobState.UNKNOWN, f"the queue does not know it, but it was {seen}"
            )
        if job is None:
            return self._status(folder, number, *_forgotten(folder))
        if job.state is JobState.DONE and is_fresh:
            # Files of another machine come late; its own word about its end does too.
            return self._status(
                folder,
                number,
                JobState.RUNNING,
                f"the queue says {job.word}; its files are awaited",
            )
        unfinished = (part.path.name for part in elements if job_folder.read_end(part, "") is None)
        if job.state is JobState.DONE and (names := ", ".join(unfinished)):
            # PBS gives an array its last element's exit status: what each element says of itself counts.
            reason = f"the queue says {job.word}, but {names} left no exit code"
            return self._status(folder, number, JobState.LOST, reason)
        place = (job.partition and f"partition {job.partition}", job.nodes and f"on {job.nodes}")
        parts = (
            job.word,
            job.reason,
            *place,
            seen if job.state is JobState.RUNNING and began else "",
        )
        stopped = job.state is JobState.FAILED and job.exit_code == 75
        state = JobState.STOPPED if stopped else job.state
        status = self._status(folder, number, state, ", ".join(part for part in parts if part))
        signal = job_folder.signal_of_code(job.exit_code) if state is JobState.FAILED else None
        return replace(status, exit_code=job.exit_code, signal=signal)

    def _ask(self, number: str) -> QueueJob | None:
        now = time.monotonic()
        asked, job = self._answers.get(number, (now - 2 * ASK_SECONDS, None))
        if now - asked >= ASK_SECONDS:
            job = self.queue.ask(number)
            self._answers[number] = (time.monotonic(), job)
        return job

    def _status(self, folder: JobFolder, number: str, state: JobState, reason: str) -> JobStatus:
        return job_folder.status_by_files(folder, self._id(number) if number else "", state, reason)


def _forgotten(folder: JobFolder) -> tuple[JobState, str]:
    """State and reason of a job that its queue does not know any more, and that left no exit code."""
    if folder.cancelled.exists():
        return JobState.CANCELLED, "cancelled; the queue does not know it any more"
    began = job_folder.read_started(folder)
    seen = job_folder.last_seen(folder)
    # The moment of its last sign of life: an age would grow for ever.
    if seen is None:
        at = "never seen"
    else:
        at = time.strftime("last seen %Y-%m-%d %H:%M:%S UTC", time.gmtime(seen))
    course = f"began on {began.identity.host}, {at}" if began else "never began"
    return JobState.LOST, f"the queue does not know it any more; it {course} and left no exit code"
