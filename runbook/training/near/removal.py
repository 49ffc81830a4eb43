"""Removes the copies for a training run from memory on the node this program runs on.

    python -m runbook.training.near.removal plan.json --phase 04-training

A job runs this program on each node when a training run stops and a person must decide how to
continue. The copies are not needed soon, and the next job needs the memory. The program does not
need torch.
"""

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from runbook.plan_file.schema import PhasePlan, read_plan
from runbook.training.near import places


def remove_copies(spec: PhasePlan) -> bool:
    """Remove the copies for this training run from this node. Return whether no copy is left."""
    folder = places.top_folder(spec.checkpoint.near_folder) / places.training_name(spec)
    # A file that cannot be removed must not keep the others from being removed.
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def main(argv: Sequence[str] | None = None) -> int:
    """Remove the copies for a training phase. Return 1 if some copies remain."""
    parser = argparse.ArgumentParser(
        prog="python -m runbook.training.near.removal", description=__doc__
    )
    parser.add_argument("plan", type=Path)
    parser.add_argument("--phase", required=True)
    arguments = parser.parse_args(argv)
    is_gone = remove_copies(read_plan(arguments.plan, arguments.phase))
    return 0 if is_gone else 1


if __name__ == "__main__":
    sys.exit(main())
