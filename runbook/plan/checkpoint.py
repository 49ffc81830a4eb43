"""Bytes of a checkpoint and the time to write it, in one unit each."""

from __future__ import annotations

from dataclasses import dataclass

from runbook.params.schema import Precision

_BYTES = {Precision.BF16: 2 + 12, Precision.FP16: 2 + 12, Precision.FP32: 4 + 8}


def bytes_per_parameter(precision: Precision) -> int:
    """Weights in the training format, fp32 master weights where that is not fp32, and Adam's two moments.

    >>> bytes_per_parameter(Precision.BF16), bytes_per_parameter(Precision.FP32)
    (14, 12)
    """
    return _BYTES[precision]


def checkpoint_bytes(parameters: int, precision: Precision) -> int:
    """Bytes of one whole checkpoint.

    >>> checkpoint_bytes(174_615_846_912, Precision.BF16)
    2444621856768
    """
    return parameters * bytes_per_parameter(precision)


def write_seconds(num_bytes: float, bytes_per_second: float) -> float:
    """Seconds to write at this bandwidth; both in bytes, so that no GiB meets a GB.

    >>> round(write_seconds(2_444_621_856_768, 19.2e9) / 60, 3)
    2.122
    """
    return num_bytes / bytes_per_second


@dataclass(frozen=True)
class Storage:
    """What the checkpoints of one phase need."""

    bytes_per_parameter: int
    checkpoint_bytes: int
    num_checkpoints: int
    """Kept ones, and the one being written."""
    disk_bytes: int


def storage(parameters: int, precision: Precision, keep: int) -> Storage:
    """Disk for the checkpoints that are kept and one more: a new one is whole before an old one is deleted."""
    one = checkpoint_bytes(parameters, precision)
    return Storage(bytes_per_parameter(precision), one, keep + 1, one * (keep + 1))
