"""Handles signals so that a command releases its locks and jobs before it ends."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def released_by_signals() -> Iterator[None]:
    """Let a signal that ends this process unwind the stack.

    Locks are then released, and jobs are removed from the queue.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    before = {number: signal.signal(number, leave) for number in ENDING_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
