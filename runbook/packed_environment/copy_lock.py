"""The lock file next to a copy.

All processes that run from the copy share the lock. A process that creates or removes the copy
holds the lock exclusively.
"""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from runbook.packed_environment.messages import CopyMessage
from runbook.plan_file.errors import CodedError

MAKING_SECONDS = 900.0
"""Longest wait while another process creates the copy. `timeout` in python.sh is longer."""
IN_USE_SECONDS = 30.0
"""Longest wait while other processes use a copy that is not ready.

Other processes hold the lock until they end.
"""
PAUSE_SECONDS = 0.1


class LockTimeout(CodedError):
    """Another process did not release the lock. The message states what that process is doing."""


def lock_file(copy: Path) -> Path:
    """Return the file locked to guard a copy."""
    return copy.with_name(f"{copy.name}.lock")


def wait_for_copy(copy: Path, is_ready: Callable[[], bool], stack: contextlib.ExitStack) -> bool:
    """Return whether the copy is ready, and hold the lock until the stack is closed.

    If the copy is ready, the lock is shared, to keep anybody from removing the copy. A training run
    holds the lock for days, so processes that find a copy ready must not wait. If the copy is not
    ready, the lock is exclusive. Raise `LockTimeout` if another process holds the lock for too long
    and the copy does not become ready.
    """
    stream = stack.enter_context(lock_file(copy).open("a"))
    began = time.monotonic()
    used_since = None
    while True:
        if _try(stream, fcntl.LOCK_SH):
            if is_ready():
                return True
            # Never upgrade a lock from shared to exclusive, because two processes that did so would
            # wait for each other
            fcntl.flock(stream, fcntl.LOCK_UN)
            if _try(stream, fcntl.LOCK_EX):
                # Another process may have created the copy between the two locks
                return is_ready()
            used_since = used_since or time.monotonic()
            if time.monotonic() - used_since > IN_USE_SECONDS:
                raise LockTimeout(CopyMessage.COPY_NOT_READY, copy=copy, seconds=IN_USE_SECONDS)
        else:
            used_since = None
            if time.monotonic() - began > MAKING_SECONDS:
                raise LockTimeout(CopyMessage.COPY_NOT_FINISHED, copy=copy, seconds=MAKING_SECONDS)

        time.sleep(PAUSE_SECONDS)


def try_lock(copy: Path, stack: contextlib.ExitStack) -> bool:
    """Return whether a copy is unused. If so, lock it until the stack is closed."""
    stream = stack.enter_context(lock_file(copy).open("a"))
    return try_alone(stream)


def try_alone(stream: IO[str]) -> bool:
    """Try to lock an open file exclusively, but do not wait. Return whether that succeeded."""
    return _try(stream, fcntl.LOCK_EX)


def _try(stream: IO[str], kind: int) -> bool:
    try:
        fcntl.flock(stream, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False

    return True
