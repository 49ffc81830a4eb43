"""How a fork server ends: a client that requests a rank while the owner ends, or later, still gets
one.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runbook.core.processes import wait_until
from runbook.jobs.fork_server import RankRequest
from runbook.jobs.warm_trainer import WarmTrainer

SERVE = """
import sys, types
from runbook.jobs import fork_server
fork_server.MODULES = ()
sys.modules["torch"] = types.SimpleNamespace(set_num_threads=lambda count: None)  # takes seconds
fork_server.serve(sys.argv[1], [], keeps_ranks=True)
"""
ENDED_WELL = '{"code": 0}\n'


class Server:
    """A fork server without torch, and the connection to its owner."""

    def __init__(self, trainer: WarmTrainer) -> None:
        self.path = trainer.socket_path
        self.process = subprocess.Popen([sys.executable, "-c", SERVE, str(self.path)])
        assert wait_until(self.path.exists, 60)
        self.owner = trainer

    def request(self) -> socket.socket:
        """Request a rank that exits with 0 immediately."""
        request = RankRequest("builtins:int", (), dict(os.environ), "/")
        connection = request.send(str(self.path), (1, 2))
        connection.settimeout(60)
        return connection

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """Start a server in a folder with a name too long for a socket address."""
    folder = tmp_path / ("a" * 60) / ("b" * 60)
    folder.mkdir(parents=True)
    trainer = WarmTrainer(folder, keeps_ranks=True)
    started = Server(trainer)
    trainer.connect()
    yield started
    trainer.close()
    started.kill()


def answer(connection: socket.socket) -> str:
    with connection, connection.makefile("r") as lines:
        return lines.readlines()[-1]


def test_ranks_that_were_requested_before_the_owner_ended_are_forked(server):
    assert answer(server.request()) == ENDED_WELL
    server.process.send_signal(signal.SIGSTOP)
    waiting = [server.request() for _ in range(3)]
    server.owner.close()
    server.process.send_signal(signal.SIGCONT)
    assert [answer(connection) for connection in waiting] == [ENDED_WELL] * 3
    assert server.process.wait(60) == 0
    assert not server.path.exists(), "a job that starts later must not wait for this server"


def test_a_rank_is_started_without_a_server_that_left_its_socket(server, tmp_path):
    server.kill()
    assert server.path.is_socket()
    python = tmp_path / "python"
    server.owner.write_python(python)
    words = [str(python), "-m", "this"]
    finished = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert finished.returncode == 0 and "Zen of Python" in finished.stdout
