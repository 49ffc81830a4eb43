"""Speed and memory of `runbook logs FILE --json` for a million iteration lines from each program.

    python -m benchmarks.analysis_logs [--lines 1000000] [--formats NAME...] [--folder DIR] [--json FILE]

Each log repeats lines as in tests/samples, with changing numbers. A separate process on
one core reads each log. The kernel reports its time and its peak memory. The records that the
process prints are counted.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

LIMIT_SECONDS = 20
LIMIT_BYTES = 2**30


def _loss(n: int) -> float:
    return 2.0 + 9.0 / (1 + n / 1000) + (n % 97) / 5000


def _megatron(n: int) -> str:
    return (
        f" [2026-02-01 10:00:01.123456] iteration {n:8d}/ 1000000 | consumed samples: {16 * n:12d} | elapsed time per "
        f"iteration (ms): {1100 + n % 50 / 10:.1f} | throughput per GPU (TFLOP/s/GPU): {101.5 + n % 7:.1f} | learning "
        f"rate: {6e-6:.6E} | global batch size:    16 | lm loss: {_loss(n):.6E} | loss scale: 1.0 | grad norm: "
        f"{1 + n % 1000 / 1000:.3f} | num zeros: 0.0 | params norm: {100 + n % 10:.3f} | number of skipped iterations: "
        "  0 | number of nan iterations:   0 |"
    )


def _deepspeed(n: int) -> str:
    return (
        f"[default7]: iteration {n:8d}/ 1000000 | consumed samples: {2048 * n:12d} | consumed tokens: "
        f"{4194304 * n:12d} | elapsed time per iteration (s): {105 + n % 50 / 100:.2f} | learning rate: 4.475E-05 | "
        f"global batch size:  2048 | lm loss: {_loss(n):.6E} | grad norm: {0.1 + n % 1000 / 1000:.3f} | num zeros: 0.0 "
        f"| number of skipped iterations:   0 | number of nan iterations:   0 | samples per second: "
        f"{2048 / (105 + n % 50 / 100):.3f} | TFLOPs: {149 + n % 9 / 10:.2f} |"
    )


def _key_value(n: int) -> str:
    return (
        f"[2025-11-10 09:43:36,161992][I][megatron/training_log:402:training_log]  iteration={n:8d}/ 1000000 | "
        f"consumed_samples={6144 * n:12d} | elapsed_time_per_iteration_ms={3400 + n % 50 / 10:.1f} | learning_rate="
        f"2.0127e-05 | global_batch_size= 6144 | lm loss={_loss(n):.6f} | loss_scale=1.0 | grad_norm="
        f"{1 + n % 1000 / 1000:.3f} | actual_seqlen= 8192 | number_of_skipped_iterations=  0 | "
        f"number_of_nan_iterations=  0 | samples_per_second={6144000 / (3400 + n % 50 / 10):.3f} | "
        f"tokens_per_gpu_per_second_tgs=12000.0 | TFLOPs=53.66 |"
    )


def _steps(n: int) -> str:
    return f"steps: {n} loss: {_loss(n):.4f} iter time (s): {1.4 + n % 100 / 1000:.3f} samples/sec: {700 + n % 9:.3f}"


def _timer(n: int) -> str:
    return (
        f"[2025-11-10 09:43:39,573] [INFO] [timer.py:264:stop] epoch=0/micro_step={n}/global_step={n}, "
        f"RunningAvgSamplesPerSec=2443.9516881034883, CurrSamplesPerSec={2500 + n % 100}.443452275532, "
        "MemAllocated=3.71GB, MaxMemAllocated=39.0GB"
    )


def _nemo1(n: int) -> str:
    return (
        f"Epoch 0: :  {n // 10000}%|####      | {n + 1}/1000000 [1:03:15<317:01:00, v_num=, reduced_train_loss="
        f"{_loss(n):.3f}, global_step={n}.0, consumed_samples={64 * n}.0, train_step_timing in s=1.9{n % 10}0]"
    )


def _nemo2(n: int) -> str:
    return (
        f"Training epoch 0, iteration {n}/1000000 | lr: 4.498e-06 | global_batch_size: 512 | global_step: {n} | "
        f"reduced_train_loss: {_loss(n):.4g} | train_step_timing in s: 46.{n % 90 + 10} | consumed_samples: {512 * n}"
    )


def _bridge(n: int) -> str:
    line = (
        f" [2025-09-12 10:00:01] iteration {n:8d}/ 1000000 | consumed samples: {128 * n:12d} | elapsed time per "
        f"iteration (ms): {12700 + n % 90}.5 | learning rate: 1.420000E-05 | global batch size:   128 | lm loss: "
        f"{_loss(n):.6E} | loss scale: 1.0 | grad norm: {1 + n % 1000 / 1000:.3f} | num zeros: 0.0 | number of skipped "
        "iterations:   0 | number of nan iterations:   0 |"
    )
    return f"Step Time : {(12700.5 + n % 90) / 1000:.2f}s GPU utilization: {528 + n % 5}.1MODEL_TFLOP/s/GPU\n{line}"


def _torchtitan(n: int) -> str:
    return (
        f"[rank0]:[titan] 2026-02-24 19:46:17,508 - root - INFO - \x1b[31mstep: {n:2}  \x1b[32mloss: {_loss(n):8.5f}  "
        f"\x1b[38;2;180;60;0mgrad_norm: {1 + n % 1000 / 1000:7.4f}  \x1b[33mmemory: 66.91GiB(37.51%)  \x1b[34mtps: "
        f"{10000 + n % 999:,}  \x1b[36mtflops: {310 + n % 9:.2f}  \x1b[35mmfu: 13.99%\x1b[39m"
    )


def _neox(n: int) -> str:
    return (
        f" samples/sec: {7 + n % 9 / 10:.3f} | iteration {n:8d}/ 1000000 | elapsed time per iteration (ms): "
        f"{4100 + n % 90}.1 | learning rate: 2.111E-06 | approx flops per GPU: 112.9TFLOPS | lm_loss: {_loss(n):.6E} | "
        "number of skipped iterations:   0 | number of nan iterations:   0 |"
    )


def _nanogpt(n: int) -> str:
    return f"iter {n}: loss {_loss(n):.4f}, time {560 + n % 9}.15ms, mfu 35.51%"


def _llmc(n: int) -> str:
    return (
        f"step {n:4d}/1000000 | loss {_loss(n):.6f} (+0.31z)| norm {1 + n % 1000 / 1000:.4f} (+0.12z)| lr 6.00e-04 | "
        f"{147 + n % 9}.20 ms | 51.3% bf16 MFU | {445678 + n % 99} tok/s"
    )


def _modded(n: int) -> str:
    return f"step:{n}/1000000 train_loss:{_loss(n):.4f} train_time:{178 * n}ms step_avg:178.{n % 90 + 10}ms"


def _ezpz(n: int) -> str:
    return (
        f"[2025-12-31 12:15:32,154227][I][examples/vit:445:train_fn] iter={n} loss={_loss(n):.6f} "
        f"dt=0.744{n % 900 + 99} dtd=0.003141 dtf=0.021592 dto=0.698994 dtb=0.020717 "
        f"loss/mean={_loss(n):.6f} loss/max=7.148438 loss/min=6.926270 loss/std=0.0517 "
        "dt/mean=0.744634 dt/max=0.745104 dt/min=0.744115 dt/std=0.000000"
    )


def _own(n: int) -> str:
    return json.dumps(
        {
            "iteration": n,
            "consumed_samples": 8 * n,
            "consumed_tokens": 1024 * n,
            "loss": _loss(n),
            "learning_rate": 2e-5,
            "grad_norm": 1 + n % 1000 / 1000,
            "loss_scale": 1.0,
            "seconds": 0.5 + n % 9 / 100,
            "tokens_per_second": 2048.0,
            "tflops_per_device": 0.04,
            "tflops_convention": "megatron-full",
            "global_batch": 8,
            "world_size": 2,
            "skipped": 0,
            "nan": 0,
            "segment": 0,
            "data_wait_seconds": 0.001,
            "memory_bytes": 1000000000,
            "time": 1.7e9 + n,
        }
    )


FORMATS: dict[str, Callable[[int], str]] = {
    "megatron-lm": _megatron,
    "megatron-deepspeed": _deepspeed,
    "megatron-deepspeed key=value": _key_value,
    "deepspeed pipeline": _steps,
    "deepspeed timer": _timer,
    "nemo-1": _nemo1,
    "nemo-2": _nemo2,
    "megatron-bridge": _bridge,
    "torchtitan": _torchtitan,
    "gpt-neox": _neox,
    "nanogpt": _nanogpt,
    "llm.c": _llmc,
    "modded-nanogpt": _modded,
    "ezpz": _ezpz,
    "runbook": _own,
}


def make(path: Path, line: Callable[[int], str], lines: int) -> None:
    """Write a log with this many records."""
    with path.open("w", encoding="utf-8") as stream:
        for start in range(1, lines + 1, 10_000):
            stream.write(
                "".join(f"{line(n)}\n" for n in range(start, min(start + 10_000, lines + 1)))
            )


def read(path: Path, output: Path) -> dict[str, float]:
    """Read the log in a process on one core. Return the seconds, CPU seconds and memory it took."""
    core = min(os.sched_getaffinity(0))
    began = time.perf_counter()
    child = os.fork()
    if not child:
        os.sched_setaffinity(0, {core})
        with output.open("wb") as stream:
            os.dup2(stream.fileno(), 1)
        start = "from runbook.cli import main; main()"
        os.execv(sys.executable, [sys.executable, "-c", start, "logs", str(path), "--json"])
    _, status, usage = os.wait4(child, 0)
    if status:
        raise SystemExit(f"reading {path} failed: {status}")
    seconds = time.perf_counter() - began
    return {
        "seconds": seconds,
        "cpu": usage.ru_utime + usage.ru_stime,
        "bytes": usage.ru_maxrss * 1024,
    }


def count(output: Path) -> int:
    """Count the records in the JSON file without loading the whole file."""
    with output.open("rb") as stream:
        return sum(line.lstrip().startswith(b'{"iteration"') for line in stream)


def measure(name: str, lines: int, folder: Path) -> dict[str, object]:
    """Write a log in one format and read it. Return the row for the table."""
    path = folder / "log"
    output = folder / "json"
    make(path, FORMATS[name], lines)
    found = read(path, output)
    row: dict[str, object] = {
        "format": name,
        "megabytes": round(path.stat().st_size / 1e6),
        **found,
    }
    row["records"] = count(output)
    path.unlink()
    output.unlink()
    return row


def main() -> None:
    """Measure each format and print a row for it."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--lines", type=int, default=1_000_000)
    options.add_argument("--formats", nargs="+", choices=list(FORMATS), default=list(FORMATS))
    options.add_argument("--folder", type=Path)
    options.add_argument("--json", type=Path)
    chosen = options.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
        for name in chosen.formats:
            row = measure(name, chosen.lines, Path(folder))
            rows.append(row)
            print(
                f"{name:30} {row['megabytes']:>5} MB {row['records']:>9} records {row['seconds']:6.1f} s "
                f"{row['cpu']:6.1f} s CPU {float(str(row['bytes'])) / 2**20:6.0f} MiB",
                flush=True,
            )
    if chosen.json:
        chosen.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    slow = [
        row
        for row in rows
        if float(str(row["cpu"])) > LIMIT_SECONDS or float(str(row["bytes"])) > LIMIT_BYTES
    ]
    for row in slow:
        print(f"over the limit of {LIMIT_SECONDS} s or 1 GiB: {row['format']}")


if __name__ == "__main__":
    main()
