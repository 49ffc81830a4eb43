"""Gets the stacks from a different process on this machine.

A stuck rank writes its own stacks. If the watchdog on a rank cannot run, the rank writes them when
it receives a signal.
"""

import contextlib
import os
import re
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

STACK_SIGNAL = signal.SIGUSR2
"""Signal that makes a rank write the stacks of all threads to a file.

The stacks are written without the GIL and without our code. So a rank that still runs Python code
in another thread can crash, because that thread may free a frame at the moment it is read: send the
signal only to a rank that is silent.
"""
POLL_SECONDS = 0.01


def own_stacks() -> str:
    """Return the stacks of all threads in this process, in the same format as faulthandler.

    The main thread comes first, because it is the one the other ranks wait for.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    lines = []
    for ident, frame in sorted(sys._current_frames().items(), key=lambda item: item[0] != main):
        name = names.get(ident, "unnamed")
        lines.append(f"Thread 0x{ident:016x} [{name}] (most recent call first):")
        for called, line in traceback.walk_stack(frame):
            code = called.f_code
            lines.append(f'  File "{code.co_filename}", line {line} in {code.co_name}')

    return "\n".join(lines) + "\n"


def read_stacks(file: Path, seconds: float) -> str:
    """Return the stacks a stuck rank wrote, or an empty text if none arrive in time."""
    deadline = time.monotonic() + seconds
    text = ""
    while time.monotonic() < deadline:
        before = text
        with contextlib.suppress(OSError):
            text = file.read_text(encoding="utf-8", errors="replace")
        # Unchanged text is complete, since one call writes all of it
        if text and text == before:
            break
        time.sleep(POLL_SECONDS)

    return text


def send_signals(pid: int, *signals: int) -> None:
    """Send signals in this order to a process. It is not an error if the process has ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        for number in signals:
            os.kill(pid, number)


def ask_for_stacks(pid: int, file: Path, seconds: float) -> str:
    """Let a silent process continue, and return the stacks of all threads in it.

    The result is empty if the process did not write its stacks in time.

    faulthandler writes line by line, and on a busy machine the process may wait for a core between
    two lines. The kernel shows when the handler has returned: the signal is no longer pending, and
    only threads that blocked it before still block it.
    """
    blocked_before = threads_that_block(pid, STACK_SIGNAL)
    send_signals(pid, STACK_SIGNAL, signal.SIGCONT)
    deadline = time.monotonic() + seconds
    text = ""
    while time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        is_handling = is_pending(pid, STACK_SIGNAL) or bool(
            threads_that_block(pid, STACK_SIGNAL) - blocked_before
        )
        before = text
        with contextlib.suppress(OSError):
            text = file.read_text(encoding="utf-8", errors="replace")
        # The text is complete once it no longer changes and the handler has returned. Without
        # /proc, it cannot be seen when the handler returns, so unchanged text is enough
        if text and text == before and not is_handling:
            break

    return text


def is_pending(pid: int, number: int) -> bool:
    """Return whether a signal sent to a process is still pending."""
    return _has_signal(Path(f"/proc/{pid}/status"), "ShdPnd", number)


def threads_that_block(pid: int, number: int) -> set[str]:
    """Return the threads in a process that block a signal.

    The thread that runs the signal handler is one of them.
    """
    names = set()
    for task in Path(f"/proc/{pid}/task").glob("[0-9]*"):
        if _has_signal(task / "status", "SigBlk", number):
            names.add(task.name)

    return names


def _has_signal(status: Path, mask: str, number: int) -> bool:
    """Return whether a signal mask in /proc/<pid>/status contains a signal.

    The result is False if the process has ended.
    """
    try:
        text = status.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False

    match = re.search(rf"^{mask}:\s+([0-9a-f]+)", text, re.MULTILINE)
    return match is not None and bool(int(match[1], 16) >> (number - 1) & 1)
