"""A tokenizing process: asks for shards, makes them, says what became of each."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from runbook.data.inputs import Shard
from runbook.data.marks import Mark
from runbook.data.options import Output, TokenizeOptions
from runbook.data.placing import ShardSink, Turns
from runbook.data.shard import Counts, ShardMaker
from runbook.errors import DataError

REPORT_SECONDS = 0.25
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Setup:
    """What a worker needs to begin."""

    prefix: Path
    options: TokenizeOptions
    source_key: str
    parent: int
    """Process id of the one that deals the shards."""


@dataclass(frozen=True)
class Snapshot:
    """How far the shard in hand is."""

    input_bytes: int
    text_bytes: int
    documents: int
    tokens: int
    failures: int


class PipeTurns:
    """Asks the parent process for places."""

    apart = True

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def stream(self, shard: int) -> int | None:
        """See Turns."""
        self._pipe.send(("stream", shard))
        answer: int | None = self._pipe.recv()
        return answer

    def place(self, shard: int, size: int) -> int | None:
        """See Turns."""
        self._pipe.send(("place", shard, size))
        answer: int | None = self._pipe.recv()
        return answer


def make_shard(maker: ShardMaker, shard: Shard, fingerprint: str, output: Output, turns: Turns) -> Mark:
    """Tokenize one shard to its place, or to a part; what goes wrong with the disk is a DataError."""
    sink = ShardSink(shard.number, output, turns)
    try:
        return sink.finish(fingerprint, maker.make(shard, sink))
    except ConnectionError:
        raise  # the pipe to the parent, not the disk
    except OSError as error:
        raise disk_error(error, output) from error
    finally:
        sink.abandon()


def disk_error(error: OSError, output: Output) -> DataError:
    """A failed write in our words: what is done stays done."""
    import errno
    import shutil

    folder = output.base.parent
    full = {
        errno.ENOSPC: "the disk is full",
        errno.EDQUOT: "the quota is used up",
        errno.EFBIG: "a file may grow no more",
    }
    what = full.get(error.errno or 0, f"writing failed: {error.strerror or error}")
    try:
        free = f"{shutil.disk_usage(folder).free:,} bytes are free there"
    except OSError:
        free = "the free space is not known"
    return DataError(
        f"{what} while writing below {folder} ({free}). Finished shards are kept: make room and run the same command "
        "again, and it goes on where it stopped."
    )


def throttled(send: Callable[[Snapshot], None]) -> Callable[[Counts], None]:
    """A report function that sends a snapshot a few times a second at most."""
    last = 0.0

    def report(counts: Counts) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= REPORT_SECONDS:
            last = now
            failures = counts.skipped_records + counts.skipped_files
            send(Snapshot(counts.input_bytes, counts.text_bytes, counts.documents, counts.tokens, failures))

    return report


def main(pipe: Connection, setup: Setup) -> None:
    """Life of a worker; ends with its parent, whatever ends that."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    _die_with(setup.parent)
    from runbook.data.encoders import use_one_thread
    from runbook.data.tokenizer import load_tokenizer

    output = Output(setup.prefix)
    options = setup.options
    try:
        with (output.parts / "workers.lock").open("ab") as lock:
            share(lock.fileno())
            use_one_thread()
            tokenizer = load_tokenizer(
                options.tokenizer, special_tokens=options.special_tokens, encoder=options.encoder
            )
            report = throttled(lambda snapshot: pipe.send(("progress", snapshot)))
            maker = ShardMaker(tokenizer, options, setup.source_key, report)
            turns = PipeTurns(pipe)
            pipe.send(("ready", tokenizer.encoder.name))
            while (task := pipe.recv()) is not None:
                shard, fingerprint = task
                pipe.send(("done", make_shard(maker, shard, fingerprint, output, turns)))
    except DataError as error:
        pipe.send(("error", str(error)))
    except (EOFError, ConnectionError):
        return  # the parent is gone


def _die_with(parent: int) -> None:
    """Be killed when the parent ends, so that none is left to write into files that a new run works on (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def share(descriptor: int) -> None:
    """Hold a shared lock, where the filesystem knows locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    except OSError:
        return  # Lustre without -o flock; the parent's own lock has the same limit
