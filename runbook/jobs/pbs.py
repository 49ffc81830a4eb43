"""PBS Pro and OpenPBS: their commands qsub, qstat and qdel, and parsers for the output."""

import os
import pwd
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace

from runbook.core.locks import HOLDER_VARIABLE
from runbook.core.units import clock_seconds
from runbook.jobs.job_folder import JobFolder, JobState
from runbook.jobs.job_request import QueueLimits, whole_number
from runbook.jobs.messages import JobMessage, JobReason
from runbook.jobs.queue import Queue, QueueJob
from runbook.plan_file.errors import STOPPED

TOKEN_VARIABLE = "RUNBOOK_TOKEN"
"""Environment variable used to pass the job token.

PBS lists job variables, but has no field for a comment.
"""

_STATES = {JobState.PENDING: "QHWTM", JobState.RUNNING: "RBESU", JobState.DONE: "FX"}
_STATE_OF = {letter: state for state, letters in _STATES.items() for letter in letters}
_WALLTIME = -29
_SIGNALLED = 256
"""PBS adds this to signal numbers in exit codes: 271 is TERM, which qdel sends."""

_DELETED = "91"
_FAILED = "93"
"""Substate that PBS gives to failed jobs, even if Exit_status is 0.

A shell that survives TERM exits with 0, and an array takes its exit status from the last element.
"""


def parse_entries(text: str, head: str) -> list[tuple[str, dict[str, str]]]:
    """Parse a full listing, and return the name and attributes for each entry.

    Each entry begins with `head`. Values that PBS has wrapped are joined again.
    """
    entries: list[tuple[str, dict[str, str]]] = []
    for line in re.sub(r"\n\t", "", text).splitlines():
        if line.startswith(f"{head}: "):
            entries.append((line.removeprefix(f"{head}: ").strip(), {}))
        elif entries and " = " in line:
            name, _, value = line.strip().partition(" = ")
            entries[-1][1][name] = value

    return entries


def parse_jobs(text: str) -> list[QueueJob]:
    """Return the jobs listed by `qstat -x -f`."""
    return [_job(name, values) for name, values in parse_entries(text, "Job Id")]


def _limits(name: str, values: dict[str, str]) -> QueueLimits:
    limits_text = sorted(
        f"{key}={value}" for key, value in values.items() if re.match("resources_m|enabled$", key)
    )
    return QueueLimits(
        name=name,
        state=_queue_state(values),
        max_seconds=clock_seconds(values.get("resources_max.walltime", "")),
        max_nodes=whole_number(values.get("resources_max.nodect", "")),
        min_nodes=whole_number(values.get("resources_min.nodect", "")),
        words=f"Queue: {name} {' '.join(limits_text)}",
    )


def queues_to_submit_to(text: str) -> tuple[QueueLimits, ...]:
    r"""Return the queues listed by `qstat -Q -f` to which a user can submit jobs that will run.

    >>> [queue.name for queue in queues_to_submit_to(
    ...     "Queue: prod\n    queue_type = Route\n    route_destinations = small\n    enabled = True\n    started = True\n"
    ...     "Queue: small\n    queue_type = Execution\n    enabled = True\n    started = True\n")]
    ['small']
    """
    entries = dict(parse_entries(text, "Queue"))
    runs = _queues_that_run(entries)
    behind_route = _queues_behind_route(runs)
    open_queues = []
    for name, values in entries.items():
        limits = _limits(name, values)
        if limits.state != "UP" or name in behind_route:
            continue
        if name in runs:
            open_queues.append(limits)
            continue

        destinations = [word.partition("@")[0] for word in _destinations(values)]
        hidden = []
        for queue in destinations:
            if queue in behind_route:
                hidden.append(_limits(queue, runs[queue]))

        if hidden:
            open_queues.append(_with_widest_limits(limits, hidden))

    return tuple(open_queues)


def _queues_that_run(entries: Mapping[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    """Return the queues that run jobs. Queues used only to forward jobs are left out."""
    runs = {}
    for name, values in entries.items():
        if values.get("queue_type") != "Route":
            runs[name] = values

    return runs


def _queues_behind_route(runs: Mapping[str, dict[str, str]]) -> set[str]:
    """Return the queues that take jobs only from a route queue."""
    behind_route = set()
    for name, values in runs.items():
        if values.get("from_route_only") == "True":
            behind_route.add(name)

    return behind_route


def _destinations(values: dict[str, str]) -> list[str]:
    """Return the queues to which a route queue forwards jobs."""
    return values.get("route_destinations", "").replace(" ", "").split(",")


def _with_widest_limits(route: QueueLimits, destinations: Sequence[QueueLimits]) -> QueueLimits:
    """Return the limits on a route queue; a missing one is the widest among its destinations."""
    all_seconds = [queue.max_seconds for queue in destinations]
    all_nodes = [queue.max_nodes for queue in destinations]
    return replace(
        route,
        max_seconds=route.max_seconds or (max(all_seconds) if all(all_seconds) else 0),
        max_nodes=route.max_nodes or (max(all_nodes) if all(all_nodes) else 0),
        min_nodes=route.min_nodes or min(queue.min_nodes for queue in destinations),
    )


def _queue_state(values: dict[str, str]) -> str:
    """Return a queue state as Slurm would call it.

    An enabled queue accepts jobs, and a started queue runs them.
    """
    if values.get("enabled") != "True":
        return "INACTIVE"
    if values.get("started") != "True":
        return "DOWN"
    return "UP"


def queue_rows(text: str) -> list[dict[str, str]]:
    """Return the queues listed by `qstat -Q -f` as rows of a table."""
    rows = []
    for name, values in parse_entries(text, "Queue"):
        num_jobs = values.get("state_count", values.get("total_jobs", ""))
        row = {
            "queue": name,
            "state": "open" if _queue_state(values) == "UP" else "closed",
            "time limit": values.get("resources_max.walltime", ""),
            "nodes": values.get("resources_max.nodect", ""),
            "jobs": num_jobs.strip(),
        }
        rows.append(row)

    return rows


def state_of(
    letter: str,
    exit_status: int | None,
    substate: str = "",
) -> tuple[JobState, int | None]:
    """Convert a state letter, exit status and substate from PBS to our state and a shell exit code.

    For an unknown letter, the state is UNKNOWN.

    A finished job without an exit status never ran. Either a user deleted it, or PBS deleted it
    because of a job that it depended on.

    >>> [str(state_of(*pair)[0]) for pair in (("Q", None), ("R", None), ("F", 0))]
    ['pending', 'running', 'done']
    >>> [str(state_of("F", exit_status)[0]) for exit_status in (1, 271, -29)]
    ['failed', 'cancelled', 'timeout']
    >>> [str(state_of("F", *pair)[0]) for pair in ((0, "91"), (0, "93"), (None, "92"))]
    ['cancelled', 'failed', 'cancelled']
    """
    state = _STATE_OF.get(letter, JobState.UNKNOWN)
    if state is not JobState.DONE:
        return state, None
    if exit_status is None or (exit_status == 0 and substate == _DELETED):
        return JobState.CANCELLED, None
    if exit_status == _WALLTIME:
        return JobState.TIMEOUT, None
    # PBS itself could not start the job or keep it running.
    if exit_status < 0:
        return JobState.LOST, None
    if exit_status > _SIGNALLED:
        number = exit_status - _SIGNALLED
        is_cancelled = number in (signal.SIGKILL, signal.SIGTERM)
        state = JobState.CANCELLED if is_cancelled else JobState.FAILED
        return state, 128 + number

    if exit_status == 0 and substate == _FAILED:
        return JobState.FAILED, None
    if exit_status == 0:
        return JobState.DONE, 0
    if exit_status == STOPPED:
        return JobState.STOPPED, exit_status
    return JobState.FAILED, exit_status


def _job(name: str, values: dict[str, str]) -> QueueJob:
    exit_text = values.get("Exit_status", "")
    letter = values.get("job_state", "")
    exit_status = int(exit_text) if re.fullmatch(r"-?\d+", exit_text) else None
    state, exit_code = state_of(letter, exit_status, values.get("substate", ""))
    reason = values.get("comment", "")
    if not reason and state is JobState.CANCELLED and not exit_text:
        reason = JobMessage.DELETED_BEFORE_IT_RAN.fill()
    token = re.search(rf"(?:^|,){TOKEN_VARIABLE}=([\w-]+)", values.get("Variable_List", ""))
    return QueueJob(
        job=name,
        state=state,
        word=f"{letter} (Exit_status {exit_text})" if exit_text else letter,
        reason=reason,
        exit_code=exit_code,
        partition=values.get("queue", ""),
        nodes=_hosts(values.get("exec_host", "")),
        token=token[1] if token else "",
    )


def _hosts(exec_host: str) -> str:
    """Return the hosts listed in `exec_host`, with no duplicates.

    >>> _hosts("x3006/0*64+x3006/1*64+x3007/0*64")
    'x3006,x3007'
    """
    chunks = exec_host.split("+")
    hosts = dict.fromkeys(chunk.partition("/")[0] for chunk in chunks if chunk)
    return ",".join(hosts)


MOST_JOBS = 500
"""How many of the user's newest jobs to search for one whose submission was interrupted."""
_QUEUE_OR_HISTORY = ((), ("-x",))


def _sequence_number(job: str) -> int:
    """Return the number in a job id: 1701 for 1701.polaris-pbs-01.

    Newer jobs have higher numbers.
    """
    return int(re.sub(r"\D.*", "", job) or 0)


class Pbs(Queue):
    """Queries PBS and submits jobs to it, using the commands installed on a login node."""

    kind = "pbs"
    name = "PBS"
    speaker = "PBS"
    queue_word = "queue"
    end_word = "delete"
    programs = ("qsub", "qstat", "qdel")
    limits_question = ("qstat", "-Q", "-f")
    # Such as 1701.polaris-pbs-01 or 12[].pbs
    job_id_line = re.compile(r"(\d+(?:\[\d*\])?(?:\.[\w.-]+)?)")
    unknown_job = ("Unknown Job Id", "Job has finished")
    broken_off = ("End of File", "Premature end", "timed out", "Protocol")

    def parse_limits(self, text: str) -> list[QueueLimits]:
        """Parse the queue limits from `qstat -Q -f` output."""
        return [_limits(name, values) for name, values in parse_entries(text, "Queue")]

    def submission(
        self,
        token: str,
        after: Sequence[str],
        follows: str = "",
    ) -> tuple[list[str], dict[str, str | None]]:
        """Return the `qsub` command, which puts the token into the job environment."""
        argv = ["qsub", "-v", f"{TOKEN_VARIABLE}={token}"]
        if after:
            argv += ["-W", f"depend=afterok:{':'.join(after)}"]
        if follows:
            argv += ["-W", f"depend=afterany:{follows}"]
        return argv, {HOLDER_VARIABLE: None}

    def find(self, folder: JobFolder, token: str) -> str | None:
        """Find the job that this user submitted with this token, and return its id.

        Both the queue and the server history are searched.
        """
        user = pwd.getpwuid(os.getuid()).pw_name
        numbers: set[str] = set()
        for options in _QUEUE_OR_HISTORY:
            numbers.update(self.answer("qselect", *options, "-u", user).split())
        newest = sorted(numbers, key=_sequence_number)[-MOST_JOBS:]
        marked = (job.job for job in self._jobs(newest) if token and job.token == token)
        return next(marked, None)

    def ask(self, job: str) -> QueueJob | None:
        """Ask `qstat` about a job in the queue, and `qstat -x` about a job in the server history.

        If PBS keeps no history, which is the default, it forgets jobs when they end. The files in
        the job folder then show how the job ended.
        """
        return next(iter(self._jobs([job])), None)

    def _jobs(self, names: Sequence[str]) -> list[QueueJob]:
        """Return the jobs from the queue, or else from its history."""
        jobs: dict[str, QueueJob] = {}
        for options in _QUEUE_OR_HISTORY:
            if len(jobs) < len(names):
                text = self.answer(
                    "qstat",
                    *options,
                    "-f",
                    *names,
                    accept=self.unknown_job,
                )
                jobs |= {job.job: job for job in parse_jobs(text)}

        return list(jobs.values())

    def queues(self, names: Sequence[str]) -> list[dict[str, str]]:
        """Return a row for each queue in `qstat -Q`, with its state, limits and job count."""
        return queue_rows(self.answer(*self.limits_question, *names))

    def ending(self, exit_code: int) -> str:
        """Describe how a PBS command ended.

        The exit code is the lowest 8 bits of a PBS error number, such as 153 or 187, and has no
        meaning for a shell.
        """
        return JobReason.EXIT_CODE.fill(code=exit_code)
