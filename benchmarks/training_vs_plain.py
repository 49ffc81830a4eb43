"""Speed and memory in our trainer and a plain PyTorch GPT with the same shape, step by step.

    python -m benchmarks.training_vs_plain [--shapes smoke 125m] [--precisions bf16 fp32] [--rounds 5] [--json FILE]
    OMP_NUM_THREADS=1 python -m benchmarks.training_vs_plain --shapes smoke --limit 205 --page PAGE.md
        --programs ours plain compiled even-compiled        8 minutes of an idle machine
    python -m benchmarks.training_vs_plain --shapes 125m-2k 350m 1.3b 6.7b --precisions bf16 --micro 4        on a GPU

Each program is a separate process with its own model. The processes take steps in turn, so that
other load slows all of them, and the median is reported. All programs get the same random tokens,
and none reads data. `ours` is compute and update in the megatron-core engine; `plain` is
benchmarks/plain_training.py, `compiled` the same under torch.compile. The second comparison, `even`
and `even-compiled`, equals `ours` in everything but the kernels: bf16 weights with a float32 copy
in the optimizer, and the allocator settings and 2 MiB pages that the trainer uses. Wall time
decides. The processor time for each step is shown next to it, because a busy machine stretches wall
time but not processor time. On a GPU each row also has the MFU, by the PaLM formula and the
datasheet peak. If a model does not fit into GPU memory, its program ends, and its row says so.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import math
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
    "125m-2k": {"layers": 12, "hidden": 768, "heads": 12, "sequence": 2048},
    "350m": {"layers": 24, "hidden": 1024, "heads": 16, "sequence": 2048},
    "1.3b": {"layers": 24, "hidden": 2048, "heads": 16, "sequence": 2048},
    "6.7b": {"layers": 32, "hidden": 4096, "heads": 32, "sequence": 2048},
}
PROGRAMS = ("ours", "plain", "compiled", "even", "even-compiled")
PAGE_MARKS = ("<!-- written by a program of benchmarks/ -->\n", "<!-- end of what it writes -->\n")
MICRO_BATCHES = 2
FP8 = "fp8-"
"""Prefix for a recipe in `training.fp8`, a number format that only `ours` has: bf16, with products
in 8 bits.
"""


def make_step(
    program: str, shape: dict[str, int], precision: str, sequences: int
) -> Callable[[], float]:
    """Return a function that takes one step with a program.

    The first program of a process sets up its memory.
    """
    is_even = program.startswith("even")
    if program == "ours" or is_even:
        os.environ.setdefault(
            "THP_MEM_ALLOC_ENABLE", "1"
        )  # as the trainer's __main__ does, before the first tensor
    import torch

    if is_even:
        from runbook.training.cpu import keep_freed_memory

        keep_freed_memory()
    torch.manual_seed(0)
    size = (sequences, shape["sequence"])
    batches = [
        (torch.randint(0, 50257, size), torch.randint(0, 50257, size)) for _ in range(MICRO_BATCHES)
    ]
    if program == "ours":
        return _ours(shape, precision, batches)
    return _plain(program, shape, precision, batches)


def worker(program: str, shape: dict[str, int], precision: str, sequences: int) -> None:
    """Respond to each line on standard input with the times for one step."""
    step = make_step(program, shape, precision, sequences)
    import torch

    for _ in sys.stdin:
        wall = time.perf_counter()
        cpu = time.process_time()
        loss = step()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu, "loss": loss}
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        if torch.cuda.is_available():
            memory = torch.cuda.max_memory_allocated()
        print(
            json.dumps({**times, "memory": memory, "sequences": sequences * MICRO_BATCHES}),
            flush=True,
        )


def _plain(
    program: str, shape: dict[str, int], precision: str, batches: list[Any]
) -> Callable[[], float]:
    from benchmarks.plain_training import Plain, Shape

    plain = Plain(Shape(**shape), precision, compiled="compiled" in program, even="even" in program)
    return lambda: plain.step(batches)


def _ours(shape: dict[str, int], precision: str, batches: list[Any]) -> Callable[[], float]:
    import logging
    import warnings

    import torch

    from runbook.plan_file.schema import parse
    from runbook.training import cpu, process_groups
    from runbook.training.loop import make_engine
    from runbook.training.ranks import ranks_from

    warnings.filterwarnings("ignore")
    logging.getLogger("megatron.core").setLevel(logging.ERROR)
    spec = parse(_spec(shape, precision, len(batches[0][0])), Path(tempfile.gettempdir()))
    cpu.answer_for_cpu()
    process_groups.join_process_group(ranks_from({}), 600)
    process_groups.make_parallel_groups(spec)
    engine = make_engine(spec)
    length = shape["sequence"]
    micro = [
        {
            "tokens": ids.to(process_groups.device()),
            "labels": labels.to(process_groups.device()),
            "loss_mask": torch.ones(ids.shape, device=process_groups.device()),
            "position_ids": torch.arange(length, device=process_groups.device()).expand(ids.shape),
        }
        for ids, labels in batches
    ]

    def step() -> float:
        loss = engine.compute(iter(micro), MICRO_BATCHES)
        engine.update(6e-4)
        return loss

    return step


def _spec(shape: dict[str, int], precision: str, sequences: int = 1) -> dict[str, Any]:
    from runbook.params import load
    from runbook.planning import make_plan

    recipe = precision.removeprefix(FP8) if precision.startswith(FP8) else ""
    number_format = "bf16" if recipe else precision
    words = (
        f"training.precision={number_format}",
        f"training.micro_batch=1 training.global_batch={MICRO_BATCHES}",
    )
    settings = load("local", set_words=(words[0], *words[1].split()))
    spec: dict[str, Any] = make_plan(settings, None).as_dict()["phases"]["04-training"]
    spec["model"] |= {
        "layers": shape["layers"],
        "hidden": shape["hidden"],
        "heads": shape["heads"],
        "kv_heads": shape["heads"],
        "ffn_hidden": 4 * shape["hidden"],
        "sequence_length": shape["sequence"],
        "positions": shape["sequence"],
        "vocabulary": 50257,
        "padded_vocabulary": 50304,
    }
    spec["precision"] |= {"fp8": recipe} if recipe else {}
    spec["parallel"] |= {"data": 1, "world_size": 1}
    whole = sequences * MICRO_BATCHES
    spec["batch"] |= {"micro": sequences, "global": whole, "num_microbatches": MICRO_BATCHES}
    return spec


class Program:
    """A program in its own process."""

    def __init__(self, name: str, shape: str, precision: str, sequences: int) -> None:
        self.name = name
        self.steps: list[dict[str, float]] = []
        self.failed = ""
        words = ["--worker", name, shape, precision, "--micro", str(sequences)]
        command = [sys.executable, "-m", "benchmarks.training_vs_plain", *words]
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - open as long as the process
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )

    def step(self, *, counts: bool = True) -> None:
        """Train one step. If the program has ended, do nothing and keep the reason."""
        if self.failed:
            return
        assert self._process.stdin and self._process.stdout
        # the program may have ended in the meantime
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write("step\n")
            self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            code = self._process.wait()
            self._log.seek(0)
            last = ([line for line in self._log.read().splitlines() if line.strip()] or [""])[-1]
            self.failed = f"ended with exit code {code}: {last[:300]}".rstrip(": ")
        elif counts:
            self.steps.append(json.loads(answer))

    def median(self, key: str) -> float:
        """Return the median over the steps that count."""
        return statistics.median(step[key] for step in self.steps)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._log.close()


def compare(
    shape: str,
    precision: str,
    rounds: int,
    names: list[str],
    sequences: int,
    limit: float = math.inf,
) -> list[dict[str, Any]]:
    """Return the rows for one shape and precision. After `limit` seconds, no new round begins."""
    begin = time.monotonic()
    programs = [Program(name, shape, precision, sequences) for name in names]
    for program in programs:
        program.step(counts=False)  # this step builds, compiles and touches all memory
    for done in range(rounds):
        if done and time.monotonic() - begin > limit:
            rounds = done
            break
        for program in programs:
            program.step()
    rows = []
    for program in programs:
        row = {
            "shape": shape,
            "precision": precision,
            "program": program.name,
            "rounds": rounds,
            "micro": sequences,
        }
        rows.append(
            row
            | ({"failed": program.failed} if program.failed else figures(program, shape, precision))
        )
        program.close()
    return rows


def figures(program: Program, shape: str, precision: str) -> dict[str, Any]:
    """Return the row for a program from its steps."""
    sequences = int(program.steps[0]["sequences"])
    tokens = sequences * SHAPES[shape]["sequence"]
    return {
        "tokens_per_second": tokens / program.median("wall"),
        "tokens_per_cpu_second": tokens / program.median("cpu"),
        "memory_bytes": max(step["memory"] for step in program.steps),
        "mfu": mfu(shape, precision, sequences / program.median("wall")),
        "losses": [step["loss"] for step in program.steps],
        "wall_seconds": [round(step["wall"], 4) for step in program.steps],
        "cpu_seconds": [round(step["cpu"], 4) for step in program.steps],
    }


def mfu(shape: str, precision: str, sequences_per_second: float) -> float | None:
    """Return the share of the datasheet peak by the PaLM formula.

    It is None on a CPU, and on a GPU if its peak is not known.
    """
    import torch

    from runbook.planning.cost import flops
    from runbook.planning.cost.accelerators import find_accelerator
    from runbook.planning.sizes import ModelShape

    found = find_accelerator(torch.cuda.get_device_name()) if torch.cuda.is_available() else None
    number_format = FP8.rstrip("-") if precision.startswith(FP8) else precision
    if found is None or number_format not in found.peaks:
        return None
    size = SHAPES[shape]
    plain = ModelShape(
        layers=size["layers"],
        hidden=size["hidden"],
        heads=size["heads"],
        kv_heads=size["heads"],
        ffn_hidden=4 * size["hidden"],
        sequence_length=size["sequence"],
        positions=size["sequence"],
        vocabulary=50257,
        padded_vocabulary=50304,
    )
    return sequences_per_second * flops.palm(plain) / (found.peaks[number_format] * 1e12)


def line(row: dict[str, Any], against: dict[str, Any]) -> str:
    """Return a row as text, with its speed relative to another program."""
    start = f"{row['shape']:7} {row['precision']:4} {row['program']:13} "
    if "failed" in row:
        return start + row["failed"]
    share = f"  MFU {row['mfu']:.1%}" if row["mfu"] is not None else ""
    ratio = row["tokens_per_second"] / against.get("tokens_per_second", math.nan)
    return (
        f"{start}{row['tokens_per_second']:8.0f} tokens/s  {row['tokens_per_cpu_second']:8.0f} tokens/cpu s  "
        f"{row['memory_bytes'] / 2**30:5.2f} GiB{share}  x{ratio:.2f} of {against['program']}"
    )


def page_table(rows: list[dict[str, Any]], date: str, place: str) -> str:
    """Return the paragraph and the table for the page. The ratios compare tokens per second."""
    names = [name for name in PROGRAMS if any(row["program"] == name for row in rows)]
    rivals = names[1:]
    head = [
        "shape",
        "number format",
        "rounds",
        *names,
        *(f"ours / {name}" for name in rivals),
        "peak memory",
    ]
    lines = [
        f"{date}, {place}; medians of the rounds, tokens per second of wall time:\n",
        f"| {' | '.join(head)} |",
        f"|{' --- |' * len(head)}",
    ]
    for shape, precision in dict.fromkeys((row["shape"], row["precision"]) for row in rows):
        found = {
            row["program"]: row
            for row in rows
            if (row["shape"], row["precision"]) == (shape, precision)
        }
        speeds = {name: found.get(name, {}).get("tokens_per_second", math.nan) for name in names}
        memory = [found.get(name, {}).get("memory_bytes", math.nan) / 2**30 for name in names]
        cells = [shape, precision, str(max(row["rounds"] for row in found.values()))]
        cells += [f"{speeds[name]:,.0f}" for name in names]
        cells += [f"{speeds['ours'] / speeds[name]:.2f}" for name in rivals]
        cells.append(" / ".join(f"{gib:.2f}" for gib in memory) + " GiB")
        lines.append("| " + " | ".join(cell.replace("nan", "not run") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def write_page(page: Path, table: str) -> None:
    """Replace the text between the page's markers with the table."""
    before, rest = page.read_text(encoding="utf-8").split(PAGE_MARKS[0])
    after = rest.split(PAGE_MARKS[1])[1]
    page.write_text(f"{before}{PAGE_MARKS[0]}\n{table}\n{PAGE_MARKS[1]}{after}", encoding="utf-8")


def date_and_place() -> tuple[str, str]:
    """Return the date, the commit and the machine of a measurement."""
    words = ["git", "rev-parse", "--short=7", "HEAD"]
    commit = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    return datetime.datetime.now(
        datetime.UTC
    ).date().isoformat(), f"commit {commit}, {this_machine()}"


def this_machine() -> str:
    """Return the processor, its instructions for 16-bit products, the threads and the versions."""
    import torch

    info = Path("/proc/cpuinfo")
    if info.exists():
        fields = dict(line.split(":", 1) for line in info.read_text().splitlines() if ":" in line)
    else:
        fields = {}
    found = {key.strip(): value.strip() for key, value in fields.items()}
    flags = [
        flag
        for flag in ("avx512f", "avx512_bf16", "amx_bf16")
        if flag in found.get("flags", "").split()
    ]
    if torch.cuda.is_available():
        name = torch.cuda.get_device_name()
    else:
        name = found.get("model name", platform.machine())
    threads = f"{torch.get_num_threads()} of {os.cpu_count()} cores"
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    return f"{name} ({', '.join(flags) or 'no flag for 16-bit products'}), {threads}, {versions}"


def main() -> None:
    """Run what the command line requests, and show one line for each result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", nargs="+", default=["smoke", "125m"], choices=list(SHAPES))
    parser.add_argument(
        "--precisions", nargs="+", default=["bf16", "fp32"], choices=["fp32", "bf16"]
    )
    parser.add_argument("--programs", nargs="+", default=list(PROGRAMS), choices=PROGRAMS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--micro", type=int, default=1, help="sequences in each of the two micro-batches of a step"
    )
    parser.add_argument(
        "--limit",
        type=float,
        default=math.inf,
        help="seconds for a shape and format, after which no new round begins",
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--page", type=Path, help="a page with markers, between which the table is written"
    )
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        program, shape, precision = arguments.worker
        worker(program, SHAPES[shape], precision, arguments.micro)
        return
    print(this_machine(), flush=True)
    found = []
    for shape in arguments.shapes:
        for precision in arguments.precisions:
            rows = compare(
                shape,
                precision,
                arguments.rounds,
                arguments.programs,
                arguments.micro,
                limit=arguments.limit,
            )
            found += rows
            for row in rows:
                print(line(row, rows[-1]), flush=True)
            if arguments.json:
                arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    if arguments.page:
        write_page(arguments.page, page_table(found, *date_and_place()))


if __name__ == "__main__":
    main()
