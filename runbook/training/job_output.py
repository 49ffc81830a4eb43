"""Lines that the trainer prints into the output of its job."""

import contextlib
import sys


def say(text: str) -> None:
    """Print a line of the job's output immediately. A closed output does not end the training."""
    with contextlib.suppress(OSError):
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
