"""Gives the tests the default signals of a terminal, even under `nohup` or when a script runs them
in the background.

A shell without job control starts `command &` with SIGINT ignored, and nohup ignores SIGHUP.
Programs inherit ignored signals, so neither the tests nor the programs they start would notice the
Ctrl-C that a test sends.
"""

from __future__ import annotations

import signal
from types import FrameType

INHERITED = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM)


def answer_inherited_signals() -> None:
    """Restore the default action for every ignored signal, so that the programs we start get it.

    SIGHUP gets a handler that does nothing. Programs that we start get the default handler back,
    while this process still ignores the signal, as nohup requested.
    """
    for number in INHERITED:
        if signal.getsignal(number) is not signal.SIG_IGN:
            continue
        if number == signal.SIGINT:
            signal.signal(number, signal.default_int_handler)
        elif number == signal.SIGHUP:
            signal.signal(number, outlive)
        else:
            signal.signal(number, signal.SIG_DFL)


def outlive(_number: int, _frame: FrameType | None) -> None:
    """Ignore a signal in this process, but not in the programs that we start."""
