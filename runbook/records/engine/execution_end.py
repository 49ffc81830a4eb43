"""How a notebook execution can end, and the signals that stop it."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from types import FrameType

from runbook.records.messages import RecordMessage


class ExecutionState(StrEnum):
    """How an execution ended."""

    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    TIMEOUT = "timeout"
    KERNEL_DIED = "kernel-died"


MEANING = {
    signal.SIGINT: "stopped by Ctrl-C (SIGINT)",
    signal.SIGTERM: RecordMessage.STOPPED_BY_SIGTERM.fill(),
    signal.SIGHUP: "stopped by SIGHUP: its terminal was closed",
}


class NotebookStopped(SystemExit):
    """A signal ended the notebook, which has been saved.

    The process then exits as if killed by that signal (143 for SIGTERM).
    """

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number


class NotebookInterrupted(KeyboardInterrupt):
    """Ctrl-C ended the notebook, which has been saved.

    papermill then prints `Aborted!` and exits with 1.
    """

    number = int(signal.SIGINT)


@contextlib.contextmanager
def _handled_by(
    handler: Callable[[int, FrameType | None], None], numbers: Iterable[signal.Signals]
) -> Iterator[None]:
    """Handle these signals with `handler` inside the block.

    Python can set signal handlers only in the main thread, so in any other thread this has no
    effect.
    """
    if threading.current_thread() is not threading.main_thread():
        numbers = ()
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, usual in before.items():
            signal.signal(number, usual)


class SignalTrap(contextlib.ExitStack):
    """Stores the first signal instead of letting the signal kill the process.

    A signal that the process already ignores stays ignored.
    """

    def __init__(self) -> None:
        super().__init__()
        self.received = 0
        self.on_signal: Callable[[], object] = lambda: None

    def __enter__(self) -> SignalTrap:
        heard = [number for number in MEANING if signal.getsignal(number) is not signal.SIG_IGN]
        self.enter_context(_handled_by(self._catch, heard))
        return self

    def reason(self) -> str:
        """What the signal means, as text."""
        return MEANING[signal.Signals(self.received)]

    def error(self) -> BaseException:
        """The exception to raise once the notebook is saved."""
        if self.received == signal.SIGINT:
            return NotebookInterrupted()
        return NotebookStopped(self.received)

    def _catch(self, number: int, frame: FrameType | None) -> None:
        if not self.received:
            self.received = number
            self.on_signal()


@contextlib.contextmanager
def ending_in_order() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise `NotebookStopped` instead of ending the process at once.

    Locks are then released, and the exit code belongs to the signal (143 for SIGTERM), as for a
    stopped notebook.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        raise NotebookStopped(number)

    deadly = [
        number
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is signal.SIG_DFL
    ]
    with _handled_by(stop, deadly):
        yield
