"""Planned and measured memory and step time, for every row that a plan can describe.

It needs no GPU: it plans for the GPU that gpu.json names, on the machine that reads gpu.json.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.gpu_stages.stages import PARTS
from benchmarks.memory_against_plan import ALWAYS
from runbook.core.errors import RunbookError
from runbook.phases.run_plan import load_plan

MODELS = {"125m-2k": "125m", "350m": "350m", "1.3b": "1.3b", "6.7b": "6.7b"}
"""Model names in params/models.yaml, by benchmark shape."""


def compare(path: Path, copy: Path | None = None) -> list[str]:
    """Plan each row in the file that describes a training step. Return the lines to print.

    `copy` is the path to a copy with a `planned` entry in those rows. The file itself is not
    changed.
    """
    content = json.loads(path.read_text(encoding="utf-8"))
    environment = content["environment"]
    lines = [f"{'row':34} {'planned / measured GiB':>24} {'error':>7} {'seconds':>17} {'error':>7}"]
    with planned_gpu(environment.get("device", "cpu"), environment.get("device_bytes", 0)):
        for row in content["rows"]:
            set_words = set_words_of(row, environment.get("device", "cpu"))
            if set_words:
                row["planned"] = plan_of(row, set_words)
                lines.append(line_of(row))
    if copy is not None:
        copy.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return lines


def set_words_of(row: dict[str, Any], device: str) -> list[str]:
    """Return the key=value settings that this row is planned with.

    The list is empty if the row is not a trainer step.
    """
    if row.get("program") != "ours" or "median_seconds" not in row or row["shape"] not in MODELS:
        return []
    if is_part_of_kernels(row) or row.get("fp8", "none") != "none":
        return []
    sequences = row["micro_batch"] * row["num_micro_batches"]
    site = "local" if device == "cpu" else "local-gpu"
    return [
        f"site={site}",
        f"model={MODELS[row['shape']]}",
        "parallel.tensor=1",
        "parallel.pipeline=1",
        "jobs.training.devices_per_node=1",
        f"parallel.zero_stage={row['zero_stage']}",
        f"training.engine={row['engine']}",
        f"training.precision={row['precision']}",
        f"training.recompute={row['recompute']}",
        f"training.kernels={row.get('kernels') or 'auto'}",
        f"training.micro_batch={row['micro_batch']}",
        f"training.global_batch={sequences}",
    ]


def is_part_of_kernels(row: dict[str, Any]) -> bool:
    """Return whether the row used only some of our kernels, which no plan can describe."""
    return row.get("parts", "all") not in ("", "all", ",".join(PARTS))


def plan_of(row: dict[str, Any], set_words: list[str]) -> dict[str, Any]:
    """Return the planned bytes and seconds with their errors relative to the measured ones, or why there is no plan."""
    try:
        _, plan = load_plan("local", [*ALWAYS, *set_words])
    except RunbookError as error:
        return {"failed": str(error)[:500]}
    planned_bytes = plan.memory["04-training"].least_bytes
    seconds = plan.time["04-training"].seconds_per_iteration
    return {
        "set_words": set_words,
        "bytes": planned_bytes,
        "seconds": seconds,
        "memory_error": planned_bytes / row["peak_bytes"] - 1,
        "time_error": seconds / row["median_seconds"] - 1,
    }


def line_of(row: dict[str, Any]) -> str:
    """Return one line of the comparison."""
    planned = row["planned"]
    name = f"{row['stage']} {row['job']}"[:34]
    if "failed" in planned:
        return f"{name:34} {planned['failed'].splitlines()[0][:80]}"
    memory = f"{planned['bytes'] / 2**30:8.2f} / {row['peak_bytes'] / 2**30:8.2f}"
    seconds = f"{planned['seconds']:7.3f} / {row['median_seconds']:7.3f}"
    return f"{name:34} {memory:>24} {planned['memory_error']:+7.1%} {seconds:>17} {planned['time_error']:+7.1%}"


@contextlib.contextmanager
def planned_gpu(name: str, memory_bytes: int) -> Iterator[None]:
    """Put an nvidia-smi on PATH that reports this GPU, so that `site=local-gpu` finds it."""
    if name == "cpu":
        yield
        return
    before = os.environ.get("PATH", "")
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "nvidia-smi"
        answer = f"{name}, {memory_bytes // 2**20}, GPU-of-the-benchmark"
        program.write_text(f"#!/bin/sh\necho '{answer}'\n", encoding="utf-8")
        program.chmod(0o755)
        os.environ["PATH"] = f"{folder}:{before}"
        try:
            yield
        finally:
            os.environ["PATH"] = before
