"""Fork server: imports torch and megatron-core once, and forks a training rank for each request.

Ladders, drills and tests start many jobs. A forked rank starts in well under a second, and is a
separate process that can be killed, stopped and traced like any other. This file can be run in two
ways, both without the package's other modules:

- `python -m runbook.jobs.fork_server [--keep-ranks] SOCKET [MODULE]...` runs the server, which also
  imports these modules. Its owner is the first connection. When that connection closes, the server
  ends all ranks and then itself. With `--keep-ranks` it waits until its ranks have ended.
- `python -IS fork_server.py SOCKET -m runbook.training PLAN ...` replaces the python that a job
  script would start for a rank. It requests a rank, forwards signals to it, and ends in the same
  way as the rank. The rank ends if this process is killed. It is started for every rank of every
  job, so this file imports neither dataclasses nor typing: that would take longer than everything
  else.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType

MODULES = (
    "torch",
    "torch.utils.tensorboard",
    "torch.distributed.checkpoint",
    "megatron.core.distributed",
    "megatron.core.models.gpt.gpt_model",
    "megatron.core.datasets.gpt_dataset",
    "runbook.training.__main__",
    "runbook.training.loop",
    "runbook.training.engines.megatron_engine",
)
"""Modules imported by the server.

The trainer is named as a string, because only this separate process imports it.
"""
KEEP_RANKS = "--keep-ranks"
"""Option to keep ranks alive when the server's owner exits, which jobs in a ladder need."""
POLL_SECONDS = 0.02
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


@contextlib.contextmanager
def short_name(path: str) -> Iterator[str]:
    """Yield a short name for a socket, because socket addresses are limited to 107 bytes."""
    folder, name = os.path.split(path)
    descriptor = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)


class RankRequest:
    """The function run by a rank, its working directory, arguments and environment."""

    def __init__(
        self,
        function: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        folder: str,
    ) -> None:
        # Written as `module:function`; the function returns the exit code
        self.function = function
        self.arguments = arguments
        self.environment = environment
        self.folder = folder

    def send(self, server: str, outputs: Sequence[int]) -> socket.socket:
        """Request this rank from the server, with these files as its standard output and error.

        The rank lives only while the connection stays open. The server replies with two lines:
        {"pid": ...}, and {"code": ...} when the rank has ended.
        """
        connection = socket.socket(socket.AF_UNIX)
        with short_name(server) as name:
            connection.connect(name)
        socket.send_fds(connection, [json.dumps(vars(self)).encode() + b"\n"], outputs)
        return connection


class ForkServer:
    """Forks ranks, and stores the connection to each rank's client by process id."""

    def __init__(self, listener: socket.socket, path: str, *, keeps_ranks: bool = False) -> None:
        self.listener = listener
        self.path = path
        self.keeps_ranks = keeps_ranks
        self.listens = True
        self.selector = selectors.DefaultSelector()
        self.ranks: dict[int, socket.socket] = {}

    def serve(self) -> None:
        """Serve requests until the owner has ended."""
        owner, _ = self.listener.accept()
        self.selector.register(owner, selectors.EVENT_READ, "owner")
        self.selector.register(self.listener, selectors.EVENT_READ, "listener")
        while True:
            for key, _ in self.selector.select(POLL_SECONDS):
                if key.data == "owner":
                    self._stop_listening(owner)
                    if not self.keeps_ranks:
                        self._end_all()
                elif key.data == "listener" and self.listens:
                    self._fork(self.listener.accept()[0])
                elif key.data in self.ranks:
                    self._end(key.data)

            self._reap()
            if not self.listens and not self.ranks:
                return

    def _stop_listening(self, owner: socket.socket) -> None:
        """Accept no further requests. From now on, clients start their ranks without this server.

        Ranks that have already been requested are still forked, because other ranks are waiting for
        them.
        """
        self.listens = False
        for connection in (owner, self.listener):
            self.selector.unregister(connection)
        owner.close()
        with contextlib.suppress(OSError):
            os.unlink(self.path)  # noqa: PTH108
        self.listener.setblocking(False)
        while self.keeps_ranks and (pending := self._next_pending()):
            self._fork(pending)
        self.listener.close()

    def _next_pending(self) -> socket.socket | None:
        """Return a connection that is waiting to be accepted, or None."""
        try:
            return self.listener.accept()[0]
        except BlockingIOError:
            return None

    def _fork(self, connection: socket.socket) -> None:
        try:
            request, files = _receive(connection)
        except (
            OSError,
            TypeError,
            ValueError,
        ):  # The client was killed before it had sent its request.
            connection.close()
            return

        pid = os.fork()
        if pid == 0:
            self.listener.close()
            # Close the inherited connections, because a connection that the server closes would
            # stay open in this rank.
            for rank_connection in self.ranks.values():
                rank_connection.close()

            connection.close()
            self.selector.close()
            _become_rank(request, files)

        for file in files:
            os.close(file)
        self.ranks[pid] = connection
        self.selector.register(connection, selectors.EVENT_READ, pid)
        _answer(connection, "pid", pid)

    def _end(self, pid: int) -> None:
        """End the rank whose client has disconnected."""
        self.selector.unregister(self.ranks[pid])
        self.ranks.pop(pid).close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if connection := self.ranks.pop(pid, None):
                    self.selector.unregister(connection)
                    _answer(connection, "code", os.waitstatus_to_exitcode(status))
                    connection.close()

    def _end_all(self) -> None:
        for pid in list(self.ranks):
            self._end(pid)
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-1, 0)


def _answer(connection: socket.socket, key: str, value: int) -> None:
    # The client was killed. The server will next see that the connection is closed, and end the
    # rank.
    with contextlib.suppress(OSError):
        connection.sendall(json.dumps({key: value}).encode() + b"\n")


def _receive(connection: socket.socket) -> tuple[RankRequest, list[int]]:
    """Return a client's request and the files for its standard output and error."""
    text, files, _, _ = socket.recv_fds(connection, 2**20, 2)
    while not text.endswith(b"\n"):
        piece = connection.recv(2**20)
        if not piece:
            for file in files:
                os.close(file)
            raise ValueError("the client is gone")

        text += piece

    if len(files) != 2:
        raise ValueError("the client sent no output")
    return RankRequest(**json.loads(text)), files


def _become_rank(request: RankRequest, files: Sequence[int]) -> None:
    """Run the function and exit.

    An exception ends this process just as it would end a rank without a fork server.
    """
    for number, file in zip((1, 2), files, strict=True):
        os.dup2(file, number)
        os.close(file)

    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    sys.argv = ["runbook.training", *request.arguments]
    threads = os.environ.get("OMP_NUM_THREADS", "")
    importlib.import_module("torch").set_num_threads(
        int(threads) if threads.isdigit() and int(threads) else 1
    )
    module, _, name = request.function.partition(":")
    code = getattr(importlib.import_module(module), name)()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def serve(path: str, modules: Sequence[str], *, keeps_ranks: bool = False) -> None:
    """Import the modules, listen on the socket, and serve."""
    # All ranks compute on the CPU, because a forked rank would inherit the devices that were
    # detected during the imports.
    importlib.import_module("runbook.training.ranks").hide_gpus()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in (*MODULES, *modules):
            importlib.import_module(name)

    with socket.socket(socket.AF_UNIX) as listener:
        with short_name(path + ".part") as name:
            listener.bind(name)
        listener.listen(64)
        os.rename(path + ".part", path)  # noqa: PTH104  (visible only once it listens)
        listener.settimeout(60)
        ForkServer(listener, path, keeps_ranks=keeps_ranks).serve()


class RankStandIn:
    """The process started by a job script for a rank in place of python."""

    def __init__(self) -> None:
        self.rank: int | None = None
        self.pending: list[int] = []

    def run(
        self,
        server: str,
        module: str,
        arguments: Sequence[str],
    ) -> int | None:
        """Return the rank's exit code, or the negated signal number if a signal ended it.

        Return None if no server is listening.
        """
        parent = os.getppid()
        # 1 is PR_SET_PDEATHSIG, which a rank without a fork server sets itself.
        ctypes.CDLL(None).prctl(
            1,
            signal.SIGKILL,
            0,
            0,
            0,
        )
        if os.getppid() != parent:
            return 1
        for number in FORWARDED:
            signal.signal(number, self.forward)
        request = RankRequest(f"{module}.__main__:main", arguments, dict(os.environ), os.getcwd())  # noqa: PTH109
        try:
            connection = request.send(server, (1, 2))
        except OSError:
            return None
        with connection, connection.makefile("r") as answers:
            for line in answers:
                message = json.loads(line)
                if "code" in message:
                    return int(message["code"])
                self.rank = int(message["pid"])
                for pending in self.pending:
                    self.forward(pending, None)

        return 1

    def forward(self, number: int, _frame: FrameType | None) -> None:
        """Pass a signal to the rank, immediately or as soon as the rank exists."""
        if self.rank is None:
            self.pending.append(number)
            return

        with contextlib.suppress(ProcessLookupError):
            os.kill(self.rank, number)


def end_like(code: int) -> None:
    """Exit with this code. If it is negative, die from the signal that it stands for."""
    if code < 0:
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)

    os._exit(code)


if __name__ == "__main__":
    if sys.argv[2:3] == ["-m"]:
        code = RankStandIn().run(sys.argv[1], sys.argv[3], sys.argv[4:])
        if code is None:  # The server ended without removing its socket, or has just ended.
            os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
        end_like(code)
    options = [word for word in sys.argv[1:] if word == KEEP_RANKS]
    path, *modules = [word for word in sys.argv[1:] if word != KEEP_RANKS]
    serve(path, modules, keeps_ranks=bool(options))
    # Exit immediately: no work is left, and unloading torch would take seconds.
    os._exit(0)
