"""Faults on purpose, for drills: off unless the environment variable RUNBOOK_FAULTS says what, where and when.

`RUNBOOK_FAULTS="kill:rank=1,step=9,job=04-training; slow:rank=1,factor=2"`: faults are separated by semicolons; `rank`,
`step` and `job` (the name of the job's folder) say where, and what is not said holds for all. The kinds:

    kill, stop, hang, raise, term, usr1, exit    at the beginning of a step
    slow                                         every step takes `factor` times as long
    nan, spike                                   what the loss of a step is taken for; spike: `factor` times it
    full                                         no file can grow beyond `bytes` from this step on, as on a full disk
    clock                                        the clock jumps by `seconds` at the beginning of a step
    fp16                                         no fault: fp16 on a CPU, which is refused because it is slow
    mute                                         standard output becomes a pipe that nobody reads
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
from collections.abc import Mapping
from dataclasses import dataclass, field

from runbook.training.errors import RefusedError
from runbook.training.pulse import FOLDER_VARIABLE

VARIABLE = "RUNBOOK_FAULTS"
KINDS = (
    "kill", "stop", "hang", "raise", "term", "usr1", "exit", "slow", "nan", "spike", "full", "clock", "mute", "save",
    "fp16",
)  # fmt: skip
_KEYS = ("rank", "step", "job", "factor", "seconds", "bytes", "at", "number")


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong."""

    kind: str
    where: Mapping[str, str] = field(default_factory=dict)

    def holds(self, key: str, value: int | str) -> bool:
        """Whether the fault is meant for this rank, step or job."""
        return self.where.get(key, str(value)) == str(value)

    def number(self, key: str, otherwise: float) -> float:
        """A number that the fault was given."""
        return float(self.where.get(key, otherwise))


class Faults:
    """The faults of this rank in this job."""

    def __init__(self, faults: list[Fault]) -> None:
        self._faults = faults
        self._saves = 0
        self._step_began = 0.0

    def has(self, kind: str) -> bool:
        """Whether there is one of this kind."""
        return any(fault.kind == kind for fault in self._faults)

    def step(self, iteration: int) -> None:
        """A step begins."""
        if not self._faults:
            return
        self._slow_down()
        for fault in self._faults:
            if fault.kind in _AT_STEP and "step" in fault.where and fault.holds("step", iteration):
                _AT_STEP[fault.kind](fault)
        self._step_began = time.monotonic()

    def loss(self, loss: float, iteration: int) -> float:
        """What the loss of a step is taken for."""
        for fault in self._faults:
            if fault.kind in ("nan", "spike") and fault.holds("step", iteration):
                return math.nan if fault.kind == "nan" else loss * fault.number("factor", 3)
        return loss

    def save(self, boundary: str) -> None:
        """A boundary of a save is reached."""
        self._saves += boundary == "begin"
        for fault in self._faults:
            here = fault.kind == "save" and fault.where.get("at") == boundary
            if here and fault.holds("number", self._saves):
                _kill(fault)

    def _slow_down(self) -> None:
        for fault in self._faults:
            if fault.kind == "slow" and self._step_began:
                own = fault.number("seconds", 0) or time.monotonic() - self._step_began
                time.sleep((fault.number("factor", 2) - 1) * own)


_ARMED = Faults([])


def arm(environment: Mapping[str, str], rank: int) -> None:
    """Take up the faults that the environment asks for; without any, the calls below do nothing."""
    global _ARMED
    _ARMED = faults_from(environment, rank)


def asked_for(kind: str) -> bool:
    """Whether this rank was given such a fault."""
    return _ARMED.has(kind)


def step(iteration: int) -> None:
    """A step begins."""
    _ARMED.step(iteration)


def loss(value: float, iteration: int) -> float:
    """The loss of a step, or what a fault makes of it."""
    return _ARMED.loss(value, iteration)


def save(boundary: str) -> None:
    """A boundary of a save is reached on this rank."""
    _ARMED.save(boundary)


def faults_from(environment: Mapping[str, str], rank: int) -> Faults:
    """The faults that the environment asks for, of those meant for this rank and job."""
    text = environment.get(VARIABLE, "")
    job = os.path.basename(environment.get(FOLDER_VARIABLE, ""))  # noqa: PTH119  (no path: a name is asked for)
    faults = [_parse(part) for part in text.split(";") if part.strip()]
    return Faults([fault for fault in faults if fault.holds("rank", rank) and fault.holds("job", job)])


def _parse(text: str) -> Fault:
    """One fault.

    >>> _parse("kill:rank=1,step=9")
    Fault(kind='kill', where={'rank': '1', 'step': '9'})
    """
    kind, _, rest = text.strip().partition(":")
    pairs = dict(pair.strip().partition("=")[::2] for pair in rest.split(",") if pair.strip())
    wrong = [key for key in pairs if key not in _KEYS]
    if kind not in KINDS or wrong:
        raise RefusedError(
            f"{VARIABLE}: {text.strip()!r} is no fault; the kinds are {', '.join(KINDS)}, their words "
            f"{', '.join(_KEYS)}. Unset {VARIABLE} to train without faults"
        )
    return Fault(kind, pairs)


def _kill(_fault: Fault) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _stop(_fault: Fault) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _hang(_fault: Fault) -> None:
    while True:
        time.sleep(1)


def _raise(_fault: Fault) -> None:
    raise RuntimeError("a fault on purpose (RUNBOOK_FAULTS)")


def _term(_fault: Fault) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def _usr1(_fault: Fault) -> None:
    os.kill(os.getpid(), signal.SIGUSR1)


def _exit(_fault: Fault) -> None:
    os._exit(3)


def _full(fault: Fault) -> None:
    limit = int(fault.number("bytes", 100_000))
    with contextlib.suppress(ValueError, OSError):
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # writing fails with EFBIG instead of ending the process
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))


def _clock(fault: Fault) -> None:
    jump, real = fault.number("seconds", -3600), time.time
    time.time = lambda: real() + jump


def _mute(_fault: Fault) -> None:
    reading, writing = os.pipe()
    os.dup2(writing, 1)
    os.close(writing)
    os.close(reading)


_AT_STEP = {
    "kill": _kill, "stop": _stop, "hang": _hang, "raise": _raise, "term": _term, "usr1": _usr1, "exit": _exit,
    "full": _full, "clock": _clock, "mute": _mute,
}  # fmt: skip
