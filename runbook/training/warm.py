"""A process that has imported torch and megatron-core and forks a rank when asked: `python -m ...warm SOCKET`.

For drills, which start a job dozens of times: a rank is there in fractions of a second, and is a process of its own
that can be killed, stopped and traced like any other. `drills/warm_client.py` asks, in the place of a rank's python.
The first connection is the owner's: when it closes, all ranks are ended and this process too, whatever became of it.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import warnings
from dataclasses import dataclass, field
from typing import Any

MODULES = (
    "torch", "torch.utils.tensorboard", "torch.distributed.checkpoint", "megatron.core.distributed",
    "megatron.core.models.gpt.gpt_model", "megatron.core.datasets.gpt_dataset", "runbook.training.__main__",
    "runbook.training.session", "runbook.training.loop", "runbook.training.megatron_engine",
)  # fmt: skip
POLL_SECONDS = 0.02


@dataclass
class Forks:
    """The ranks that were asked for, by process, each with the connection of who asked."""

    listener: socket.socket
    selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    ranks: dict[int, socket.socket] = field(default_factory=dict)

    def serve(self) -> None:
        """Until the owner is gone."""
        owner, _ = self.listener.accept()
        self.selector.register(owner, selectors.EVENT_READ, "owner")
        self.selector.register(self.listener, selectors.EVENT_READ, "listener")
        while True:
            for key, _ in self.selector.select(POLL_SECONDS):
                if key.data == "owner":
                    self._end_all()
                    return
                if key.data == "listener":
                    self._fork(self.listener.accept()[0])
                else:
                    self._end(key.data)
            self._reap()

    def _fork(self, connection: socket.socket) -> None:
        try:
            asked, files = _request(connection)
        except (OSError, ValueError):  # whoever asked was killed before it had asked
            connection.close()
            return
        pid = os.fork()
        if pid == 0:
            self.listener.close()
            for one in self.ranks.values():  # or the others' ends would not be seen while this rank lives
                one.close()
            connection.close()
            self.selector.close()
            _become_rank(asked, files)
        for file in files:
            os.close(file)
        self.ranks[pid] = connection
        self.selector.register(connection, selectors.EVENT_READ, pid)
        with contextlib.suppress(OSError):  # killed meanwhile: its end is read next, and ends the rank
            connection.sendall(json.dumps({"pid": pid}).encode() + b"\n")

    def _end(self, pid: int) -> None:
        """The one who asked is gone: so is the rank."""
        self.selector.unregister(self.ranks[pid])
        self.ranks.pop(pid).close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            connection = self.ranks.pop(pid, None)
            if connection is not None:
                self.selector.unregister(connection)
                with contextlib.suppress(OSError):
                    connection.sendall(json.dumps({"code": os.waitstatus_to_exitcode(status)}).encode() + b"\n")
                connection.close()

    def _end_all(self) -> None:
        for pid in list(self.ranks):
            self._end(pid)
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-1, 0)


def _request(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """What a client asks for, and its standard output and error."""
    text, files, _, _ = socket.recv_fds(connection, 2**20, 2)
    while not text.endswith(b"\n"):
        more = connection.recv(2**20)
        if not more:
            for file in files:
                os.close(file)
            raise ValueError("the client is gone")
        text += more
    asked: dict[str, Any] = json.loads(text)
    if len(files) != 2:
        raise ValueError("the client sent no output")
    return asked, files


def _become_rank(asked: dict[str, Any], files: list[int]) -> None:
    for number, file in zip((1, 2), files, strict=True):
        os.dup2(file, number)
        os.close(file)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.argv = ["runbook.training", *asked["arguments"]]
    import torch

    from runbook.training.__main__ import _leave, main

    threads = os.environ.get("OMP_NUM_THREADS", "")
    torch.set_num_threads(int(threads) if threads.isdigit() and int(threads) else 1)
    code = 1
    try:
        code = main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001  (a forked process must show what would end it, and then end)
        sys.excepthook(*sys.exc_info())
    finally:
        _leave(code)


def main(path: str) -> None:
    """Import, listen, serve."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in MODULES:
            importlib.import_module(name)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path + ".part")
        listener.listen(64)
        os.rename(path + ".part", path)  # noqa: PTH104  (seen only when it listens)
        listener.settimeout(60)
        Forks(listener).serve()


if __name__ == "__main__":
    main(sys.argv[1])
