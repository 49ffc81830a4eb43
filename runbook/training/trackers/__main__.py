"""`python -m runbook.training.trackers NAME plan.json PHASE`: send one training run to one tracker.

The program ends soon after standard input is closed.
"""

import argparse
import logging
import os
import signal
import sys
from pathlib import Path

from runbook.plan_file.schema import read_plan
from runbook.training.trackers.follower import Follower, end_with
from runbook.training.trackers.services import SERVICES

LOG = logging.getLogger("runbook.training.trackers")

NICENESS = 5
"""Niceness of each tracker process, to give training ranks priority on every core."""


def main() -> int:
    """Follow a training run, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m runbook.training.trackers", description=__doc__
    )
    parser.add_argument("name", choices=sorted(SERVICES))
    parser.add_argument("plan", type=Path)
    parser.add_argument("phase")
    arguments = parser.parse_args()
    # Stop signals are meant for the trainer, which ends this process by closing stdin.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    os.nice(NICENESS)
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    spec = read_plan(arguments.plan, arguments.phase)
    ended = end_with(sys.stdin.fileno())
    follower = Follower(spec, arguments.name, lambda: SERVICES[arguments.name](spec), ended)
    try:
        return follower.run()
    except ImportError as error:
        package = f"gpt3-runbook[{arguments.name}]"
        LOG.error("%s. Install it where the trainer runs: pip install '%s'", error, package)
        return 1


if __name__ == "__main__":
    sys.exit(main())
