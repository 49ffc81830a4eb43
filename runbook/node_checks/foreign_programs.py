"""Finds programs of the job's user that keep computing on a node without belonging to the job.

A program that an earlier job left behind takes a core from a rank, and all ranks wait for that one.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from runbook.node_checks.answers import Facts

PROCESSES = Path("/proc")
JOB_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID")
"""Variables with the job's number in the environment of each of its processes."""
LOOKS = 10
LOOK_PAUSE = 0.1
"""Seconds between two looks at the programs' states."""
BUSY_SHARE = 0.9
"""Share of the samples in which a busy program must be computing, or waiting for a core."""
RUNNABLE = "R"
"""The state of a process that computes or waits for a core (proc(5), stat)."""


@dataclass(frozen=True)
class Program:
    """A process that does not belong to the job."""

    pid: int
    command: str
    job: str
    """Number of the job that started it; empty if no job did."""


def look_at_foreign_programs() -> Facts:
    """Return the user's programs outside the job that are busy in almost every sample."""
    own_job = _job_of(dict(os.environ))
    if not own_job:
        return {"busy": []}
    programs = list(_outside_of(own_job))
    num_busy_looks = dict.fromkeys(programs, 0)
    for _ in range(LOOKS):
        time.sleep(LOOK_PAUSE)
        for program in programs:
            num_busy_looks[program] += _state_of(program.pid) == RUNNABLE

    busy: list[Facts] = []
    for program, num_looks in num_busy_looks.items():
        if num_looks >= BUSY_SHARE * LOOKS:
            busy.append({"pid": program.pid, "command": program.command, "job": program.job})
    return {"busy": busy}


def _outside_of(own_job: str) -> Iterator[Program]:
    """Yield the user's processes whose environment does not have the number of this job."""
    for folder in PROCESSES.glob("[0-9]*"):
        # A process may end while it is examined, and a kernel thread has no command.
        with contextlib.suppress(OSError):
            if folder.stat().st_uid != os.getuid():
                continue
            command = (
                (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            )
            job = _job_of(_environment_of(folder))
            if command and job != own_job and not _shares_no_core(int(folder.name)):
                yield Program(int(folder.name), command.strip(), job)


def _environment_of(folder: Path) -> dict[str, str]:
    variables = {}
    for entry in (folder / "environ").read_bytes().decode(errors="replace").split("\0"):
        name, _, value = entry.partition("=")
        variables[name] = value
    return variables


def _job_of(environment: dict[str, str]) -> str:
    """Return the number of the job to which a process belongs, or an empty string."""
    for name in JOB_VARIABLES:
        if environment.get(name):
            return environment[name]
    return ""


def _shares_no_core(pid: int) -> bool:
    """Return whether a process has no core in common with this one, like a job on other cores."""
    return not os.sched_getaffinity(pid) & os.sched_getaffinity(0)


def _state_of(pid: int) -> str:
    """Return the state of a process, or an empty string if it has ended."""
    try:
        text = (PROCESSES / str(pid) / "stat").read_text()
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[0]
