"""Memory of this rank on its host and its device, and whether it leaks."""

import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from runbook.plan_file.alarms import Alarm, GrowthWatch, in_bytes
from runbook.plan_file.schema import PhasePlan
from runbook.training.ranks import on_gpu

LEAK_SHARE = 0.5  # of what is left: growth that takes less until the training's end hurts nobody
AGAIN_FACTOR = 2.0  # a leak is reported again when it has become so many times as fast


class MemoryWatch:
    """Looks for a leak in this rank's memory; of all ranks, the one that leaks fastest reports it."""

    def __init__(self, spec: PhasePlan) -> None:
        self.spec = spec
        self.bytes_per_step = 0.0
        """The leak found here; 0: none that was not reported."""
        self._watches = {name: GrowthWatch(f"{name}_memory", show=in_bytes) for name in ("host", "device")}
        self._found: Alarm | None = None
        self._reported = 0.0  # bytes a step

    def look(self, iteration: int, seconds: float) -> None:
        """Note what this rank holds after a step."""
        held = {"host": host_bytes()} | ({"device": torch.cuda.memory_allocated()} if on_gpu() else {})
        for name, num_bytes in held.items():
            drift = self._watches[name].look(iteration, num_bytes)
            slope = (drift.value - drift.usual) / (drift.iteration - drift.since) if drift else 0.0
            if not drift or slope <= max(self.bytes_per_step, AGAIN_FACTOR * self._reported):
                continue
            processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if name == "host" else 1
            left = host_bytes_left() if name == "host" else torch.cuda.mem_get_info()[0]
            steps = left / slope / processes
            if steps < (self.spec.duration.iterations - iteration) / LEAK_SHARE:
                hours = steps * seconds / 3600
                full = (
                    f"{in_bytes(left)} are left on {socket.gethostname()}, enough for {hours:,.2f} hours where "
                    f"{processes} grow like this: until about iteration {iteration + steps:.0f}"
                )
                self._found = replace(drift, kind="memory leak", evidence=f"{drift.evidence}; {full}")
                self.bytes_per_step = slope

    def agree(self, bytes_per_step: list[float]) -> Iterator[Alarm]:
        """What this rank is to report, now that the leaks of all ranks are known to all."""
        fastest = max(bytes_per_step, default=0.0)
        if fastest > 0.0:
            if self._found and bytes_per_step.index(fastest) == torch.distributed.get_rank():
                yield self._found
            self._found, self.bytes_per_step, self._reported = None, 0.0, fastest


def host_bytes() -> int:
    """What this process has in the machine's memory now; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def host_bytes_left() -> int:
    """What the machine can still give without swapping, by Linux's own estimate."""
    lines = Path("/proc/meminfo").read_text("ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
