"""Room that runs out while a training goes on.

The memory of a rank that leaks, and the disk of the checkpoints.
"""

import os
import shutil
import socket
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

import torch

from runbook.plan_file.alarms import Alarm, GrowthWatch, in_bytes
from runbook.plan_file.checkpoint_folder import saved_iterations
from runbook.plan_file.kept_checkpoints import keeps_for_ever
from runbook.plan_file.schema import PhasePlan
from runbook.training.ranks import on_gpu

LEAK_SHARE = (
    0.5  # of what is left: growth that takes less than this until the training's end is no leak
)
AGAIN_FACTOR = 2.0  # a leak is reported again when it has become so many times as fast
SECONDS_BETWEEN_LOOKS = 60.0
LOW_SHARE = 0.01  # of the whole file system: other users fill what is left within minutes
CALM_SHARE = 0.9  # a low disk is over when all would be well with so much of what is free


class MemoryWatch:
    """Looks for a leak in this rank's memory.

    Of all ranks, the one that leaks fastest reports it.
    """

    def __init__(self, spec: PhasePlan) -> None:
        self.spec = spec
        self.bytes_per_step = 0.0
        """The leak found here; 0: none that was not reported."""
        self._watches = {
            name: GrowthWatch(f"{name}_memory", show=in_bytes) for name in ("host", "device")
        }
        self._found: Alarm | None = None
        self._reported = 0.0  # bytes a step

    def look(self, iteration: int, seconds: float) -> None:
        """Note what this rank holds after a step."""
        held = {"host": host_bytes()} | (
            {"device": torch.cuda.memory_allocated()} if on_gpu() else {}
        )
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
                counted = "it grows" if processes == 1 else f"all {processes} processes grow"
                full = (
                    f"{in_bytes(left)} are left on {socket.gethostname()}, enough for "
                    f"{hours:,.2f} hours if "
                    f"{counted} at this rate (until about iteration {iteration + steps:.0f})"
                )
                self._found = replace(
                    drift, kind="memory leak", evidence=f"{drift.evidence}; {full}"
                )
                self.bytes_per_step = slope

    def agree(self, bytes_per_step: list[float]) -> Iterator[Alarm]:
        """What this rank is to report, now that the leaks of all ranks are known to all."""
        fastest = max(bytes_per_step, default=0.0)
        if fastest > 0.0:
            rank = torch.distributed.get_rank()
            reports = self._found and bytes_per_step.index(fastest) == rank
            if reports and self._found:
                yield self._found
            if (
                reports or self.bytes_per_step == bytes_per_step[rank]
            ):  # else found since: for the next exchange
                self._found = None
                self.bytes_per_step = 0.0
            self._reported = fastest


def host_bytes() -> int:
    """What this process has in the machine's memory now; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * os.sysconf(
            "SC_PAGE_SIZE"
        )
    except OSError:
        return 0


def host_bytes_left() -> int:
    """What the machine can still give without swapping, by Linux's own estimate."""
    lines = Path("/proc/meminfo").read_text("ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))


class DiskWatch:
    """Looks at the file system of the checkpoints now and then.

    Each state is reported once, until it gets worse.
    """

    def __init__(self, spec: PhasePlan) -> None:
        self.spec, self.folder = spec, spec.path(spec.checkpoint.folder)
        moments_and_weights = 12 if spec.precision.format == "fp32" else 14
        self._bytes = (
            moments_and_weights * spec.model.parameters
        )  # of a save, until one was measured
        self._urgency = 0
        self._next_look = 0.0
        self._seconds = deque[float](maxlen=20)  # of the newest steps

    def saved(self, num_bytes: int) -> None:
        """A save took so many bytes."""
        self._bytes = num_bytes
        self._next_look = 0.0

    def look(self, iteration: int, seconds_per_step: float) -> Iterator[Alarm]:
        """An alarm where a save that is to come does not fit, or nearly nothing is free."""
        self._seconds.append(seconds_per_step)
        if (now := time.monotonic()) < self._next_look:
            return
        self._next_look = now + SECONDS_BETWEEN_LOOKS
        try:
            place = next(path for path in (self.folder, *self.folder.parents) if path.exists())
            usage = shutil.disk_usage(place)
            kept = saved_iterations(self.folder)
        except OSError:  # the next save says what is wrong with the folder
            return
        saves = next_saves(self.spec, iteration)
        room = partial(first_without_room, self.spec, saves, num_bytes=self._bytes, kept=kept)
        fails = room(free=usage.free)
        fails_soon = room(free=int(CALM_SHARE * usage.free))
        is_full = usage.free < LOW_SHARE * usage.total
        if fails and fails == saves[0]:
            urgency = 2
        elif fails or is_full:
            urgency = 1
        else:
            urgency = 0
        if urgency > self._urgency:
            hours = (fails - iteration) * median(self._seconds) / 3600
            late = f"the save of iteration {fails}, in about {hours:,.2f} hours, does not fit"
            evidence = (
                f"{in_bytes(usage.free)} of {in_bytes(usage.total)} are free where "
                f"{self.spec.checkpoint.folder} is; "
                f"a save takes {in_bytes(self._bytes)}, {len(saves)} are to come, and "
                f"{self.spec.checkpoint.keep} are "
                f"kept: {late if fails else 'all saves fit'}"
            )
            yield Alarm(
                "disk low", "free_bytes", iteration, iteration, usage.free, self._bytes, evidence
            )
        self._urgency = max(urgency, self._urgency) if fails_soon or is_full else 0


def next_saves(spec: PhasePlan, iteration: int) -> list[int]:
    """Iterations of the saves after this one."""
    interval = spec.checkpoint.interval
    end = spec.duration.iterations
    regular = range(iteration + interval - iteration % interval, end, interval) if interval else ()
    return [*regular, *([end] if iteration < end else [])]


def first_without_room(
    spec: PhasePlan, saves: list[int], free: int, num_bytes: int, kept: list[int]
) -> int:
    """Iteration of the first save that does not fit beside those that are kept; 0: all fit."""
    keep = spec.checkpoint.keep
    newest = sorted(kept)[-keep:]
    for save in saves:
        if free < num_bytes:
            return save
        newest.append(save)
        goes = newest.pop(0) if len(newest) > keep else None  # once the new one is whole
        if goes is None or keeps_for_ever(spec.checkpoint, goes):
            free -= num_bytes
    return 0
