"""The end of a job by its own files, where it may be an array: then it ended when each of its elements did."""

from __future__ import annotations

from runbook.render.folder import JobFolder
from runbook.schedulers import files
from runbook.schedulers.asked import asked_of
from runbook.schedulers.base import JobStatus, State

_WORST = (State.FAILED, State.TIMEOUT, State.CANCELLED, State.STOPPED, State.DONE)


def element_folders(folder: JobFolder) -> list[JobFolder]:
    """Where each element of an array says how it does; empty for a job that is none."""
    try:
        others = asked_of(folder.script.read_text(encoding="utf-8", errors="replace")).others
    except FileNotFoundError:
        return []
    return [
        JobFolder(folder.path / f"element-{number}") for number in indices(others.get("array") or others.get("J", ""))
    ]


def indices(text: str) -> list[int]:
    """The elements that an array's directive names; empty for none.

    >>> indices("0-3"), indices("1,4-6%2"), indices("")
    ([0, 1, 2, 3], [1, 4, 5, 6], [])
    """
    found: list[int] = []
    for part in text.partition("%")[0].split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and (last or first).isdigit():
            found += range(int(first), int(last or first) + 1)
    return found


def ended(folder: JobFolder, job_id: str) -> JobStatus | None:
    """The status of a job whose every part has written its exit code, or None."""
    parts = element_folders(folder)
    if not parts:
        return files.ended(folder, job_id)
    ends = []
    for part in parts:
        end = files.ended(part, job_id)
        if end is None:
            return None
        ends.append((part, end))
    part, worst = min(ends, key=lambda one: _WORST.index(one[1].state))
    if worst.state is State.DONE:
        return worst
    state = State.CANCELLED if folder.cancelled.exists() else worst.state
    return JobStatus(
        state=state,
        job_id=job_id,
        exit_code=worst.exit_code,
        reason=f"{part.path.name}: {worst.reason}",
        started=min((end.started for _, end in ends if end.started is not None), default=None),
        ended=max((end.ended for _, end in ends if end.ended is not None), default=None),
    )
