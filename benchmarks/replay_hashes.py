"""Measures what fingerprints cost in a replayed step on this machine.

    python -m benchmarks.replay_hashes [--device cuda] [--shapes 125m-2k 1.3b] [--micro-batch 4] [--micro-batches 4]
                                       [--rounds 7]

Three kinds of steps take turns in one process for each shape: `plain`, `twice` (the first
micro-batch computed twice, without fingerprints) and `hashed` (the same with fingerprints and the
line for replay.jsonl). On a GPU the trainer uses `norms`, or `bits` with deterministic algorithms.
On a CPU it uses `bits`. Prints one JSON object: medians in ms, the time for fingerprints in ms, and
its share of the replayed step. Fingerprints cover two passes with one micro-batch, however many
micro-batches there are: `share_of_micro_batch` is their cost relative to those two passes alone. On
a CPU, ms are processor time, which other load on the machine affects less.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SHAPES = {"cpu": ["small-256", "small-512"], "cuda": ["125m-2k", "1.3b"]}
PRECISION = {"cpu": "fp32", "cuda": "bf16"}
WARM_UP_ROUNDS = 2
LEARNING_RATE = 1e-4


class NoFingerprints:
    """A tracer that takes no fingerprint, so that both passes always agree."""

    def __init__(self) -> None:
        from runbook.training.replay.trace import WatchedOutputs

        self.watched = WatchedOutputs(forward=(), backward=())

    @contextlib.contextmanager
    def tracing(self) -> Iterator[Any]:
        """Return a trace that stays empty."""
        from runbook.training.replay.trace import Trace, bits_of

        yield Trace(bits_of)

    def add_gradients(self, trace: Any) -> None:
        """Add nothing."""


def step_kinds(arguments: argparse.Namespace) -> dict[str, Callable[[], None]]:
    """Build the model of a shape. Return a function for each kind of step."""
    from benchmarks.gpu_stages.programs import OurProgram, ProgramOptions, phase_content
    from runbook.plan_file import schema
    from runbook.training.replay.replayer import Replayer
    from runbook.training.replay.trace import Tracer

    options = ProgramOptions(
        program="ours",
        shape=arguments.shape,
        precision=arguments.precision,
        micro_batch=arguments.micro_batch,
        num_micro_batches=arguments.micro_batches,
    )
    program = OurProgram(options)
    content = phase_content(options)
    content["limits"]["replay_interval"] = 1
    spec = schema.parse(content, Path(tempfile.gettempdir()))
    engine: Any = program.engine
    batches = program.micro_batches(arguments.micro_batch, arguments.micro_batches)

    def replayed_step(tracer: Any) -> Callable[[], None]:
        replayer = Replayer(spec, engine)
        replayer._tracer = tracer

        def step() -> None:
            replayer.compute(iter(batches), len(batches), 1)
            list(replayer.lines())
            engine.update(LEARNING_RATE)
            engine.clock.take()

        return step

    def plain_step() -> None:
        program.step(batches)
        engine.clock.take()

    kinds = {"plain": plain_step, "twice": replayed_step(NoFingerprints())}
    layers = spec.model.shape.layers
    for name in ("norms", "bits") if arguments.device == "cuda" else ("bits",):
        tracer = Tracer(engine.models, layers, engine.clock, bitwise=name == "bits")
        kinds[name] = replayed_step(tracer)
    return kinds


def measure_shape(arguments: argparse.Namespace) -> dict[str, Any]:
    """Let the kinds of steps take turns. Return medians in ms."""
    from benchmarks.gpu_stages import device

    kinds = step_kinds(arguments)
    clock = time.perf_counter if arguments.device == "cuda" else time.process_time
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    for number in range(WARM_UP_ROUNDS + arguments.rounds):
        for kind, step in kinds.items():
            device.wait()
            start = clock()
            step()
            device.wait()
            ms = 1000 * (clock() - start)
            if number >= WARM_UP_ROUNDS:
                times[kind].append(ms)
    return summary(arguments, times)


def summary(arguments: argparse.Namespace, times: dict[str, list[float]]) -> dict[str, Any]:
    """Return the median of each kind, and what fingerprints add to a replayed step.

    The cost is the median difference within a round, so that drift in machine speed does not change
    it.
    """
    medians = {kind: statistics.median(values) for kind, values in times.items()}
    row: dict[str, Any] = {
        "shape": arguments.shape,
        "precision": arguments.precision,
        "micro_batch": arguments.micro_batch,
        "micro_batches": arguments.micro_batches,
        "rounds": arguments.rounds,
        "ms": {kind: round(value, 3) for kind, value in medians.items()},
    }
    passes_of_micro_batch = 2 * medians["plain"] / arguments.micro_batches
    for kind in medians.keys() - {"plain", "twice"}:
        pairs = zip(times[kind], times["twice"], strict=True)
        cost = statistics.median(hashed - twice for hashed, twice in pairs)
        row[kind] = {
            "cost_ms": round(cost, 3),
            "share_of_replayed_step": round(cost / medians["twice"], 5),
            "share_of_micro_batch": round(cost / passes_of_micro_batch, 5),
        }
    return row


def in_own_process(arguments: argparse.Namespace, shape: str) -> dict[str, Any]:
    """Measure a shape in a process that ends with its memory."""
    command = [sys.executable, "-m", "benchmarks.replay_hashes", "--shape", shape]
    for name in ("device", "precision", "micro_batch", "micro_batches", "rounds"):
        command += [f"--{name.replace('_', '-')}", str(getattr(arguments, name))]
    environment = dict(os.environ)
    if arguments.device == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    answer = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=False, env=environment
    )
    if answer.returncode:
        return {"shape": shape, "failed": answer.returncode}
    row: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    return row


def main() -> None:
    """Measure each shape and print one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=list(SHAPES), default="cpu")
    parser.add_argument("--shapes", nargs="+", help="of benchmarks.training_vs_plain")
    parser.add_argument("--shape", help=argparse.SUPPRESS)
    parser.add_argument("--precision", help="default: bf16 on a GPU, else fp32")
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    arguments.precision = arguments.precision or PRECISION[arguments.device]
    if arguments.shape:
        print(json.dumps(measure_shape(arguments)))
        return
    shapes = arguments.shapes or SHAPES[arguments.device]
    rows = [in_own_process(arguments, shape) for shape in shapes]
    print(json.dumps({"device": arguments.device, "rows": rows}, indent=1))
    if any("failed" in row for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
