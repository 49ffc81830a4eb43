"""What this machine and every queue have in common: a job is submitted once, from a folder of its own."""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence

from runbook.core.errors import JobError
from runbook.core.locks import hold_file
from runbook.jobs.job_folder import ACTIVE, JobFolder, JobStatus, submitted_job_folders


class Scheduler(ABC):
    """This machine or a queue. Every question is asked of a job's folder, so that any process can ask it at any time.

    A job's own files are read first; a queue is asked only for what they cannot say, and where it does not answer the
    state is UNKNOWN.
    """

    kind: str
    submit_seconds: float
    """A submission takes no longer."""

    def submit(self, folder: JobFolder, *, after: Sequence[JobFolder] = ()) -> str:
        """Submit job.sh of the folder and return the job's id; an active job of that folder is found, not doubled.

        A folder whose job has ended is refused: its files are evidence. With `after`, which only a queue knows, the job
        starts when those of these folders, whole arrays too, have ended well.
        """
        if not folder.script.is_file():
            raise JobError(f"{folder.script} does not exist: write the job (`write_job`) before submitting it.")
        with hold_file(folder.path / "submit.lock", f"submitting {folder.path}", wait_seconds=2 * self.submit_seconds):
            if folder.was_submitted() and (job_id := self._active_job(folder)):
                return job_id
            phase = re.sub(r"-\d+$", "", folder.path.name)
            others = [other for other in submitted_job_folders(folder.run_folder, phase) if other.path != folder.path]
            earlier = [(other, self.state(other)) for other in others]
            for other, status in earlier:
                if not status.final:
                    raise JobError(
                        f"{other.path} is {status.state} ({status.reason}), and two jobs would write to the same "
                        "files. Wait for it, or end it with `runbook cancel`."
                    )
            return self._start(folder, [status for _, status in earlier], after)

    def request_stop(self, folder: JobFolder) -> None:
        """Ask the training processes, not the script around them, to save and stop."""
        status = self.state(folder)
        if status.state not in ACTIVE:
            raise JobError(f"{folder.path} is {status.state} ({status.reason}); only a running job can be stopped.")
        self._request_stop(folder, status)

    @abstractmethod
    def state(self, folder: JobFolder) -> JobStatus:
        """Where the folder's job stands; `JobError` if none was ever submitted."""

    @abstractmethod
    def cancel(self, folder: JobFolder, *, grace_seconds: float = 20) -> JobStatus:
        """End the job with everything it started, first gently; what had ended before keeps its state."""

    @abstractmethod
    def _active_job(self, folder: JobFolder) -> str:
        """The id of the folder's active job; empty where it never began, `used_folder` raised where it has ended."""

    @abstractmethod
    def _start(self, folder: JobFolder, earlier: Sequence[JobStatus], after: Sequence[JobFolder]) -> str:
        """Submit job.sh; `earlier` is how the phase's other jobs ended."""

    @abstractmethod
    def _request_stop(self, folder: JobFolder, status: JobStatus) -> None:
        """Ask an active job to save and stop."""


def used_folder(folder: JobFolder, status: JobStatus) -> JobError:
    """The error for a folder whose job has ended: its files are evidence."""
    return JobError(
        f"{folder.path} holds a job that is {status.state} ({status.reason}); its files are kept as they are. "
        "Submit the next one from the folder that `next_job_folder` names."
    )
