"""PBS's answers as text, read: qsub, qstat -f, qstat -Q -f; nothing here asks a machine."""

from __future__ import annotations

import re

from runbook.schedulers.asked import Limits, clock_seconds
from runbook.schedulers.base import State
from runbook.schedulers.queue_base import QueueJob

TOKEN_VARIABLE = "RUNBOOK_TOKEN"
"""Environment variable that marks a job: PBS lists a job's variables, and has no comment of the user's."""

_STATES = {State.PENDING: "QHWTM", State.RUNNING: "RBESU", State.DONE: "FX"}
_STATE_OF = {letter: state for state, letters in _STATES.items() for letter in letters}
_WALLTIME = -29
_SIGNALLED = 256
"""PBS adds this to the number of the signal that ended a job: 271 is TERM, by qdel."""


def parse_job_id(text: str) -> str:
    r"""The id that qsub printed; empty where there is none.

    >>> parse_job_id("qsub: waiting\n1701.polaris-pbs-01.hsn.cm.polaris\n"), parse_job_id("12[].pbs"), parse_job_id("")
    ('1701.polaris-pbs-01.hsn.cm.polaris', '12[].pbs', '')
    """
    for line in reversed(text.splitlines()):
        if re.fullmatch(r"\d+(\[\d*\])?(\.[\w.-]+)?", line.strip()):
            return line.strip()
    return ""


def parse_entries(text: str, head: str) -> list[tuple[str, dict[str, str]]]:
    """Name and attributes of each entry of a full listing, which begins with `head`; wrapped values are joined."""
    found: list[tuple[str, dict[str, str]]] = []
    for line in re.sub(r"\n\t", "", text).splitlines():
        if line.startswith(f"{head}: "):
            found.append((line.removeprefix(f"{head}: ").strip(), {}))
        elif found and " = " in line:
            name, _, value = line.strip().partition(" = ")
            found[-1][1][name] = value
    return found


def parse_jobs(text: str) -> list[QueueJob]:
    """The jobs of `qstat -x -f`."""
    return [_job(name, values) for name, values in parse_entries(text, "Job Id")]


def parse_queues(text: str) -> list[Limits]:
    """The queues of `qstat -Q -f`."""
    found = []
    for name, values in parse_entries(text, "Queue"):
        limits = {key: value for key, value in values.items() if key.startswith("resources_m") or key == "enabled"}
        found.append(
            Limits(
                name=name,
                state="UP" if values.get("enabled", "True") == "True" else "INACTIVE",
                max_seconds=clock_seconds(values.get("resources_max.walltime", "")),
                max_nodes=_number(values.get("resources_max.nodect", "")),
                min_nodes=_number(values.get("resources_min.nodect", "")),
                words=f"Queue: {name} " + " ".join(f"{key}={value}" for key, value in sorted(limits.items())),
            )
        )
    return found


def queue_rows(text: str) -> list[dict[str, str]]:
    """The queues of `qstat -Q -f` for people."""
    return [
        {
            "queue": name,
            "state": "open" if (values.get("enabled"), values.get("started")) == ("True", "True") else "closed",
            "time limit": values.get("resources_max.walltime", ""),
            "nodes": values.get("resources_max.nodect", ""),
            "jobs": values.get("state_count", values.get("total_jobs", "")).strip(),
        }
        for name, values in parse_entries(text, "Queue")
    ]


def state_of(letter: str, exit_status: int | None, deleted: bool = False) -> tuple[State, int | None]:
    """Our state and a shell's exit code of PBS's letter and exit status; what is none of PBS's is UNKNOWN.

    >>> [str(state_of(*pair)[0]) for pair in (("Q", None), ("R", None), ("F", 0), ("F", 1), ("F", 271), ("F", -29))]
    ['pending', 'running', 'done', 'failed', 'cancelled', 'timeout']
    """
    state = _STATE_OF.get(letter, State.UNKNOWN)
    if state is not State.DONE:
        return state, None
    if exit_status is None:  # deleted before it ran
        return (State.CANCELLED if deleted else State.UNKNOWN), None
    if exit_status == _WALLTIME:
        return State.TIMEOUT, None
    if exit_status < 0:  # PBS itself could not start or keep the job
        return State.LOST, None
    if exit_status > _SIGNALLED:
        number = exit_status - _SIGNALLED
        return (State.CANCELLED if number in (9, 15) else State.FAILED), 128 + number
    return {0: State.DONE, 75: State.STOPPED}.get(exit_status, State.FAILED), exit_status


def _job(name: str, values: dict[str, str]) -> QueueJob:
    status = values.get("Exit_status", "")
    letter, comment = values.get("job_state", ""), values.get("comment", "")
    code = int(status) if re.fullmatch(r"-?\d+", status) else None
    state, exit_code = state_of(letter, code, deleted=comment.endswith("terminated") or "deleted" in comment.lower())
    mark = re.search(rf"(?:^|,){TOKEN_VARIABLE}=([\w-]+)", values.get("Variable_List", ""))
    hosts = dict.fromkeys(part.partition("/")[0] for part in values.get("exec_host", "").split("+") if part)
    return QueueJob(
        job=name,
        state=state,
        word=f"{letter} (Exit_status {status})" if status else letter,
        reason=comment,
        exit_code=exit_code,
        partition=values.get("queue", ""),
        nodes=",".join(hosts),
        token=mark[1] if mark else "",
    )


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0
