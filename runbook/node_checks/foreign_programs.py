"""Finds programs on a node that the job's user runs outside the job and that disturb it.

A program an earlier job left behind takes a core from a rank, and all ranks wait for that one. If
it still writes to the run folder, it replaces files from the new job.
"""

import contextlib
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from runbook.node_checks.answers import Facts

PROCESSES = Path("/proc")
JOB_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID")
"""Variables with the job number in the environment of every process in a job."""
STEP_DAEMON = re.compile(r"slurmstepd: \[(\d+)\.")
"""Command line of the Slurm step daemon, such as `slurmstepd: [41.batch]`, with the job number."""
LOOKS = 10
LOOK_PAUSE = 0.1
"""Seconds between two looks at the programs' states."""
BUSY_SHARE = 0.9
"""A program is busy if it computes or waits for a core in this share of the samples."""
RUNNABLE = "R"
"""State of a process that computes or waits for a core (proc(5), stat)."""


@dataclass(frozen=True)
class Program:
    """A process that does not belong to the job."""

    pid: int
    command: str
    job: str
    """Number of the job that started it; empty if no job did."""


def look_at_foreign_programs(run_folder: Path | None = None) -> Facts:
    """Return programs that the user runs outside the job and that disturb it.

    `busy` are those that compute in almost every sample, and `in_run` are those from ended jobs
    that use the run folder.
    """
    own_job = _job_of(dict(os.environ))
    if not own_job:
        return {"busy": [], "in_run": []}
    programs = list(_outside_of(own_job))
    num_busy_looks = dict.fromkeys(programs, 0)
    for _ in range(LOOKS):
        time.sleep(LOOK_PAUSE)
        for program in programs:
            num_busy_looks[program] += _state_of(program.pid) == RUNNABLE

    busy: list[Facts] = []
    for program, num_looks in num_busy_looks.items():
        shares_cores = not _shares_no_core(program.pid)
        if num_looks >= BUSY_SHARE * LOOKS and shares_cores:
            busy.append({"pid": program.pid, "command": program.command, "job": program.job})
    in_run = _left_in_run(programs, own_job, run_folder) if run_folder else []
    return {"busy": busy, "in_run": in_run}


def _left_in_run(programs: Sequence[Program], own_job: str, run_folder: Path) -> list[Facts]:
    """Return programs from ended jobs that use the run folder, each with a path it uses.

    While a job runs on a node, a Slurm step daemon for it runs there. The result is empty if the
    one for this job is not visible, as with other schedulers or in some containers.
    """
    running_jobs = set(_jobs_with_daemon())
    if own_job not in running_jobs:
        return []
    left: list[Facts] = []
    for program in programs:
        path = _used_path(program.pid, run_folder) if program.job else ""
        if path and program.job not in running_jobs:
            left.append(
                {
                    "pid": program.pid,
                    "command": program.command,
                    "job": program.job,
                    "path": path,
                }
            )

    return left


def _jobs_with_daemon() -> Iterator[str]:
    """Yield the number of each job that has a step daemon on this node."""
    for folder in PROCESSES.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            match = STEP_DAEMON.match((folder / "cmdline").read_bytes().decode(errors="replace"))
            if match:
                yield match[1]


def _used_path(pid: int, folder: Path) -> str:
    """Return a file or folder below `folder` that a process uses, or an empty string."""
    process = PROCESSES / str(pid)
    links = [process / "cwd"]
    with contextlib.suppress(OSError):
        links += (process / "fd").iterdir()
    real_folder = os.path.realpath(folder)
    for link in links:
        with contextlib.suppress(OSError):
            path = link.readlink()
            if path.is_relative_to(real_folder):
                return str(path)

    return ""


def _outside_of(own_job: str) -> Iterator[Program]:
    """Yield processes run by the user that lack the number of this job in their environment."""
    for folder in PROCESSES.glob("[0-9]*"):
        # A process may end while it is examined, and a kernel thread has no command.
        with contextlib.suppress(OSError):
            if folder.stat().st_uid != os.getuid():
                continue
            command = (
                (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            )
            job = _job_of(_environment_of(folder))
            if command and job != own_job:
                yield Program(int(folder.name), command.strip(), job)


def _environment_of(folder: Path) -> dict[str, str]:
    variables = {}
    for entry in (folder / "environ").read_bytes().decode(errors="replace").split("\0"):
        name, _, value = entry.partition("=")
        variables[name] = value
    return variables


def _job_of(environment: dict[str, str]) -> str:
    """Return the number of the job that a process belongs to, or an empty string."""
    for name in JOB_VARIABLES:
        if environment.get(name):
            return environment[name]
    return ""


def _shares_no_core(pid: int) -> bool:
    """Return whether a process has no core in common with this one, like a job on other cores.

    A process that has ended has none either.
    """
    try:
        return not os.sched_getaffinity(pid) & os.sched_getaffinity(0)
    except OSError:
        return True


def _state_of(pid: int) -> str:
    """Return the process state, or an empty string if it has ended."""
    try:
        text = (PROCESSES / str(pid) / "stat").read_text()
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[0]
