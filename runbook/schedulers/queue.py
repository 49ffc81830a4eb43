"""What jobs of every queue have in common: submitted once, known by their own files first, by the queue second."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import replace

from runbook.errors import JobError
from runbook.render.folder import JobFolder, write_whole
from runbook.schedulers import elements, files, processes
from runbook.schedulers.base import ACTIVE, JobStatus, State, earlier_ends
from runbook.schedulers.lock import hold_file
from runbook.schedulers.queue_base import SUBMIT_SECONDS, LostAnswerError, Queue, QueueJob, QueueSilentError
from runbook.units import show_duration

ALIVE_SECONDS = 20.0
"""A job whose sign of life is younger runs, without a question to the queue; it gives one every five seconds."""

FRESH_SECONDS = 120.0
"""A job that its queue does not know may still run while its sign of life is younger than this."""

ASK_SECONDS = 5.0
"""A queue is asked about the same job no more often: it serves everybody."""

COMPLETING_SECONDS = 600.0
"""A queue has cleaned up after a job by then; a node that hangs in it does not keep the job from having ended."""

REQUEUED_SECONDS = 3600.0
"""For so long after its end a job that did not finish may be started again by its queue."""


class QueueScheduler:
    """Jobs of a queue, each known by its folder, so that any process on any machine can ask after it."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._answers: dict[str, tuple[float, QueueJob | None]] = {}
        self.kind = queue.kind

    def submit(self, folder: JobFolder, *, after: Sequence[JobFolder] = ()) -> str:
        """Submit the folder's job, or find it: one that is active, or one whose submission was cut off.

        With `after`, it starts when the jobs of those folders, whole arrays too, have ended well.
        """
        folder = JobFolder(folder.path.absolute())
        if not folder.script.is_file():
            raise JobError(f"{folder.script} does not exist: write the job (`write_job`) before submitting it.")
        with hold_file(folder.path / "submit.lock", f"submitting {folder.path}", wait_seconds=2 * SUBMIT_SECONDS):
            if found := self._submitted_before(folder):
                return found
            earlier_ends(folder, self.state)
            self._queue.refuse(folder.script.read_text(encoding="utf-8"))
            dependencies = [self._number(one) for one in after]
            return self._submit(folder, dependencies)

    def state(self, folder: JobFolder) -> JobStatus:
        """Where the job stands: by its own files, then by the queue, then by the queue's history; never a guess."""
        folder = JobFolder(folder.path.absolute())
        if not files.read_record(folder) and not folder.started.exists():
            raise JobError(f"No job was submitted from {folder.path}: it has no {folder.record.name}.")
        try:
            number = self._number(folder)
        except QueueSilentError as silent:
            return self._status(folder, "", State.UNKNOWN, str(silent))
        if not number:
            return self._status(folder, "", *self._half_submitted(folder))
        if end := elements.ended(folder, self._id(number)):
            return self._unless_requeued(folder, number, end)
        status = self._asked(folder, number)
        # It may have ended while we asked: its own word counts more.
        return (elements.ended(folder, self._id(number)) if status.final else None) or status

    def cancel(self, folder: JobFolder, *, grace_seconds: float = 20) -> JobStatus:
        """End the job: a running one is asked to save first, and after `grace_seconds` the queue ends it."""
        folder = JobFolder(folder.path.absolute())
        status = self.state(folder)
        if status.final:
            return status
        number = self._number(folder)
        if not number:
            raise JobError(f"{folder.path}: {status.reason}. There is no job id that could be cancelled.")
        folder.cancelled.touch()
        if status.state is not State.PENDING:
            processes.wait_until(lambda: elements.ended(folder, "") is not None, grace_seconds, interval=0.5)
        if status.state is State.PENDING or elements.ended(folder, "") is None:  # it may wait again after an end
            self._queue.end(number)
            self._answers.clear()
            processes.wait_until(lambda: self._over(folder, number), 60, interval=0.5)
        return self.state(folder)

    def signal(self, folder: JobFolder, signal_name: str) -> None:
        """Send a signal to the training processes. SIGTERM, to save and stop, goes by a file that every rank sees."""
        folder = JobFolder(folder.path.absolute())
        status = self.state(folder)
        if status.state not in ACTIVE:
            raise JobError(
                f"{folder.path} is {status.state} ({status.reason}); only a running job can be sent {signal_name}."
            )
        if signal_name == "SIGTERM":
            folder.stop.touch()
        else:
            self._queue.send(self._number(folder), signal_name)

    def queues(self, names: Sequence[str]) -> list[dict[str, str]]:
        """What the queue says of some of its partitions, as rows of a table."""
        return self._queue.queues(names)

    def _submit(self, folder: JobFolder, dependencies: list[str]) -> str:
        token = f"runbook-{secrets.token_hex(8)}"
        record = {
            "schema": 1,
            "kind": self.kind,
            "job_id": "",
            "token": token,
            "submitted": time.time(),
            "host": processes.host_name(),
        }
        write_whole(folder.record, json.dumps(record, indent=2) + "\n")  # first: whatever happens next, it can be found
        try:
            number = self._queue.submit(folder, token, dependencies)
        except LostAnswerError as lost:
            number = self._after_lost_answer(folder, token, lost)
        except JobError:
            folder.record.unlink()
            raise
        job_id = self._id(number)
        write_whole(folder.record, json.dumps({**record, "job_id": job_id, "queue_id": number}, indent=2) + "\n")
        return job_id

    def _after_lost_answer(self, folder: JobFolder, token: str, lost: LostAnswerError) -> str:
        try:
            found = self._queue.find(folder, token)
        except QueueSilentError as silent:
            raise JobError(
                f"{lost} Whether the job is in the queue is not known: {silent} Submit again later: a job that is "
                "there is found by its mark, and none is submitted twice."
            ) from lost
        if found is None:
            raise JobError(
                f"{lost} The queue has no job with the mark {token} yet. Submit again: one that came late is found."
            ) from lost
        return found

    def _submitted_before(self, folder: JobFolder) -> str:
        """The id of the folder's active job; empty where there is none and never was."""
        record = files.read_record(folder)
        if not record and not folder.started.exists():
            return ""
        number = self._number(folder)  # raises where the queue does not answer
        if not number:  # its submission was cut off before the queue took it
            folder.record.unlink()
            return ""
        status = self.state(folder)
        if status.state not in ACTIVE:
            raise JobError(
                f"{folder.path} holds a job that is {status.state} ({status.reason}); its files are kept as they are. "
                "Submit the next one from the folder that `next_job_folder` names."
            )
        if not record.get("job_id"):
            record |= {"schema": 1, "kind": self.kind, "job_id": status.job_id, "queue_id": number}
            write_whole(folder.record, json.dumps(record, indent=2) + "\n")
        return status.job_id

    def _number(self, folder: JobFolder) -> str:
        """The queue's id of the folder's job; empty where the queue does not have it."""
        record = files.read_record(folder)
        if record.get("queue_id"):
            return str(record["queue_id"])
        if began := files.read_started(folder):
            return began.job_id.partition("-")[2]
        return (self._queue.find(folder, str(record.get("token", ""))) or "") if record else ""

    def _id(self, number: str) -> str:
        return f"{self.kind}-{number.partition('.')[0].removesuffix('[]')}"

    def _half_submitted(self, folder: JobFolder) -> tuple[State, str]:
        if time.time() - float(files.read_record(folder).get("submitted", 0)) < SUBMIT_SECONDS:
            return State.PENDING, "being submitted"
        return State.LOST, "its submission was cut off, and the queue has no job with its mark: it never began"

    def _unless_requeued(self, folder: JobFolder, number: str, end: JobStatus) -> JobStatus:
        """A job that ended badly may be on its way back into its queue (a node was lost): the queue has to agree.

        While it says that the job is completing, that is not known yet; two jobs would train in one folder. A queue
        that does not answer changes nothing: it takes no second job either.
        """
        age = time.time() - (end.ended or 0.0)
        if end.state in (State.DONE, State.CANCELLED) or age > REQUEUED_SECONDS:
            return end
        try:
            said = self._ask(number)
        except JobError:
            return end
        if said is not None and said.state is State.PENDING:
            return self._status(folder, number, State.PENDING, f"queued again after: {end.reason}")
        if said is not None and said.state is State.RUNNING and age < COMPLETING_SECONDS:
            reason = f"{end.reason}; the queue says {said.word}, so it may be queued again"
            return self._status(folder, number, State.RUNNING, reason)
        return end

    def _asked(self, folder: JobFolder, number: str) -> JobStatus:
        began, age = files.read_started(folder), files.heartbeat_age(folder)
        seen = f"seen {show_duration(age)} ago" if age is not None else "no sign of life that could be dated"
        if began and age is not None and age < ALIVE_SECONDS:
            return self._status(folder, number, State.RUNNING, f"on {began.identity.host}, {seen}")
        try:
            said = self._ask(number)
        except QueueSilentError as silent:
            return self._status(folder, number, State.UNKNOWN, f"{seen if began else 'not begun'}; {silent}")
        if said is None:
            if age is not None and age < FRESH_SECONDS:
                return self._status(folder, number, State.UNKNOWN, f"the queue does not know it, but it was {seen}")
            began_or_not = f"began on {began.identity.host}, {seen}" if began else "never began"
            reason = f"the queue does not know it any more; it {began_or_not} and left no exit code"
            return self._status(folder, number, State.LOST, reason)
        if said.state is State.DONE and age is not None and age < FRESH_SECONDS:
            # Files of another machine come late; its own word about its end does too.
            return self._status(folder, number, State.RUNNING, f"the queue says {said.word}; its files are awaited")
        reason = ", ".join(
            part
            for part in (
                said.word,
                said.reason,
                said.partition and f"partition {said.partition}",
                said.nodes and f"on {said.nodes}",
                seen if said.state is State.RUNNING and began else "",
            )
            if part
        )
        if said.state is State.FAILED and said.exit_code == 75:
            said = replace(said, state=State.STOPPED)
        return replace(self._status(folder, number, said.state, reason), exit_code=said.exit_code)

    def _ask(self, number: str) -> QueueJob | None:
        now = time.monotonic()
        asked, said = self._answers.get(number, (now - 2 * ASK_SECONDS, None))
        if now - asked >= ASK_SECONDS:
            said = self._queue.ask(number)
            self._answers[number] = (time.monotonic(), said)
        return said

    def _over(self, folder: JobFolder, number: str) -> bool:
        if elements.ended(folder, "") is not None:
            return True
        try:
            said = self._ask(number)
        except QueueSilentError:
            return False
        return said is None or said.state not in ACTIVE

    def _status(self, folder: JobFolder, number: str, state: State, reason: str) -> JobStatus:
        began = files.read_started(folder)
        job_id = self._id(number) if number else ""
        return JobStatus(state, job_id, None, reason, began.time if began else None, None, files.heartbeat_age(folder))
