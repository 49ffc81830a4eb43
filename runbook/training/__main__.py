"""`python -m runbook.training plan.json [--phase 04-training]`: one rank of a training job."""

from __future__ import annotations

import argparse
import atexit
import os
import sys
from pathlib import Path

from runbook.training.errors import FAILED, TrainingError
from runbook.training.ranks import die_with_launcher, ranks_from
from runbook.training.spec import read_plan
from runbook.training.stopping import Stopping


def main() -> int:
    """Run this rank; the exit code."""
    arguments = _arguments()
    atexit.register(_leave, FAILED)  # registered first, so called last: after a traceback was shown
    stopping = Stopping()  # before the imports that take seconds: a signal meanwhile is not lost
    rank = 0
    try:
        ranks = ranks_from(os.environ)
        rank = ranks.rank
        die_with_launcher(ranks)
        spec = read_plan(arguments.plan, arguments.phase)
        # Before torch takes its first memory: pages of 2 MiB for large tensors, where the kernel has them to give.
        os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
        from runbook.training.session import train

        return train(spec, ranks, stopping)
    except TrainingError as error:
        if rank == 0 or not error.on_all_ranks:
            sys.stderr.write(f"rank {rank}: {error}\n" if rank else f"{error}\n")
        return error.exit_code


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
