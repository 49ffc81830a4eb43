"""`python -m runbook.training.rehearsal plan.json --phase 04-training --ranks 0,8`: a line of JSON for each rank."""

import argparse
import dataclasses
import importlib
import json
import os
import sys
from pathlib import Path

from runbook.plan_file.errors import CANNOT_REHEARSE, TrainingError
from runbook.plan_file.phase_names import FULL
from runbook.plan_file.schema import read_plan
from runbook.training.messages import TrainingMessage


def main() -> int:
    """Rehearse ranks one after the other, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m runbook.training.rehearsal", description=__doc__
    )
    parser.add_argument("plan", type=Path)
    parser.add_argument("--phase", default=FULL)
    parser.add_argument("--ranks", required=True, help="rank numbers, separated by commas")
    parser.add_argument("--out", type=Path, help="file for the lines, instead of standard output")
    arguments = parser.parse_args()
    # Libraries print to standard output.
    results, sys.stdout = sys.stdout, sys.stderr
    os.environ |= {
        "OMP_NUM_THREADS": "1",
        "DS_BUILD_OPS": "0",
        "CUDA_VISIBLE_DEVICES": "",
        "HIP_VISIBLE_DEVICES": "",
    }
    try:
        spec = read_plan(arguments.plan, arguments.phase)
        try:
            importlib.import_module("megatron.core")
            from runbook.training.rehearsal.rank import rehearse
        except ImportError as error:
            needed = TrainingMessage.SOFTWARE_OF_REHEARSAL.fill()
            sys.stderr.write(TrainingMessage.SOFTWARE_TOO_OLD.fill(needed=needed, error=error))
            return CANNOT_REHEARSE

        # The file is opened only now, to leave no file behind if software is missing.
        if arguments.out:
            results = arguments.out.open("w", encoding="utf-8")
        for rank in arguments.ranks.split(","):
            result = rehearse(spec, int(rank))
            results.write(json.dumps(dataclasses.asdict(result)) + "\n")
            results.flush()
    except TrainingError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code

    return 0


if __name__ == "__main__":
    sys.exit(main())
