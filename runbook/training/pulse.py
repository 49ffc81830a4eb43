"""Each rank's sign of life in a file of the job: how far it is, what its main thread does, how long it computed."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

FOLDER_VARIABLE = "RUNBOOK_JOB_FOLDER"
FOLDER = "ranks"
"""Folder of a job in which its ranks keep their signs of life."""

STACK_SIGNAL = signal.SIGUSR2
"""A rank that gets it writes the stacks of all its threads to its file; it needs neither the GIL nor our own code."""

_WAITS = ("finish_grad_sync", "finish_param_sync", "start_param_sync")
"""Functions of megatron-core that wait for other ranks in C++, without a frame of torch.distributed."""
_DEPTH = 8
"""Innermost frames of the main thread that are looked at."""


@dataclass(frozen=True)
class Beat:
    """One rank at one moment."""

    rank: int
    host: str
    pid: int
    start: int
    """Clock ticks from the machine's start to the process's: with the pid it names one process for ever."""
    stage: int
    """Pipeline stage: only ranks of one stage compute alike."""
    step: int
    """The step being done; 0 before the first."""
    activity: str
    """starting, step, evaluating or saving."""
    where: str
    """Innermost line of the main thread."""
    waiting: bool
    """Whether the main thread waits for other ranks."""
    computed: float
    """Seconds in steps since the first, without waiting for others."""
    steps: int
    """Whole steps in which they were measured."""
    uptime: float
    """Seconds since the machine's start; no change of the clock moves it."""

    @property
    def age(self) -> float:
        """Seconds since; only on the rank's own machine."""
        return uptime() - self.uptime


def uptime() -> float:
    """Seconds since the machine was started, sleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def start_of(pid: int) -> int:
    """When a process was started, in clock ticks; 0 where there is none, -1 where this cannot be known."""
    if not Path("/proc/self/stat").exists():
        return -1
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
    except OSError:
        return 0


def read_beat(path: Path) -> Beat | None:
    """What a rank last said; None where there is nothing, or nothing that can be read."""
    try:
        return Beat(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError):
        return None


class Pulse:
    """What the training loop tells of itself; it costs two assignments a step."""

    def __init__(self, rank: int, folder: Path | None) -> None:
        self.rank = rank
        self.folder = folder
        self.stage = 0
        self._step = 0
        self._first = 0
        self._activity = "starting"
        self._computed = 0.0
        self._sampled = 0.0
        self._host = socket.gethostname()
        self._start = start_of(os.getpid())
        self._main = threading.main_thread().ident
        self._where, self._waiting = "", False
        self._stacks: Any = None

    def open(self) -> None:
        """Make the folder, and write stacks into it from now on when asked to by signal."""
        assert self.folder is not None
        self.folder.mkdir(parents=True, exist_ok=True)
        self._stacks = (self.folder / f"{self.rank}.stack").open("w", encoding="utf-8")
        faulthandler.register(STACK_SIGNAL, file=self._stacks, all_threads=True)

    def close(self) -> None:
        """Write no stacks any more."""
        if self._stacks is not None:
            faulthandler.unregister(STACK_SIGNAL)
            self._stacks.close()

    def step(self, iteration: int) -> None:
        """A step begins."""
        self._first = self._first or iteration
        self._step, self._activity = iteration, "step"

    @contextlib.contextmanager
    def during(self, activity: str) -> Iterator[None]:
        """Something other than a step is done."""
        before, self._activity = self._activity, activity
        try:
            yield
        finally:
            self._activity = before

    def sample(self) -> None:
        """Look at the main thread; the time since the last look counts as what it is seen doing."""
        now = time.monotonic()
        frame = sys._current_frames().get(self._main or 0)
        self._where, self._waiting = _doing(frame)
        if self._activity == "step" and self._step > self._first and not self._waiting:
            self._computed += now - self._sampled
        self._sampled = now

    def beat(self) -> Beat:
        """This rank now."""
        return Beat(
            self.rank, self._host, os.getpid(), self._start, self.stage, self._step, self._activity, self._where,
            self._waiting, round(self._computed, 3), max(0, self._step - self._first - 1), round(uptime(), 3),
        )  # fmt: skip

    def write(self) -> None:
        """Rewrite the file by rename; a disk that is full does not end the training."""
        assert self.folder is not None
        part = self.folder / f"{self.rank}.json.part"
        with contextlib.suppress(OSError):
            part.write_text(json.dumps(asdict(self.beat())), encoding="utf-8")
            part.replace(self.folder / f"{self.rank}.json")


def _doing(frame: FrameType | None) -> tuple[str, bool]:
    """The innermost line, and whether it waits for other ranks.

    On a GPU every rank waits for its device in the one reduction of the loop (`_share`), so that this counts too.
    """
    if frame is None:
        return "", False
    code = frame.f_code
    where = f"{Path(code.co_filename).name}:{frame.f_lineno} {code.co_name}"
    inner: FrameType | None = frame
    for _ in range(_DEPTH):
        if inner is None:
            break
        file, name = inner.f_code.co_filename.replace("\\", "/"), inner.f_code.co_name
        if "torch/distributed/" in file or name in _WAITS or file.endswith("p2p_communication.py"):
            return where, True
        if name == "_share" and file.endswith("training/step.py"):
            return where, True
        inner = inner.f_back
    return where, False
