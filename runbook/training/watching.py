"""A thread in every rank: it gives the rank's sign of life, ends a neighbour that hangs, tells of a slow one."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runbook.training.pulse import FOLDER, FOLDER_VARIABLE, STACK_SIGNAL, Beat, Pulse, read_beat, start_of
from runbook.training.ranks import Ranks
from runbook.training.report import append, say
from runbook.training.spec import Spec
from runbook.training.watchdog import HANG_SHARE, Hang, Progress, Slow, Stragglers, find_hangs

SAMPLE_SECONDS = 0.025
BEAT_SECONDS = 0.5
"""Between two signs of life of a rank; longer in large jobs, so that a file system sees some 128 writes a second."""
STACK_LINES = 40
HUNG = 70
"""Exit code of a rank that ended itself because its main thread hung and no neighbour was left to do it."""


@dataclass
class Watch:
    """Looks after the ranks of this machine for as long as the training lasts."""

    spec: Spec
    ranks: Ranks
    pulse: Pulse
    local: range
    """The ranks of this machine."""

    def __post_init__(self) -> None:
        self._ended = threading.Event()
        self._limit = HANG_SHARE * self.spec.limits.process_group_timeout_seconds
        self._progress, self._stragglers = Progress(), Stragglers()
        self._rested_until = 0.0
        self._pause = max(BEAT_SECONDS, self.ranks.world_size / 128)
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)

    def start(self) -> None:
        """Begin."""
        self.pulse.open()
        self.pulse.write()
        self._thread.start()

    def stop(self) -> None:
        """End; the last sign of life stays."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(5)
        self.pulse.close()

    def _watch(self) -> None:
        next_beat, looked = 0.0, time.monotonic()
        while not self._ended.wait(SAMPLE_SECONDS):
            self.pulse.sample()
            now = time.monotonic()
            if overslept(looked, now, self._limit):
                self._rested_until = now + self._limit / 2
            looked = now
            if now < next_beat:
                continue
            next_beat = now + self._pause
            self.pulse.write()
            if now >= self._rested_until:
                self._end_hung(now)
            if self.ranks.rank == 0 and self.ranks.world_size > 1:
                for slow in self._stragglers.look(self._beats(range(self.ranks.world_size)), now):
                    self._tell_slow(slow)

    def _beats(self, ranks: range) -> list[Beat]:
        assert self.pulse.folder is not None
        found = (read_beat(self.pulse.folder / f"{rank}.json") for rank in ranks if rank != self.ranks.rank)
        return [one for one in found if one is not None] + [self.pulse.beat()]

    def _end_hung(self, now: float) -> None:
        beats = self._beats(self.local)
        hangs = find_hangs(beats, self._progress, now, self._limit)
        hung = {one.beat.rank for one in hangs}
        well = [one.rank for one in beats if one.rank not in hung]
        step = max((one.step for one in beats), default=0)  # the last sign of life of a silent one is old
        if self.ranks.rank in hung and not well:
            self._tell_hang(hangs[0], step, self._stacks(self.pulse.beat()))
            os._exit(HUNG)
        if not hangs or self.ranks.rank != min(well, default=-1):
            return
        for one in hangs:
            if start_of(one.beat.pid) not in (one.beat.start, -1):
                continue  # it has ended meanwhile
            # Told before it is killed: its death ends this process too, within milliseconds.
            self._tell_hang(one, step, self._stacks(one.beat))
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(one.beat.pid, signal.SIGKILL)

    def _stacks(self, beat: Beat) -> list[str]:
        """Ask a rank for its stacks; one that was stopped has to go on for a moment to write them."""
        assert self.pulse.folder is not None
        path = self.pulse.folder / f"{beat.rank}.stack"
        stopped = _is_stopped(beat.pid)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(beat.pid, STACK_SIGNAL)
            os.kill(beat.pid, signal.SIGCONT)
        end = time.monotonic() + 2
        while time.monotonic() < end and not _text(path):
            time.sleep(0.01)
        if stopped:  # it would go on training with steps that its end takes away again
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(beat.pid, signal.SIGSTOP)
        time.sleep(0.05)  # all of it
        text = _text(path)
        return text.splitlines()[:STACK_LINES]

    def _tell_hang(self, hang: Hang, step: int, stack: list[str]) -> None:
        beat = hang.beat
        seconds, line = round(hang.seconds, 1), beat.where
        assert self.pulse.folder is not None
        where = str(self.pulse.folder / f"{beat.rank}.stack") if stack else "it wrote none"
        text = (
            f"rank {beat.rank} (process {beat.pid} on {beat.host}) hangs at step {step}: {hang.why} for "
            f"{hang.seconds:.0f} s (limit {self._limit:.0f} s); it is ended. Its stacks: {where}"
        )
        self._event("hang", rank=beat.rank, host=beat.host, step=step, seconds=seconds, where=line, stacks=where)
        with contextlib.suppress(OSError):
            sys.stderr.write("\n".join([text, *stack]) + "\n")
            sys.stderr.flush()

    def _tell_slow(self, slow: Slow) -> None:
        say(
            f"rank {slow.rank} on {slow.host} is slow: it computes {slow.seconds_per_step:.3f} s a step, the others of "
            f"its stage {slow.others_seconds_per_step:.3f} s, for {slow.windows} looks in a row"
        )
        self._event(
            "straggler",
            rank=slow.rank,
            host=slow.host,
            seconds_per_step=slow.seconds_per_step,
            others_seconds_per_step=slow.others_seconds_per_step,
        )

    def _event(self, event: str, **facts: Any) -> None:
        record = {"time": time.time(), "event": event, "phase": self.spec.phase, **facts}
        with contextlib.suppress(OSError):
            append(self.spec.path(self.spec.log.events), record)


def overslept(looked: float, now: float, limit: float) -> bool:
    """Whether this process itself did not run for half the limit: then the others may not have either.

    The job was suspended, or the machine has far more to do than it can; nobody is judged for some time after that.
    """
    return now - looked > limit / 2


def watch_over(spec: Spec, ranks: Ranks, environment: Mapping[str, str]) -> Watch | None:
    """The watch of this rank; None where the job has no folder to show signs of life in."""
    folder = environment.get(FOLDER_VARIABLE, "")
    if not folder:
        return None
    size = environment.get("LOCAL_WORLD_SIZE", "")
    count = int(size) if size.isdigit() and ranks.local_rank < int(size) <= ranks.world_size else 1
    first = ranks.rank - ranks.local_rank if count > 1 else ranks.rank
    return Watch(spec, ranks, Pulse(ranks.rank, Path(folder) / FOLDER), range(first, first + count))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _is_stopped(pid: int) -> bool:
    """Whether a process was halted by a signal; False where the system does not say."""
    return _text(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()[:1] == ["T"]
