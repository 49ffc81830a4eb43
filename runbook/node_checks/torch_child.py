"""Queries torch in a separate process, to get an answer even after a crash."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping

from runbook.node_checks.answers import Facts
from runbook.node_checks.libraries import VARIABLE, folders_with, substitutions
from runbook.node_checks.program_output import run_program

CHILD = "runbook.training.probe"
LAST_LINES = 4
HUNG = "hung"


def look_at_torch(device: str, seconds: float) -> Facts:
    """Return what torch reports about this node.

    If the process with torch failed, return the signal, the exit code and the last output lines.
    The libraries are compared in the time that remains after the import.
    """
    deadline = time.monotonic() + seconds
    facts = _run_child(["--only-torch", "--device", device], os.environ, seconds)
    loaded = facts.get("libraries")
    if isinstance(loaded, dict) and folders_with(loaded):
        without_variable = _libraries_without_variable(deadline - time.monotonic())
        facts["libraries_compared"] = without_variable is not None
        facts["substituted"] = substitutions(loaded, without_variable or {})
    return facts


def _libraries_without_variable(seconds: float) -> dict[str, str] | None:
    """Return the libraries that torch loads if LD_LIBRARY_PATH is not set.

    Return no libraries if torch needs the variable to start, and None if there is not enough time.
    """
    if seconds <= 0:
        return None
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    facts = _run_child(["--only-libraries"], environment, seconds)
    if facts["ended"] == HUNG:
        return None
    libraries = facts.get("libraries")
    return dict(libraries) if isinstance(libraries, dict) else {}


def _run_child(options: list[str], environment: Mapping[str, str], seconds: float) -> Facts:
    """Run the child process. Return how it ended, and the output."""
    argv = [sys.executable, "-m", CHILD, *options]
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    try:
        ended = run_program(argv, seconds, {**environment, **alone})
    except subprocess.TimeoutExpired:
        return {"ended": HUNG, "seconds": seconds}

    last_words = "\n".join(ended.stderr.strip().splitlines()[-LAST_LINES:])
    if ended.returncode < 0:
        name = signal.Signals(-ended.returncode).name
        return {"ended": "signal", "signal": name, "words": last_words}

    if ended.returncode:
        return {"ended": "failed", "exit_code": ended.returncode, "words": last_words}
    facts: Facts = json.loads(ended.stdout.strip().splitlines()[-1])
    return {"ended": "well", **facts}
