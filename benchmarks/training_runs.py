"""Whole runs of the trainer: what a second copy on a second core brings, and how long a save holds the training up.

    python -m benchmarks.training_runs scaling [--precision bf16] [--iterations 8]
    python -m benchmarks.training_runs saving [--iterations 24]

`scaling`: the same global batch on one process pinned to one core, and on two data-parallel processes pinned to one
core each; tokens/s by the median step after the first two. `saving`: one process with one thread, the other core free,
saves every sixth step, first waiting for each save and then beside the training; the stall of a save is the sum over
the steps until the next one of (time between two metrics lines - median of undisturbed steps).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.training_vs_plain import SHAPES, _spec

EVERY = 6


def train(folder: Path, spec: dict[str, Any], ranks: int, *, pinned: bool) -> list[dict[str, Any]]:
    """Run the ranks with one thread each, where `pinned` on a core each; the lines of metrics.jsonl."""
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text(json.dumps({"phases": {"04-training": spec}}))
    command = [sys.executable, "-m", "runbook.training", str(folder / "plan.json")]
    port = str(20000 + os.getpid() % 10000)
    processes = []
    for rank in range(ranks):
        environment = {
            **os.environ, "OMP_NUM_THREADS": "1", "RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
        }  # fmt: skip
        place = ["taskset", "-c", str(rank)] if pinned else []
        processes.append(subprocess.Popen([*place, *command], env=environment, stdout=subprocess.DEVNULL))
    codes = [process.wait() for process in processes]
    if any(codes):
        raise SystemExit("a rank failed")
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def prepared(precision: str, iterations: int, copies: int, global_batch: int) -> dict[str, Any]:
    """The smoke shape on made-up data."""
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


def scaling(root: Path, precision: str, iterations: int) -> None:
    """Show both speeds and their ratio."""
    speeds = []
    for copies in (1, 2):
        lines = train(root / f"dp{copies}", prepared(precision, iterations, copies, 4), copies, pinned=True)
        seconds = statistics.median(line["seconds"] for line in lines[2:])
        speeds.append(4 * SHAPES["smoke"]["sequence"] / seconds)
        print(f"DP {copies}: {speeds[-1]:.0f} tokens/s ({precision}, median of {len(lines) - 2} steps)", flush=True)
    print(f"DP 2 / DP 1 = {speeds[1] / speeds[0]:.2f}")


def saving(root: Path, iterations: int) -> None:
    """Show the stall of a save, waited for and beside the training."""
    stalls = []
    for beside in (False, True):
        spec = prepared("bf16", iterations, 1, 1)
        spec["checkpoint"] |= {"interval": EVERY, "asynchronous": beside}
        lines = train(root / f"saving{beside}", spec, 1, pinned=False)
        gaps = [after["time"] - before["time"] for before, after in itertools.pairwise(lines)]
        usual = statistics.median(gaps)
        # The gap after line n x EVERY holds the save; what is beside it reaches into the steps that follow.
        whole = [sum(gap - usual for gap in gaps[at - 1 : at + EVERY - 2]) for at in range(EVERY, len(gaps), EVERY)]
        stalls.append(statistics.median(whole))
        name = "beside the training" if beside else "waited for"
        print(f"{name}: {stalls[-1]:.3f} s a save (undisturbed step {usual:.3f} s; {len(whole)} saves)", flush=True)
    print(f"stall beside / waited for = {stalls[1] / stalls[0]:.2f}")


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("scaling", "saving"))
    parser.add_argument("--precision", default="bf16", choices=("fp32", "bf16"))
    parser.add_argument("--iterations", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        if arguments.what == "scaling":
            scaling(Path(root), arguments.precision, arguments.iterations or 8)
        else:
            saving(Path(root), arguments.iterations or 24)


if __name__ == "__main__":
    main()
