"""`python -m runbook.training.probe --out FOLDER`: what a rank's machine has, and how fast it reaches the others.

It is started as the trainer is and writes FOLDER/probe-<rank>.json. What cannot be known is null, with the reason.
"""

import argparse
import json
import os
import platform
import socket
import sys
import time
from collections.abc import Callable
from importlib.metadata import distributions
from pathlib import Path

from runbook.plan_file.errors import TrainingError
from runbook.training.ranks import CPU, Ranks, die_with_launcher, hide_gpus, on_gpu, ranks_from

PACKAGES = ("torch", "megatron-core", "deepspeed", "numpy", "tensorboard")
WRITTEN_BYTES = 64 << 20
SUMMED_BYTES = 16 << 20
WAIT_SECONDS = 300
"""The ranks wait no longer for each other."""
SUM_ROUNDS = 5
CLOCK_ROUNDS = 5
"""Comparisons of clocks, of which the closest counts: a rank that waits for a core reads its clock late."""

Facts = dict[str, object]
"""What a rank found; each part is None until it was looked at, or where `errors` says why not."""


def main() -> int:
    """Look, reach the other ranks, write what was found; a part that fails says so in its place."""
    arguments = _arguments()
    ranks = ranks_from(os.environ)
    die_with_launcher(ranks)
    if arguments.device == CPU:
        hide_gpus()
    errors: dict[str, str] = {}
    facts: Facts = {
        "rank": ranks.rank,
        "world_size": ranks.world_size,
        "launcher": ranks.launcher,
        "host": socket.gethostname(),
        "time": time.time(),
        "python": platform.python_version(),
        "packages": {
            name: next((each.version for each in distributions(name=name)), None)
            for name in PACKAGES
        },
        # From the system, since /sys may be another network namespace's.
        "networks": sorted(name for _, name in socket.if_nameindex()),
        "infiniband": sorted(path.name for path in Path("/sys/class/infiniband").glob("*")),
        "errors": errors,
        "torch": None,
        "write": None,
        "group": None,
    }

    def look(part: str, action: Callable[[], Facts]) -> None:
        try:
            facts[part] = action()
        except (ImportError, OSError, RuntimeError, ValueError, TrainingError) as error:
            errors[part] = (
                f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:400]
            )

    look("torch", _look_at_torch)
    if arguments.write_folder and ranks.local_rank == 0:
        look("write", lambda: write_speed(arguments.write_folder, ranks.rank))
    _save(facts, arguments.out, ranks.rank)  # ranks that never meet may end this process
    if facts["torch"]:
        look("group", lambda: _reach(ranks))
        _save(facts, arguments.out, ranks.rank)
    return 0


def _save(facts: Facts, folder: Path, rank: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"probe-{rank}.json"
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_text(json.dumps(facts, indent=1) + "\n")
    part.replace(path)


def write_speed(folder: Path, rank: int) -> Facts:
    """How fast a file is written and synced, and by how many seconds the file server's clock is off."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f".probe-{rank}.{os.getpid()}"
    content = os.urandom(WRITTEN_BYTES)
    start = time.perf_counter()
    try:
        with path.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        seconds = time.perf_counter() - start
        before = time.time()
        path.write_bytes(b"now")
        written = path.stat().st_mtime
        after = time.time()
    finally:
        path.unlink(missing_ok=True)
    skew = max(
        0.0, before - written, written - after
    )  # zero where the file's time is within that moment
    speed = WRITTEN_BYTES / seconds
    return {
        "bytes": WRITTEN_BYTES,
        "seconds": seconds,
        "bytes_per_second": speed,
        "clock_of_files": skew,
    }


def _look_at_torch() -> Facts:
    import torch

    cuda = on_gpu()
    gpus = []
    for number in range(torch.cuda.device_count() if cuda else 0):
        free, total = torch.cuda.mem_get_info(number)
        gpus.append({"name": torch.cuda.get_device_name(number), "free": free, "total": total})
    return {
        "version": str(torch.__version__),
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if cuda else None,  # type: ignore[no-untyped-call]
        "devices": gpus,
    }


def _reach(ranks: Ranks) -> Facts:
    """A sum over all ranks, timed, and the spread of their clocks right after they met."""
    import torch

    from runbook.training.process_groups import device, join_process_group, sum_speed

    def clock_spread() -> float:
        """Seconds between the earliest and the latest clock, each read when all ranks had met."""
        clocks = torch.zeros(ranks.world_size, dtype=torch.float64, device=device())
        torch.distributed.barrier()
        clocks[ranks.rank] = time.time()
        torch.distributed.all_reduce(clocks)
        return float(clocks.max() - clocks.min())

    join_process_group(ranks, WAIT_SECONDS)
    try:
        values = torch.ones(SUMMED_BYTES // 4, device=device())
        torch.distributed.all_reduce(values)
        spread = min(clock_spread() for _ in range(CLOCK_ROUNDS))
        seconds, speed = sum_speed(values.nbytes, SUM_ROUNDS)
        return {
            "bytes": values.nbytes,
            "seconds": seconds,
            "bus_bytes_per_second": speed if ranks.world_size > 1 else None,
            "sum_is_right": bool((values == ranks.world_size).all()),
            "clock_spread": spread,
            "backend": torch.distributed.get_backend(),
        }
    finally:
        torch.distributed.destroy_process_group()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m runbook.training.probe", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for probe-<rank>.json")
    parser.add_argument(
        "--device", default="", help="what the plan computes on; cpu hides every GPU"
    )
    parser.add_argument(
        "--write-folder", type=Path, help="where each node writes a file, to see how fast"
    )
    return parser.parse_args()


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # exit handlers of gloo may wait for ranks that are gone
