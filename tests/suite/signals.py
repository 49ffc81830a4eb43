"""Gives the tests a terminal's default signals, even under `nohup` and in the background of a
script.

A shell without job control starts `command &` with SIGINT ignored, and nohup ignores SIGHUP.
Programs inherit ignored signals, so neither the tests nor the programs they start would notice the
Ctrl-C that a test sends.
"""

from __future__ import annotations

import signal
from types import FrameType

INHERITED = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM)


def answer_inherited_signals() -> None:
    """Restore the usual effect of every ignored signal for the programs that we start.

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
