"""This machine without a queue: a detached job.sh, known by its own files and its process."""

from __future__ import annotations

import json
import secrets
import signal
import time
from typing import Any

import psutil

from runbook import shell
from runbook.errors import JobError
from runbook.render.folder import JobFolder, write_whole
from runbook.schedulers import files, processes
from runbook.schedulers.base import ACTIVE, JobStatus, State, earlier_ends
from runbook.schedulers.lock import HOLDER_VARIABLE, hold_file
from runbook.schedulers.processes import Identity, Standing
from runbook.units import show_duration

FRESH_SECONDS = 120.0
"""Sign of life younger than this: a job on another host runs. Network file systems show changes up to 60 s late."""

START_SECONDS = 10.0
"""Within this time a started script has noted that it runs."""


class LocalScheduler:
    """Submits by starting `bash job.sh`, detached: it survives the kernel, the terminal and the connection."""

    kind = "local"

    def submit(self, folder: JobFolder) -> str:
        """Start the folder's job, or find it running; returns once the job has noted that it began."""
        folder = JobFolder(folder.path.absolute())
        if not folder.script.is_file():
            raise JobError(f"{folder.script} does not exist: write the job (`write_job`) before submitting it.")
        with hold_file(folder.path / "submit.lock", f"submitting {folder.path}", wait_seconds=2 * START_SECONDS):
            if files.read_record(folder) or folder.started.exists():
                status = self.state(folder)
                if status.state in ACTIVE:
                    return status.job_id
                if folder.started.exists() or status.state is State.UNKNOWN:
                    raise JobError(_refusal(folder, status))
            for earlier in earlier_ends(folder, self.state):
                if earlier.state is State.LOST:
                    _kill(earlier.job_id)  # what it left running
            return self._start(folder)

    def state(self, folder: JobFolder) -> JobStatus:
        """Where the job stands: by its exit code, else by its process, else (another host) by its sign of life."""
        folder = JobFolder(folder.path.absolute())
        job_id = _job_id(folder)
        if end := files.ended(folder, job_id):
            return end
        status = _running_or_lost(folder, job_id)
        # It may have ended while we looked: the exit code is written before the process goes, so it is there by now.
        return files.ended(folder, job_id) or status

    def cancel(self, folder: JobFolder, *, grace_seconds: float = 20) -> JobStatus:
        """End the job and all it started: it is asked to save, and after `grace_seconds` killed. No process is left."""
        folder = JobFolder(folder.path.absolute())
        status = self.state(folder)
        identity = _identity(folder)
        if status.final:
            _kill(status.job_id)
            return self.state(folder)
        folder.cancelled.touch()  # an empty file can be made on a full disk too
        if identity is not None and processes.standing(identity) is Standing.ELSEWHERE:
            processes.wait_until(folder.exit_code.exists, grace_seconds, interval=0.5)
            return self.state(folder)
        script = identity.pid if identity else 0

        def none_left() -> bool:
            if not processes.ranks(script, status.job_id):  # ranks are asked by the script, once; its set-up by us
                processes.send(_all_but(script, status.job_id), signal.SIGTERM)
            return not processes.process_tree(status.job_id)

        if not processes.wait_until(none_left, grace_seconds, interval=0.2):
            _kill(status.job_id, spare=script)
        return self.state(folder)

    def signal(self, folder: JobFolder, signal_name: str) -> None:
        """Send a signal to the ranks; on SIGTERM they save, and the job ends with 75."""
        if signal_name not in signal.Signals.__members__:
            raise JobError(f"{signal_name!r} is not the name of a signal such as SIGTERM, SIGUSR1 or SIGKILL.")
        folder = JobFolder(folder.path.absolute())
        status = self.state(folder)
        if status.state not in ACTIVE:
            raise JobError(
                f"{folder.path} is {status.state} ({status.reason}); only a running job can be sent {signal_name}."
            )
        identity = _identity(folder)
        if identity is None or processes.standing(identity) is not Standing.ALIVE:
            where = identity.host if identity else "a process that is not known yet"
            raise JobError(f"{folder.path} runs on {where}; {signal_name} can only be sent from there.")
        ranks: list[psutil.Process] = []

        def found() -> bool:
            ranks[:] = processes.ranks(identity.pid, status.job_id)
            return bool(ranks) or folder.exit_code.exists()

        processes.wait_until(found, START_SECONDS)
        if not processes.send(ranks, signal.Signals[signal_name]):
            raise JobError(
                f"{folder.path} has no training process to which {signal_name} could be sent: its set-up has not "
                f"ended, or the job has. See {folder.err}."
            )

    def _start(self, folder: JobFolder) -> str:
        job_id = f"local-{secrets.token_hex(4)}"
        record = _new_record(job_id)
        write_whole(folder.record, _json(record))  # first: whatever happens next, the job's processes can be found
        pid = shell.start_detached(
            ["bash", str(folder.script), job_id],
            cwd=folder.run_folder,
            out=folder.out,
            err=folder.err,
            env={processes.JOB_VARIABLE: job_id, HOLDER_VARIABLE: None},
        )
        identity = processes.identify(pid) or processes.identity_of_ended(pid)
        write_whole(folder.record, _json(record | {"process": identity.as_dict()}))

        def begun_or_gone() -> bool:
            return files.read_started(folder) is not None or processes.identify(pid) is None

        processes.wait_until(begun_or_gone, START_SECONDS, interval=0.01)
        if files.read_started(folder) is None and processes.identify(pid) is None:
            words = "\n".join(f"  {line}" for line in files.last_words(folder.err)) or "  nothing"
            raise JobError(f"The job in {folder.path} ended before it began. Its last words:\n{words}")
        return job_id


def _running_or_lost(folder: JobFolder, job_id: str) -> JobStatus:
    began = files.read_started(folder)
    identity = _identity(folder)
    age = files.heartbeat_age(folder)

    def status(state: State, reason: str) -> JobStatus:
        return JobStatus(state, job_id, None, reason, began.time if began else None, None, age)

    if identity is None:
        return status(*_half_submitted(folder, job_id))
    known = processes.standing(identity)
    if known is Standing.ALIVE:
        return status(State.RUNNING if began else State.PENDING, f"process {identity.pid} on {identity.host}")
    if known is Standing.ELSEWHERE:
        return status(*_elsewhere(folder, identity, age))
    if folder.cancelled.exists():
        return status(State.CANCELLED, "cancelled; it did not end in time and was killed")
    if known is Standing.REBOOTED:
        return status(State.LOST, f"machine {identity.host} was rebooted while the job ran")
    left = len(processes.process_tree(job_id))
    more = f"; {left} of its processes still run: cancelling it ends them" if left else ""
    return status(State.LOST, f"process {identity.pid} vanished without an exit code (killed?){more}")


def _elsewhere(folder: JobFolder, identity: Identity, age: float | None) -> tuple[State, str]:
    if age is not None and age < FRESH_SECONDS:
        return State.RUNNING, f"process {identity.pid} on {identity.host}, seen {show_duration(age)} ago"
    seen = "no sign of life that could be dated" if age is None else f"no sign of life for {show_duration(age)}"
    if folder.cancelled.exists():
        return State.CANCELLED, f"cancelled from another machine; {seen} from {identity.host}"
    return State.UNKNOWN, (
        f"it ran on {identity.host}: {seen}. Look there; if that machine is gone for good, `runbook cancel` says so"
    )


def _half_submitted(folder: JobFolder, job_id: str) -> tuple[State, str]:
    """The record names no process: whoever submitted is just about to start it, or died at that moment."""
    record = files.read_record(folder)
    if not record:
        return State.UNKNOWN, f"{folder.started} says nothing that could be read: it was damaged, or the disk is full"
    if record.get("boot_id") == processes.boot_id():
        if processes.process_tree(job_id):
            return State.PENDING, "being started"
        if processes.uptime_seconds() - float(record.get("uptime", 0)) < START_SECONDS:
            return State.PENDING, "being submitted"
    elif record.get("host") != processes.host_name():
        return State.UNKNOWN, f"it was being submitted on {record.get('host')}. Look there"
    return State.LOST, "the submission was interrupted; the job never began"


def _job_id(folder: JobFolder) -> str:
    began = files.read_started(folder)
    job_id = began.job_id if began else str(files.read_record(folder).get("job_id", ""))
    if not job_id and folder.started.exists():  # started by hand, a moment ago
        processes.wait_until(lambda: files.read_started(folder) is not None, 1)
        began = files.read_started(folder)
        return began.job_id if began else "unknown"
    if not job_id:
        raise JobError(f"No job was submitted from {folder.path}: it has no {folder.record.name}.")
    return job_id


def _identity(folder: JobFolder) -> Identity | None:
    began = files.read_started(folder)
    if began:
        return began.identity
    noted = files.read_record(folder).get("process")
    return Identity.from_dict(noted) if noted else None


def _all_but(pid: int, job_id: str) -> list[psutil.Process]:
    return [process for process in processes.process_tree(job_id) if process.pid != pid]


def _kill(job_id: str, spare: int = 0) -> None:
    """Kill all of a job; the script last, so that it can still write down how its ranks ended."""
    if spare:
        processes.kill_until_none(lambda: _all_but(spare, job_id), seconds=5)
        processes.wait_until(lambda: not processes.process_tree(job_id), 3)
    left = processes.kill_until_none(lambda: processes.process_tree(job_id))
    if left:
        raise JobError(
            f"These processes of {job_id} could not be killed: {', '.join(str(process.pid) for process in left)}. "
            "They wait for a device or a file system that does not answer, or belong to another user."
        )


def _refusal(folder: JobFolder, status: JobStatus) -> str:
    return (
        f"{folder.path} holds a job that is {status.state} ({status.reason}); its files are kept as they are. "
        "Submit the next one from the folder that `next_job_folder` names."
    )


def _new_record(job_id: str) -> dict[str, Any]:
    return {
        "schema": 1,
        "kind": "local",
        "job_id": job_id,
        "submitted": time.time(),
        "host": processes.host_name(),
        "boot_id": processes.boot_id(),
        "uptime": processes.uptime_seconds(),
        "process": None,
    }


def _json(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=2) + "\n"
