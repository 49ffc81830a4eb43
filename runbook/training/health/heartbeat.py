"""Heartbeats from the ranks, used to see what each rank is doing.

All heartbeats on a machine share a small file that stays open, so reading and writing need no path
look-up.
"""

import contextlib
import faulthandler
import fcntl
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO

from runbook.plan_file.hang_limits import HangLimits
from runbook.plan_file.heartbeat_files import SLOT_BYTES, as_slot, heartbeat_stem, read_slots
from runbook.training.health.stacks import STACK_SIGNAL, own_stacks

FOLDER_VARIABLE = "RUNBOOK_JOB_FOLDER"
HEARTBEAT_SECONDS = 0.5
"""Time between two heartbeats from a rank.

Jobs use a different interval, which is BEAT_SECONDS in `jobs/job_folder.py`.
"""


@dataclass
class Heartbeat:
    """What a rank is doing at a point in time."""

    rank: int
    host: str
    pid: int
    # Clock ticks from boot until the process started; together with the pid they identify it
    # uniquely
    start: int
    # The current step, or 0 before the first step
    step: int = 0
    # What the rank is doing: a step, an evaluation, a save, or something between these
    activity: str = "starting"
    # Innermost source line the main thread is executing
    where: str = ""
    steps: int = 0  # Complete steps since the first one
    # Seconds since boot, which a clock change does not affect
    uptime: float = 0.0
    # Seconds since boot when the step, the activity or a count last changed
    still: float = 0.0
    # How long the other ranks may wait for this rank during this activity
    limit: float = 0.0
    # File on the machine of this rank from which its stacks can be read
    stacks: str = ""
    # Number of collectives per process group, and of messages per direction
    entered: dict[str, int] = field(default_factory=dict)
    # Output from the PyTorch flight recorder for a stuck rank
    collectives: str = ""
    # Whether the rank is inside a call that starts a collective; the call has not returned
    inside: bool = False

    @property
    def age(self) -> float:
        """Return the seconds since this heartbeat.

        This age can only be computed on the machine the rank runs on.
        """
        return uptime() - self.uptime

    @property
    def stuck(self) -> bool:
        """Return whether the rank has made no progress for longer than the limit."""
        return self.still > self.limit


def uptime() -> float:
    """Return the seconds since the machine booted, including sleep."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


def process_start_ticks(pid: int) -> int:
    """Return the clock ticks from boot until a process started.

    The result is 0 if the process does not exist, and -1 if the start time cannot be determined.
    """
    if not Path("/proc/self/stat").exists():
        return -1
    fields = process_fields(pid)
    return int(fields[19]) if fields else 0


def process_fields(pid: int) -> list[str]:
    """Return the fields in /proc/<pid>/stat after the process name, beginning with the state.

    The list is empty if the process does not exist.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []

    return text.rpartition(")")[2].split()


# A heartbeat older than this may belong to a process that has ended
STALE_SECONDS = 5.0


class HeartbeatFile:
    """Heartbeats from all ranks on a machine, in shared memory with a slot for each rank.

    The file is opened once and then read and written in place. So even many ranks put almost no
    load on the file system. If the machine has no /dev/shm, the file is in the temporary folder.
    """

    def __init__(self, folder: Path, ranks: range) -> None:
        self.ranks = ranks
        self.path = Path(f"{heartbeat_stem(folder)}{ranks.start}")
        self._descriptor = -1

    def open(self) -> None:
        """Open the file.

        Every rank that reads or writes the file calls this. Raise `OSError` if it cannot be opened.
        """
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | os.O_CLOEXEC
        self._descriptor = os.open(self.path, flags, 0o600)

    def write(self, beat: Heartbeat) -> None:
        """Write a heartbeat to the slot for its rank. A full disk does not end the training."""
        with contextlib.suppress(OSError):
            os.pwrite(
                self._descriptor, as_slot(asdict(beat)), (beat.rank - self.ranks.start) * SLOT_BYTES
            )

    def read(self) -> list[Heartbeat]:
        """Return the newest heartbeat from each rank that has written one and is still running."""
        with contextlib.suppress(OSError):
            content = os.pread(self._descriptor, len(self.ranks) * SLOT_BYTES, 0)
            beats = [Heartbeat(**values) for values in read_slots(content)]
            living = []
            for beat in beats:
                if beat.age < STALE_SECONDS or process_start_ticks(beat.pid) in (beat.start, -1):
                    living.append(beat)

            return living

        return []

    def close(self, *, remove: bool) -> None:
        """Close the file, and with `remove` also delete it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1
        if remove:
            self.path.unlink(missing_ok=True)


class HeartbeatWriter:
    """Writes the heartbeat for this rank, which costs the training loop two assignments per step.

    Without a file, the heartbeat is never written.
    """

    def __init__(
        self,
        rank: int,
        limits: HangLimits | None = None,
        file: HeartbeatFile | None = None,
    ) -> None:
        self.rank = rank
        self.entered: Callable[[], dict[str, int]] = dict
        self.is_inside: Callable[[], bool] = bool
        self._limits = limits
        self._file = file
        pid = os.getpid()
        self._beat = Heartbeat(rank, socket.gethostname(), pid, process_start_ticks(pid))
        # How many steps would take as long as the current activity
        self._work = 0
        self._first_step = 0
        self._began = self._changed = uptime()
        self._seen: object = None
        self._stacks: IO[str] | None = None

    def open(self) -> None:
        """Write stacks whenever `STACK_SIGNAL` arrives.

        The stacks are written to memory, where other processes on this machine can read them.
        """
        if hasattr(os, "memfd_create"):
            self._stacks = os.fdopen(os.memfd_create(f"stacks-{self.rank}"), "w+", encoding="utf-8")
            self._beat.stacks = f"/proc/{os.getpid()}/fd/{self._stacks.fileno()}"
        else:
            self._stacks = tempfile.NamedTemporaryFile(  # noqa: SIM115 (open until exit)
                "w+", prefix="runbook-stacks-", encoding="utf-8"
            )
            self._beat.stacks = self._stacks.name

        # Stacks written after a signal follow those from `write_stacks`
        descriptor = self._stacks.fileno()
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_APPEND)
        faulthandler.register(STACK_SIGNAL, file=self._stacks, all_threads=True)

    def write_stacks(self) -> None:
        """Replace the stacks in the file with the current ones. A full disk is not an error."""
        if self._stacks is None:
            return
        with contextlib.suppress(OSError):
            descriptor = self._stacks.fileno()
            os.ftruncate(descriptor, 0)
            os.write(descriptor, own_stacks().encode("utf-8", errors="replace"))

    def close(self) -> None:
        """Stop writing stacks. The watchdog's thread may still be at work."""
        if self._stacks is not None:
            faulthandler.unregister(STACK_SIGNAL)
            self._stacks.close()
            self._stacks = None

    def step(self, iteration: int) -> None:
        """Record that a step has begun."""
        self._first_step = self._first_step or iteration
        self._begin("step")
        self._beat.step = iteration

    @contextlib.contextmanager
    def during(self, activity: str, steps: int = 0) -> Iterator[None]:
        """Record what this rank is doing while the block runs.

        The activity takes about as long as `steps` steps.
        """
        self._work = steps
        self._begin(activity)
        try:
            yield
        finally:
            self._begin("between")

    def _begin(self, activity: str) -> None:
        moment = uptime()
        if self._limits is not None and self._beat.activity not in ("starting", "between"):
            self._limits.measured(self._beat.activity, moment - self._began)
        self._beat.activity = activity
        self._began = moment

    def current(self) -> Heartbeat:
        """Return the current heartbeat for this rank."""
        moment = uptime()
        beat = self._beat
        entered = self.entered()
        progress = (beat.step, beat.activity, entered)
        if progress != self._seen:
            self._seen = progress
            self._changed = moment

        limit = 0.0
        if self._limits:
            limit = self._limits.limit(beat.activity, self._work)
        return replace(
            beat,
            where=_main_thread_line(),
            steps=max(0, beat.step - self._first_step - 1),
            uptime=round(moment, 3),
            still=round(moment - self._changed, 3),
            limit=limit,
            entered=entered,
            inside=self.is_inside(),
        )

    def write(self, beat: Heartbeat | None = None) -> None:
        """Write to the slot for this rank in the file."""
        if self._file is not None:
            self._file.write(beat or self.current())


def _main_thread_line() -> str:
    """Return the innermost source line the main thread is executing."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    if frame:
        return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}"
    return ""
