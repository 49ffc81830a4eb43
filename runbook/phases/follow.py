"""The log of a run's newest job, as far as it is and as it grows."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from runbook.errors import JobError
from runbook.phases.queue_view import logs_of
from runbook.phases.status import job_folders, run_folder, scheduler_of

POLL_SECONDS = 0.5


def show_log(run: str, runs: Path | None, *, follow: bool, say: Callable[[str], None]) -> None:
    """Say what the newest job wrote to its out and err; `follow` goes on until the job has ended."""
    folder = run_folder(run, runs)
    jobs = job_folders(folder)
    if not jobs:
        raise JobError(f"{folder.name} has submitted no job yet: runbook run {run} does.")
    job = max(jobs, key=lambda one: one.record.stat().st_mtime)
    scheduler = scheduler_of(folder)
    offsets = dict.fromkeys(logs_of(job), 0)
    say(f"==> {job.path} <==")
    while True:
        status = scheduler.state(job)  # before reading: what an ended job wrote is then read to its end
        for path in offsets:
            if path.exists():
                with path.open("rb") as stream:
                    stream.seek(offsets[path])
                    whole, newline, rest = stream.read().rpartition(b"\n")
                text = whole + newline if follow and not status.final else whole + newline + rest
                offsets[path] += len(text)
                for line in text.decode(errors="replace").splitlines():
                    say(line)
        if not follow or status.final:
            say(f"==> {status.state}: {status.reason or 'no reason given'} <==")
            return
        time.sleep(POLL_SECONDS)
