"""The warm trainer, a fork server that this process starts and ends."""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import sys
from pathlib import Path

import psutil

from runbook.core import shell
from runbook.core.errors import ProgramError
from runbook.core.files import write_text
from runbook.core.processes import wait_until
from runbook.jobs import fork_server
from runbook.jobs.fork_server import KEEP_RANKS, short_name
from runbook.jobs.messages import JobMessage

WARM_SECONDS = 240.0


class WarmTrainer:
    """A server used to fork ranks for any client that sends a `RankRequest` to its socket.

    The server ends when this process ends, for whatever reason. With `keeps_ranks`, it first waits
    until its ranks have ended.
    """

    def __init__(self, folder: Path, *, keeps_ranks: bool = False) -> None:
        self.folder = folder
        self.keeps_ranks = keeps_ranks
        self.socket_path = folder / "warm"
        self.pid = 0
        self._owner = socket.socket(socket.AF_UNIX)

    def start(self, *modules: str, cwd: Path | None = None) -> None:
        """Start the server and wait until it listens.

        The server also imports `modules`, which may be in the folder `cwd`.
        """
        package = str(Path(__file__).parents[2])
        options = [KEEP_RANKS] if self.keeps_ranks else []
        error = self.folder / "warm.err"
        self.pid = shell.start_detached(
            [
                sys.executable,
                "-m",
                "runbook.jobs.fork_server",
                *options,
                str(self.socket_path),
                *modules,
            ],
            cwd=cwd or self.folder,
            out=self.folder / "warm.out",
            err=error,
            env={
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": os.pathsep.join([package, os.environ.get("PYTHONPATH", "")]),
            },
        )
        if not wait_until(
            lambda: self.socket_path.exists() or not psutil.pid_exists(self.pid), WARM_SECONDS
        ):
            raise ProgramError(JobMessage.IMPORT_TOO_SLOW, warm_seconds=WARM_SECONDS)

        if not self.socket_path.exists():
            last_lines = shell.last_lines(error.read_text(errors="replace"))
            raise ProgramError(JobMessage.TRAINER_NOT_IMPORTED, last_lines=last_lines)

        self.connect()

    def connect(self) -> None:
        """Connect to the listening server, which makes this process its owner."""
        with short_name(str(self.socket_path)) as name:
            self._owner.connect(name)

    def close(self) -> None:
        """Close our connection, so that the server ends all ranks and then itself.

        Kill the server if it does not end. A server that keeps its ranks ends after the last rank.
        """
        self._owner.close()
        if self.keeps_ranks:
            return
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(self.pid)
            if self.pid and not wait_until(lambda: not still_runs(process), 5):
                process.kill()

    def write_python(self, path: Path) -> None:
        """Write a script to be run in place of python, which requests the rank from this server.

        If the server no longer listens, the script starts the rank using the Python of this
        process.
        """
        stand_in = [sys.executable, "-IS", fork_server.__file__, str(self.socket_path)]
        lines = [
            "#!/bin/sh",
            f"if [ -S {shlex.quote(str(self.socket_path))} ]; then",
            f'  exec {shlex.join(stand_in)} "$@"',
            "fi",
            f'exec {shlex.quote(sys.executable)} "$@"',
        ]
        write_text(path, "\n".join(lines) + "\n", mode=0o777)


def still_runs(process: psutil.Process) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
