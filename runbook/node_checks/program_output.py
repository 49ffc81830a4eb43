"""Runs other programs on a node, with nothing but the standard library."""

import subprocess
from collections.abc import Mapping, Sequence


def run_program(
    argv: Sequence[str], seconds: float, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program to completion and return its exit code and output.

    The program gets no input, because it might wait for input forever. Bytes that are not UTF-8 are
    replaced, because a compiler may print the version in the language of another locale.

    Raises:
        OSError: the program does not start.
        subprocess.TimeoutExpired: the program takes longer than `seconds`.
    """
    return subprocess.run(
        argv,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=seconds,
        check=False,
    )
