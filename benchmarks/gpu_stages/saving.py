"""How long a training run waits while the whole trainer saves and resumes a large model.

The same training runs also measure the step time of the whole training loop, including data,
agreement and log.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.gpu_stages import throughput
from benchmarks.gpu_stages.programs import (
    SHAPES,
    ProgramOptions,
    draw_weights_on_device,
    phase_content,
)
from benchmarks.gpu_stages.trainings import losses_of, train
from benchmarks.gpu_stages.worker import Emit

WAITED_AT = 16
"""The first run ends at this step and waits for its save."""
INTERVAL = 18
"""The second run resumes, and saves in the background at multiples of this: there are 18 steps
between saves, enough time to write the previous save. Its second save uses the host memory that the
first one pinned.
"""
SAVES_IN_BACKGROUND = 2
LAST = 1000
"""The benchmark does not wait until the second run ends: its last save, in the foreground, would
measure nothing new.
"""
POLL_SECONDS = 0.1


def measure(arguments: dict[str, Any], emit: Emit) -> None:
    """Emit the save in the foreground, the resume, and the saves in the background."""
    draw_weights_on_device()
    options = ProgramOptions(**arguments["options"])
    with tempfile.TemporaryDirectory(dir=arguments.get("folder")) as name:
        folder = Path(name)
        free = shutil.disk_usage(folder).free
        lines = train(folder, _content(options, WAITED_AT, asynchronous=False))
        emit(_loop_row(options, lines, "first training") | {"free_bytes": free})
        emit({"measured": "save, waited for", "saves": _events(folder, "saved")})
        begun = time.time()
        watcher = threading.Thread(target=_watch, args=(folder, options, begun, emit), daemon=True)
        watcher.start()
        train(folder, _content(options, LAST, asynchronous=True))
        raise RuntimeError("the second training ended before its saves in the background")


def _watch(folder: Path, options: ProgramOptions, begun: float, emit: Emit) -> None:
    """Emit the measurements from the second training run, then end this process immediately."""
    try:
        _wait_for(lambda: len(_events(folder, "started")) == 2)
        seconds = _events(folder, "started")[1]["time"] - begun
        _wait_for(lambda: len(_lines(folder)) > WAITED_AT)
        first_step = _lines(folder)[WAITED_AT]["time"] - begun
        row = {"seconds_to_start": seconds, "seconds_to_first_step": first_step}
        emit({"measured": "resume"} | row)
        _wait_for(lambda: len(_events(folder, "saved")) > SAVES_IN_BACKGROUND)
        lines = _lines(folder)[WAITED_AT:]
        emit(_loop_row(options, lines, "resumed training"))
        emit({"measured": "save in the background", "saves": _events(folder, "saved")[1:]})
        emit({"measured": "stall between steps"} | stalls(lines))
        failed = ""
    except (OSError, ValueError, KeyError, IndexError) as error:
        failed = f"{type(error).__name__}: {error}"
    shutil.rmtree(folder, ignore_errors=True)
    emit({"done": not failed, "failed": failed})
    os._exit(0)


def _wait_for(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(POLL_SECONDS)


def _lines(folder: Path) -> list[dict[str, Any]]:
    """Return the complete lines of the metrics."""
    text = (folder / "metrics.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def _content(options: ProgramOptions, iterations: int, *, asynchronous: bool) -> dict[str, Any]:
    saves = {
        "folder": "checkpoints",
        "interval": INTERVAL if asynchronous else 0,
        "keep": 1,
        "asynchronous": asynchronous,
        "resume_changed": True,  # the second run is longer
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
    text = (folder / "events.jsonl").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def _loop_row(options: ProgramOptions, lines: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """Return the speed of the complete loop.

    The first two steps compile and fill caches, so they are left out.
    """
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
    """Return by how much each gap between two metrics lines was longer than usual.

    A background save copies the state between two steps, and may slow the steps that follow.
    """
    first = lines[0]["iteration"] if lines else 0
    times = [line["time"] for line in lines]
    gaps = [after - before for before, after in itertools.pairwise(times)]
    usual = statistics.median(gaps) if gaps else 0.0
    extra = {first + 1 + place: round(gap - usual, 4) for place, gap in enumerate(gaps)}
    return {"usual_gap_seconds": usual, "extra_seconds_before_step": extra}
