"""How a training step spends its time on a CPU: our trainer, and the plain PyTorch GPT under torch.compile.

    OMP_NUM_THREADS=1 python -m benchmarks.training_profile [--shape smoke] [--precision bf16] [--steps 3] [--page FILE]

The program sums the self time that torch.profiler reports for operators, by the part that they
serve in a step. Every operator call is counted with the time that the fastest call with the same
shapes took, because other load on the machine only adds time. An operator inside our attention, our
loss or an optimizer belongs to that part. Under torch.compile a generated kernel may contain
several parts: its name lists their operators, and the first one in `OPERATORS` decides.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from benchmarks import training_vs_plain

PARTS = ("matrix products", "attention", "norm, GELU", "loss", "optimizer", "rest")
OWNERS = {
    "_BlockedAttention": "attention",
    "scaled_dot_product": "attention",
    "_CrossEntropy": "loss",
    "Optimizer.step": "optimizer",
    "clip_grad": "optimizer",
    "engine update": "optimizer",
}
"""Words in an operator name that assign their part to all operators inside it."""

OPERATORS = {
    "log_softmax": "loss",
    "nll_loss": "loss",
    "_softmax": "attention",
    "bmm": "attention",
    "flash": "attention",
    "layer_norm": "norm, GELU",
    "gelu": "norm, GELU",
    "tanh": "norm, GELU",
    "mm": "matrix products",
    "linear": "matrix products",
    "fused_adam": "optimizer",
    "linalg_vector_norm": "optimizer",
}
"""Words in an operator name. The first that occurs decides its part."""


def part_of(names: list[str]) -> str:
    """Return the part an operator belongs to, by the operators around it or else by its name."""
    for name in names:
        for word, part in OWNERS.items():
            if word in name:
                return part
    return next((part for word, part in OPERATORS.items() if word in names[0]), "rest")


def profile(program: str, shape: str, precision: str, steps: int) -> dict[str, Any]:
    """Return the seconds per step by part, and the operators that take most of the time."""
    os.environ["TORCHINDUCTOR_CPP_ENABLE_KERNEL_PROFILE"] = "1"
    import torch
    from torch.profiler import ProfilerActivity

    step = training_vs_plain.make_step(program, training_vs_plain.SHAPES[shape], precision, 1)
    step()
    step()
    with torch.profiler.profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        before = time.process_time()
        for _ in range(steps):
            step()
        cpu_seconds = (time.process_time() - before) / steps
    calls: defaultdict[tuple[str, str, str], list[float]] = defaultdict(list)
    for event in profiler.events():
        names = [event.name]
        inside = event.cpu_parent
        while inside is not None:
            names.append(inside.name)
            inside = inside.cpu_parent
        # An operator on tensor lists (as in Adam) has no shapes: each call counts with its own
        # time.
        shapes = str(event.input_shapes) if any(event.input_shapes) else str(event.id)
        calls[part_of(names), " in ".join(names[:2]), shapes].append(
            event.self_cpu_time_total / 1e6
        )
    parts: Counter[str] = Counter()
    operators: Counter[str] = Counter()
    for (part, operator, _), seconds in calls.items():
        parts[part] += min(seconds) * len(seconds) / steps
        operators[f"{part}: {operator}"] += min(seconds) * len(seconds) / steps
    found = {"program": program, "cpu_seconds": cpu_seconds, "parts": dict(parts)}
    return found | {"operators": dict(operators.most_common(40))}


def _in_a_process_of_its_own(program: str, arguments: argparse.Namespace) -> dict[str, Any]:
    words = [arguments.shape, arguments.precision, str(arguments.steps)]
    command = [sys.executable, "-m", "benchmarks.training_profile", "--worker", program, *words]
    answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    return found


def page_table(found: list[dict[str, Any]], date: str, place: str) -> str:
    """Return the programs' results as a paragraph and a table for a page."""
    lines = [
        f"{date}, {place}; one step:\n",
        f"| program | a step | {' | '.join(PARTS)} |",
        "|" + " --- |" * 8,
    ]
    for row in found:
        parts = row["parts"]
        total = sum(row["parts"].values())
        shares = (
            f"{parts[part]:.2f} s, {parts[part] / total:.0%}" if part in parts else "-"
            for part in PARTS
        )
        lines.append(
            f"| {row['program']} | {total:.2f} s | {' | '.join(shares)} |".replace("%", " %")
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Profile each program in turn."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", default="smoke", choices=list(training_vs_plain.SHAPES))
    parser.add_argument("--precision", default="bf16", choices=["fp32", "bf16"])
    parser.add_argument(
        "--programs",
        nargs="+",
        default=["ours", "even-compiled"],
        choices=training_vs_plain.PROGRAMS,
    )
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--page", type=Path, help="a page with markers, between which the table is written"
    )
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        program, shape, precision, steps = arguments.worker
        print(json.dumps(profile(program, shape, precision, int(steps))))
        return
    found = []
    for program in arguments.programs:
        found.append(_in_a_process_of_its_own(program, arguments))
        total = sum(found[-1]["parts"].values())
        shares = (f"{part} {found[-1]['parts'].get(part, 0.0):.2f} s" for part in PARTS)
        print(
            f"{program}: {total:.2f} s a step (processor {found[-1]['cpu_seconds']:.2f} s); {', '.join(shares)}",
            flush=True,
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if arguments.page:
        training_vs_plain.write_page(
            arguments.page, page_table(found, *training_vs_plain.date_and_place())
        )


if __name__ == "__main__":
    main()
