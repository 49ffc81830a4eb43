"""Planned memory and step time, compared with real training runs on this machine's CPU.

    python -m benchmarks.memory_against_plan [--all | --deepspeed]

Each row trains a few steps on mock data with our own trainer. It prints the planned bytes
next to the peak resident memory on the fullest rank (metrics.jsonl), and the planned step time,
corrected by the median over steps 2 to 5, next to the median over later steps. Run it on an idle
machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from runbook.core.ports import port_of, reserve_port
from runbook.phases.run_plan import load_plan
from runbook.planning.cost.calibration import calibrate
from runbook.runs.run_files import write_plan_file

STEPS = 9
SEEN = 5
ROWS = (
    "model=375m training.global_batch=2 training.micro_batch=1 training.sequence_length=1024",
    "model=375m training.global_batch=4 training.micro_batch=2 training.sequence_length=1024",
    "model=375m training.global_batch=2 training.micro_batch=1 training.sequence_length=512 parallel.tensor=2",
    "model=375m training.global_batch=4 training.micro_batch=1 training.sequence_length=512 parallel.pipeline=2",
    "model=375m training.global_batch=4 training.micro_batch=2 training.sequence_length=1024 training.recompute=full",
    "model=375m training.global_batch=2 training.micro_batch=1 training.sequence_length=512 training.precision=fp32",
    "model=small training.global_batch=8 training.micro_batch=4",
    "model=small training.global_batch=32 training.micro_batch=16",
    "model=small training.global_batch=8 training.micro_batch=4 parallel.zero_stage=0",
    "model=125m training.global_batch=2 training.micro_batch=1 training.sequence_length=512",
    "model=125m training.global_batch=2 training.micro_batch=1 training.sequence_length=512 parallel.zero_stage=0",
    "model=125m training.global_batch=4 training.micro_batch=2 training.sequence_length=256 parallel.tensor=2",
)
DEEPSPEED = tuple(
    f"training.engine=deepspeed {words} parallel.zero_stage={stage}"
    for words in (
        "model=375m training.global_batch=4 training.micro_batch=2 training.sequence_length=512",
        "model=small training.global_batch=8 training.micro_batch=4",
        "model=125m training.global_batch=2 training.micro_batch=1 training.sequence_length=256",
    )
    for stage in range(4)
)
OTHERS = (
    "model=375m training.global_batch=2 training.micro_batch=1 training.sequence_length=512 "
    "jobs.training.devices_per_node=1",
    "model=small training.global_batch=16 training.micro_batch=8 jobs.training.devices_per_node=1 "
    "training.precision=fp32",
    "model=375m training.global_batch=2 training.micro_batch=1 training.sequence_length=512 training.dropout=0.1",
    "model=375m training.global_batch=4 training.micro_batch=1 training.sequence_length=256 parallel.tensor=2 "
    "parallel.pipeline=2 jobs.training.devices_per_node=4",
    "model=small training.global_batch=32 training.micro_batch=8 jobs.training.devices_per_node=4",
    "model=375m training.global_batch=4 training.micro_batch=1 training.sequence_length=512 parallel.pipeline=2 "
    "parallel.virtual_pipeline=2",
    "model=125m training.global_batch=2 training.micro_batch=1 training.sequence_length=512 training.precision=fp32 "
    "parallel.zero_stage=0",
    "model=375m training.global_batch=2 training.micro_batch=1 training.sequence_length=2048",
    "model=375m training.global_batch=4 training.micro_batch=2 training.sequence_length=512 "
    "training.recompute=selective",
)
MORE = (
    "model=350m training.global_batch=2 training.micro_batch=1 training.sequence_length=512",
    "model=350m training.global_batch=2 training.micro_batch=1 training.sequence_length=512 parallel.tensor=2",
)
ALWAYS = (
    "data.dataset=mock",
    f"training.iterations={STEPS}",
    "training.warmup_fraction=0.3",
    "training.eval_interval=0",
    "training.save_interval=0",
    "training.sample_prompt=",
    "training.rehearse_stop=0",
)


def main() -> None:
    """Print a row for each configuration, and how many lie within 10 and 15 %."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--all", action="store_true", help="also the rows that take several GiB and minutes"
    )
    parser.add_argument("--deepspeed", action="store_true", help="the other engine, ZeRO 0 to 3")
    given = parser.parse_args()
    memory_errors = []
    time_errors = []
    for words in DEEPSPEED if given.deepspeed else ROWS + (OTHERS + MORE if given.all else ()):
        found = measure(words)
        memory_error = found["planned_bytes"] / found["peak_bytes"] - 1
        time_error = found["corrected_seconds"] / found["later_seconds"] - 1
        memory_errors.append(abs(memory_error))
        time_errors.append(abs(time_error))
        print(
            f"memory {found['planned_bytes'] / 2**30:6.3f} of {found['peak_bytes'] / 2**30:6.3f} GiB "
            f"{memory_error:+6.1%}   step: plan {found['planned_seconds']:7.3f} s, "
            f"corrected {found['corrected_seconds']:7.3f}, "
            f"then {found['later_seconds']:7.3f} s {time_error:+6.1%}   {words}",
            flush=True,
        )
    within = sum(error <= 0.10 for error in memory_errors)
    print(f"memory: {within} of {len(memory_errors)} within 10 %, worst {max(memory_errors):.1%}")
    within = sum(error <= 0.15 for error in time_errors)
    print(
        f"step after five: {within} of {len(time_errors)} within 15 %, worst {max(time_errors):.1%}"
    )


def measure(words: str) -> dict[str, float]:
    """Plan one configuration, train it, and read its peak and its steps."""
    settings, plan = load_plan("local", [*ALWAYS, *words.split()])
    spec = plan.phases["04-training"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_plan_file(settings, plan, folder)
        train(folder, spec.parallel.world_size)
        lines = (folder / spec.log.metrics).read_text(encoding="utf-8").splitlines()
    steps: list[dict[str, Any]] = [json.loads(line) for line in lines]
    seconds = [step["seconds"] for step in steps]
    planned = plan.time["04-training"].seconds_per_iteration
    return {
        "planned_bytes": plan.memory["04-training"].least_bytes / spec.parallel.world_size,
        "peak_bytes": max(step["memory_bytes"] for step in steps),
        "planned_seconds": planned,
        "corrected_seconds": planned * calibrate(seconds[:SEEN], planned),
        "later_seconds": statistics.median(seconds[SEEN:]),
    }


def train(folder: Path, world_size: int) -> None:
    """Run the ranks to completion."""
    shared = {
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "OMP_NUM_THREADS": "1",
    }
    if world_size == 1:
        shared["OMP_NUM_THREADS"] = "2"
    command = [sys.executable, "-m", "runbook.training", str(folder / "plan.json")]
    command += ["--phase", "04-training"]
    with reserve_port() as reservation:
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port_of(reservation))}
        ranks = [
            subprocess.Popen(
                command,
                env={**os.environ, **shared, **address, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.DEVNULL,
            )
            for rank in range(world_size)
        ]
        codes = [code for one in ranks if (code := one.wait())]

    if codes:
        raise SystemExit(f"a rank ended with {codes[0]}")


if __name__ == "__main__":
    main()
