"""Training runs with several ranks on one GPU, compared with the losses on one CPU.

Kernels, layouts and sums are real here; NCCL and speed are not (one_gpu_rank.py).
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu_stages.programs import set_kernels, specs
from benchmarks.gpu_stages.trainings import (
    STEPS,
    against_cpu,
    content_of,
    corpus_folder,
    losses_of,
    new_folder,
)
from benchmarks.gpu_stages.worker import Emit
from runbook.core.ports import port_of, reserve_port

TRAINING_SECONDS = 150.0
"""Time limit in seconds for all training runs of a wave, which run at the same time."""


@dataclass(frozen=True)
class Layout:
    """A layout over several ranks, and the settings for its training run."""

    name: str
    spec: dict[str, Any]
    """Options from tests/training/specs.py."""
    parallel: dict[str, Any] = field(default_factory=dict)
    engine: str = "megatron-core"
    kernels: str = "compiled"
    precision: str = "fp32"
    fp8: str = "none"

    def content(self, size: str) -> dict[str, Any]:
        """Return the phase of plan.json."""
        content = content_of(size, self.precision, engine=self.engine, **self.spec)
        content["parallel"] |= self.parallel
        parallel = content["parallel"]
        sizes = (parallel[name] for name in ("tensor", "pipeline", "context", "data"))
        parallel["world_size"] = math.prod(sizes)
        set_kernels(content, self.kernels)
        if self.fp8 != "none":
            content["precision"]["fp8"] = self.fp8
        return content


LAYOUTS = (
    Layout("tensor 2", {"tensor": 2}),
    Layout("tensor 2, sequence", {"tensor": 2}, {"sequence": True}),
    Layout("tensor 2, sequence, bf16", {"tensor": 2}, {"sequence": True}, precision="bf16"),
    Layout("tensor 2, sequence, plain", {"tensor": 2}, {"sequence": True}, kernels="plain"),
    Layout("data 2, ZeRO 1", {"copies": 2}),
    Layout("data 2, ZeRO 0", {"copies": 2, "zero_stage": 0}),
    Layout("data 2, ZeRO 1, bf16", {"copies": 2}, precision="bf16"),
    Layout("pipeline 2", {"pipeline": 2}),
    Layout("pipeline 2, virtual 2", {"pipeline": 2, "virtual_pipeline": 2}),
    Layout("tensor 2, data 2, bf16", {"tensor": 2, "copies": 2}, precision="bf16"),
    Layout("tensor 2, pipeline 2", {"tensor": 2, "pipeline": 2}, {"sequence": True}),
    Layout("context 2", {}, {"context": 2}),
    Layout("DeepSpeed, data 2, ZeRO 1", {"copies": 2}, engine="deepspeed"),
    Layout("DeepSpeed, data 2, ZeRO 2", {"copies": 2, "zero_stage": 2}, engine="deepspeed"),
    Layout("DeepSpeed, data 2, ZeRO 3", {"copies": 2, "zero_stage": 3}, engine="deepspeed"),
    Layout("tensor 2, fp8", {"tensor": 2}, precision="bf16", fp8="tensorwise"),
)
REHEARSED = ("tensor 2, sequence, plain", "pipeline 2")
"""Settings on a CPU, where GPU kernels would take minutes in the Triton interpreter."""


def train(arguments: dict[str, Any], emit: Emit) -> None:
    """Emit a row for each layout. The layouts in one wave train at the same time."""
    size = arguments["size"]
    rehearsal = size == "rehearsal"
    chosen = [layout for layout in LAYOUTS if not rehearsal or layout.name in REHEARSED]
    ranks_at_once = arguments["ranks_at_once"]
    with corpus_folder() as root:
        for wave in waves(chosen, size, ranks_at_once):
            trainings = [Training(root, layout, size) for layout in wave]
            ends = time.monotonic() + TRAINING_SECONDS
            for training in trainings:
                emit(training.row(ends - time.monotonic()))


def waves(layouts: Sequence[Layout], size: str, ranks_at_once: int) -> list[list[Layout]]:
    """Return the layouts in groups of at most this many ranks."""
    groups: list[list[Layout]] = []
    free = 0
    for layout in layouts:
        ranks = layout.content(size)["parallel"]["world_size"]
        if ranks > free:
            groups.append([])
            free = ranks_at_once
        groups[-1].append(layout)
        free -= ranks
    return groups


class Training:
    """The ranks started for one layout."""

    def __init__(self, root: Path, layout: Layout, size: str) -> None:
        self._layout = layout
        self._size = size
        self.folder = new_folder(root, layout.name.replace(" ", "-").replace(",", ""))
        content = layout.content(size)
        self._ranks = content["parallel"]["world_size"]
        self._plan = specs.write_plan(self.folder, content)
        self._begun = time.monotonic()
        self._reservation = reserve_port()
        self.start()

    def start(self) -> None:
        """Start all ranks."""
        port = port_of(self._reservation)
        self.processes = [self._start(rank, port) for rank in range(self._ranks)]

    def _start(self, rank: int, port: int) -> subprocess.Popen[bytes]:
        meeting = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(self._ranks),
            "LOCAL_WORLD_SIZE": str(self._ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        command = [sys.executable, "-m", "benchmarks.gpu_stages.one_gpu_rank", str(self._plan)]
        with (self.folder / f"rank-{rank}.log").open("wb") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **meeting})

    def row(self, seconds: float) -> dict[str, Any]:
        """Wait for the ranks. Return how their losses compare with a CPU's, or why there are none."""
        ends = time.monotonic() + seconds
        codes = [self._code(process, ends) for process in self.processes]
        self._reservation.close()
        layout = self._layout
        row = {"check": f"{STEPS} steps {layout.name}", "engine": layout.engine}
        row |= {"precision": layout.precision, "ranks": self._ranks, "exit_codes": codes}
        row["seconds"] = time.monotonic() - self._begun
        if any(codes):
            row["failed"] = self._last_words(codes)
        else:
            row |= self._results()
            shutil.rmtree(self.folder)
        return row

    def _results(self) -> dict[str, Any]:
        """Return how the last loss for each step compares with a CPU's, and some of the events."""
        lines = {line["iteration"]: line for line in specs.metrics(self.folder)}
        losses = losses_of([lines[iteration] for iteration in sorted(lines)])
        events = specs.metrics(self.folder, "events.jsonl")
        results = against_cpu(self._size, self._layout.precision, losses)
        for name in ("slower_kernels", "resumed"):
            results[name] = [event for event in events if event["event"] == name]
        return results

    def _code(self, process: subprocess.Popen[bytes], ends: float) -> int:
        try:
            return process.wait(max(0.0, ends - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return -9

    def _last_words(self, codes: list[int]) -> str:
        rank = next(rank for rank, code in enumerate(codes) if code)
        text = (self.folder / f"rank-{rank}.log").read_text(encoding="utf-8", errors="replace")
        return text[-1500:]


NEAR_INTERVAL = 3
KILLED_AFTER = 10
"""The number of records in metrics.jsonl after which the ranks are killed. The run has 20 steps.
"""


def near(arguments: dict[str, Any], emit: Emit) -> None:
    """Kill a training run that keeps copies in node memory, start it again, and compare its losses.

    The losses are compared with those from an undisturbed run.
    """
    size = arguments["size"]
    with corpus_folder() as root, tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        for name, spec in (("one rank", {}), ("data 2", {"copies": 2})):
            undisturbed = Layout(f"undisturbed, {name}", spec, precision="bf16")
            saves = {"near_interval": NEAR_INTERVAL, "near_folder": f"{memory}/{name}"}
            killed = Layout(f"near copies, {name}", spec | {"checkpoint": saves}, precision="bf16")
            trainings = [Training(root, undisturbed, size), NearTraining(root, killed, size)]
            ends = time.monotonic() + TRAINING_SECONDS
            killed_row = trainings[1].row(TRAINING_SECONDS)
            row = trainings[0].row(ends - time.monotonic())
            losses = killed_row.get("losses")
            killed_row["equals_undisturbed"] = losses is not None and losses == row.get("losses")
            emit(killed_row)
            emit(row)


class NearTraining(Training):
    """A training run that is killed once and resumes from its copies in node memory."""

    def row(self, seconds: float) -> dict[str, Any]:
        """Kill the ranks after some steps, start them again, and return what they resumed from."""
        ends = time.monotonic() + seconds
        while self._lines() < KILLED_AFTER and time.monotonic() < ends:
            if any(process.poll() is not None for process in self.processes):
                break
            time.sleep(0.05)
        for process in self.processes:
            process.kill()
            process.wait()
        before = self._lines()
        self.start()
        row = super().row(ends - time.monotonic()) | {"killed_after": before}
        sources = [event["source"] for event in row.get("resumed", [])]
        if not row.get("failed") and (before >= STEPS or not any(map(_is_near, sources))):
            row["failed"] = f"killed after {before} of {STEPS} steps, resumed from {sources}"
        return row

    def _lines(self) -> int:
        metrics = self.folder / "metrics.jsonl"
        return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


def _is_near(source: str) -> bool:
    return source.startswith("near")
