"""`python -m runbook.training plan.json [--phase 04-training]`: one rank of a training job."""

from __future__ import annotations

import argparse
import atexit
import os
import sys
from pathlib import Path

from runbook.training.errors import FAILED, TrainingError
from runbook.training.ranks import Ranks, die_with_launcher, ranks_from
from runbook.training.spec import Spec, read_plan


def main() -> int:
    """Run this rank; the exit code."""
    arguments = _arguments()
    atexit.register(_leave, FAILED)  # registered first, so called last: after a traceback was shown
    ranks = None
    try:
        ranks = ranks_from(os.environ)
        die_with_launcher(ranks)
        return run(read_plan(arguments.plan, arguments.phase), ranks)
    except TrainingError as error:
        if ranks is None or ranks.rank == 0:
            sys.stderr.write(f"{error}\n")
        return error.exit_code


def run(spec: Spec, ranks: Ranks) -> int:
    """Train `spec` as one of `ranks`; the exit code."""
    from runbook.training.session import train

    return train(spec, ranks)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m runbook.training", description=__doc__)
    parser.add_argument("plan", type=Path, help="plan.json of the run; its relative paths start from its folder")
    parser.add_argument("--phase", default="04-training", help="which phase of it: 04-training or 03-smoke-test")
    return parser.parse_args()


def _leave(code: int) -> None:
    """End at once: after a failure the exit handlers of torch and gloo may wait for ranks that are gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _leave(main())
