"""One run at a time on a prefix, and no worker of a dead run left writing."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import platform
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
    """Hold the prefix alone; HeldError says who else does."""
    descriptor = _open(output, "lock", fcntl.LOCK_EX)
    try:
        _sign(descriptor)
        _wait_for_workers(output)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def shared(output: Output, name: str) -> Iterator[None]:
    """Hold the prefix together with other jobs of an array, and one share of the work alone."""
    descriptor = _open(output, "lock", fcntl.LOCK_SH)
    try:
        own = _open(output, f"{name}.lock", fcntl.LOCK_EX)
        try:
            _sign(own)
            yield
        finally:
            os.close(own)
    finally:
        os.close(descriptor)


def _open(output: Output, name: str, kind: int) -> int:
    while True:
        output.parts.mkdir(parents=True, exist_ok=True)
        path = output.parts / name
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _take(descriptor, output, kind)
            if _same(path, descriptor):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # the holder before us finished and removed the folder; take the new one


def _sign(descriptor: int) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()} on {platform.node()}\n".encode(), 0)


def _take(descriptor: int, output: Output, kind: int) -> None:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(descriptor, 100, 0).decode(errors="replace").strip() or "(one of several jobs)"
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
