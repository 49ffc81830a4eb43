"""Whole training runs that the trainer itself runs, in this process.

The rows say whether they run, reach the same losses as on a CPU, and resume.

Losses from a CPU are committed (benchmarks/gpu_losses.json), so that no GPU time is spent on them.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import math
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_stages import device
from benchmarks.gpu_stages.programs import set_kernels, specs
from benchmarks.gpu_stages.worker import Emit

LOSSES = Path(__file__).parents[1] / "gpu_losses.json"
STEPS = 20
SHORT_STEPS = 6
SAVE_AT = 3
GLOBAL_BATCH = 4
PEAK_RATE = 3e-4
"""Peak learning rate, low enough for losses to fall evenly.

A spike would amplify a difference in rounding.
"""
VOCABULARY = 1000
PADDED_VOCABULARY = 1024
"""Padded vocabulary size.

As at full size, some of it is padding. With 50,304 tokens, the losses would take a CPU an hour.
"""
SIZES = {
    "full": {"layers": 4, "hidden": 512, "heads": 8, "sequence": 256},
    "rehearsal": {"layers": 2, "hidden": 64, "heads": 4, "sequence": 64},
}
AGREES = {"fp32": 1e-4, "bf16": 2e-2, "fp16": 2e-2}
"""Largest relative difference between the losses on two devices.

The devices add in different orders, and the difference grows over 20 steps.
"""
RESUME_AGREES = 1e-2
"""Largest relative difference after a resume.

The attention backward pass on a GPU adds in an order that changes from run to run.
"""


def content_of(
    size: str,
    precision: str,
    *,
    iterations: int = STEPS,
    engine: str = "megatron-core",
    **more: Any,
) -> dict[str, Any]:
    """Return the phase for a small training run on a corpus with something to learn."""
    shape = SIZES[size]
    model = {
        "layers": shape["layers"],
        "hidden": shape["hidden"],
        "heads": shape["heads"],
        "kv_heads": shape["heads"],
        "ffn_hidden": 4 * shape["hidden"],
        "sequence_length": shape["sequence"],
        "positions": shape["sequence"],
        "vocabulary": VOCABULARY,
        "padded_vocabulary": PADDED_VOCABULARY,
    }
    # The learning rates do not depend on how many steps are taken, so that short and long training
    # runs compare.
    rates = {"decay_samples": STEPS * GLOBAL_BATCH}
    content: dict[str, Any] = specs.spec(
        model=model,
        micro=2,
        global_batch=GLOBAL_BATCH,
        iterations=iterations,
        precision=precision,
        peak=PEAK_RATE,
        learning_rate=rates,
        warmup=4,
        **more,
    )
    content["engine"] = engine
    content["device"] = device.device_name()
    return content


def train(folder: Path, content: dict[str, Any]) -> list[dict[str, Any]]:
    """Train to the end in this process, and return the lines of metrics.jsonl."""
    from runbook.plan_file.schema import read_plan
    from runbook.training.__main__ import train_rank
    from runbook.training.health.stopping import StopConditions
    from runbook.training.ranks import ranks_from

    plan = specs.write_plan(folder, content)
    spec = read_plan(plan, "04-training")
    code = train_rank(spec, ranks_from({}), StopConditions())
    free_memory()
    if code:
        raise RuntimeError(f"the training ended with code {code}")
    lines: list[dict[str, Any]] = specs.metrics(folder)
    return lines


def free_memory() -> None:
    """Free the memory that a finished training run still holds."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@contextlib.contextmanager
def corpus_folder() -> Iterator[Path]:
    """Yield a folder for training runs, with the corpus in `data`."""
    with tempfile.TemporaryDirectory() as name:
        specs.write_corpus(Path(name) / "data" / "corpus_text_document", documents=200)
        yield Path(name)


def new_folder(root: Path, name: str) -> Path:
    """Create the folder for one training run, with the corpus linked into it."""
    folder = root / name
    (folder / "data").mkdir(parents=True)
    for path in (root / "data").glob("corpus*"):
        (folder / "data" / path.name).symlink_to(path)
    return folder


def worst_gap(losses: list[float], known: list[float]) -> float:
    """Return the largest relative difference between two lists of losses, infinite if one is NaN.

    >>> worst_gap([10.0, 9.9], [10.0, 9.0]), worst_gap([10.0, float("nan")], [10.0, 9.0])
    (0.10000000000000003, inf)
    """
    gaps = [abs(loss - other) / other for loss, other in zip(losses, known, strict=True)]
    return max(gap if math.isfinite(gap) else math.inf for gap in gaps)


def losses_of(lines: list[dict[str, Any]]) -> list[float]:
    """Return the losses of metrics lines; a loss that was not finite is NaN."""
    return [math.nan if line["loss"] is None else line["loss"] for line in lines]


def known_losses(size: str, precision: str) -> list[float]:
    """Return the losses that were committed for the CPU, or an empty list if there are none."""
    if not LOSSES.exists():
        return []
    content = json.loads(LOSSES.read_text(encoding="utf-8"))
    losses: list[float] = content["losses"].get(size, {}).get(precision, [])
    return losses


def against_cpu(size: str, precision: str, losses: list[float]) -> dict[str, Any]:
    """Return how the losses compare with those on the CPU."""
    known = known_losses(size, precision)[: len(losses)]
    if not known:
        return {
            "not_compared": f"{LOSSES.name} has no losses of {size} {precision}",
            "losses": losses,
        }
    worst = worst_gap(losses, known)
    return {
        "worst_relative": worst,
        "agrees": worst <= AGREES[precision],
        "losses": losses,
        "cpu_losses": known,
    }


def run_long(
    root: Path,
    size: str,
    precision: str,
    engine: str,
    zero_stage: int,
    kernels: str,
    *,
    fp8: str = "none",
) -> dict[str, Any]:
    """Train 20 steps and compare the losses with those on the CPU."""
    folder = new_folder(root, f"long-{engine}-{zero_stage}-{precision}-{kernels}-{fp8}")
    content = content_of(size, precision, engine=engine, zero_stage=zero_stage)
    set_kernels(content, kernels)
    if fp8 != "none":
        content["precision"]["fp8"] = fp8
    begun = time.monotonic()
    lines = train(folder, content)
    row = {"steps": STEPS, "seconds": time.monotonic() - begun}
    row["step_seconds"] = lines[-1]["seconds"]
    shutil.rmtree(folder)
    return row | against_cpu(size, precision, losses_of(lines))


def run_and_resume(root: Path, size: str, engine: str, zero_stage: int) -> dict[str, Any]:
    """Train 6 steps with a save in the background after 3.

    Resume from it and compare the last 3 losses.
    """
    folder = new_folder(root, f"resume-{engine}-{zero_stage}")
    saves = {"folder": "checkpoints", "interval": SAVE_AT, "keep": 2, "asynchronous": True}
    content = content_of(
        size,
        "bf16",
        iterations=SHORT_STEPS,
        engine=engine,
        zero_stage=zero_stage,
        checkpoint=saves,
    )
    begun = time.monotonic()
    first = losses_of(train(folder, content))
    shutil.rmtree(folder / "checkpoints" / f"iter_{SHORT_STEPS:07d}")
    tracker = folder / "checkpoints" / "latest_checkpointed_iteration.txt"
    tracker.write_text(f"{SAVE_AT}\n", encoding="utf-8")
    again = losses_of(train(folder, content))[SHORT_STEPS:]
    expected = first[SAVE_AT:]
    events = specs.metrics(folder, "events.jsonl")
    saved = [event for event in events if event["event"] == "saved"]
    shutil.rmtree(folder)
    resumed = worst_gap(again, expected)
    row = {"steps": SHORT_STEPS, "seconds": time.monotonic() - begun}
    row |= against_cpu(size, "bf16", first)
    row |= {
        "resumed_losses": again,
        "resumed_exactly": again == expected,
        "resumed_worst_relative": resumed,
        "resumes": resumed <= RESUME_AGREES,
        "save_stall_seconds": [event["stall_seconds"] for event in saved],
    }
    return row


def megatron(arguments: dict[str, Any], emit: Emit) -> None:
    """Emit rows for the megatron-core engine: save and resume, then 20 steps per precision and kernels."""
    size = arguments["size"]
    with corpus_folder() as root:
        run = _attempt(lambda: run_and_resume(root, size, "megatron-core", 1))
        emit({"check": "save and resume", "engine": "megatron-core"} | run)
        for precision in arguments["precisions"]:
            for kernels in arguments["kernels"]:
                run = _attempt(
                    lambda p=precision, k=kernels: run_long(root, size, p, "megatron-core", 1, k)
                )
                name = f"{STEPS} steps {precision} {kernels}".rstrip()
                emit({"check": name, "engine": "megatron-core"} | run)


def deepspeed(arguments: dict[str, Any], emit: Emit) -> None:
    """Emit a row for each ZeRO stage."""
    size = arguments["size"]
    with corpus_folder() as root:
        for stage in arguments["stages"]:
            run = _attempt(lambda s=stage: run_and_resume(root, size, "deepspeed", s))
            emit({"check": f"ZeRO {stage}, save and resume", "engine": "deepspeed"} | run)


def fp16(arguments: dict[str, Any], emit: Emit) -> None:
    """Emit the losses and loss scales from 20 steps in fp16."""
    with corpus_folder() as root:
        folder = new_folder(root, "fp16")
        content = content_of(arguments["size"], "fp16")
        content["precision"] |= {"initial_loss_scale": 2.0**16, "loss_scale_window": 1000}
        if not torch.cuda.is_available():
            emit({"check": "20 steps fp16", "not_run": "the trainer refuses fp16 on a CPU"})
            return
        lines = train(folder, content)
        losses = losses_of(lines)
        skipped = [line["skipped"] for line in lines]
        facts = {
            "losses": losses,
            "loss_scales": [line["loss_scale"] for line in lines],
            "skipped": skipped,
            "finite": all(math.isfinite(loss) for loss in losses),
        }
        emit({"check": "20 steps fp16", "engine": "megatron-core"} | facts)


def eight_bits(arguments: dict[str, Any], emit: Emit) -> None:
    """Emit a row that compares 20 steps with 8-bit products to a CPU's losses in bf16."""
    check = f"{STEPS} steps bf16, fp8 tensorwise"
    if not torch.cuda.is_available():
        emit({"check": check, "not_run": "products in 8 bits need a GPU"})
        return
    with corpus_folder() as root:
        run = _attempt(
            lambda: run_long(
                root,
                arguments["size"],
                "bf16",
                "megatron-core",
                1,
                "compiled",
                fp8="tensorwise",
            )
        )
        emit({"check": check, "engine": "megatron-core"} | run)


def _attempt(action: Any) -> dict[str, Any]:
    """Return the row, or the reason why there is no row, so that the next run still starts."""
    try:
        row: dict[str, Any] = action()
        return row
    except Exception as error:  # noqa: BLE001 - the next training may still run
        import traceback

        text = io.StringIO()
        traceback.print_exc(file=text)
        _leave_groups()
        return {
            "failed": f"{type(error).__name__}: {error}"[:600],
            "trace": text.getvalue()[-1500:],
        }


def _leave_groups() -> None:
    """Leave the process groups of a failed run, so that the next run can join its own groups."""
    from runbook.training import process_groups

    with contextlib.suppress(RuntimeError, AssertionError, ValueError):
        process_groups.leave_process_groups()
    free_memory()


def write_losses(sizes: list[str], made: dict[str, Any]) -> None:
    """Train on this CPU, and write the losses that GPUs are compared with."""
    losses: dict[str, dict[str, list[float]]] = {}
    for size in sizes:
        losses[size] = {}
        for precision in ("fp32", "bf16"):
            with corpus_folder() as root:
                folder = new_folder(root, precision)
                losses[size][precision] = losses_of(train(folder, content_of(size, precision)))
    content = {"made": made, "losses": losses}
    LOSSES.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
