"""Query torch in a separate process, so that a crash also becomes an answer."""

import json
import os
import signal
import subprocess
import sys

from runbook.node_checks.answers import Facts

CHILD = "runbook.training.probe"
LAST_LINES = 4


def look_at_torch(device: str, seconds: float) -> Facts:
    """Return what torch reports about this node.

    If its process failed, return its signal, exit code and last words.
    """
    argv = [sys.executable, "-m", CHILD, "--only-torch", "--device", device]
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    try:
        ended = subprocess.run(
            argv,
            env={**os.environ, **alone},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"ended": "hung", "seconds": seconds}

    last_words = "\n".join(ended.stderr.strip().splitlines()[-LAST_LINES:])
    if ended.returncode < 0:
        name = signal.Signals(-ended.returncode).name
        return {"ended": "signal", "signal": name, "words": last_words}

    if ended.returncode:
        return {"ended": "failed", "exit_code": ended.returncode, "words": last_words}
    facts: Facts = json.loads(ended.stdout.strip().splitlines()[-1])
    return {"ended": "well", **facts}
