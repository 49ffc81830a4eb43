"""Stands in a job's script for `python -m runbook.training`: asks the warm process for a rank and lives as long as it.

Started by itself with `python -IS`, so that it is there at once; it imports nothing of the package. What it is sent it
passes on, it ends as the rank ends, and the rank ends when it is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
from types import FrameType

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
RANK: list[int] = []
PENDING: list[int] = []


def main() -> int:
    """The rank's exit code; a signal that ended the rank ends this process too."""
    path, _, _, *arguments = sys.argv[1:]  # SOCKET -m runbook.training PLAN --phase PHASE
    parent = os.getppid()
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG, as a rank asks for itself
    if os.getppid() != parent:
        return 1
    for number in FORWARDED:
        signal.signal(number, forward)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        asked = {"arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd()}  # noqa: PTH109
        socket.send_fds(connection, [json.dumps(asked).encode() + b"\n"], [1, 2])
        with connection.makefile("r") as answers:
            for line in answers:
                answer = json.loads(line)
                if "code" in answer:
                    return int(answer["code"])
                RANK.append(int(answer["pid"]))
                for pending in PENDING:
                    forward(pending, None)
    return 1


def forward(number: int, _frame: FrameType | None) -> None:
    """Pass a signal on to the rank, now or as soon as there is one."""
    if not RANK:
        PENDING.append(number)
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(RANK[0], number)


if __name__ == "__main__":
    code = main()
    if code < 0:
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)
