"""All that a GPU can tell of the trainer, in one call of at most nine minutes, into one file of JSON.

    python -m benchmarks.gpu --out gpu.json [--minutes 9] [--parts correctness speed fp8 saving plan] [--small]

- correctness: losses of one training on this GPU beside those of the same training on the CPU, fp32 and bf16;
- speed: 125M to 6.7B in bf16 against a plain PyTorch GPT, by turns, with the MFU by PaLM's formula;
- fp8: 1.3B and 6.7B of ours in 8 bits by each recipe of `training.fp8`, beside bf16: speed, losses, and the MFU of the
  datasheet's peak in fp8; without a GPU or Transformer Engine each row says what is not installed;
- saving: how long a save holds the training up, waited for and beside the training; and whether the parts of its steps,
  which a GPU's events time, add up to what the host's clock says of the steps;
- plan: planned memory and step time beside real ones, 125M to 1.3B, without and with recomputation.

Each part is a process of its own with a share of the minutes, and the file is written after each: a part that fails or
runs out of time has its reason there, and the others still count. `--small` takes models of a few layers: a rehearsal
of this program, on a CPU too.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

SHARES = {"correctness": 0.15, "speed": 0.35, "fp8": 0.15, "saving": 0.12, "plan": 0.23}
"""Of the minutes; what a part leaves over goes to the parts after it."""
STEPS = 20
AGREES = {"fp32": 1e-4, "bf16": 2e-2}
"""How far apart losses of the two devices may lie: sums in another order, and what 20 steps make of that."""
SPEED = {
    False: (("125m-2k", 8), ("350m", 8), ("1.3b", 4), ("6.7b", 1)),
    True: (("smoke", 1),),
}
"""Shapes of benchmarks.training_vs_plain, and the sequences of each of its two micro-batches."""
RECIPES = ("delayed", "tensorwise", "blockwise", "mxfp8")
"""Of `training.fp8`; what of them a GPU can do is said by Transformer Engine."""
IN_8_BITS = {False: (("1.3b", 4), ("6.7b", 1)), True: (("smoke", 1),)}
AGREES_IN_8_BITS = 0.05
"""How far apart losses of the same steps in bf16 and in 8 bits may lie."""
ALONE = ("6.7b",)
"""Shapes whose programs run one after the other: two models of 120 GB (18 bytes a weight) do not fit into one GPU."""
PARTS_OF_STEP = 0.9, 1.05
"""Least and most that the timed parts may be of the steps' seconds."""
PLANNED = {
    False: (
        "model=125m training.micro_batch=8 training.global_batch=16",
        "model=350m training.micro_batch=8 training.global_batch=16",
        "model=1.3b training.micro_batch=4 training.global_batch=8",
        "model=1.3b training.micro_batch=4 training.global_batch=8 training.recompute=full",
    ),
    True: ("model=tiny training.micro_batch=2 training.global_batch=4",),
}


def main() -> None:
    """Run the parts one after the other."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--parts", nargs="+", default=list(SHARES), choices=list(SHARES))
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--part", choices=list(SHARES), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part:
        with tempfile.TemporaryDirectory() as folder:
            PARTS[given.part](Path(folder), given.out, given.small)
        return
    found: dict[str, Any] = {"machine": machine()}
    ends = time.monotonic() + 60 * given.minutes
    left = sum(SHARES[part] for part in given.parts)
    for part in given.parts:
        seconds = (ends - time.monotonic()) * SHARES[part] / left
        left -= SHARES[part]
        found[part] = run_part(part, seconds, small=given.small)
        given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        reason = found[part].get("failed", "")
        print(
            f"{part}: {found[part]['seconds']:.0f} s {reason.splitlines()[-1] if reason else ''}",
            flush=True,
        )
    print(json.dumps(found, indent=1))
    if any("failed" in found[part] for part in given.parts):
        sys.exit(1)


def machine() -> dict[str, Any]:
    """What the figures belong to."""
    import torch

    gpu = torch.cuda.is_available()
    versions = {}
    for name in ("torch", "megatron-core", "deepspeed", "transformer-engine", "triton"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = ""
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return {
        "gpu": torch.cuda.get_device_name() if gpu else "",
        "gpu_bytes": torch.cuda.get_device_properties(0).total_memory if gpu else 0,
        "cuda": torch.version.cuda or "",
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": versions,
        "commit": commit,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def run_part(part: str, seconds: float, *, small: bool) -> dict[str, Any]:
    """What one part found, or why it ended; what it had written before counts."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        words = [
            sys.executable,
            "-m",
            "benchmarks.gpu",
            "--out",
            str(out),
            "--part",
            part,
            *["--small"] * small,
        ]
        with (Path(folder) / "log").open("w+", encoding="utf-8") as log:
            process = subprocess.Popen(
                words, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
            failed = ""
            try:
                if code := process.wait(seconds):
                    failed = f"exit code {code}"
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.wait()
                failed = f"not done in {seconds:.0f} s"
            log.seek(0)
            last = log.read()[-2000:]
        found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    if failed:
        found["failed"] = f"{last}\n{failed}"
    return found | {"seconds": round(time.monotonic() - begun, 1)}


def correctness(root: Path, out: Path, small: bool) -> None:
    """The same training on both devices."""
    from tests.training import specs

    size = {"layers": 2, "hidden": 64} if small else {"layers": 8, "hidden": 512}
    model = size | {
        "heads": 8,
        "kv_heads": 8,
        "ffn_hidden": 4 * size["hidden"],
        "sequence_length": 256,
    }
    found = {}
    for precision, limit in AGREES.items():
        losses = {}
        for device in ("cpu", gpu_name()):
            folder = root / f"{precision}-{device or 'cpu-again'}".replace(" ", "-")
            specs.write_corpus(folder / "data" / "corpus_text_document", documents=200)
            content = specs.spec(
                model={**model, "positions": 256},
                iterations=STEPS,
                precision=precision,
                device=device or "cpu",
            )
            specs.write_plan(folder, content)
            train(folder)
            losses[device or "cpu again"] = [line["loss"] for line in specs.metrics(folder)]
        there, here = losses.values()
        worst = worst_gap(here, there)
        found[precision] = {"losses": losses, "worst_relative": worst, "agrees": worst <= limit}
        out.write_text(json.dumps(found), encoding="utf-8")
    if not all(one["agrees"] for one in found.values()):
        raise SystemExit("the two devices do not train alike")


def worst_gap(losses: list[float], known: list[float]) -> float:
    """Largest difference between the losses of two trainings, relative to the second; infinite where a loss is NaN.

    >>> worst_gap([10.0, 9.9], [10.0, 9.0]), worst_gap([10.0, float("nan")], [10.0, 9.0])
    (0.10000000000000003, inf)
    """
    gaps = [abs(one - other) / other for one, other in zip(losses, known, strict=True)]
    return max(gap if math.isfinite(gap) else math.inf for gap in gaps)


def gpu_name() -> str:
    """Of this machine's GPU, as the plan writes it; empty without one."""
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else ""


def train(folder: Path) -> None:
    """One rank, to its end."""
    from benchmarks import memory_against_plan

    memory_against_plan.train(folder, 1)


def speed(root: Path, out: Path, small: bool) -> None:
    """Rows of benchmarks.training_vs_plain, shape by shape."""
    from benchmarks.training_vs_plain import compare, line

    rows: list[dict[str, Any]] = []
    for shape, sequences in SPEED[small]:
        names = ["ours", "plain"] if small else ["ours", "plain", "compiled"]
        turns = [[name] for name in names] if shape in ALONE else [names]
        new = [row for group in turns for row in compare(shape, "bf16", 5, group, sequences)]
        for row in new:
            print(line(row, new[-1]), flush=True)
        rows += new
        out.write_text(json.dumps({"rows": rows}), encoding="utf-8")


def fp8(root: Path, out: Path, small: bool) -> None:
    """Ours in 8 bits by each recipe beside ours in bf16, one after the other: two models need not fit at once."""
    from benchmarks.training_vs_plain import FP8, compare

    missing = missing_for_fp8()
    rows: list[dict[str, Any]] = []
    for shape, sequences in IN_8_BITS[small]:
        half = {} if missing else compare(shape, "bf16", 5, ["ours"], sequences)[0]
        rows += [half] if half else []
        for recipe in RECIPES:
            row = {"shape": shape, "precision": FP8 + recipe, "program": "ours", "micro": sequences}
            row |= (
                {"not_run": missing}
                if missing
                else compare(shape, FP8 + recipe, 5, ["ours"], sequences)[0]
            )
            rows.append(beside_bf16(row, half))
            print(rows[-1], flush=True)
            out.write_text(json.dumps({"rows": rows}), encoding="utf-8")
    if wrong := [
        f"{row['shape']} {row['precision']}" for row in rows if row.get("agrees") is False
    ]:
        raise SystemExit(f"losses are not those of bf16: {', '.join(wrong)}")
    if not missing and not any(
        "tokens_per_second" in row for row in rows if row["precision"] != "bf16"
    ):
        raise SystemExit("no recipe ran in 8 bits")


def missing_for_fp8() -> str:
    """What this machine lacks for products in 8 bits, by the trainer's own measure; nothing if it has all."""
    from megatron.core.models.gpt import gpt_layer_specs

    lacks = {
        "no GPU here": not gpu_name(),
        "Transformer Engine is not installed": not gpt_layer_specs.HAVE_TE,
    }
    return "; ".join(reason for reason, is_so in lacks.items() if is_so)


def beside_bf16(row: dict[str, Any], half: dict[str, Any]) -> dict[str, Any]:
    """The row with its speed and losses as they compare with those of the same model in bf16."""
    if "tokens_per_second" not in row or "tokens_per_second" not in half:
        return row
    worst = worst_gap(row["losses"], half["losses"])
    speedup = row["tokens_per_second"] / half["tokens_per_second"]
    return row | {"speedup": speedup, "worst_relative": worst, "agrees": worst <= AGREES_IN_8_BITS}


def saving(root: Path, out: Path, small: bool) -> None:
    """Seconds that a save holds the training up, both ways by turns."""
    from benchmarks.training_runs import EVERY, SAVES, prepared, stalls_of
    from tests.training import specs

    stalls: dict[str, list[float]] = {"waited for": [], "beside the training": []}
    shares: list[float] = []
    for turn in range(1 if small else 3):
        for name, found in stalls.items():
            folder = root / f"{turn}-{name}".replace(" ", "-")
            (folder / "data").mkdir(parents=True)
            content = prepared("bf16", EVERY * (SAVES + 1), 1, 1)
            content["checkpoint"] |= {"interval": EVERY, "asynchronous": name != "waited for"}
            content["device"] = gpu_name() or "cpu"
            if small:
                content["model"] |= {
                    "layers": 2,
                    "hidden": 128,
                    "ffn_hidden": 512,
                    "sequence_length": 128,
                }
            specs.write_plan(folder, content)
            train(folder)
            shares.append(share_of_parts(specs.metrics(folder)))
            times = [one["time"] for one in specs.metrics(folder)]
            found += stalls_of([after - before for before, after in itertools.pairwise(times)])[1]
    medians = {name: statistics.median(found) for name, found in stalls.items()}
    seen = {"median_seconds": medians, "stalls": stalls, "parts_of_step": shares}
    out.write_text(json.dumps(seen), encoding="utf-8")
    if not all(PARTS_OF_STEP[0] <= share <= PARTS_OF_STEP[1] for share in shares):
        raise SystemExit(
            f"the parts of the steps are {min(shares):.2f} to {max(shares):.2f} of their seconds"
        )


def share_of_parts(lines: list[dict[str, Any]]) -> float:
    """What the parts are of the steps' seconds; the first steps, which compile and fill caches, are left out."""
    steps = lines[3:]
    parts = sum(step["forward_backward_seconds"] + step["optimizer_seconds"] for step in steps)
    return float(parts / sum(step["seconds"] for step in steps))


def plan(root: Path, out: Path, small: bool) -> None:
    """Plan against the GPU: bytes of the device and seconds of a step."""
    from benchmarks.memory_against_plan import measure
    from runbook.core.errors import RunbookError

    rows = []
    for words in PLANNED[small]:
        site = "site=local-gpu " if gpu_name() else "parallel.tensor=1 "
        try:
            rows.append({"words": words} | measure(site + words))
        except (SystemExit, RunbookError) as error:  # the next one may fit
            rows.append({"words": words, "failed": f"{type(error).__name__}: {error}"})
        print(rows[-1], flush=True)
        out.write_text(json.dumps({"rows": rows}), encoding="utf-8")
    if any("failed" in row for row in rows):
        raise SystemExit("not all were measured")


PARTS = {"correctness": correctness, "speed": speed, "fp8": fp8, "saving": saving, "plan": plan}

if __name__ == "__main__":
    main()
