"""Where the benchmark runs: the machine, its versions, and whether it can compile kernels."""

from __future__ import annotations

import math
import os
import platform
import shutil
import subprocess
import sysconfig
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_stages import device
from benchmarks.gpu_stages.worker import Emit

PACKAGES = (
    "torch",
    "triton",
    "numpy",
    "megatron-core",
    "deepspeed",
    "transformer-engine",
    "pydantic",
    "nvidia-cudnn-cu13",
    "nvidia-nccl-cu13",
    "nvidia-cublas",
)
GPU_FIELDS = (
    "name",
    "driver_version",
    "memory.total",
    "power.limit",
    "power.max_limit",
    "clocks.max.sm",
    "clocks.max.mem",
    "clocks.sm",
    "clocks.mem",
    "temperature.gpu",
    "persistence_mode",
    "ecc.mode.current",
)
PROGRAM_SECONDS = 15


def look(arguments: dict[str, Any], emit: Emit) -> None:
    """Emit facts about the machine, and then the result from each compiler and library probe."""
    emit(machine())
    emit({"nvidia_smi": nvidia_smi()})
    emit({"disk": {folder: _free_bytes(folder) for folder in ("/tmp", "/dev/shm", ".")}})
    emit({"gcc": _first_line(["gcc", "--version"]), "python_h": _has_python_header()})
    triton = _probe(_run_triton)
    emit({"triton": triton})
    compile_answer = _probe(_compile_pointwise)
    emit({"compile": compile_answer, "compiles": compile_answer["works"]})
    emit({"nccl": _probe(_sum_by_nccl)})


def machine() -> dict[str, Any]:
    """Return the device, the host and the versions."""
    facts: dict[str, Any] = {
        "device": device.device_name(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "host_memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "",
        "cudnn": torch.backends.cudnn.version() if torch.cuda.is_available() else 0,
        "versions": {name: _version(name) for name in PACKAGES},
        "git": shutil.which("git") or "",
        "variables": _variables(),
    }
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        facts |= {
            "device_bytes": properties.total_memory,
            "multiprocessors": properties.multi_processor_count,
            "capability": list(torch.cuda.get_device_capability()),
            "l2_bytes": getattr(properties, "L2_cache_size", 0),
        }
    return facts


def nvidia_smi() -> dict[str, str]:
    """Return what nvidia-smi reports about the first GPU.

    The result is empty if it does not answer.
    """
    text = _first_line(
        ["nvidia-smi", f"--query-gpu={','.join(GPU_FIELDS)}", "--format=csv,noheader"]
    )
    values = [value.strip() for value in text.split(",")]
    return dict(zip(GPU_FIELDS, values, strict=False)) if len(values) > 1 else {"answer": text}


def _probe(action: Any) -> dict[str, Any]:
    """Return whether the action works, how long it takes, and the reason if it fails."""
    start = time.monotonic()
    try:
        answer = action()
    except Exception as error:  # noqa: BLE001 - a probe says whatever went wrong
        text = f"{type(error).__name__}: {error}"
        return {"works": False, "reason": text[:1500], "seconds": time.monotonic() - start}
    return {"works": True, "seconds": time.monotonic() - start} | answer


def _run_triton() -> dict[str, Any]:
    from benchmarks.gpu_stages.triton_probe import largest_error

    error = largest_error(device.device())
    if math.isnan(error) or error > 1e-5:
        raise RuntimeError(f"the kernel's sums are off by {error}")
    return {"largest_error": error}


def _compile_pointwise() -> dict[str, Any]:
    def gelu_plus_bias(values: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(values + bias, approximate="tanh")

    values = torch.randn(1000, 64, device=device.device())
    bias = torch.randn(64, device=device.device())
    compiled = torch.compile(gelu_plus_bias)(values, bias)
    error = float((compiled - gelu_plus_bias(values, bias)).abs().max())
    if math.isnan(error) or error > 1e-4:
        raise RuntimeError(f"the compiled function is off by {error}")
    return {"largest_error": error}


def _sum_by_nccl() -> dict[str, Any]:
    """Sum over a group of one rank, as every training run on one GPU does."""
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    torch.distributed.init_process_group(
        backend, rank=0, world_size=1, store=torch.distributed.HashStore()
    )
    numbers = torch.ones(1024, device=device.device())
    torch.distributed.all_reduce(numbers)
    total = float(numbers.sum())
    torch.distributed.destroy_process_group()
    return {"backend": backend, "sum": total}


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _variables() -> dict[str, str]:
    starts = ("OMP_", "PYTORCH_", "TRITON_", "TORCHINDUCTOR_", "CUDA_", "NCCL_", "RUNBOOK_")
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith(starts)}


def _has_python_header() -> bool:
    return (Path(sysconfig.get_path("include")) / "Python.h").exists()


def _free_bytes(folder: str) -> int:
    return shutil.disk_usage(folder).free if Path(folder).exists() else 0


def _first_line(command: list[str]) -> str:
    """Return the first line that a program prints, or the reason why it does not run."""
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=PROGRAM_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{type(error).__name__}: {error}"
    lines = (answer.stdout or answer.stderr).strip().splitlines()
    return lines[0] if lines else f"exit code {answer.returncode}"
