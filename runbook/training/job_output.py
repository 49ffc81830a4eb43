"""Prints lines from the trainer to the job output."""

import contextlib
import sys


def say(text: str) -> None:
    """Print a line to the job output immediately.

    The training continues even if the output is closed.
    """
    with contextlib.suppress(OSError):
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
