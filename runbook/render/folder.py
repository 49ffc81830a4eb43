"""The one owner of a job folder's file names, which script, scheduler and reader share."""

from __future__ import annotations

import contextlib
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from runbook.errors import JobError


@dataclass(frozen=True)
class JobFolder:
    """jobs/<phase>[-n] of a run: exactly what was submitted, and what the job says of itself."""

    path: Path

    @property
    def run_folder(self) -> Path:
        """The folder of the run, in which the job works."""
        return self.path.absolute().parent.parent

    @property
    def script(self) -> Path:
        """What was submitted, word for word."""
        return self.path / "job.sh"

    @property
    def arguments(self) -> Path:
        """The training program's arguments as a list."""
        return self.path / "arguments.json"

    @property
    def record(self) -> Path:
        """Written by whoever submits: id, host, process, time."""
        return self.path / "job.json"

    @property
    def out(self) -> Path:
        """Standard output of the job."""
        return self.path / "out"

    @property
    def err(self) -> Path:
        """Standard error of the job."""
        return self.path / "err"

    @property
    def started(self) -> Path:
        """Written once by the job: which process on which machine it is."""
        return self.path / "started"

    @property
    def heartbeat(self) -> Path:
        """Rewritten by the job every few seconds: clock, seconds since the machine's start."""
        return self.path / "heartbeat"

    @property
    def exit_code(self) -> Path:
        """Written by the job as its last act, by rename."""
        return self.path / "exit_code"

    @property
    def reason(self) -> Path:
        """One sentence of the job about its end."""
        return self.path / "reason"

    @property
    def cancelled(self) -> Path:
        """Made by whoever cancels; a job that sees it stops, also on another host."""
        return self.path / "cancelled"

    @property
    def stop(self) -> Path:
        """Made to ask a queue's job to save and stop; every rank on every node sees it."""
        return self.path / "stop"

    @property
    def hostfile(self) -> Path:
        """Written by a queue's job: the hosts it was given, one a line."""
        return self.path / "hostfile"

    @property
    def timed_out(self) -> Path:
        """Made by the job when its walltime is over."""
        return self.path / "timed_out"


def write_whole(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Write a file that is seen whole or not at all, also by another machine and after a power loss."""
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("w", encoding="utf-8", newline="") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        part.chmod(mode)
        part.replace(path)
    except OSError as error:
        raise JobError(f"{path} could not be written: {error.strerror}. Make space there, or allow writing.") from error
    finally:
        with contextlib.suppress(OSError):  # it was renamed, or never made
            part.unlink()
