"""A recorded run of 24 steps, stopped once and resumed. Each slow step has a different reason."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from toy_run import open_run

SLOW = {1: 3.0, 10: 5.0, 19: 3.5, 22: 4.0}  # seconds of the step; other steps take 1
WORDS = (
    "model=small",
    "training.iterations=24",
    "training.sample_prompt=The",
    "training.sample_tokens=2",
)
BEFORE = {
    7: 60.0,
    13: 5.0,
    16: 1.5,
}  # seconds between the previous step and this one: restart, save, evaluation


def write_recorded_run(runs: Path) -> Path:
    """Write the run `local`, and next to it the run `local--again` with the same steps."""
    folder = open_run("04-training", *WORDS, runs=runs, ready=False).folder
    (folder / "records" / "04-training.json").unlink()  # nothing was executed
    steps = []
    ranks = []
    now = 1000.0
    for iteration, segment in [*((n, 0) for n in range(1, 8)), *((n, 1) for n in range(7, 25))]:
        seconds = SLOW.get(iteration, 1.0)
        now += seconds + (BEFORE.get(iteration, 0.0) if segment or iteration != 7 else 0.0)
        waited = 4.0 if iteration == 10 else 0.0
        step = {
            "iteration": iteration,
            "segment": segment,
            "seconds": seconds,
            "time": now,
            "world_size": 2,
        }
        step |= {
            "loss": round(11 - 0.2 * iteration, 1),
            "data_wait_seconds": waited,
            "global_batch": 8,
        }
        steps.append(
            step
            | {
                "consumed_tokens": 2048 * iteration,
                "memory_bytes": 2**30,
                "tokens_per_second": 2048.0,
            }
        )
        slowest = 3.4 if iteration == 19 else 0.9
        ranks.append(
            {"iteration": iteration, "steps": 1, "segment": segment, "seconds": [0.9, slowest]}
        )
    ended = {(step["iteration"], step["segment"]): step["time"] for step in steps}
    saved = {
        "event": "saved",
        "phase": "04-training",
        "iteration": 12,
        "seconds": 9.0,
        "stall_seconds": 5.0,
    }
    resumed = {
        "event": "resumed",
        "phase": "04-training",
        "iteration": 6,
        "folder": "checkpoints/iter_0000006",
    }
    events = [resumed | {"time": ended[7, 0] + 50}, saved | {"time": ended[12, 1] + 5}]
    evaluated = {"iteration": 15, "loss": 8.1, "perplexity": 3294.0, "samples": 16, "seconds": 1.5}
    samples = [{"iteration": n, "prompt_ids": [464], "ids": [262, 262]} for n in (0, 24)]
    files = {"metrics": steps, "rank_times": ranks, "events": events, "samples": samples}
    files["validation"] = [evaluated | {"time": ended[15, 1] + 1.5}]
    for name, lines in files.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    shutil.copytree(folder, runs / "local--again")
    return folder
