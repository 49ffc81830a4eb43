"""Speed and memory of our trainer against a plain PyTorch GPT of the same shape, step by step in turn.

    python -m benchmarks.training_vs_plain [--shapes smoke 125m] [--precisions fp32 bf16] [--rounds 5] [--json FILE]

Each program is a process of its own that holds its model; the processes take steps in turn, so that a noisy neighbour
hits all of them, and the median counts. Both get the same random tokens; reading data is left out on both sides. `ours`
is the megatron-core engine's own compute and update; `plain` is benchmarks/plain_training.py, `compiled` the same under
torch.compile. Wall time decides; the processor time of each step stands beside it, because a busy machine stretches
the first and not the second.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SHAPES = {
    "smoke": {"layers": 12, "hidden": 512, "heads": 8, "sequence": 1024},
    "125m": {"layers": 12, "hidden": 768, "heads": 12, "sequence": 1024},
}
PROGRAMS = ("ours", "plain", "compiled")
MICRO_BATCHES = 2


def worker(program: str, shape: dict[str, int], precision: str) -> None:
    """Answer each line on standard input with one step's times."""
    if program == "ours":
        os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # as the trainer's __main__ does, before the first tensor
    import torch

    torch.manual_seed(0)
    size = (1, shape["sequence"])
    batches = [(torch.randint(0, 50257, size), torch.randint(0, 50257, size)) for _ in range(MICRO_BATCHES)]
    step = _ours(shape, precision, batches) if program == "ours" else _plain(program, shape, precision, batches)
    for _ in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        step()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        if torch.cuda.is_available():
            memory = torch.cuda.max_memory_allocated()
        print(json.dumps({**times, "memory": memory}), flush=True)


def _plain(program: str, shape: dict[str, int], precision: str, batches: list[Any]) -> Callable[[], float]:
    from benchmarks.plain_training import Plain, Shape

    plain = Plain(Shape(**shape), precision, compiled=program == "compiled")
    return lambda: plain.step(batches)


def _ours(shape: dict[str, int], precision: str, batches: list[Any]) -> Callable[[], float]:
    import logging
    import warnings

    import torch

    from runbook.training import cpu, distributed
    from runbook.training.engine import make_engine
    from runbook.training.ranks import ranks_from
    from runbook.training.spec import parse

    warnings.filterwarnings("ignore")
    logging.getLogger("megatron.core").setLevel(logging.ERROR)
    spec = parse(_spec(shape, precision), Path(tempfile.gettempdir()))
    cpu.answer_for_cpu()
    distributed.begin(ranks_from({}), 600)
    distributed.cut(spec)
    engine, length = make_engine(spec), shape["sequence"]
    micro = [
        {
            "tokens": ids.to(distributed.device()),
            "labels": labels.to(distributed.device()),
            "loss_mask": torch.ones(1, length, device=distributed.device()),
            "position_ids": torch.arange(length, device=distributed.device())[None],
        }
        for ids, labels in batches
    ]

    def step() -> float:
        loss = engine.compute(iter(micro), MICRO_BATCHES)
        engine.update(6e-4)
        return loss

    return step


def _spec(shape: dict[str, int], precision: str) -> dict[str, Any]:
    from runbook.params import load
    from runbook.plan import make_plan

    words = (f"training.precision={precision}", f"training.micro_batch=1 training.global_batch={MICRO_BATCHES}")
    settings = load("local", set_words=(words[0], *words[1].split()))
    spec: dict[str, Any] = make_plan(settings, None).as_dict()["phases"]["04-training"]
    spec["model"] |= {
        "layers": shape["layers"], "hidden": shape["hidden"], "heads": shape["heads"], "kv_heads": shape["heads"],
        "ffn_hidden": 4 * shape["hidden"], "sequence_length": shape["sequence"], "positions": shape["sequence"],
        "vocabulary": 50257, "padded_vocabulary": 50304,
    }  # fmt: skip
    spec["parallel"] |= {"data": 1, "world_size": 1}
    spec["batch"] |= {"micro": 1, "global": MICRO_BATCHES, "num_microbatches": MICRO_BATCHES}
    return spec


class Program:
    """One program in its own process."""

    def __init__(self, name: str, shape: str, precision: str) -> None:
        self.name = name
        self.steps: list[dict[str, float]] = []
        command = [sys.executable, "-m", "benchmarks.training_vs_plain", "--worker", name, shape, precision]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def step(self, *, counts: bool = True) -> None:
        """Take one step."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write("step\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit(f"{self.name} ended with exit code {self._process.wait()}")
        if counts:
            self.steps.append(json.loads(answer))

    def median(self, key: str) -> float:
        """Median over the steps that count."""
        return statistics.median(step[key] for step in self.steps)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


def compare(shape: str, precision: str, rounds: int, names: list[str]) -> list[dict[str, Any]]:
    """Rows of one shape and precision."""
    programs = [Program(name, shape, precision) for name in names]
    for program in programs:
        program.step(counts=False)  # builds, compiles, touches all memory
    for _ in range(rounds):
        for program in programs:
            program.step()
    tokens = MICRO_BATCHES * SHAPES[shape]["sequence"]
    rows = [
        {
            "shape": shape, "precision": precision, "program": program.name, "rounds": rounds,
            "tokens_per_second": tokens / program.median("wall"),
            "tokens_per_cpu_second": tokens / program.median("cpu"),
            "memory_bytes": max(step["memory"] for step in program.steps),
            "wall_seconds": [round(step["wall"], 4) for step in program.steps],
            "cpu_seconds": [round(step["cpu"], 4) for step in program.steps],
        }
        for program in programs
    ]  # fmt: skip
    for program in programs:
        program.close()
    return rows


def main() -> None:
    """Run what was asked for and show one line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=["smoke", "125m"], choices=list(SHAPES))
    parser.add_argument("--precisions", nargs="+", default=["fp32", "bf16"], choices=["fp32", "bf16"])
    parser.add_argument("--programs", nargs="+", default=list(PROGRAMS), choices=PROGRAMS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        program, shape, precision = arguments.worker
        worker(program, SHAPES[shape], precision)
        return
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, python {platform.python_version()}")
    found = []
    for shape in arguments.shapes:
        for precision in arguments.precisions:
            rows = compare(shape, precision, arguments.rounds, arguments.programs)
            found += rows
            for row in rows:
                print(
                    f"{shape:6} {precision} {row['program']:8} {row['tokens_per_second']:8.0f} tokens/s  "
                    f"{row['tokens_per_cpu_second']:8.0f} tokens/cpu s  {row['memory_bytes'] / 2**30:5.2f} GiB  "
                    f"x{row['tokens_per_second'] / rows[-1]['tokens_per_second']:.2f} of {rows[-1]['program']}",
                    flush=True,
                )
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
