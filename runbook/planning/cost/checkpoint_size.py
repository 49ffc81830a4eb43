"""Checkpoint size, and the disk space needed for all checkpoints in a training run."""

from collections.abc import Sequence
from dataclasses import dataclass

from runbook.plan_file.kept_checkpoints import all_saves, bytes_per_parameter, most_at_once
from runbook.plan_file.schema import ADAM_MOMENTS, PhasePlan, Precision


def checkpoint_bytes(
    parameters: int, precision: Precision, moments: Sequence[str] = ADAM_MOMENTS
) -> int:
    """Return the size of a complete checkpoint in bytes.

    >>> checkpoint_bytes(174_615_846_912, "bf16")
    2444621856768
    """
    return parameters * bytes_per_parameter(precision, moments)


@dataclass(frozen=True)
class Storage:
    """The disk space needed for the checkpoints in one phase."""

    bytes_per_parameter: int
    checkpoint_bytes: int
    num_checkpoints: int
    """Maximum number of checkpoints that exist at a time, including the one being written.

    The number is 0 if nothing is saved.
    """
    disk_bytes: int


KEEPS_ALL = ("megatron-lm", "megatron-deepspeed")
"""Training programs that never delete a checkpoint.

In Megatron-LM, `--save-retain-interval` is off by default, and Megatron-DeepSpeed has no such
option.
"""


def storage(phase: PhasePlan, program: str) -> Storage:
    """Return the most disk space that checkpoints use at any time in a phase.

    `program` is the engine or framework that writes them.
    """
    moments = phase.optimizer.moments
    size = checkpoint_bytes(phase.model.parameters, phase.precision.format, moments)
    count_most = all_saves if program in KEEPS_ALL else most_at_once
    num_checkpoints = count_most(phase.checkpoint, phase.duration.iterations)
    return Storage(
        bytes_per_parameter=bytes_per_parameter(phase.precision.format, moments),
        checkpoint_bytes=size,
        num_checkpoints=num_checkpoints,
        disk_bytes=size * num_checkpoints,
    )
