"""Heartbeats of the ranks, and the watchdog that ends a hung rank and reports a slow one."""

from __future__ import annotations

import contextlib
import faulthandler
import itertools
import json
import math
import os
import signal
import socket
import statistics
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

from runbook.plan_file.schema import PhasePlan
from runbook.training.ranks import Ranks
from runbook.training.report import append_line, say

FOLDER_VARIABLE = "RUNBOOK_JOB_FOLDER"
RANKS_FOLDER = "ranks"  # folder of a job for the heartbeats of its ranks

STACK_SIGNAL = signal.SIGUSR2
"""A rank that gets it writes the stacks of all its threads to its file; it needs neither the GIL nor our own code."""

_WAITING_FUNCTIONS = ("finish_grad_sync", "finish_param_sync", "start_param_sync")
"""Functions of megatron-core that wait for other ranks in C++, without a frame of torch.distributed."""
_FRAME_DEPTH = 8  # innermost frames of the main thread that are looked at


@dataclass
class Heartbeat:
    """One rank at one moment."""

    rank: int
    host: str
    pid: int
    start: int  # clock ticks from the machine's start to the process's: with the pid it names one process for ever
    stage: int  # pipeline stage: only ranks of one stage compute alike
    step: int  # the step being done; 0 before the first
    activity: str  # starting, step, evaluating or saving
    where: str  # innermost line of the main thread
    waiting: bool  # whether the main thread waits for other ranks
    computed: float  # seconds in steps since the first, without waiting for others
    steps: int  # whole steps in which they were measured
    uptime: float  # seconds since the machine's start; no change of the clock moves it

    @property
    def age(self) -> float:
        """Seconds since; only on the rank's own machine."""
        return uptime() - self.uptime


def uptime() -> float:
    """Seconds since the machine was started, sleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def process_start_ticks(pid: int) -> int:
    """When a process was started, in clock ticks; 0 where there is none, -1 where this cannot be known."""
    if not Path("/proc/self/stat").exists():
        return -1
    fields = _process_fields(pid)
    return int(fields[19]) if fields else 0


def _process_fields(pid: int) -> list[str]:
    """What /proc/<pid>/stat says behind the process's name, its state first; nothing where there is no such process."""
    return _read_text(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()


def read_heartbeat(path: Path) -> Heartbeat | None:
    """A rank's newest heartbeat; None where there is none, or none that can be read."""
    try:
        return Heartbeat(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError):
        return None


class HeartbeatWriter:
    """This rank's heartbeat, which the loop keeps by two assignments a step; without a `folder` it is never written."""

    def __init__(self, rank: int, folder: Path | None) -> None:
        self.rank = rank
        self._folder = folder
        pid = os.getpid()
        self._beat = Heartbeat(
            rank, socket.gethostname(), pid, process_start_ticks(pid), stage=0, step=0, activity="starting", where="",
            waiting=False, computed=0.0, steps=0, uptime=0.0,
        )  # fmt: skip
        self._first_step = 0
        self._sampled = 0.0
        self._stacks: Any = None

    def path(self, rank: int, kind: str) -> Path:
        """The file of one rank, of kind json (its heartbeat) or stack."""
        assert self._folder is not None
        return self._folder / f"{rank}.{kind}"

    def open(self) -> None:
        """Make the folder, and from now on write stacks into it on `STACK_SIGNAL`."""
        path = self.path(self.rank, "stack")
        path.parent.mkdir(parents=True, exist_ok=True)
        self._stacks = path.open("w", encoding="utf-8")
        faulthandler.register(STACK_SIGNAL, file=self._stacks, all_threads=True)

    def close(self) -> None:
        """Stop writing stacks."""
        if self._stacks is not None:
            faulthandler.unregister(STACK_SIGNAL)
            self._stacks.close()

    def set_stage(self, stage: int) -> None:
        """Say which pipeline stage this rank is in."""
        self._beat.stage = stage

    def step(self, iteration: int) -> None:
        """A step begins."""
        self._first_step = self._first_step or iteration
        self._beat.step, self._beat.activity = iteration, "step"

    @contextlib.contextmanager
    def during(self, activity: str) -> Iterator[None]:
        """Something other than a step is done."""
        before, self._beat.activity = self._beat.activity, activity
        try:
            yield
        finally:
            self._beat.activity = before

    def sample(self) -> None:
        """Look at the main thread; the time since the last look counts as what it is seen doing."""
        now, beat = time.monotonic(), self._beat
        beat.where, beat.waiting = _main_thread_activity(sys._current_frames().get(threading.main_thread().ident or 0))
        if beat.activity == "step" and beat.step > self._first_step and not beat.waiting:
            beat.computed += now - self._sampled
        self._sampled = now

    def current(self) -> Heartbeat:
        """This rank now."""
        steps = max(0, self._beat.step - self._first_step - 1)
        return replace(self._beat, computed=round(self._beat.computed, 3), steps=steps, uptime=round(uptime(), 3))

    def write(self) -> None:
        """Rewrite the file by rename; a full disk does not end the training."""
        part = self.path(self.rank, "json.part")
        with contextlib.suppress(OSError):
            part.write_text(json.dumps(asdict(self.current())), encoding="utf-8")
            part.replace(self.path(self.rank, "json"))


def _main_thread_activity(frame: FrameType | None) -> tuple[str, bool]:
    """The innermost line, and whether it waits for other ranks."""
    if frame is None:
        return "", False
    code = frame.f_code
    where = f"{Path(code.co_filename).name}:{frame.f_lineno} {code.co_name}"
    for inner, _ in itertools.islice(traceback.walk_stack(frame), _FRAME_DEPTH):
        file, name = inner.f_code.co_filename, inner.f_code.co_name
        if (
            "torch/distributed/" in file
            or name in _WAITING_FUNCTIONS
            or file.endswith("p2p_communication.py")
            # On a GPU every rank waits for its device in this one reduction of the loop.
            or (name == "_share" and file.endswith("training/loop.py"))
        ):
            return where, True
    return where, False


HANG_SHARE = 0.6
"""A rank is ended after this share of the process groups' time-out, so that its stack is seen before the others end."""
STACK_UNCHANGED_LOOKS = 6
"""A stack is whole when this many looks, 10 ms apart, find the same text: on a busy machine it is written in pieces."""
SLOW_FACTOR = 1.5  # a rank that computes this many times longer than the median of its stage is slow
WINDOW_STEPS = 5
WINDOW_SECONDS = 2.0  # a window has at least so many steps and seconds: shorter ones measure the machine's noise
SLOW_WINDOWS = 3  # slow windows in a row before a rank is reported


@dataclass(frozen=True)
class Hang:
    """A rank that keeps the others waiting."""

    beat: Heartbeat
    seconds: float
    why: str


@dataclass(frozen=True)
class Straggler:
    """A rank whose steps take longer than those of the others in its stage."""

    rank: int
    host: str
    seconds_per_step: float
    others_seconds_per_step: float
    windows: int


class StuckTimer:
    """Remembers since when each rank has been where it is."""

    def __init__(self) -> None:
        self._since: dict[int, tuple[int, str, float]] = {}

    def stuck_for(self, beat: Heartbeat, now: float) -> float:
        """Seconds in which this rank has made no step; 0 outside of steps and in the first, which takes what it takes.

        Saving, evaluating and starting are left to the process groups' time-out.
        """
        step, activity, since = self._since.get(beat.rank, (-1, "", now))
        if (step, activity) != (beat.step, beat.activity):
            self._since[beat.rank] = (beat.step, beat.activity, now)
            return 0.0
        return now - since if beat.activity == "step" and beat.steps > 0 else 0.0


def find_hangs(beats: Sequence[Heartbeat], progress: StuckTimer, now: float, limit: float) -> list[Hang]:
    """The ranks of one machine that keep the others waiting.

    One without a heartbeat is stopped, swapped out or holds Python's lock. Where all are alive and none makes a
    step, it is the one that does not wait for others while another does. Where all wait, the cause is elsewhere: on
    another machine or in the network, and the process groups' time-out ends the job.
    """
    silent = [Hang(beat, beat.age, "no sign of life") for beat in beats if beat.age > limit]
    if silent:
        return silent
    stuck = [(beat, progress.stuck_for(beat, now)) for beat in beats]
    if not stuck or any(seconds <= limit for _, seconds in stuck):
        return []
    busy = [Hang(beat, seconds, f"in {beat.where}") for beat, seconds in stuck if not beat.waiting]
    return busy if len(busy) < len(beats) or len(beats) == 1 else []


@dataclass
class StragglerDetector:
    """Compares the ranks of each stage window by window."""

    _before: dict[int, Heartbeat] = field(default_factory=dict)
    _count: dict[int, int] = field(default_factory=dict)
    _began: float = 0.0

    def look(self, beats: Iterable[Heartbeat], now: float) -> list[Straggler]:
        """The ranks that were slow in `SLOW_WINDOWS` windows in a row, reported once in so many windows."""
        current = {beat.rank: beat for beat in beats}
        if set(current) != set(self._before) or any(current[n].pid != self._before[n].pid for n in current):
            self._before, self._count, self._began = current, {}, now
            return []
        steps = {rank: beat.steps - self._before[rank].steps for rank, beat in current.items()}
        if now - self._began < WINDOW_SECONDS or min(steps.values(), default=0) < WINDOW_STEPS:
            return []
        stragglers = []
        seconds = {rank: (beat.computed - self._before[rank].computed) / steps[rank] for rank, beat in current.items()}
        for rank, beat in current.items():
            others = [seconds[n] for n, other in current.items() if n != rank and other.stage == beat.stage]
            median = statistics.median(others) if others else math.inf
            slow = seconds[rank] > SLOW_FACTOR * median and seconds[rank] - median > 0.002
            self._count[rank] = self._count.get(rank, 0) + 1 if slow else 0
            if slow and self._count[rank] % SLOW_WINDOWS == 0:
                stragglers.append(
                    Straggler(rank, beat.host, round(seconds[rank], 4), round(median, 4), self._count[rank])
                )
        self._before, self._began = current, now
        return stragglers


SAMPLE_SECONDS = 0.025
HEARTBEAT_SECONDS = 0.5
"""Between two heartbeats of a rank; longer in large jobs, so that a file system sees some 128 writes a second."""
STACK_LINES = 40
HUNG_EXIT_CODE = 70
"""Exit code of a rank that ended itself because its main thread hung and no other rank was left to end it."""


@dataclass
class Watchdog:
    """A thread that writes this rank's heartbeat, ends a hung rank of this machine and reports a slow one."""

    spec: PhasePlan
    ranks: Ranks
    heartbeat: HeartbeatWriter
    local: range  # the ranks of this machine

    def __post_init__(self) -> None:
        self._ended = threading.Event()
        self._limit = HANG_SHARE * self.spec.limits.process_group_timeout_seconds
        self._progress, self._stragglers = StuckTimer(), StragglerDetector()
        self._rested_until = 0.0
        self._pause = max(HEARTBEAT_SECONDS, self.ranks.world_size / 128)
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self.heartbeat.open()
        self.heartbeat.write()
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; the last heartbeat stays."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(5)
        self.heartbeat.close()

    def _watch(self) -> None:
        next_beat, looked = 0.0, time.monotonic()
        while not self._ended.wait(SAMPLE_SECONDS):
            self.heartbeat.sample()
            now = time.monotonic()
            if overslept(looked, now, self._limit):
                self._rested_until = now + self._limit / 2
            looked = now
            if now < next_beat:
                continue
            next_beat = now + self._pause
            self.heartbeat.write()
            if now >= self._rested_until:
                self._end_hung(now)
            if self.ranks.rank == 0 and self.ranks.world_size > 1:
                for straggler in self._stragglers.look(self._beats(range(self.ranks.world_size)), now):
                    facts = asdict(straggler)
                    say(
                        "rank {rank} on {host} is slow: it computes {seconds_per_step:.3f} s a step, the others of its "
                        "stage {others_seconds_per_step:.3f} s, for {windows} looks in a row".format(**facts)
                    )
                    del facts["windows"]
                    self._event("straggler", **facts)

    def _beats(self, ranks: range) -> list[Heartbeat]:
        others = (read_heartbeat(self.heartbeat.path(rank, "json")) for rank in ranks if rank != self.ranks.rank)
        return [other for other in others if other is not None] + [self.heartbeat.current()]

    def _end_hung(self, now: float) -> None:
        beats = self._beats(self.local)
        hangs = find_hangs(beats, self._progress, now, self._limit)
        hung = {hang.beat.rank for hang in hangs}
        well = [beat.rank for beat in beats if beat.rank not in hung]
        step = max((beat.step for beat in beats), default=0)  # the newest heartbeat of a silent rank is old
        if self.ranks.rank in hung and not well:
            self._report_hang(hangs[0], step, self._stacks(self.heartbeat.current()))
            os._exit(HUNG_EXIT_CODE)
        if not hangs or self.ranks.rank != min(well, default=-1):
            return
        for hang in hangs:
            if process_start_ticks(hang.beat.pid) not in (hang.beat.start, -1):
                continue  # it has ended meanwhile
            # Reported before it is killed: its death ends this process too, within milliseconds.
            self._report_hang(hang, step, self._stacks(hang.beat))
            _send(hang.beat.pid, signal.SIGKILL)

    def _stacks(self, beat: Heartbeat) -> list[str]:
        """Ask a rank for its stacks; one that was stopped has to go on for a moment to write them."""
        path = self.heartbeat.path(beat.rank, "stack")
        stopped = _process_fields(beat.pid)[:1] == ["T"]
        _send(beat.pid, STACK_SIGNAL, signal.SIGCONT)
        end, text, unchanged = time.monotonic() + 2, "", 0
        while time.monotonic() < end and unchanged < STACK_UNCHANGED_LOOKS:
            time.sleep(0.01)
            before, text = text, _read_text(path)
            unchanged = unchanged + 1 if text and text == before else 0
        if stopped:  # it would go on training with steps that its end takes away again
            _send(beat.pid, signal.SIGSTOP)
        return text.splitlines()[:STACK_LINES]

    def _report_hang(self, hang: Hang, step: int, stack: list[str]) -> None:
        beat, seconds = hang.beat, round(hang.seconds, 1)
        stacks = str(self.heartbeat.path(beat.rank, "stack")) if stack else "it wrote none"
        text = (
            f"rank {beat.rank} (process {beat.pid} on {beat.host}) hangs at step {step}: {hang.why} for "
            f"{hang.seconds:.0f} s (limit {self._limit:.0f} s); it is ended. Its stacks: {stacks}"
        )
        self._event("hang", rank=beat.rank, host=beat.host, step=step, seconds=seconds, where=beat.where, stacks=stacks)
        with contextlib.suppress(OSError):
            sys.stderr.write("\n".join([text, *stack]) + "\n")
            sys.stderr.flush()

    def _event(self, event: str, **facts: Any) -> None:
        record = {"time": time.time(), "event": event, "phase": self.spec.phase, **facts}
        with contextlib.suppress(OSError):
            append_line(self.spec.path(self.spec.log.events), record)


def overslept(looked: float, now: float, limit: float) -> bool:
    """Whether this process itself did not run for half the limit: then the others may not have either.

    The job was suspended, or the machine is overloaded; nobody is judged for some time after that.
    """
    return now - looked > limit / 2


def make_watchdog(spec: PhasePlan, ranks: Ranks, environment: Mapping[str, str]) -> Watchdog | None:
    """The watchdog of this rank; None where the job has no folder for heartbeats."""
    folder = environment.get(FOLDER_VARIABLE, "")
    if not folder:
        return None
    size = environment.get("LOCAL_WORLD_SIZE", "")
    count = int(size) if size.isdigit() and ranks.local_rank < int(size) <= ranks.world_size else 1
    first = ranks.rank - ranks.local_rank if count > 1 else ranks.rank
    return Watchdog(spec, ranks, HeartbeatWriter(ranks.rank, Path(folder) / RANKS_FOLDER), range(first, first + count))


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _send(pid: int, *signals: int) -> None:
    """Send signals, in this order, to a process that may have ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        for number in signals:
            os.kill(pid, number)
