"""Where a run's jobs are: partition and nodes, what their queues have free, the last lines they wrote."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from runbook.errors import RunbookError
from runbook.render.folder import JobFolder
from runbook.schedulers import files
from runbook.schedulers.asked import Asked, asked_of
from runbook.schedulers.base import Scheduler
from runbook.schedulers.elements import element_folders
from runbook.schedulers.queue import QueueScheduler

TAIL_LINES = 6


def asked_by(job: JobFolder) -> Asked:
    """What the job's script asks of its queue."""
    return asked_of(job.script.read_text(encoding="utf-8", errors="replace")) if job.script.exists() else Asked()


def nodes_of(job: JobFolder) -> str:
    """The hosts a job was given, as it wrote them down; the host it began on where it did not; else empty."""
    if job.hostfile.exists():
        return ",".join(job.hostfile.read_text(encoding="utf-8").split())
    hosts = [began.identity.host for part in (element_folders(job) or [job]) if (began := files.read_started(part))]
    return ",".join(dict.fromkeys(hosts))


def logs_of(job: JobFolder) -> list[Path]:
    """Every log a job writes, those of an array's elements too."""
    return [log for part in (*element_folders(job), job) for log in (part.out, part.err)]


def tails(jobs: Iterable[JobFolder], count: int = TAIL_LINES) -> str:
    """The last lines of each job's logs, under the log's name."""
    shown = []
    for log in (log for job in jobs for log in logs_of(job)):
        if words := files.last_words(log, count):
            shown.append("\n".join([f"==> {log} <==", *words]))
    return "\n\n".join(shown)


def queue_rows(scheduler: Scheduler, jobs: Iterable[JobFolder]) -> list[dict[str, Any]]:
    """What the queue says of the partitions that these jobs ask for; empty on a machine without one."""
    if not isinstance(scheduler, QueueScheduler):
        return []
    names = sorted({name for job in jobs for name in asked_by(job).partition.split(",") if name})
    try:
        return scheduler.queues(names) if names else []
    except RunbookError as error:
        return [{"queue": ", ".join(names), "state": f"not known: {error}"}]


def is_called(job: JobFolder, word: str) -> bool:
    """Whether a job has this id: as runbook says it (slurm-12), as the queue does (12, 12.server, 12_3, 12[3])."""
    record, began = files.read_record(job), files.read_started(job)
    known = {str(record.get("job_id") or ""), str(record.get("queue_id") or ""), began.job_id if began else ""}
    known |= {name.partition("-")[2] for name in known}
    known |= {name.partition(".")[0].removesuffix("[]") for name in known}
    return bool(word) and (word in known or re.split(r"[_.\[]", word, maxsplit=1)[0] in known)
