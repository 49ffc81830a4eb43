"""Deliberate faults for drills.

Faults are off unless the environment variable RUNBOOK_FAULTS names the fault, its place and its
time.

`RUNBOOK_FAULTS="kill:rank=1,step=9,job=04-training; slow:rank=1,factor=2"`: faults are separated by
semicolons. `rank`, `step` and `job` (the name of the job folder) restrict a fault; without them
it applies to all. The kinds:

    kill, stop, hang, raise, term, usr1, exit    at the beginning of a step
    slow                                         every step takes `factor` times as long, counting the `slow` faults
                                                 before this one; with `seconds`, each step takes that much longer
    leak                                         every step keeps `bytes` more of the host memory
    nan, spike                                   the loss that the trainer sees for a step; spike: `factor` times the loss
    full                                         no file can grow beyond `bytes` from this step on, as on a full disk
    clock                                        the clock jumps by `seconds` at the beginning of a step
    fp16                                         no fault: fp16 on a CPU, which is refused because it is slow
    mute                                         standard output becomes a pipe without a reader
    flip                                         a bit flips while a part of a step is computed twice: `part` forward,
                                                 backward or gradient, `layer`, `number` of the computation (0 the first,
                                                 1 again; all if it is not given), `bit` of `element`
    save                                         killed at a boundary of a save: `at=` begin, shards, metadata, rename,
                                                 tracker, pruning; `number=` of the save in this job
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from runbook.plan_file.errors import RefusedError
from runbook.tools.drills.messages import DrillMessage

VARIABLE = "RUNBOOK_FAULTS"
ON_PURPOSE = f"a fault on purpose ({VARIABLE})"
"""Error message used by faults of the kind `raise`."""
_KEYS = ("rank", "step", "job", "factor", "seconds", "bytes", "at", "number")
_FLIP_KEYS = ("part", "layer", "bit", "element")


@dataclass(frozen=True)
class Fault:
    """A fault, and where and when it happens."""

    kind: str
    where: Mapping[str, str] = field(default_factory=dict)

    def holds(self, key: str, value: int | str) -> bool:
        """Return whether the fault applies to this rank, step or job."""
        return self.where.get(key, str(value)) == str(value)

    def number(self, key: str, otherwise: float) -> float:
        """Return a numeric value set by the fault, or the default if the fault does not set it."""
        return float(self.where.get(key, otherwise))


class Faults:
    """Faults for this rank in this job."""

    def __init__(self, faults: list[Fault]) -> None:
        self._faults = faults
        self._saves = 0
        self._flips: list[Fault] = []
        self._step_began = 0.0
        self._leaked: list[bytes] = []

    def has(self, kind: str) -> bool:
        """Return whether there is a fault of this kind."""
        return any(fault.kind == kind for fault in self._faults)

    def step(self, iteration: int) -> None:
        """Apply the faults at the beginning of a step."""
        for fault in self._faults:
            if fault.kind == "slow" and self._step_began:
                # The delay includes the time taken by earlier faults.
                step_seconds = time.monotonic() - self._step_began
                time.sleep(
                    fault.number("seconds", 0) or (fault.number("factor", 2) - 1) * step_seconds
                )

        for fault in self._faults:
            if fault.kind in _AT_STEP and "step" in fault.where and fault.holds("step", iteration):
                _AT_STEP[fault.kind](fault)
            if fault.kind == "leak":
                self._leaked.append(b"x" * int(fault.number("bytes", 1e6)))

        self._step_began = time.monotonic()

    def loss(self, loss: float, iteration: int) -> float:
        """Return the loss that the trainer sees for a step."""
        for fault in self._faults:
            if fault.kind in ("nan", "spike") and fault.holds("step", iteration):
                if fault.kind == "nan":
                    return math.nan
                return loss * fault.number("factor", 3)

        return loss

    def begin_computation(self, iteration: int, number: int) -> None:
        """Apply the faults that hit part of a step, when it is computed first or again."""
        self._flips = [
            fault
            for fault in self._faults
            if fault.kind == "flip"
            and fault.holds("step", iteration)
            and fault.holds("number", number)
        ]

    def flipped_bit(self, part: str, layer: int) -> tuple[int, int] | None:
        """Return the element and the bit to flip in a tensor.

        Each time gradients are computed, a fault flips a single bit.
        """
        for fault in self._flips:
            if fault.holds("part", part) and fault.holds("layer", layer):
                self._flips.remove(fault)
                return int(fault.number("element", 0)), int(fault.number("bit", 12))

        return None

    def save(self, boundary: str) -> None:
        """Apply the faults at a boundary in a save."""
        self._saves += boundary == "begin"
        for fault in self._faults:
            is_here = fault.kind == "save" and fault.where.get("at") == boundary
            if is_here and fault.holds("number", self._saves):
                _kill(fault)


def faults_from(text: str, rank: int, job: str) -> Faults:
    """Return the faults in a string that apply to this rank and job."""
    faults = [_parse(part) for part in text.split(";") if part.strip()]
    return Faults(
        [fault for fault in faults if fault.holds("rank", rank) and fault.holds("job", job)]
    )


def _parse(text: str) -> Fault:
    """Return the fault that a string describes.

    >>> _parse("kill:rank=1,step=9")
    Fault(kind='kill', where={'rank': '1', 'step': '9'})
    """
    kind, _, conditions = text.strip().partition(":")
    pairs = dict(pair.strip().partition("=")[::2] for pair in conditions.split(",") if pair.strip())
    kinds = [*_AT_STEP, "slow", "leak", "nan", "spike", "flip", "save", "fp16"]
    if kind not in kinds or not pairs.keys() <= {*_KEYS, *_FLIP_KEYS}:
        raise RefusedError(
            DrillMessage.NOT_A_FAULT,
            variable=VARIABLE,
            text=text.strip(),
            kinds=", ".join(kinds),
            keys=", ".join([*_KEYS, *_FLIP_KEYS]),
        )

    return Fault(kind, pairs)


def _kill(_fault: Fault) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _hang(_fault: Fault) -> None:
    while True:
        time.sleep(1)


def _raise(_fault: Fault) -> None:
    raise RuntimeError(ON_PURPOSE)


def _full(fault: Fault) -> None:
    limit = int(fault.number("bytes", 100_000))
    with contextlib.suppress(ValueError, OSError):
        # Make writes fail with EFBIG instead of ending the process.
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))


def _clock(fault: Fault) -> None:
    jump = fault.number("seconds", -3600)
    real = time.time
    time.time = lambda: real() + jump


def _mute(_fault: Fault) -> None:
    reading, writing = os.pipe()
    os.dup2(writing, 1)
    os.close(writing)
    os.close(reading)


_AT_STEP: dict[str, Callable[[Fault], object]] = {
    "kill": _kill,
    "stop": lambda _: os.kill(os.getpid(), signal.SIGSTOP),
    "term": lambda _: os.kill(os.getpid(), signal.SIGTERM),
    "usr1": lambda _: os.kill(os.getpid(), signal.SIGUSR1),
    "exit": lambda _: os._exit(3),
    "hang": _hang,
    "raise": _raise,
    "full": _full,
    "clock": _clock,
    "mute": _mute,
}
