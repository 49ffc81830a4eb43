"""Compare the two engines in the trainer: whether they reach the same losses, and how fast each is.

    python -m benchmarks.engines agree     every allowed mixture on at most 4 processes, 20 iterations in fp32
    python -m benchmarks.engines speed     the smoke shape, alternately, median of the rounds

Both print a table for docs/engines.md. `speed` needs an idle machine.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.training import specs
from tests.training.group import Zygote
from tests.training.test_engines import ALL, ITERATIONS

SMOKE = {
    "layers": 12,
    "hidden": 512,
    "heads": 8,
    "kv_heads": 8,
    "ffn_hidden": 2048,
    "sequence_length": 1024,
    "positions": 1024,
    "vocabulary": 50257,
    "padded_vocabulary": 50304,
}
RIVALS = {
    "megatron-core, distributed optimizer": {"engine": "megatron-core", "zero_stage": 1},
    "deepspeed, ZeRO 1": {"engine": "deepspeed", "zero_stage": 1},
    "deepspeed, ZeRO 2": {"engine": "deepspeed", "zero_stage": 2},
    "deepspeed, ZeRO 3": {"engine": "deepspeed", "zero_stage": 3},
}
STEPS = 5
LEFT_OUT = 2
"""Steps per turn (`STEPS`), and how many steps at the start are left out."""


def main() -> None:
    """Run the comparison named on the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("agree", "speed"))
    parser.add_argument("--rounds", type=int, default=5, help="turns of each engine (speed)")
    parser.add_argument("--copies", type=int, default=1, help="data-parallel replicas (speed)")
    parser.add_argument("--precision", default="bf16", help="fp32 or bf16 (speed)")
    arguments = parser.parse_args()
    with warm() as zygote, tempfile.TemporaryDirectory() as folder:
        if arguments.what == "agree":
            agree(zygote, Path(folder))
        else:
            speed(zygote, Path(folder), arguments.rounds, arguments.copies, arguments.precision)


@contextmanager
def warm() -> Iterator[Zygote]:
    """Yield the process that forks ranks."""
    zygote = Zygote()
    try:
        yield zygote
    finally:
        zygote.close()


def agree(zygote: Zygote, root: Path) -> None:
    """Print how far losses and gradient norms differ from those with megatron-core in one process."""
    specs.write_corpus(root / "corpus_text_document")
    one = metrics(zygote, root, specs.spec(iterations=ITERATIONS))
    say(
        "| engine | ZeRO | TP | PP | DP | loss | gradient norm |\n| --- | --- | --- | --- | --- | --- | --- |"
    )
    for options in ALL.values():
        found = metrics(zygote, root, specs.spec(iterations=ITERATIONS, **options))
        worst = [
            max(
                abs(ours[key] - theirs[key]) / theirs[key]
                for ours, theirs in zip(found, one, strict=True)
            )
            for key in ("loss", "grad_norm")
        ]
        layout = [options[key] for key in ("engine", "zero_stage", "tensor", "pipeline", "copies")]
        say("| " + " | ".join([*map(str, layout), *(f"{value:.0e}" for value in worst)]) + " |")


def speed(zygote: Zygote, root: Path, rounds: int, copies: int, precision: str) -> None:
    """Measure tokens/s for each engine: the median step per turn, then the median over rounds."""
    seen: dict[str, list[float]] = {name: [] for name in RIVALS}
    for _ in range(rounds):
        for name, options in RIVALS.items():
            content = specs.spec(
                iterations=STEPS,
                copies=copies,
                global_batch=copies,
                mock=True,
                precision=precision,
                model=SMOKE,
                **options,
            )
            steps = metrics(zygote, root, content)[LEFT_OUT:]
            seen[name].append(statistics.median(step["tokens_per_second"] for step in steps))
    base = statistics.median(next(iter(seen.values())))
    say("| engine | tokens/s | lowest to highest | ratio |\n| --- | --- | --- | --- |")
    for name, values in seen.items():
        median = statistics.median(values)
        say(
            f"| {name} | {median:.0f} | {min(values):.0f} to {max(values):.0f} | {median / base:.2f} |"
        )


def metrics(
    zygote: Zygote, root: Path, content: dict[str, Any], patch: str = ""
) -> list[dict[str, Any]]:
    """Train in a new folder and return the records in metrics.jsonl.

    `patch` names the function that each rank calls first (module:function).
    """
    folder = Path(tempfile.mkdtemp(dir=root))
    (folder / "data").mkdir()
    for path in root.glob("corpus*"):
        (folder / "data" / path.name).symlink_to(path)
    job = zygote.train(folder, content, patch=patch)
    assert set(job.codes) == {0}, job.err[-3000:]
    shutil.rmtree(
        folder / "checkpoints", ignore_errors=True
    )  # checkpoints from all turns would fill the disk
    found: list[dict[str, Any]] = job.metrics
    return found


def say(text: str) -> None:
    """Print a line."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
