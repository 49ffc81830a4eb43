"""How a job ended, as numbers and names: what decisions about the next job read.

Sentences for people are made from it elsewhere. Nothing here, and nothing that decides, reads a
sentence.
"""

from __future__ import annotations

import signal as signals
from dataclasses import dataclass

from runbook.plan_file.text_enum import StrEnum


class JobState(StrEnum):
    """Where a job stands; what cannot be known is UNKNOWN and never guessed."""

    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    # Saved and ended with exit code 75: a new job goes on from there
    STOPPED = "stopped"
    # The machine was rebooted, or the job vanished without an exit code
    LOST = "lost"
    UNKNOWN = "unknown"


class EndCause(StrEnum):
    """Why a job ended badly, as far as the next job depends on it."""

    KILLED = "killed from outside"
    HUNG = "a rank hung"
    # The cluster's failure, not the training's. Its value is the name of a known failure.
    NODE_UNREACHED = "node out of reach"
    # Failures that a restart meets again. Their values are the names of known failures.
    DEVICE_OUT_OF_MEMORY = "device out of memory"
    NOT_FINITE = "NaN in the loss"
    LOSS_SCALE_AT_FLOOR = "loss scale at its floor"
    DISK_FULL = "disk full"
    MODULE_MISSING = "module missing"
    FILE_MISSING = "file missing"
    LAUNCHER_NEEDS_SSH = "launcher needs ssh"
    WRONG_NETWORK_INTERFACE = "wrong network interface"
    # Any other failure: the same one twice at one step is not an accident.
    OTHER = "another failure"


FROM_OUTSIDE = frozenset({EndCause.KILLED, EndCause.NODE_UNREACHED})
"""Causes outside the training: twice at one step is no sign that it would happen again."""

MAY_PASS = FROM_OUTSIDE | {EndCause.HUNG}
"""Causes that a restart need not meet again, also where the job made no step."""

WILL_REPEAT = frozenset(EndCause) - MAY_PASS - {EndCause.OTHER}
"""Causes that a restart meets again: a person has to change something first."""


@dataclass(frozen=True)
class JobEnd:
    """The end of one job."""

    state: JobState
    exit_code: int | None = None
    """The job's own: 0 finished, 75 saved and stopped, 2 refused, 1 failed.

    None: it left none.
    """
    signal: int | None = None
    """Number of the signal that ended one of its ranks.

    None: none did, or it is not known.
    """
    cause: EndCause | None = None
    """None: nothing went wrong."""

    @property
    def was_killed(self) -> bool:
        """Whether something outside the training ended it: SIGKILL, a reboot, or a lost node."""
        return self.state is JobState.LOST or self.signal == signals.SIGKILL
