"""Runs worker processes that tokenize shards, and assigns the shards to them.

If a worker dies, its shard is assigned to a new worker.
"""

import contextlib
import ctypes
import errno
import fcntl
import multiprocessing
import os
import shutil
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import ModuleType
from typing import Any

from runbook.core.errors import DataError
from runbook.tokens.messages import TokenMessage
from runbook.tokens.pipeline.bin_writer import Committer, Placement, ShardSink
from runbook.tokens.pipeline.large_pages import use_large_pages
from runbook.tokens.pipeline.parts_folder import ShardCounts
from runbook.tokens.pipeline.shard import ShardMaker
from runbook.tokens.pipeline.tokenize_options import TokenFiles, TokenizeOptions
from runbook.tokens.sources.input_files import Shard
from runbook.tokens.tokenizer import load_tokenizer, use_one_thread

REPORT_SECONDS = 0.25
ATTEMPTS = 3
"""How many workers a shard may kill before it is given up."""
_PR_SET_PDEATHSIG = 1
_FULL = {
    errno.ENOSPC: TokenMessage.DISK_FULL,
    errno.EDQUOT: TokenMessage.QUOTA_USED_UP,
    errno.EFBIG: TokenMessage.FILE_LIMIT_REACHED,
}


def disk_error(error: OSError, files: TokenFiles) -> DataError:
    """Return our own error for a failed write, which says that finished work is kept."""
    folder = files.base.parent
    message = _FULL.get(error.errno or 0)
    if message is None:
        reason = TokenMessage.WRITING_FAILED.fill(error=error.strerror or error)
        return DataError(TokenMessage.FOLDER_NOT_WRITABLE, reason=reason, folder=folder)

    reason = message.fill()
    try:
        free = TokenMessage.BYTES_FREE.fill(size=shutil.disk_usage(folder).free)
    except OSError:
        free = TokenMessage.FREE_SPACE_UNKNOWN.fill()

    return DataError(TokenMessage.WRITE_FAILED, reason=reason, folder=folder, free=free)


def work(
    pipe: Connection,
    prefix: Path,
    options: TokenizeOptions,
    parent: int,
    placement: Placement,
) -> None:
    """Run a worker. The worker ends when its parent ends, for any reason."""
    # The parent process handles Ctrl-C.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A worker from an earlier run must not keep writing to files used by a new run.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)

    files = TokenFiles(prefix)
    last_report = 0.0

    def report(counts: ShardCounts) -> None:
        nonlocal last_report
        if time.monotonic() - last_report >= REPORT_SECONDS:
            last_report = time.monotonic()
            pipe.send(("progress", counts))

    try:
        with (files.parts / "workers.lock").open("ab") as lock:
            # Lustre without the mount option flock refuses this lock. The parent's own lock has the
            # same limitation.
            with contextlib.suppress(OSError):
                fcntl.flock(lock.fileno(), fcntl.LOCK_SH)

            use_large_pages()
            use_one_thread()
            tokenizer = load_tokenizer(
                options.tokenizer, special_tokens=options.special_tokens, encoder=options.encoder
            )
            maker = ShardMaker(tokenizer, options, report)
            pipe.send(("ready", tokenizer.encoder.name))
            while (task := pipe.recv()) is not None:
                shard, fingerprint = task
                with contextlib.closing(
                    ShardSink(files, shard, placement, leaves_mark=True)
                ) as sink:
                    pipe.send(("done", maker.make(shard, fingerprint, sink)))
    except DataError as error:
        pipe.send(("error", str(error)))
    except (EOFError, ConnectionError):
        return  # The parent process has ended.
    except OSError as error:
        pipe.send(("error", str(disk_error(error, files))))


@dataclass
class _Worker:
    process: SpawnProcess
    pipe: Connection
    shard: Shard | None = None
    # Counts for the current shard so far
    counts: ShardCounts | None = None


class Pool:
    """Lets worker processes tokenize shards, and passes the results to a committer."""

    def __init__(
        self,
        files: TokenFiles,
        options: TokenizeOptions,
        committer: Committer,
    ) -> None:
        self.deaths = 0
        # The encoder that the workers use, by name
        self.encoder = ""
        self.workers: list[_Worker] = []
        committer.placement.share()
        self._arguments = (files.prefix, options, os.getpid(), committer.placement)
        self._committer = committer
        self._attempts: Counter[int] = Counter()
        self._todo: deque[Shard] = deque()

    def start(self, count: int) -> None:
        """Start the workers. The workers load their tokenizers while the caller loads its own."""
        context = multiprocessing.get_context("spawn")
        for _ in range(count):
            ours, theirs = context.Pipe()
            arguments = (theirs, *self._arguments)
            process = context.Process(
                target=work,
                args=arguments,
                daemon=True,
                name="runbook-tokenize",
            )
            with without_main():
                process.start()
            theirs.close()
            self.workers.append(_Worker(process, ours))

    def close(self) -> None:
        """End all workers and discard their unfinished work."""
        for worker in self.workers:
            worker.process.kill()
        for worker in self.workers:
            worker.process.join()
            worker.pipe.close()

        self.workers.clear()

    def run(self, shards: Iterable[Shard], report: Callable[[], None]) -> None:
        """Tokenize all shards. `report` is called a few times a second."""
        self._todo = deque(shards)
        while self._has_work():
            did_work = self._committer.step()
            self._listen(0.0 if did_work else 0.1)
            report()

    def _has_work(self) -> bool:
        if self._todo or self._committer.has_work:
            return True
        return any(worker.shard for worker in self.workers)

    @property
    def in_hand(self) -> list[ShardCounts]:
        """Return the counts so far for each shard that is being processed."""
        return [worker.counts for worker in self.workers if worker.counts is not None]

    def _listen(self, seconds: float) -> None:
        channels: dict[Any, _Worker] = {}
        for worker in self.workers:
            channels |= {worker.pipe: worker, worker.process.sentinel: worker}
        ready = {}
        for channel in wait(list(channels), seconds):
            worker = channels[channel]
            ready[id(worker)] = worker

        for worker in ready.values():
            # Check this before reading the pipe: a dead worker's last message is already in the
            # pipe.
            alive = worker.process.is_alive()
            try:
                while worker.pipe.poll():
                    self._answer(worker, worker.pipe.recv())
            except (EOFError, OSError):
                # The worker died, perhaps while it was sending a message.
                worker.process.join()
                alive = False

            if not alive:
                self._replace(worker)

    def _answer(self, worker: _Worker, message: tuple[Any, ...]) -> None:
        match message:
            case ("ready", encoder):
                self.encoder = encoder
                self._deal(worker)
            case ("progress", counts):
                worker.counts = counts
            case ("done", mark):
                self._committer.finished(mark)
                worker.shard = worker.counts = None
                self._deal(worker)
            case ("error", text):
                raise DataError(text)

    def _deal(self, worker: _Worker) -> None:
        if not self._todo:
            worker.pipe.send(None)
            return

        worker.shard = self._todo.popleft()
        worker.pipe.send((worker.shard, self._committer.fingerprints[worker.shard.number]))

    def _replace(self, worker: _Worker) -> None:
        """Start a worker to replace a dead one, and assign the same shard again.

        A shard that killed too many workers is not assigned again.
        """
        self.workers.remove(worker)
        worker.pipe.close()
        code = worker.process.exitcode
        if worker.shard is None and (code == 0 or not self._todo):
            return
        self.deaths += 1
        number = worker.shard.number if worker.shard else -1
        self._attempts[number] += 1
        if self._attempts[number] >= ATTEMPTS:
            if code is not None and code < 0:
                how = f"killed by signal {-code}"
            else:
                how = f"ended with exit code {code}"

            if worker.shard:
                when = f"working on {worker.shard.describe()}"
            else:
                when = "starting"

            raise DataError(
                TokenMessage.WORKERS_DIED, attempts=self._attempts[number], when=when, how=how
            )

        if worker.shard is not None:
            self._todo.appendleft(worker.shard)
        self.start(1)


@contextlib.contextmanager
def without_main() -> Iterator[None]:
    """Let a child process start without importing the main program, which it does not need.

    Otherwise a plain script that calls prepare() without `if __name__ == "__main__":` would start
    itself again.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
