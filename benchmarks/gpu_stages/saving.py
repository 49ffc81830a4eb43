"""Saves and a resume of a large model by the whole trainer: how long the training waits for them.

The same trainings give the seconds of a step of the whole training loop, with data, agreement and log.
"""

from __future__ import annotations

import itertools
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu_stages import throughput
from benchmarks.gpu_stages.programs import (
    SHAPES,
    ProgramOptions,
    draw_weights_on_device,
    phase_content,
    specs,
)
from benchmarks.gpu_stages.trainings import losses_of, train
from benchmarks.gpu_stages.worker import Emit

WAITED_AT = 4
"""The first training ends here and waits for its save."""
IN_BACKGROUND_AT = 6
"""The second one resumes, saves here in the background, and trains on."""
END_AT = 11


def measure(arguments: dict[str, Any], emit: Emit) -> None:
    """Emit the waited save, the resume, and the save in the background."""
    draw_weights_on_device()
    options = ProgramOptions(**arguments["options"])
    with tempfile.TemporaryDirectory(dir=arguments.get("folder")) as name:
        folder = Path(name)
        free = shutil.disk_usage(folder).free
        content = _content(options, WAITED_AT, asynchronous=False)
        lines = train(folder, content)
        saved = _events(folder, "saved")
        emit(_loop_row(options, lines, "first training") | {"free_bytes": free})
        emit({"measured": "save, waited for", "saves": saved})
        begun = time.time()
        content = _content(options, END_AT, asynchronous=True)
        content["checkpoint"]["interval"] = IN_BACKGROUND_AT
        lines = train(folder, content)[len(lines) :]
        resumed = _events(folder, "resumed")
        started = _events(folder, "started")[-1]["time"]
        seconds = started - begun
        emit({"measured": "resume", "seconds_to_start": seconds, "resumed": resumed})
        emit(_loop_row(options, lines, "resumed training"))
        emit({"measured": "save in the background", "saves": _events(folder, "saved")[1:]})
        emit({"measured": "stall between steps"} | stalls(lines))


def _content(options: ProgramOptions, iterations: int, *, asynchronous: bool) -> dict[str, Any]:
    saves = {
        "folder": "checkpoints",
        "interval": 0,
        "keep": 1,
        "asynchronous": asynchronous,
        "resume_changed": True,  # the second training is longer
    }
    content = phase_content(options, checkpoint=saves)
    samples = iterations * content["batch"]["global"]
    length = content["model"]["sequence_length"]
    content["duration"] = {
        "iterations": iterations,
        "samples": samples,
        "tokens": samples * length,
    }
    return content


def _events(folder: Path, kind: str) -> list[dict[str, Any]]:
    events = specs.metrics(folder, "events.jsonl")
    return [event for event in events if event["event"] == kind]


def _loop_row(options: ProgramOptions, lines: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """Return the speed of the whole loop: the first two steps compile and fill caches."""
    seconds = [line["seconds"] for line in lines]
    median = statistics.median(seconds[2:] or seconds)
    sequences = options.micro_batch * options.num_micro_batches
    return {
        "measured": f"training loop, {name}",
        "shape": options.shape,
        "micro_batch": options.micro_batch,
        "num_micro_batches": options.num_micro_batches,
        "median_seconds": median,
        "seconds": seconds,
        "tokens_per_second": sequences * SHAPES[options.shape]["sequence"] / median,
        "mfu": throughput.mfu(options, sequences / median),
        "losses": losses_of(lines),
        "peak_bytes": max(line["memory_bytes"] for line in lines),
        "data_wait_seconds": [line.get("data_wait_seconds") for line in lines],
    }


def stalls(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Return how much longer than usual each gap between two lines of metrics was.

    A save in the background takes its copy in one gap and may slow the steps that follow.
    """
    times = [line["time"] for line in lines]
    gaps = [after - before for before, after in itertools.pairwise(times)]
    usual = statistics.median(gaps) if gaps else 0.0
    return {"usual_gap_seconds": usual, "extra_seconds": [gap - usual for gap in gaps]}
