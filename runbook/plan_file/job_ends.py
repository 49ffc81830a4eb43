"""How a job can end, as numbers and names, and what can follow.

Other modules render them as text. No decision depends on such text.
"""

from __future__ import annotations

import signal as signals
from dataclasses import dataclass

from runbook.plan_file.text_enum import StrEnum


class JobState(StrEnum):
    """State of a job. A state that cannot be determined is UNKNOWN and is never guessed."""

    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    # Saved and ended with exit code 75: a new job continues from there
    STOPPED = "stopped"
    # The machine was rebooted, or the job vanished and left no exit code
    LOST = "lost"
    UNKNOWN = "unknown"


class EndCause(StrEnum):
    """Why a job failed, in the detail that matters for the next job."""

    KILLED = "killed from outside"
    HUNG = "a rank hung"
    # The cluster failed, not the training. The value names a known failure.
    NODE_UNREACHED = "node out of reach"
    # Failures that would occur again after a restart. The values name known failures.
    DEVICE_OUT_OF_MEMORY = "device out of memory"
    NOT_FINITE = "NaN in the loss"
    LOSS_SCALE_AT_FLOOR = "loss scale at its floor"
    DISK_FULL = "disk full"
    MODULE_MISSING = "module missing"
    FILE_MISSING = "file missing"
    LAUNCHER_NEEDS_SSH = "launcher needs ssh"
    WRONG_NETWORK_INTERFACE = "wrong network interface"
    # Any other failure. If the same failure occurs twice at the same step, it is not a coincidence.
    OTHER = "another failure"


class Action(StrEnum):
    """What can follow a job. A job writes this value to the first line of the decision file."""

    DONE = "done"
    GO_ON = "go on"
    STOP = "stop"


FROM_OUTSIDE = frozenset({EndCause.KILLED, EndCause.NODE_UNREACHED})
"""Causes outside the training, which may occur twice at the same step by coincidence."""

MAY_PASS = FROM_OUTSIDE | {EndCause.HUNG}
"""Causes that may not recur after a restart, even if the job completed no step."""

WILL_REPEAT = frozenset(EndCause) - MAY_PASS - {EndCause.OTHER}
"""Causes that would also stop a restart, until a person changes something."""


@dataclass(frozen=True)
class JobEnd:
    """How a job ended."""

    state: JobState
    exit_code: int | None = None
    """Exit code from the job: 0 finished, 75 saved and stopped, 2 refused, 1 failed.

    None if the job left no exit code.
    """
    signal: int | None = None
    """Number of the signal that ended a rank in the job; None if there was no such signal or it is
    unknown.
    """
    cause: EndCause | None = None
    """Why the job failed; None if it did not."""

    @property
    def was_killed(self) -> bool:
        """Whether the training was ended from outside: by SIGKILL, a reboot or a lost node."""
        return self.state is JobState.LOST or self.signal == signals.SIGKILL
