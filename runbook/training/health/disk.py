"""Room on the disk of the checkpoints: whether the next saves fit, and which one will not."""

import math
import shutil
import time
from collections.abc import Iterator

from runbook.plan_file.alarms import Alarm, in_bytes
from runbook.plan_file.schema import PhasePlan

SECONDS_BETWEEN_LOOKS = 60.0
LOW_SHARE = 0.01  # of the whole file system: others' files fill the rest in no time


class DiskWatch:
    """Looks at the file system of the checkpoints now and then; each state is reported once, until it gets worse."""

    def __init__(self, spec: PhasePlan) -> None:
        self.spec, self.folder = spec, spec.path(spec.checkpoint.folder)
        moments_and_weights = 12 if spec.precision.format == "fp32" else 14
        self._bytes = moments_and_weights * spec.model.parameters  # of a save, until one was measured
        self._urgency, self._next_look, self._seconds = 0, 0.0, math.inf

    def saved(self, num_bytes: int) -> None:
        """A save took so many bytes."""
        self._bytes, self._next_look = num_bytes, 0.0

    def look(self, iteration: int, seconds_per_step: float) -> Iterator[Alarm]:
        """An alarm where a save that is to come does not fit, or nearly nothing is free."""
        self._seconds = min(self._seconds, seconds_per_step)  # the first steps of a job take longer
        if (now := time.monotonic()) < self._next_look:
            return
        self._next_look = now + SECONDS_BETWEEN_LOOKS
        try:
            place = next(path for path in (self.folder, *self.folder.parents) if path.exists())
            usage = shutil.disk_usage(place)
            kept = [int(path.name[5:]) for path in self.folder.glob("iter_*[0-9]")]
        except OSError:  # the next save says what is wrong with the folder
            return
        saves = next_saves(self.spec, iteration)
        fails = first_without_room(self.spec, saves, usage.free, self._bytes, kept)
        urgency = 2 if fails and fails == saves[0] else 1 if fails or usage.free < LOW_SHARE * usage.total else 0
        if urgency > self._urgency:
            hours = (fails - iteration) * self._seconds / 3600
            full = (
                f"the save of iteration {fails}, in about {hours:,.2f} hours, does not fit"
                if fails
                else "all saves fit"
            )
            evidence = (
                f"{in_bytes(usage.free)} of {in_bytes(usage.total)} are free where {self.spec.checkpoint.folder} is; "
                f"a save takes {in_bytes(self._bytes)}, {len(saves)} are to come, and {self.spec.checkpoint.keep} are "
                f"kept: {full}"
            )
            yield Alarm("disk low", "free_bytes", iteration, iteration, usage.free, self._bytes, evidence)
        self._urgency = urgency


def next_saves(spec: PhasePlan, iteration: int) -> list[int]:
    """Iterations of the saves after this one."""
    interval, end = spec.checkpoint.interval, spec.duration.iterations
    regular = range(iteration + interval - iteration % interval, end, interval) if interval else ()
    return [*regular, *([end] if iteration < end else [])]


def first_without_room(spec: PhasePlan, saves: list[int], free: int, num_bytes: int, kept: list[int]) -> int:
    """Iteration of the first save that does not fit beside those that are kept; 0: all fit."""
    keep, every = spec.checkpoint.keep, spec.checkpoint.keep_every
    newest = sorted(kept)[-keep:]
    for save in saves:
        if free < num_bytes:
            return save
        newest.append(save)
        goes = newest.pop(0) if len(newest) > keep else None  # once the new one is whole
        if goes is None or (every and goes % every == 0):
            free -= num_bytes
    return 0
