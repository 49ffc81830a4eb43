"""Ctrl-C, SIGTERM and SIGHUP caught while a notebook runs, so that there is time to save it.

with SignalTrap() as trap: ...      trap.received is 0 or the signal's number; trap.on_signal is called once
with ending_in_order(): ...         between notebooks: the process leaves through its `with` and `finally`
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any

CAUGHT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
MEANING = {
    signal.SIGINT: "stopped by Ctrl-C (SIGINT)",
    signal.SIGTERM: "stopped by SIGTERM, as a scheduler sends at cancellation, preemption or the time limit",
    signal.SIGHUP: "stopped by SIGHUP: its terminal was closed",
}


class NotebookStopped(SystemExit):
    """A signal ended the notebook, which is saved; the process ends as if by that signal (143 for SIGTERM)."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number


class NotebookInterrupted(KeyboardInterrupt):
    """Ctrl-C ended the notebook, which is saved; papermill then says `Aborted!` and ends with 1."""

    number = int(signal.SIGINT)


class SignalTrap:
    """Remembers the first signal instead of dying of it; a signal that was ignored before stays ignored."""

    def __init__(self) -> None:
        self.received = 0
        self.on_signal: Callable[[], None] = lambda: None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> SignalTrap:
        if threading.current_thread() is threading.main_thread():  # Python sets handlers nowhere else
            for number in CAUGHT:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._catch)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def reason(self) -> str:
        """What the signal means, in words."""
        return MEANING[signal.Signals(self.received)]

    def error(self) -> BaseException:
        """What to raise once the notebook is saved."""
        return NotebookInterrupted() if self.received == signal.SIGINT else NotebookStopped(self.received)

    def _catch(self, number: int, frame: FrameType | None) -> None:
        if not self.received:
            self.received = number
            self.on_signal()


@contextlib.contextmanager
def ending_in_order() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise `NotebookStopped` where they would end the process without a word.

    A lock is then given back, and the exit code is the signal's (143), as after a notebook that was stopped.
    """
    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                before[number] = signal.signal(number, _stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(number: int, frame: FrameType | None) -> None:
    raise NotebookStopped(number)
