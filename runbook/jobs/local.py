"""Runs jobs on this machine without a queue.

A job is a detached job.sh, identified by its files and process.
"""

import contextlib
import secrets
import signal
import time
from collections.abc import Sequence
from dataclasses import replace

import psutil

from runbook.core import processes, shell
from runbook.core.errors import JobError
from runbook.core.locks import HOLDER_VARIABLE
from runbook.core.processes import Identity, Standing
from runbook.core.units import show_duration
from runbook.jobs import job_folder
from runbook.jobs.job_folder import EarlierJob, JobFolder, JobRecord, JobState, JobStatus, Scheduler
from runbook.jobs.messages import JobMessage

START_SECONDS = 10.0
"""Time within which a started script must record that it is running."""


class LocalScheduler(Scheduler):
    """Scheduler for this machine. It starts `bash job.sh` as a detached process.

    The job survives the kernel, the terminal and the connection.
    """

    kind = "local"
    submit_seconds = START_SECONDS

    def state(self, folder: JobFolder) -> JobStatus:
        """Return the job state.

        The state comes from the exit code if there is one, and otherwise from the process. For a
        job on a different host, it comes from the last heartbeat.
        """
        job_id = _job_id(folder)
        end = job_folder.read_end(folder, job_id)
        if end:
            return end
        identity = _identity(folder)
        if identity:
            state, reason = _by_process(folder, job_id, identity)
        else:
            state, reason = _half_submitted(folder, job_id)

        status = job_folder.status_by_files(folder, job_id, state, reason)
        # The job may have ended since the state was read. If so, its exit code exists by now,
        # because it is written before the process ends.
        return job_folder.read_end(folder, job_id) or status

    def cancel(self, folder: JobFolder, *, grace_seconds: float = 20) -> JobStatus:
        """Ask the job to save and stop, and kill what is left of it after `grace_seconds`."""
        status = self.state(folder)
        identity = _identity(folder)
        if status.final:
            _kill(status.job_id)
            return self.state(folder)

        # An empty file can be created even on a full disk.
        folder.cancelled.touch()
        if identity is not None and processes.standing(identity) is Standing.ELSEWHERE:
            processes.wait_until(folder.exit_code.exists, grace_seconds, interval=0.5)
            return self.state(folder)

        script = identity.pid if identity else 0

        def none_left() -> bool:
            # The script asks its ranks only once. While it is still starting the ranks, they must
            # be asked directly.
            if not processes.ranks(script, status.job_id):
                processes.send(_all_but(script, status.job_id), signal.SIGTERM)

            return not processes.process_tree(status.job_id)

        if not processes.wait_until(none_left, grace_seconds, interval=0.2):
            _kill(status.job_id, spare=script)
        return self.state(folder)

    def _request_stop(self, folder: JobFolder, status: JobStatus) -> None:
        identity = _identity(folder)
        if identity is None or processes.standing(identity) is not Standing.ALIVE:
            if identity:
                where = identity.host
            else:
                where = "a process that is not known yet"

            raise JobError(JobMessage.RUNS_ELSEWHERE, folder=folder.path, where=where)

        ranks: list[psutil.Process] = []

        def has_ranks() -> bool:
            ranks[:] = processes.ranks(identity.pid, status.job_id)
            return bool(ranks) or folder.exit_code.exists()

        processes.wait_until(has_ranks, START_SECONDS)
        if not processes.send(ranks, signal.SIGTERM):
            raise JobError(JobMessage.NOTHING_TO_STOP, folder=folder.path, err=folder.err)

    def _existing_job(self, folder: JobFolder) -> JobStatus | None:
        status = self.state(folder)
        if folder.started.exists() or not status.final:
            return status
        return None

    def _start(
        self,
        folder: JobFolder,
        earlier: Sequence[EarlierJob],
        after: Sequence[JobFolder],
    ) -> str:
        assert not after, "only the jobs of a queue wait for each other"
        _end_lost_jobs(earlier)
        job_id = f"local-{secrets.token_hex(4)}"
        # Write the record first, so that the job processes can be found no matter what happens
        # next.
        record = JobRecord(
            kind=self.kind,
            job_id=job_id,
            submitted=time.time(),
            host=processes.host_name(),
            boot_id=processes.boot_id(),
            uptime=processes.uptime_seconds(),
        ).write(folder)
        pid = shell.start_detached(
            ["bash", str(folder.script), job_id],
            cwd=folder.run_folder,
            out=folder.out,
            err=folder.err,
            env={processes.JOB_VARIABLE: job_id, HOLDER_VARIABLE: None},
        )
        identity = processes.identify(pid) or processes.identity_of_ended(pid)
        replace(record, process=identity).write(folder)

        def begun_or_gone() -> bool:
            return job_folder.read_started(folder) is not None or processes.identify(pid) is None

        processes.wait_until(begun_or_gone, START_SECONDS, interval=0.01)
        if job_folder.read_started(folder) is None and processes.identify(pid) is None:
            tail = "\n".join(f"  {line}" for line in job_folder.log_tail(folder.err)) or "  nothing"
            raise JobError(JobMessage.ENDED_BEFORE_IT_BEGAN, folder=folder.path, tail=tail)

        return job_id


def _by_process(folder: JobFolder, job_id: str, identity: Identity) -> tuple[JobState, str]:
    standing = processes.standing(identity)
    if standing is Standing.ALIVE:
        if job_folder.read_started(folder):
            state = JobState.RUNNING
        else:
            state = JobState.PENDING

        return state, f"process {identity.pid} on {identity.host}"

    if standing is Standing.ELSEWHERE:
        age = job_folder.heartbeat_age(folder)
        if age is not None and age < job_folder.FRESH_SECONDS:
            return (
                JobState.RUNNING,
                f"process {identity.pid} on {identity.host}, seen {show_duration(age)} ago",
            )

        if age is None:
            sign_of_life = JobMessage.NO_DATED_SIGN_OF_LIFE.fill()
        else:
            sign_of_life = JobMessage.NO_SIGN_OF_LIFE.fill(age=show_duration(age))

        if folder.cancelled.exists():
            return (
                JobState.CANCELLED,
                JobMessage.CANCELLED_ELSEWHERE.fill(sign_of_life=sign_of_life, host=identity.host),
            )

        sighting = JobMessage.RAN_ELSEWHERE.fill(host=identity.host, sign_of_life=sign_of_life)
        return (
            JobState.UNKNOWN,
            JobMessage.CANCEL_SAYS_SO.fill(sighting=sighting),
        )

    if folder.cancelled.exists():
        return JobState.CANCELLED, JobMessage.CANCELLED_AND_KILLED.fill()
    if standing is Standing.REBOOTED:
        return JobState.LOST, JobMessage.MACHINE_REBOOTED.fill(host=identity.host)

    reason = JobMessage.PROCESS_VANISHED.fill(pid=identity.pid)
    if folder.nothing_left.exists():
        return JobState.LOST, reason

    num_running = len(processes.process_tree(job_id))
    if num_running:
        reason += JobMessage.PROCESSES_LEFT.fill(num_running=num_running)
    return JobState.LOST, reason


def _half_submitted(folder: JobFolder, job_id: str) -> tuple[JobState, str]:
    """Return the state and reason of a job whose record does not name a process yet.

    The submitter is about to start the process, or died at that moment.
    """
    record = job_folder.read_record(folder)
    if record is None:
        reason = JobMessage.START_NOTE_DAMAGED.fill(started=folder.started)
        return JobState.UNKNOWN, reason

    if record.boot_id == processes.boot_id():
        if processes.process_tree(job_id):
            return JobState.PENDING, "being started"
        if processes.uptime_seconds() - record.uptime < START_SECONDS:
            return JobState.PENDING, "being submitted"
    elif record.host != processes.host_name():
        return JobState.UNKNOWN, JobMessage.SUBMITTED_ELSEWHERE.fill(host=record.host)

    return JobState.LOST, JobMessage.SUBMISSION_INTERRUPTED.fill()


def _job_id(folder: JobFolder) -> str:
    if not folder.was_submitted():
        raise JobError(
            JobMessage.NO_JOB_SUBMITTED, folder=folder.path, record_name=folder.record.name
        )
    # The job was started by hand and may not have written its record yet.
    if not folder.record.exists():
        processes.wait_until(lambda: job_folder.read_started(folder) is not None, 1)
    record = job_folder.read_started(folder) or job_folder.read_record(folder)
    return record.job_id if record else "unknown"


def _identity(folder: JobFolder) -> Identity | None:
    began = job_folder.read_started(folder)
    if began:
        return began.identity
    record = job_folder.read_record(folder)
    return record.process if record else None


def _all_but(pid: int, job_id: str) -> list[psutil.Process]:
    return [process for process in processes.process_tree(job_id) if process.pid != pid]


def _end_lost_jobs(earlier: Sequence[EarlierJob]) -> None:
    """Kill all processes left running by lost jobs, and record that none is left.

    The search reads every process on the machine, so it is not repeated for a job that has this
    record.
    """
    lost_jobs = []
    for job in earlier:
        if job.status.state is JobState.LOST and not job.folder.nothing_left.exists():
            lost_jobs.append(job)

    if not lost_jobs:
        return

    _kill(*[job.status.job_id for job in lost_jobs])
    for job in lost_jobs:
        # If a job folder is not writable, the search for its processes is repeated next time.
        with contextlib.suppress(OSError):
            job.folder.nothing_left.touch()


def _kill(*job_ids: str, spare: int = 0) -> None:
    """Kill all processes that belong to these jobs.

    `spare` is the process id of the job script, which is killed last so that it can record how its
    ranks ended.
    """

    def running() -> list[psutil.Process]:
        return processes.process_tree(*job_ids)

    if spare:
        processes.kill_until_none(
            lambda: [process for process in running() if process.pid != spare], seconds=5
        )
        processes.wait_until(lambda: not running(), 3)

    survivors = processes.kill_until_none(running)
    if survivors:
        pids = ", ".join(str(process.pid) for process in survivors)
        raise JobError(JobMessage.PROCESSES_NOT_KILLED, job_id=", ".join(job_ids), pids=pids)
