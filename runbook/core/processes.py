"""Identifies processes on this machine, checks their state, and finds all processes in a job."""

from __future__ import annotations

import contextlib
import getpass
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import psutil

JOB_VARIABLE = "RUNBOOK_JOB"
"""Environment variable used to mark every process in a job.

A process keeps it even after it has left the process group and session of the job.
"""


class Standing(StrEnum):
    """What has become of a process recorded earlier."""

    ALIVE = "alive"
    DEAD = "dead"
    # On the same host, which has been rebooted since then
    REBOOTED = "rebooted"
    # On a different host or in a different container, whose processes are not visible from here
    ELSEWHERE = "elsewhere"


@dataclass(frozen=True)
class Identity:
    """Identifies a process. A later process with the same number has a different identity."""

    pid: int
    start: int
    """Clock ticks from machine start to process start; 0 if unknown.

    A clock change does not affect it.
    """
    boot_id: str
    host: str
    namespace: str
    """The namespace in which process numbers are unique.

    Containers on one machine have the same boot id, so the namespace tells them apart.
    """


def boot_id() -> str:
    """Return a string that changes whenever the machine is rebooted."""
    path = Path("/proc/sys/kernel/random/boot_id")
    if path.exists():
        return path.read_text().strip()
    return f"started-{psutil.boot_time():.0f}"


def host_name() -> str:
    """Return the name of this machine."""
    return socket.gethostname()


def user_name() -> str:
    """Return the user who runs this process.

    In some containers, accounts have no name; the result is then the account number.
    """
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def uptime_seconds() -> float:
    """Return the seconds since the machine booted, unaffected by clock changes."""
    path = Path("/proc/uptime")
    if path.exists():
        return float(path.read_text().split()[0])
    return time.time() - psutil.boot_time()


def identify(pid: int) -> Identity | None:
    """Return the identity of a running process, or None if no process has this id."""
    start = _start_of(pid)
    if start is None:
        return None
    return Identity(
        pid,
        start,
        boot_id(),
        host_name(),
        _namespace(),
    )


def identity_of_ended(pid: int) -> Identity:
    """Return an identity for a process that ended before it could be identified.

    No running process has this identity.
    """
    return Identity(
        pid,
        -1,
        boot_id(),
        host_name(),
        _namespace(),
    )


def standing(identity: Identity) -> Standing:
    """Return whether a recorded process, possibly on a different machine, is still running."""
    if identity.boot_id != boot_id():
        if identity.host == host_name():
            return Standing.REBOOTED
        return Standing.ELSEWHERE

    if identity.namespace != _namespace():
        return Standing.ELSEWHERE
    current = identify(identity.pid)
    # A different process may have the same number now. The start time tells the two apart.
    is_same = current is not None and current.start == identity.start
    return Standing.ALIVE if is_same else Standing.DEAD


def process_tree(*tokens: str) -> list[psutil.Process]:
    """Return every running process in these jobs, except the current process.

    These are the marked processes and all their descendants.
    """
    tree: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        if _environment(process).get(JOB_VARIABLE) in tokens:
            tree[process.pid] = process
            with contextlib.suppress(psutil.NoSuchProcess):
                tree.update({child.pid: child for child in process.children(recursive=True)})

    tree.pop(os.getpid(), None)
    return [process for process in tree.values() if identify(process.pid) is not None]


def ranks(parent: int, token: str) -> list[psutil.Process]:
    """Return the training processes that a job script has started, in rank order."""
    rank_processes: dict[int, psutil.Process] = {}
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in psutil.Process(parent).children():
            environment = _environment(process)
            if environment.get(JOB_VARIABLE) == token and environment.get("RANK", "").isdigit():
                rank_processes[int(environment["RANK"])] = process

    return [rank_processes[rank] for rank in sorted(rank_processes)]


def send(processes: list[psutil.Process], signal_number: signal.Signals) -> int:
    """Send a signal to each process that is still running. Return how many it reached."""
    reached = 0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal_number)
            reached += 1

    return reached


def wait_until(condition: Callable[[], bool], seconds: float, interval: float = 0.05) -> bool:
    """Return whether a condition became true in time. The condition is checked at least once."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= end:
            return False
        time.sleep(interval)

    return True


def kill_until_none(
    find: Callable[[], list[psutil.Process]], seconds: float = 10.0
) -> list[psutil.Process]:
    """Kill the processes that `find` returns, until it returns none.

    New processes may start while others are being killed. A killed process takes a moment to end,
    and `find` may not return it any more: a child is no longer found through its ended parent.
    Return the processes that could not be killed.
    """
    killed: dict[int, psutil.Process] = {}

    def still_running() -> list[psutil.Process]:
        running = {process.pid: process for process in find()}
        for pid, process in killed.items():
            if process.is_running() and identify(pid) is not None:
                running.setdefault(pid, process)
        return list(running.values())

    def none_left() -> bool:
        running = still_running()
        killed.update({process.pid: process for process in running})
        send(running, signal.SIGKILL)
        return not running

    wait_until(none_left, seconds)
    return still_running()


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except (psutil.Error, OSError):
        # The process has ended, is a zombie, or belongs to a different user.
        return {}


def _namespace() -> str:
    path = Path("/proc/self/ns/pid")
    return str(path.readlink()) if path.exists() else ""


def _start_of(pid: int) -> int | None:
    """Return the start time of a running process, or None if it has ended or never existed."""
    try:
        if Path("/proc/self/stat").exists():
            stat = Path(f"/proc/{pid}/stat").read_bytes()
            # The name before the bracket may contain spaces and brackets.
            state, *fields = stat.rpartition(b")")[2].split()
            # A zombie has ended; pid 1 in a container does not always reap it.
            return None if state in (b"Z", b"X") else int(fields[18])

        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return int(process.create_time())
    except (OSError, psutil.NoSuchProcess):
        # The process may also vanish while it is being read.
        return None
