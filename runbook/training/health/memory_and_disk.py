"""Detects during a training run that memory or disk space is running out.

It watches for memory leaks on each rank, and for too little space on the checkpoint file system.
"""

import os
import shutil
import socket
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

import torch

from runbook.plan_file.alarms import Alarm, GrowthWatch, in_bytes
from runbook.plan_file.checkpoint_folder import saved_iterations
from runbook.plan_file.kept_checkpoints import bytes_per_parameter, keeps_for_ever
from runbook.plan_file.messages import AlarmMessage
from runbook.plan_file.schema import PhasePlan
from runbook.training.ranks import on_gpu

# Share of the free memory. Growth is not reported as a leak if it adds up to less than this by the
# end of training
LEAK_SHARE = 0.5
# A leak is reported again if its speed increases by this factor
AGAIN_FACTOR = 2.0
SECONDS_BETWEEN_LOOKS = 60.0
# Share of the whole file system. Other users could fill that much space within minutes
LOW_SHARE = 0.01
# The low-disk alarm is cleared if this share of the free space would still be enough
CALM_SHARE = 0.9


class MemoryWatch:
    """Watches for a memory leak on this rank. Only the rank that leaks fastest reports it."""

    def __init__(self, spec: PhasePlan) -> None:
        self.spec = spec
        self.bytes_per_step = 0.0
        """Leak on this rank not reported yet, in bytes per step; 0 if there is none."""
        self._watches = {
            name: GrowthWatch(f"{name}_memory", show=in_bytes) for name in ("host", "device")
        }
        self._found: Alarm | None = None
        self._reported = 0.0  # Bytes per step

    def look(self, iteration: int, seconds: float) -> None:
        """Record how much memory this rank uses after a step."""
        held_bytes = {"host": host_bytes()}
        if on_gpu():
            held_bytes["device"] = torch.cuda.memory_allocated()
        for name, num_bytes in held_bytes.items():
            drift = self._watches[name].look(iteration, num_bytes)
            if drift:
                self._judge(name, drift, iteration, seconds)

    def _judge(
        self,
        name: str,
        drift: Alarm,
        iteration: int,
        seconds: float,
    ) -> None:
        """Record this drift as the leak to report, if it would fill memory and is the fastest."""
        bytes_per_step = (drift.value - drift.usual) / (drift.iteration - drift.since)
        if bytes_per_step <= max(self.bytes_per_step, AGAIN_FACTOR * self._reported):
            return
        if name == "host":
            # All processes on a machine share its memory, and they usually leak at the same rate.
            processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
            bytes_left = host_bytes_left()
        else:
            processes = 1
            bytes_left, _ = torch.cuda.mem_get_info()

        steps_left = bytes_left / bytes_per_step / processes
        if steps_left >= (self.spec.duration.iterations - iteration) / LEAK_SHARE:
            return
        hours = steps_left * seconds / 3600
        if processes == 1:
            growing = AlarmMessage.IT_GROWS.fill()
        else:
            growing = AlarmMessage.ALL_PROCESSES_GROW.fill(processes=processes)

        evidence = AlarmMessage.MEMORY_LEFT.fill(
            growth=drift.evidence,
            left=in_bytes(bytes_left),
            host=socket.gethostname(),
            hours=hours,
            growing=growing,
            iteration=iteration + steps_left,
        )
        self._found = replace(drift, kind="memory leak", evidence=evidence)
        self.bytes_per_step = bytes_per_step

    def agree(self, bytes_per_step: list[float]) -> Iterator[Alarm]:
        """Yield an alarm from this rank if it leaks fastest among all ranks.

        `bytes_per_step` is the growth on each rank.
        """
        fastest = max(bytes_per_step, default=0.0)
        if fastest > 0.0:
            rank = torch.distributed.get_rank()
            reports = self._found and bytes_per_step.index(fastest) == rank
            if reports and self._found:
                yield self._found
            # A leak found since the last exchange is reported at the next one.
            if reports or self.bytes_per_step == bytes_per_step[rank]:
                self._found = None
                self.bytes_per_step = 0.0

            self._reported = fastest


def host_bytes() -> int:
    """Return the resident memory used by this process in bytes, or 0 if unknown."""
    try:
        _, resident_pages, *_ = Path("/proc/self/statm").read_text("ascii").split()
    except OSError:
        return 0

    return int(resident_pages) * os.sysconf("SC_PAGE_SIZE")


def host_bytes_left() -> int:
    """Return the bytes of memory available without swapping, as estimated by Linux."""
    lines = Path("/proc/meminfo").read_text("ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))


class DiskWatch:
    """Checks the checkpoints' file system from time to time.

    A shortage is reported once, and again only if it gets worse.
    """

    def __init__(self, spec: PhasePlan) -> None:
        self.spec = spec
        self.folder = spec.path(spec.checkpoint.folder)
        saved_bytes = bytes_per_parameter(spec.precision.format, spec.optimizer.moments)
        # Estimated size of a save, until one is measured
        self._bytes = saved_bytes * spec.model.parameters
        self._urgency = 0
        self._next_look = 0.0
        self._seconds = deque[float](maxlen=20)  # Seconds of the newest steps

    def saved(self, num_bytes: int) -> None:
        """Record the size of a save."""
        self._bytes = num_bytes
        self._next_look = 0.0

    def look(self, iteration: int, seconds_per_step: float) -> Iterator[Alarm]:
        """Yield an alarm if one of the next saves does not fit, or if hardly any space is free."""
        self._seconds.append(seconds_per_step)
        moment = time.monotonic()
        if moment < self._next_look:
            return
        self._next_look = moment + SECONDS_BETWEEN_LOOKS
        try:
            existing = next(path for path in (self.folder, *self.folder.parents) if path.exists())
            usage = shutil.disk_usage(existing)
            saved = saved_iterations(self.folder)
        except OSError:
            # The next save reports what is wrong with the folder
            return

        saves = next_saves(self.spec, iteration)
        first_failing = partial(
            first_without_room,
            self.spec,
            saves,
            num_bytes=self._bytes,
            saved=saved,
        )
        failing_save = first_failing(free=usage.free)
        is_full = usage.free < LOW_SHARE * usage.total
        urgency = _urgency(failing_save, saves, is_full=is_full)
        if urgency > self._urgency:
            outlook = AlarmMessage.ALL_SAVES_FIT.fill()
            if failing_save:
                hours = (failing_save - iteration) * median(self._seconds) / 3600
                outlook = AlarmMessage.SAVE_DOES_NOT_FIT.fill(iteration=failing_save, hours=hours)

            evidence = AlarmMessage.DISK_LOW.fill(
                free=in_bytes(usage.free),
                total=in_bytes(usage.total),
                folder=self.spec.checkpoint.folder,
                save=in_bytes(self._bytes),
                saves=len(saves),
                kept=self.spec.checkpoint.keep,
                outlook=outlook,
            )
            yield Alarm(
                "disk low",
                "free_bytes",
                iteration,
                iteration,
                usage.free,
                self._bytes,
                evidence,
            )

        # The alarm is cleared only if there is room to spare. Otherwise every save would raise a
        # new alarm while the free space stays near the limit.
        fails_soon = first_failing(free=int(CALM_SHARE * usage.free))
        if fails_soon or is_full:
            self._urgency = max(urgency, self._urgency)
        else:
            self._urgency = 0


def next_saves(spec: PhasePlan, iteration: int) -> list[int]:
    """Return the iterations of the next saves."""
    interval = spec.checkpoint.interval
    end = spec.duration.iterations
    saves: list[int] = []
    if interval:
        first = iteration + interval - iteration % interval
        saves += range(first, end, interval)

    if iteration < end:
        saves.append(end)
    return saves


def first_without_room(
    spec: PhasePlan,
    saves: list[int],
    free: int,
    num_bytes: int,
    saved: list[int],
) -> int:
    """Return the iteration of the first save that does not fit on the disk, or 0 if all saves fit.

    This takes into account how much space is used by saves kept until then.
    """
    keep = spec.checkpoint.keep
    newest = sorted(saved)[-keep:]
    for save in saves:
        if free < num_bytes:
            return save
        newest.append(save)
        # An old save is removed once the new one is complete, so the space in use does not grow.
        if len(newest) > keep and not keeps_for_ever(spec.checkpoint, newest.pop(0)):
            continue
        free -= num_bytes

    return 0


def _urgency(failing_save: int, saves: Sequence[int], *, is_full: bool) -> int:
    """Return 2 if the next save will fail, 1 if a later one will or the disk is full, else 0."""
    if failing_save and failing_save == saves[0]:
        return 2
    if failing_save or is_full:
        return 1
    return 0
