"""`python -m runbook.training.probe --out FOLDER`: what a rank's machine has, and how fast it reaches the others.

It is started as the trainer is and writes FOLDER/probe-<rank>.json. What cannot be known is null, with the reason.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runbook.training.errors import TrainingError
from runbook.training.ranks import Ranks, die_with_launcher, ranks_from

PACKAGES = ("torch", "megatron-core", "deepspeed", "numpy", "tensorboard")
MEBIBYTE = 1 << 20
WARM_UPS, REPEATS = 2, 5
ROUNDS = 5
"""Of clocks the closest round counts: a rank that had to wait for a core tells nothing of its clock."""


def main() -> int:
    """Look, reach the other ranks, write what was found; a part that fails says so in its place."""
    arguments = _arguments()
    ranks = ranks_from(os.environ)
    die_with_launcher(ranks)
    found: dict[str, Any] = {
        "rank": ranks.rank,
        "world_size": ranks.world_size,
        "launcher": ranks.launcher,
        **machine(),
    }
    found["torch"] = _part(found, "torch", _look_at_torch)
    if arguments.write_folder and ranks.local_rank == 0:
        folder, size = arguments.write_folder, arguments.write_mebibytes
        found["write"] = _part(found, "write", lambda: write_speed(folder, size, ranks.rank))
    _write(arguments.out, found)  # ranks that never meet may end this process
    if found["torch"]:
        found["group"] = _part(found, "group", lambda: _reach(ranks, arguments.mebibytes, arguments.timeout))
        _write(arguments.out, found)
    return 0


def _write(folder: Path, found: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"probe-{found['rank']}.json"
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_text(json.dumps(found, indent=1) + "\n")
    part.replace(path)


def machine() -> dict[str, Any]:
    """Host, Python, packages by their own lists, network devices."""
    return {
        "host": socket.gethostname(),
        "time": time.time(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "networks": sorted(name for _, name in socket.if_nameindex()),  # /sys may be another network namespace's
        "infiniband": _names(Path("/sys/class/infiniband")),
        "errors": {},
    }


def write_speed(folder: Path, mebibytes: int, rank: int) -> dict[str, float]:
    """Bytes a second of one file, written and synced, then removed."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f".probe-{rank}.{os.getpid()}"
    block = os.urandom(MEBIBYTE)
    started = time.perf_counter()
    try:
        with path.open("wb") as stream:
            for _ in range(mebibytes):
                stream.write(block)
            stream.flush()
            os.fsync(stream.fileno())
        seconds = time.perf_counter() - started
        before = time.time()
        path.write_bytes(b"now")
        written, after = path.stat().st_mtime, time.time()
    finally:
        path.unlink(missing_ok=True)
    skew = max(0.0, before - written, written - after)  # the file server's clock, where it is outside of that moment
    size = mebibytes * MEBIBYTE
    return {"bytes": size, "seconds": seconds, "bytes_per_second": size / seconds, "clock_of_files": skew}


def _look_at_torch() -> dict[str, Any]:
    import torch

    cuda = torch.cuda.is_available()
    devices = []
    for number in range(torch.cuda.device_count() if cuda else 0):
        free, total = torch.cuda.mem_get_info(number)
        devices.append({"name": torch.cuda.get_device_name(number), "free": free, "total": total})
    return {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if cuda else None,  # type: ignore[no-untyped-call]
        "devices": devices,
        "bf16_on_cpu": bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()),
    }


def _reach(ranks: Ranks, mebibytes: int, timeout: int) -> dict[str, Any] | None:
    """A sum over all ranks, timed, and the spread of their clocks right after they met."""
    import torch

    from runbook.training.distributed import begin

    begin(ranks, timeout)
    try:
        device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
        values = torch.ones(mebibytes * MEBIBYTE // 4, device=device)
        for _ in range(WARM_UPS):
            torch.distributed.all_reduce(values)
        values.fill_(1.0)
        spread = min(_clock_spread(ranks, device) for _ in range(ROUNDS))
        torch.distributed.barrier()
        started = time.perf_counter()
        for _ in range(REPEATS):
            torch.distributed.all_reduce(values)
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds = (time.perf_counter() - started) / REPEATS
        right = float(values[0]) == float(ranks.world_size) ** REPEATS
        share = 2 * (ranks.world_size - 1) / ranks.world_size
        return {
            "bytes": values.numel() * 4,
            "seconds": seconds,
            "bus_bytes_per_second": share * values.numel() * 4 / seconds if ranks.world_size > 1 else None,
            "sum_is_right": right,
            "clock_spread": spread,
            "backend": torch.distributed.get_backend(),
        }
    finally:
        torch.distributed.destroy_process_group()


def _clock_spread(ranks: Ranks, device: Any) -> float:
    """Seconds between the earliest and the latest clock, each read when all ranks had met."""
    import torch

    clocks = torch.zeros(ranks.world_size, dtype=torch.float64, device=device)
    torch.distributed.barrier()
    clocks[ranks.rank] = time.time()
    torch.distributed.all_reduce(clocks)
    return float(clocks.max() - clocks.min())


def _part(found: dict[str, Any], name: str, look: Callable[[], Any]) -> Any:
    try:
        return look()
    except (ImportError, OSError, RuntimeError, ValueError, TrainingError) as error:
        found["errors"][name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:400]
        return None


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _names(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir())
    except OSError:
        return []


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m runbook.training.probe", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for probe-<rank>.json")
    parser.add_argument("--mebibytes", type=int, default=16, help="size of the sum over all ranks")
    parser.add_argument("--write-folder", type=Path, help="where each node writes a file, to see how fast")
    parser.add_argument("--write-mebibytes", type=int, default=64, help="size of that file")
    parser.add_argument("--timeout", type=int, default=300, help="seconds that the ranks wait for each other")
    return parser.parse_args()


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # exit handlers of gloo may wait for ranks that are gone
