"""Measures complete training runs.

It measures the speed-up from a second replica on a second core, and how long a save delays
training.

    python -m benchmarks.training_runs scaling [--precision bf16] [--rounds 5]     about 4 minutes
    python -m benchmarks.training_runs saving [--rounds 2]                         about 4 minutes

Each benchmark alternates between its two variants, so that other load slows both. Both need an idle
machine. `scaling`: the same global batch of four on one process pinned to one core, and on two
data-parallel processes pinned to one core each. The result for a turn is its median step time after
the first step, and the median over the turns is reported. `saving`: one process with one thread,
the other core free, saves every sixth step; turns that wait for each save alternate with turns that
save in the background. The stall for a save is (time between two metrics lines - median undisturbed
step time), summed over the steps until the next save.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.engines import metrics, warm
from benchmarks.training_vs_plain import SHAPES, _spec
from tests.training.group import Zygote

EVERY = 6
SAVES = 3
"""Steps between saves, and the number of saves that count per turn. The save at the end of a turn
does not count.
"""
BATCH = 4
STEPS = 3
LEFT_OUT = 1
"""For a turn in `scaling`: sequences per step, steps, and how many first steps are left out.
"""


def pin() -> None:
    """Bind this rank to its own core. The rank calls this before the trainer."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(os.environ["LOCAL_RANK"])]})


def prepared(precision: str, iterations: int, copies: int, global_batch: int) -> dict[str, Any]:
    """Return the plan for the smoke shape on mock data."""
    spec = _spec(SHAPES["smoke"], precision)
    size = spec["model"]["sequence_length"]
    spec["parallel"] |= {"data": copies, "world_size": copies, "zero_stage": 1}
    spec["batch"] |= {"global": global_batch, "num_microbatches": global_batch // copies}
    samples = iterations * global_batch
    spec["duration"] = {"iterations": iterations, "samples": samples, "tokens": samples * size}
    spec["data"] |= {"mock": True, "train": [], "validation": [], "test": []}
    spec["evaluation"] = {"interval": 0, "iterations": 0}
    spec["sampling"] |= {"prompt": "", "prompt_ids": []}
    spec["checkpoint"] |= {"folder": "checkpoints", "interval": 0, "keep": 1}
    spec["model"]["parameters"] = 0
    return spec


def scaling(zygote: Zygote, root: Path, precision: str, rounds: int) -> None:
    """Print both speeds and their ratio."""
    speeds: dict[int, list[float]] = {1: [], 2: []}
    for turn in range(rounds):
        for copies in (1, 2) if turn % 2 == 0 else (2, 1):
            content = prepared(precision, STEPS, copies, BATCH)
            lines = metrics(zygote, root, content, patch="benchmarks.training_runs:pin")[LEFT_OUT:]
            seconds = statistics.median(line["seconds"] for line in lines)
            speeds[copies].append(BATCH * SHAPES["smoke"]["sequence"] / seconds)
    for copies, values in speeds.items():
        middle = statistics.median(values)
        say(
            f"DP {copies}: {middle:.0f} tokens/s, {min(values):.0f} to {max(values):.0f} ({precision}, {rounds} turns)"
        )
    ratios = [two / one for one, two in zip(speeds[1], speeds[2], strict=True)]
    whole = statistics.median(speeds[2]) / statistics.median(speeds[1])
    say(f"DP 2 / DP 1 = {whole:.2f}; turn by turn {min(ratios):.2f} to {max(ratios):.2f}")


def saving(zygote: Zygote, root: Path, rounds: int) -> None:
    """Print the stall that a save causes in the foreground and in the background."""
    stalls: dict[bool, list[float]] = {False: [], True: []}
    steps: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(rounds):
        for beside in (False, True) if turn % 2 == 0 else (True, False):
            spec = prepared("bf16", EVERY * (SAVES + 1), 1, 1)
            spec["checkpoint"] |= {"interval": EVERY, "asynchronous": beside}
            lines = metrics(zygote, root, spec)
            gaps = [after["time"] - before["time"] for before, after in itertools.pairwise(lines)]
            usual, whole = stalls_of(gaps)
            stalls[beside] += whole
            steps[beside].append(usual)
    for beside, values in stalls.items():
        name = "beside the training" if beside else "waited for"
        say(
            f"{name}: {statistics.median(values):.3f} s a save, {min(values):.3f} to {max(values):.3f} "
            f"(undisturbed step {statistics.median(steps[beside]):.3f} s; {len(values)} saves)"
        )
    share = statistics.median(stalls[True]) / statistics.median(stalls[False])
    say(f"stall beside / waited for = {share:.2f}")


def stalls_of(gaps: list[float]) -> tuple[float, list[float]]:
    """Return the median undisturbed step time, and the stall for each save.

    Both come from the times between the lines of a turn.

    Gap n belongs to step n + 2. The gap after line n x EVERY contains the save; a save in the
    background extends into the following steps, and all but the last of these count as part of it.
    """
    saves = range(EVERY, len(gaps), EVERY)
    undisturbed = gaps[: EVERY - 1] + [gaps[at - 2] for at in saves[1:]]
    usual = statistics.median(undisturbed)
    return usual, [sum(gap - usual for gap in gaps[at - 1 : at + EVERY - 2]) for at in saves]


def say(text: str) -> None:
    """Print a line."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    """Run the part that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("scaling", "saving"))
    parser.add_argument("--precision", default="bf16", choices=("fp32", "bf16"), help="scaling")
    parser.add_argument(
        "--rounds", type=int, default=0, help="turns of each side; 0: 5 for scaling, 2 for saving"
    )
    arguments = parser.parse_args()
    with warm() as zygote, tempfile.TemporaryDirectory() as root:
        if arguments.what == "scaling":
            scaling(zygote, Path(root), arguments.precision, arguments.rounds or 5)
        else:
            saving(zygote, Path(root), arguments.rounds or 2)


if __name__ == "__main__":
    main()
