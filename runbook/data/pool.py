"""Workers and who watches them: shards are dealt in order, a dead worker's shard is dealt again, nothing hangs."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import ModuleType
from typing import Any

from runbook.data.committer import Committer
from runbook.data.inputs import Shard
from runbook.data.options import Output, TokenizeOptions
from runbook.data.worker import Setup, Snapshot
from runbook.data.worker import main as worker_main
from runbook.errors import DataError

ATTEMPTS = 3
"""How often a shard may kill its worker."""

PATIENCE = 0.25
"""A finished worker waits for its turn this share of the time its shard took; then the tokens go to a part."""


@dataclass
class _Worker:
    process: SpawnProcess
    pipe: Connection
    shard: Shard | None = None
    snapshot: Snapshot | None = None
    began: float = 0.0
    wants: tuple[int, float] | None = None
    """Size of the finished tokens, and when waiting for the turn ends."""


@dataclass
class Pool:
    """Runs shards through worker processes into a committer."""

    output: Output
    options: TokenizeOptions
    source_key: str
    committer: Committer
    num_workers: int
    deaths: int = 0
    encoder: str = ""
    """Name of the encoder that the workers use."""

    workers: list[_Worker] = field(default_factory=list)
    _attempts: dict[int, int] = field(default_factory=dict)
    _todo: deque[Shard] = field(default_factory=deque)

    def __enter__(self) -> Pool:
        """Start the workers; they load their tokenizers while the caller does the same."""
        try:
            for _ in range(self.num_workers):
                self.workers.append(self._start())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        """End all workers; what they have in hand is dropped."""
        self._stop()

    def run(self, shards: Iterable[Shard], tell: Callable[[], None]) -> None:
        """Make all shards; `tell` is called a few times a second."""
        self._todo = deque(shards)
        while self._todo or any(worker.shard for worker in self.workers) or self.committer.has_work:
            worked = self.committer.step()
            self._listen(0.0 if worked else 0.1)
            self._grant()
            tell()

    @property
    def snapshots(self) -> list[Snapshot]:
        """How far each shard in hand is."""
        return [worker.snapshot for worker in self.workers if worker.snapshot is not None]

    def _start(self) -> _Worker:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        setup = Setup(self.output.prefix, self.options, self.source_key, os.getpid())
        process = context.Process(target=worker_main, args=(theirs, setup), daemon=True, name="runbook-tokenize")
        with without_main():
            process.start()
        theirs.close()
        return _Worker(process, ours)

    def _listen(self, seconds: float) -> None:
        channels: dict[Any, _Worker] = {}
        for worker in self.workers:
            channels[worker.pipe] = worker
            channels[worker.process.sentinel] = worker
        heard = {id(worker): worker for channel in wait(list(channels), seconds) if (worker := channels[channel])}
        for worker in heard.values():
            self._hear(worker)

    def _hear(self, worker: _Worker) -> None:
        alive = worker.process.is_alive()  # asked first: what a dead worker said last is in the pipe by now
        try:
            while worker.pipe.poll():
                self._answer(worker, worker.pipe.recv())
        except (EOFError, ConnectionError):
            worker.process.join()
            alive = False
        if not alive:
            self._bury(worker)

    def _answer(self, worker: _Worker, message: tuple[Any, ...]) -> None:
        match message:
            case ("ready", encoder):
                self.encoder = encoder
                self._deal(worker)
            case ("progress", snapshot):
                worker.snapshot = snapshot
            case ("stream", shard):
                worker.pipe.send(self.committer.stream(shard))
            case ("place", _, size):
                took = time.monotonic() - worker.began
                worker.wants = (size, time.monotonic() + max(0.2, took * PATIENCE))
            case ("done", mark):
                self.committer.finished(mark)
                worker.shard = worker.snapshot = None
                self._deal(worker)
            case ("error", text):
                raise DataError(text)

    def _grant(self) -> None:
        """Answer workers that wait for their turn, those with the earliest shard first."""
        waiting = [worker for worker in self.workers if worker.wants is not None and worker.shard is not None]
        for worker in sorted(waiting, key=lambda each: each.shard.number if each.shard else 0):
            assert worker.wants is not None and worker.shard is not None
            size, until = worker.wants
            offset = self.committer.place(worker.shard.number, size)
            if offset is not None or time.monotonic() > until or not self.committer.joins:
                worker.wants = None
                try:
                    worker.pipe.send(offset)
                except ConnectionError:
                    continue  # it died; the next round buries it

    def _deal(self, worker: _Worker) -> None:
        if not self._todo:
            worker.pipe.send(None)
            return
        worker.shard = self._todo.popleft()
        worker.began = time.monotonic()
        try:
            worker.pipe.send((worker.shard, self.committer.fingerprint(worker.shard.number)))
        except ConnectionError:
            return  # it died; its shard is dealt again when it is buried

    def _bury(self, worker: _Worker) -> None:
        self.workers.remove(worker)
        worker.pipe.close()
        code = worker.process.exitcode
        if worker.shard is None and (code == 0 or not self._todo):
            return
        self.deaths += 1
        how = f"killed by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
        number = worker.shard.number if worker.shard else -1
        self._attempts[number] = self._attempts.get(number, 0) + 1
        if self._attempts[number] >= ATTEMPTS:
            what = f"working on {worker.shard.describe()}" if worker.shard else "starting"
            raise DataError(
                f"{self._attempts[number]} workers died while {what}; the last was {how}. Signal 9 often means that "
                "memory ran out: use fewer workers. Finished shards are kept; run again to go on."
            )
        if worker.shard is not None:
            self._todo.appendleft(worker.shard)
        self.workers.append(self._start())

    def _stop(self) -> None:
        for worker in self.workers:
            worker.process.kill()
        for worker in self.workers:
            worker.process.join()
            worker.pipe.close()
        self.workers.clear()


@contextmanager
def without_main() -> Iterator[None]:
    """Start a process that does not import the caller's program again: it needs only this package.

    Without it a plain script that calls prepare() without `if __name__ == "__main__":` would start itself again.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
