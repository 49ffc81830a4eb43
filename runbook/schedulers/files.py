"""A job's own files, read: they are asked before any queue, and a half-written or strange one says nothing."""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runbook.errors import JobError
from runbook.render.folder import JobFolder
from runbook.schedulers.base import JobStatus, State
from runbook.schedulers.processes import Identity, boot_id, uptime_seconds

FUTURE_SECONDS = 60.0
"""A heartbeat from another machine may lie this far in our future: clocks differ."""


@dataclass(frozen=True)
class Started:
    """What a job noted when it began."""

    job_id: str
    identity: Identity
    time: float


def read_started(folder: JobFolder) -> Started | None:
    """What the job noted when it began, or None if it has not (or not fully) done so."""
    lines = (line.partition(" ") for line in _text(folder.started).splitlines())
    content = {key: value for key, _, value in lines}
    try:
        return Started(content["job"], Identity.from_dict(content), float(content["time"]))
    except (KeyError, ValueError):
        return None


def read_record(folder: JobFolder) -> dict[str, Any]:
    """Content of job.json; empty if there is none."""
    text = _text(folder.record)
    if not text:
        return {}
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise JobError(
            f"{folder.record} is not JSON ({error}). It was changed by hand or the disk is damaged."
        ) from error
    if not isinstance(content, dict) or "job_id" not in content:
        raise JobError(f"{folder.record} is not the record of a job: it has no job_id. It was changed by hand.")
    return content


def heartbeat_age(folder: JobFolder) -> float | None:
    """Seconds since the job's last sign of life, or None if there is none or its clock does not fit ours.

    Within one start of a machine its own uptime is compared, which no change of the clock moves; between machines only
    the clocks are left.
    """
    try:
        unix, uptime, where = _text(folder.heartbeat).split()
        age = uptime_seconds() - float(uptime) if where == boot_id() else time.time() - float(unix)
    except ValueError:
        return None
    return max(0.0, age) if math.isfinite(age) and age > -FUTURE_SECONDS else None


def ended(folder: JobFolder, job_id: str) -> JobStatus | None:
    """The status of a job that has written its exit code, or None."""
    text = _text(folder.exit_code).strip()
    if not text.isascii() or not text.isdigit():
        return None
    code = int(text)
    if folder.cancelled.exists():
        state = State.CANCELLED
    elif folder.timed_out.exists():
        state = State.TIMEOUT
    else:
        state = {0: State.DONE, 75: State.STOPPED}.get(code, State.FAILED)
    if code == 0:  # it was faster than the request to stop it
        state = State.DONE
    began = read_started(folder)
    return JobStatus(
        state=state,
        job_id=job_id,
        exit_code=code,
        reason=_text(folder.reason).strip() or f"exit code {code}",
        started=began.time if began else None,
        ended=folder.exit_code.stat().st_mtime,
        heartbeat_age_seconds=heartbeat_age(folder),
    )


def last_words(path: Path, count: int = 12) -> list[str]:
    """The last lines of a log, however long it is."""
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - 20_000))
            return stream.read().decode("utf-8", errors="replace").splitlines()[-count:]
    except FileNotFoundError:
        return []


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""
