"""Records in the folder of a failed job that a watcher waits before it submits the next one.

The file names the watcher process. If a watcher is killed during its wait, the file remains and
no job is submitted.
"""

import json
import os
import time
from dataclasses import asdict, dataclass

from pydantic import TypeAdapter, ValidationError

from runbook.core.errors import JobError
from runbook.core.files import write_text
from runbook.core.processes import Identity, Standing, identify, standing
from runbook.jobs.job_folder import JobFolder, read_text

CLOCK_SECONDS = 60.0
"""Allowed clock difference between two login nodes."""


@dataclass(frozen=True)
class WatcherWait:
    """The process that waits, and when its wait ends."""

    process: Identity
    until: float
    """Unix time at which the wait ends."""


_WAIT = TypeAdapter(WatcherWait)


def begin_wait(folder: JobFolder, seconds: float) -> None:
    """Record that this process waits for `seconds` before it submits the next job."""
    process = identify(os.getpid())
    assert process is not None, "this process runs"
    wait = WatcherWait(process, time.time() + seconds)
    write_text(folder.watcher_waits, json.dumps(asdict(wait)) + "\n", error=JobError)


def read_wait(folder: JobFolder) -> WatcherWait | None:
    """Return the recorded wait if the watcher may still submit a job.

    Return None if the file is missing or names no process, or if the process has ended. If the
    process is on another machine, only the end of the wait is known.
    """
    try:
        wait = _WAIT.validate_json(read_text(folder.watcher_waits))
    except ValidationError:
        return None

    state = standing(wait.process)
    if state is Standing.ELSEWHERE:
        return wait if time.time() < wait.until + CLOCK_SECONDS else None
    return wait if state is Standing.ALIVE else None
