"""How an execution ended, in one word."""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """How an execution ended."""

    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    TIMEOUT = "timeout"
    KERNEL_DIED = "kernel-died"
