"""`python -m runbook.training.probe --out FOLDER`: examine this rank's machine and its links.

The program is started like the trainer, and writes FOLDER/probe-<rank>.json. If a value cannot be
determined, it is null, and the file contains the reason. With --only-torch, the program examines
only torch and the devices, and prints the result.
"""

import argparse
import contextlib
import importlib
import json
import os
import platform
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from runbook.plan_file.group_limits import (
    GIVE_UP_SECONDS,
    GROUP_SECONDS,
    IMPORT_SECONDS,
    MEETING_SECONDS,
)
from runbook.training.ranks import CPU, Ranks, die_with_launcher, hide_gpus, on_gpu, ranks_from

BINDING_VARIABLES = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
"""Variables with which OpenMP binds threads to cores."""
PACKAGES = ("torch", "megatron-core", "deepspeed", "numpy", "tensorboard")
WRITTEN_BYTES = 64 << 20
SUMMED_BYTES = 16 << 20
MATRIX_SIZE = {True: 8192, False: 1024}
"""Number of matrix rows in the timed matmul, on a GPU and on a CPU."""
COPIED_BYTES = {True: 1 << 30, False: 64 << 20}
"""Bytes in the timed memory copy, on a GPU and on a CPU."""
TIMED_ROUNDS = 5
LIBRARIES = re.compile(
    r"lib(?:stdc\+\+|gcc_s|gomp|iomp5|c10|torch\w*|nccl|cudart|cublas|cublasLt|cudnn\w*|nvrtc"
    r"|nvJitLink|amdhip64|rccl)"
)
"""Libraries torch was built with. A different library with the same name may replace each."""
GROUP_BYTES = 1 << 20
IMPORT_STEP = "importing megatron-core"
UNUSED_GROUPS = ("EXPERT", "HYBRID")
"""Words in the names of process groups a dense model creates but never uses."""
SUM_ROUNDS = 5
CLOCK_ROUNDS = 5
"""Number of clock comparisons.

The comparison with the smallest spread is used, because a rank that waits for a core reads its
clock late.
"""

Facts = dict[str, object]
"""The facts the probe has found about a rank.

A part is None until it has been examined. If that fails, it stays None, and `errors` has the
reason.
"""


def main() -> int:
    """Examine the machine and the links to other ranks, and write the findings.

    If a part fails, its error is written instead of its findings.
    """
    arguments = _arguments()
    ranks = ranks_from(os.environ)
    if arguments.device == CPU:
        hide_gpus()
    if arguments.only_libraries:
        importlib.import_module("torch")
        sys.stdout.write(json.dumps({"libraries": _loaded_libraries()}) + "\n")
        return 0

    if arguments.only_torch:
        torch_facts = _look_at_torch() | _time_devices()
        if arguments.format:
            torch_facts["core_flops"] = _core_flops(arguments.format)
        sys.stdout.write(json.dumps(torch_facts) + "\n")
        return 0

    die_with_launcher(ranks)
    # This makes NCCL report its transport. Sockets are a fault if the site names a fast network.
    os.environ.setdefault("NCCL_DEBUG", "INFO")
    os.environ.setdefault("NCCL_DEBUG_SUBSYS", "INIT,NET")
    errors: dict[str, str] = {}
    error_times: dict[str, float] = {}
    facts: Facts = {
        "rank": ranks.rank,
        "world_size": ranks.world_size,
        "launcher": ranks.launcher,
        "host": socket.gethostname(),
        "time": time.time(),
        "python": platform.python_version(),
        "packages": {name: _installed_version(name) for name in PACKAGES},
        # The interfaces come from a system call, since /sys may belong to another network
        # namespace.
        "networks": sorted(name for _, name in socket.if_nameindex()),
        "infiniband": sorted(path.name for path in Path("/sys/class/infiniband").glob("*")),
        "cores": len(os.sched_getaffinity(0)),
        "bound_cores": None,
        "binding": {name: os.environ[name] for name in BINDING_VARIABLES if name in os.environ},
        "errors": errors,
        "error_times": error_times,
        "torch": None,
        "write": None,
        "group": None,
        "groups": None,
        "current": None,
    }

    def look(part: str, action: Callable[[], Facts | None], step: str = "") -> None:
        """Store the facts about a part, or the error."""
        try:
            facts[part] = action()
        except Exception as error:  # noqa: BLE001 - other packages raise errors of any type
            first_line = str(error).partition("\n")[0]
            errors[part] = f"{step}{type(error).__name__}: {first_line}"[:400]
            error_times[part] = time.time()

    look("torch", _look_at_torch)
    # OpenMP binds the main thread while torch loads it.
    facts["bound_cores"] = sorted(os.sched_getaffinity(0))
    if arguments.write_folder and ranks.local_rank == 0:
        look("write", lambda: write_speed(arguments.write_folder, ranks.rank))
    # The findings are saved first, since this process is killed if the ranks cannot connect
    _save(facts, arguments.out, ranks.rank)
    if facts["torch"]:
        deadline = Deadline(facts, arguments.out, ranks.rank)
        if arguments.layout:
            # These modules are imported before the ranks connect, because a slow import afterwards
            # would look like a hung group.
            step = f"{IMPORT_STEP}: "
            look("groups", lambda: _import_megatron(ranks, deadline), step)
            if "groups" in errors:
                _save(facts, arguments.out, ranks.rank)

        look("group", lambda: _reach(ranks, deadline))
        _save(facts, arguments.out, ranks.rank)
        if facts["group"] and arguments.layout and "groups" not in errors:
            look("groups", lambda: _try_groups(ranks, arguments.layout, deadline))
            _save(facts, arguments.out, ranks.rank)

    return 0


def _import_megatron(ranks: Ranks, deadline: "Deadline") -> None:
    """Import megatron-core. If it is missing, the step that makes the groups reports that."""
    with (
        deadline.over(IMPORT_STEP, [ranks.rank], IMPORT_SECONDS),
        contextlib.suppress(ModuleNotFoundError),
    ):
        importlib.import_module("megatron.core.parallel_state")


def _installed_version(name: str) -> str | None:
    """Return the installed version of a package, or None if it is not installed."""
    for distribution in distributions(name=name):
        return distribution.version
    return None


class Deadline:
    """Ends this rank if a collective step takes too long.

    The file from this rank then contains the name of that step.
    """

    def __init__(
        self,
        facts: Facts,
        folder: Path,
        rank: int,
    ) -> None:
        self._facts = facts
        self._folder = folder
        self._rank = rank

    @contextmanager
    def over(
        self,
        step: str,
        members: Sequence[int],
        seconds: int = GROUP_SECONDS,
    ) -> Iterator[None]:
        """Limit the body to this many seconds.

        The name of the step is written to the file from this rank beforehand.
        """
        current = {
            "step": step,
            "ranks": list(members),
            "since": time.time(),
            "hung": False,
        }
        self._facts["current"] = current
        _save(self._facts, self._folder, self._rank)

        def give_up() -> None:
            current["hung"] = True
            _save(self._facts, self._folder, self._rank)
            sys.stderr.write(f"rank {self._rank} gave up on {step} after {seconds} s\n")
            sys.stderr.flush()
            os._exit(1)

        timer = threading.Timer(seconds + GIVE_UP_SECONDS, give_up)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

        self._facts["current"] = None


def _save(facts: Facts, folder: Path, rank: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"probe-{rank}.json"
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_text(json.dumps(facts, indent=1) + "\n")
    part.replace(path)


def write_speed(folder: Path, rank: int) -> Facts:
    """Return how fast a file is written, and the clock error on the file server in seconds."""
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

    # The error is zero if the file time is between `before` and `after`
    skew = max(0.0, before - written, written - after)
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
        "libraries": _loaded_libraries(),
    }


def _loaded_libraries() -> dict[str, str]:
    """Return which library files torch has loaded.

    Keys are library names without versions. A link is replaced with its target.
    """
    libraries = {}
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.partition("/")[2]
        name = path.rpartition("/")[2].partition(".so")[0]
        if LIBRARIES.fullmatch(name):
            libraries[name] = f"/{path}"

    return libraries


def _time_devices() -> Facts:
    """Return the speed of each device (or CPU core), and which GPU architectures torch supports."""
    import torch

    if not on_gpu():
        torch.set_num_threads(1)
        return {"speeds": [_time_device(torch.device(CPU))], "architectures": []}

    speeds = []
    for number in range(torch.cuda.device_count()):
        torch.cuda.set_device(number)
        speeds.append(_time_device(torch.device("cuda", number)))

    return {"speeds": speeds, "architectures": torch.cuda.get_arch_list()}


def _time_device(device: Any) -> Facts:
    """Return the TFLOP/s of a matmul, and the bytes per second of a copy on the device."""
    import torch

    cuda = on_gpu()
    rows = MATRIX_SIZE[cuda]
    # GPUs train in bf16. On a CPU without bf16 instructions, its speed in bf16 is not meaningful.
    number_format = torch.bfloat16 if cuda else torch.float32
    matrix = torch.ones(rows, rows, dtype=number_format, device=device)
    source = torch.ones(COPIED_BYTES[cuda] // 4, device=device)
    target = torch.empty_like(source)
    product_seconds = _quickest_seconds(lambda: matrix @ matrix)
    copy_seconds = _quickest_seconds(lambda: target.copy_(source))
    product = matrix @ matrix
    return {
        "tflops": 2 * rows**3 / product_seconds / 1e12,
        # A copy both reads and writes each byte.
        "bytes_per_second": 2 * source.nbytes / copy_seconds,
        "product_is_right": bool((product == rows).all()),
    }


def _core_flops(number_format: str) -> float | None:
    """Return the FLOP/s per core in a matmul computed as in training, or None on a GPU."""
    import torch

    from runbook.training import cpu

    if on_gpu():
        return None
    # This is a separate table, since importing gpt_model would load megatron-core
    dtypes = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
    cpu.widen_half_matmuls()
    torch.set_num_threads(1)
    rows = MATRIX_SIZE[False]
    matrix = torch.ones(rows, rows, dtype=dtypes[number_format])
    seconds = _quickest_seconds(lambda: cpu.product(matrix, matrix, None))
    return 2 * rows**3 / seconds


def _quickest_seconds(action: Callable[[], object]) -> float:
    """Return the seconds needed for the fastest round.

    On a CPU, only the computing time in this thread counts.
    """
    from runbook.training.process_groups import wait_for_gpu

    clock = time.perf_counter if on_gpu() else time.thread_time
    seconds = []
    for _ in range(TIMED_ROUNDS):
        start = clock()
        action()
        wait_for_gpu()
        seconds.append(clock() - start)

    return max(min(seconds), 1e-9)


@dataclass(frozen=True)
class NamedGroup:
    """A process group, and the name for it in the trainer."""

    name: str
    members: tuple[int, ...]
    handle: Any


def _try_groups(ranks: Ranks, layout: str, deadline: Deadline) -> Facts:
    """Create the same process groups as the trainer, in the same order.

    Run an all-reduce over each group this rank belongs to.

    `layout` is tensor x pipeline x context, such as 2x4x1. A group opens connections only at the
    first all-reduce, so it may hang even though it was created.
    """
    groups = _make_groups(layout, deadline)
    results = []
    for group in groups:
        is_used = not any(word in group.name for word in UNUSED_GROUPS)
        if len(group.members) < 2 or ranks.rank not in group.members or not is_used:
            continue
        with deadline.over(f"all-reduce over {group.name}", group.members):
            results.append(_sum_over(group))

    return {"layout": layout, "num_groups": len(groups), "sums": results}


def _make_groups(layout: str, deadline: Deadline) -> list[NamedGroup]:
    """Let megatron-core create groups as in the trainer. Return them in creation order."""
    import torch
    from megatron.core import parallel_state

    tensor, pipeline, context = (int(size) for size in layout.split("x"))
    groups: list[NamedGroup] = []
    make_group = torch.distributed.new_group

    def make_named_group(*args: Any, **options: Any) -> Any:
        members = options.get("ranks") or (args[0] if args else None) or ()
        name = str(options.get("group_desc") or f"group {len(groups) + 1}")
        with deadline.over(f"making {name}", members):
            handle = make_group(*args, **options)
        groups.append(NamedGroup(name, tuple(members), handle))
        return handle

    torch.distributed.new_group = make_named_group
    try:
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=tensor,
            pipeline_model_parallel_size=pipeline,
            context_parallel_size=context,
            distributed_timeout_minutes=GROUP_SECONDS / 60,
            create_gloo_process_groups=False,
        )
    finally:
        torch.distributed.new_group = make_group

    return groups


def _sum_over(group: NamedGroup) -> Facts:
    """Run an all-reduce of a megabyte over a group.

    Return the group name, the seconds this took, and whether the sum is correct.
    """
    import torch

    from runbook.training.process_groups import device, wait_for_gpu

    values = torch.ones(GROUP_BYTES // 4, device=device())
    start = time.monotonic()
    torch.distributed.all_reduce(values, group=group.handle)
    wait_for_gpu()
    seconds = time.monotonic() - start
    is_right = bool((values == len(group.members)).all())
    return {
        "name": group.name,
        "ranks": list(group.members),
        "first_seconds": seconds,
        "sum_is_right": is_right,
    }


def _reach(ranks: Ranks, deadline: Deadline) -> Facts:
    """Time an all-reduce over all ranks, and measure how far their clocks differ."""
    import torch

    from runbook.training.cpu import answer_for_cpu
    from runbook.training.process_groups import device, join_process_group, sum_speed

    def clock_spread() -> float:
        """Return the seconds between the earliest and the latest clock after a barrier."""
        clocks = torch.zeros(ranks.world_size, dtype=torch.float64, device=device())
        torch.distributed.barrier()
        clocks[ranks.rank] = time.time()
        torch.distributed.all_reduce(clocks)
        return float(clocks.max() - clocks.min())

    everybody = range(ranks.world_size)
    if not on_gpu():
        answer_for_cpu()
    with deadline.over("the rendezvous of all ranks", everybody, MEETING_SECONDS):
        join_process_group(ranks, MEETING_SECONDS)
    with deadline.over("all-reduce over all ranks", everybody):
        values = torch.ones(SUMMED_BYTES // 4, device=device())
        torch.distributed.all_reduce(values)
        sum_is_right = bool((values == ranks.world_size).all())
        spread = min(clock_spread() for _ in range(CLOCK_ROUNDS))
        seconds, speed = sum_speed(values.nbytes, SUM_ROUNDS)

    return {
        "bytes": values.nbytes,
        "seconds": seconds,
        "bus_bytes_per_second": speed if ranks.world_size > 1 else None,
        "sum_is_right": sum_is_right,
        "clock_spread": spread,
        "backend": torch.distributed.get_backend(),
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m runbook.training.probe", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(), help="folder for probe-<rank>.json")
    parser.add_argument(
        "--only-torch",
        action="store_true",
        help="examine only torch and the devices, and print the result",
    )
    parser.add_argument(
        "--format",
        default="",
        choices=("", "bf16", "fp16", "fp32"),
        help="with --only-torch: also time a core's matrix product in this number format",
    )
    parser.add_argument(
        "--only-libraries",
        action="store_true",
        help="import torch and print the files of its libraries",
    )
    parser.add_argument(
        "--layout", default="", help="tensor x pipeline x context parallel sizes, such as 2x4x1"
    )
    parser.add_argument(
        "--device", default="", help="the device that the plan computes on; cpu hides every GPU"
    )
    parser.add_argument(
        "--write-folder",
        type=Path,
        help="folder in which each node writes a file, to measure the write speed",
    )
    return parser.parse_args()


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # gloo exit handlers might wait for ranks that are no longer running
    os._exit(code)
