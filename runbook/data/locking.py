"""One run at a time on a prefix, and no worker of a dead run left writing."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from runbook.data.options import Output
from runbook.errors import HeldError

_log = logging.getLogger(__name__)
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)
WORKERS_SECONDS = 30.0


@contextmanager
def held(output: Output) -> Iterator[None]:
    """Hold the prefix; HeldError says who else does."""
    while True:
        output.parts.mkdir(parents=True, exist_ok=True)
        path = output.parts / "lock"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _take(descriptor, output)
            if _same(path, descriptor):
                break
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # the holder before us finished and removed the folder; take the new one
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        _wait_for_workers(output)
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int, output: Output) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(descriptor, 20, 0).decode(errors="replace").strip() or "unknown"
        raise HeldError(
            f"process {owner} is tokenizing to {output.base} at this moment. Wait for it, or end it; "
            "then run the same command again."
        ) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        _log.warning("%s: this filesystem has no locks; make sure that only one run writes to it", output.parts)


def _same(path: os.PathLike[str], descriptor: int) -> bool:
    try:
        return os.stat(path).st_ino == os.fstat(descriptor).st_ino  # noqa: PTH116 - compared with fstat
    except FileNotFoundError:
        return False


def _wait_for_workers(output: Output) -> None:
    """Workers hold a shared lock while they live; those of a killed run end within milliseconds."""
    with (output.parts / "workers.lock").open("ab") as file:
        deadline = time.monotonic() + WORKERS_SECONDS
        while True:
            try:
                fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise HeldError(
                        f"workers of an earlier run still write to {output.parts} after {WORKERS_SECONDS:.0f} s; "
                        "end these processes, then run the same command again"
                    ) from None
                time.sleep(0.05)
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
                return
