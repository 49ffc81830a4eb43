"""Results from a dry run for one rank.

The trainer writes the results. The planner uses some to compute times; the rest is only shown.
"""

from dataclasses import dataclass
from typing import Any

FORWARD = "forward"
BACKWARD = "backward"
ONCE = "once"
OPTIMIZER = "optimizer"
MATRIX = "matrix_flops"
ATTENTION = "attention_flops"
MOVED = "moved_bytes"
KERNELS = "kernels"


@dataclass(frozen=True)
class Work:
    """The operations, memory traffic and communication in one part of a step."""

    part: str
    """Part of a step: `FORWARD` and `BACKWARD` happen in each micro-batch, `ONCE` and `OPTIMIZER`
    once per step.
    """
    chunk: int
    """Number of the model chunk, if a stage in an interleaved pipeline has more than one."""
    amounts: dict[str, int]
    """Counts under `MATRIX`, `ATTENTION` (for all pairs of tokens), `MOVED` (bytes, by all kernels
    except attention) and `KERNELS`. Bytes sent in collectives are under
    `group:operation:overlapped` if other work continues in the meantime, or else under
    `group:operation:alone`.
    """


@dataclass(frozen=True)
class Collective:
    """One type of communication in a step with the global batch."""

    group: str
    op: str
    count: int
    bytes: int


@dataclass(frozen=True)
class Allocation:
    """A tensor that existed at the peak."""

    bytes: int
    operator: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class RehearsedRank:
    """The memory, work and communication on one rank in a step with the global batch."""

    rank: int
    stage: int
    peak_bytes: int
    peak_moment: str
    parts: dict[str, int]
    """Bytes of weights, gradients and optimizer states, and of everything else at the peak
    (`activations`).
    """
    moments: dict[str, int]
    """Peak memory in each part of the step."""
    flops: int
    operators: int
    collectives: tuple[Collective, ...]
    work: tuple[Work, ...]
    synchronizations: dict[str, int]
    """Number of device-to-host reads the step waits for, by line of code."""
    saved_bytes: int
    """Bytes this rank writes for a checkpoint."""
    save_host_bytes: int
    resume_bytes: int
    """Bytes this rank reads from a checkpoint."""
    resume_peak_bytes: int
    """Peak memory in bytes during a resume, on device and host together."""
    largest: tuple[Allocation, ...]
    timeline: tuple[tuple[Any, ...], ...]
    """Memory in use during the step, as pairs of (point in the step, bytes)."""
    microbatches: int
    """Number of micro-batches run.

    The counts are the same for all micro-batches, so the others are extrapolated.
    """
    seconds: float
