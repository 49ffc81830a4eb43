"""All that a GPU can tell of the trainer, in one call of at most nine minutes, into one file of JSON.

    python -m benchmarks.gpu --out gpu.json [--minutes 9] [--parts correctness speed saving plan] [--small]

- correctness: losses of one training on this GPU beside those of the same training on the CPU, fp32 and bf16;
- speed: 125M to 6.7B in bf16 against a plain PyTorch GPT, by turns, with the MFU by PaLM's formula;
- saving: how long a save holds the training up, waited for and beside the training; and whether the parts of its steps,
  which a GPU's events time, add up to what the host's clock says of the steps;
- plan: planned memory and step time beside real ones, 125M to 1.3B, without and with recomputation.

Each part is a process of its own with a share of the minutes, and the file is written after each: a part that fails or
runs out of time has its reason there, and the others still count. FP8 is not measured yet. `--small` takes models of a
few layers: a rehearsal of this program, on a CPU too.
"""

from __future__ import annotations

import argparse
import itertools
import json
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

SHARES = {"correctness": 0.15, "speed": 0.45, "saving": 0.15, "plan": 0.25}
"""Of the minutes; what a part leaves over goes to the parts after it."""
STEPS = 20
AGREES = {"fp32": 1e-4, "bf16": 2e-2}
"""How far apart losses of the two devices may lie: sums in another order, and what 20 steps make of that."""
SPEED = {
    False: (("125m-2k", 8), ("350m", 8), ("1.3b", 4), ("6.7b", 1)),
    True: (("smoke", 1),),
}
"""Shapes of benchmarks.training_vs_plain, and the sequences of each of its two micro-batches."""
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
    ends, left = time.monotonic() + 60 * given.minutes, sum(SHARES[part] for part in given.parts)
    for part in given.parts:
        seconds = (ends - time.monotonic()) * SHARES[part] / left
        left -= SHARES[part]
        found[part] = run_part(part, seconds, small=given.small)
        given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        reason = found[part].get("failed", "")
        print(f"{part}: {found[part]['seconds']:.0f} s {reason.splitlines()[-1] if reason else ''}", flush=True)
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
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
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
        words = [sys.executable, "-m", "benchmarks.gpu", "--out", str(out), "--part", part, *["--small"] * small]
        with (Path(folder) / "log").open("w+", encoding="utf-8") as log:
            process = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
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
    model = size | {"heads": 8, "kv_heads": 8, "ffn_hidden": 4 * size["hidden"], "sequence_length": 256}
    found = {}
    for precision, limit in AGREES.items():
        losses = {}
        for device in ("cpu", gpu_name()):
            folder = root / f"{precision}-{device or 'cpu-again'}".replace(" ", "-")
            specs.write_corpus(folder / "data" / "corpus_text_document", documents=200)
            content = specs.spec(
                model={**model, "positions": 256}, iterations=STEPS, precision=precision, device=device or "cpu"
            )
            specs.write_plan(folder, content)
            train(folder)
            losses[device or "cpu again"] = [line["loss"] for line in specs.metrics(folder)]
        there, here = losses.values()
        worst = max(abs(one - other) / one for one, other in zip(there, here, strict=True))
        found[precision] = {"losses": losses, "worst_relative": worst, "agrees": worst <= limit}
        out.write_text(json.dumps(found), encoding="utf-8")
    if not all(one["agrees"] for one in found.values()):
        raise SystemExit("the two devices do not train alike")


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
        new = compare(shape, "bf16", 5, names, sequences)
        for row in new:
            print(line(row, new[-1]), flush=True)
        rows += new
        out.write_text(json.dumps({"rows": rows}), encoding="utf-8")


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
                content["model"] |= {"layers": 2, "hidden": 128, "ffn_hidden": 512, "sequence_length": 128}
            specs.write_plan(folder, content)
            train(folder)
            shares.append(share_of_parts(specs.metrics(folder)))
            times = [one["time"] for one in specs.metrics(folder)]
            found += stalls_of([after - before for before, after in itertools.pairwise(times)])[1]
    medians = {name: statistics.median(found) for name, found in stalls.items()}
    seen = {"median_seconds": medians, "stalls": stalls, "parts_of_step": shares}
    out.write_text(json.dumps(seen), encoding="utf-8")
    if not all(PARTS_OF_STEP[0] <= share <= PARTS_OF_STEP[1] for share in shares):
        raise SystemExit(f"the parts of the steps are {min(shares):.2f} to {max(shares):.2f} of their seconds")


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


PARTS = {"correctness": correctness, "speed": speed, "saving": saving, "plan": plan}

if __name__ == "__main__":
    main()
