"""How many checkpoints are on disk at the same time, and how large each one is.

The disk contains the newest checkpoints, the permanently kept checkpoints, and the checkpoint being
written.
"""

import math
from collections.abc import Sequence

from runbook.plan_file.schema import ADAM_MOMENTS, Checkpoint, Precision

NEAR_COPIES = 2
"""Number of copies each rank keeps in node memory: the newest complete copy, and the one being
written.
"""


def bytes_per_parameter(precision: Precision, moments: Sequence[str] = ADAM_MOMENTS) -> int:
    """Return the bytes per parameter in a checkpoint.

    These are the weights in the training format, fp32 master weights unless that format is fp32,
    and the optimizer moments.

    >>> bytes_per_parameter("bf16"), bytes_per_parameter("fp32")
    (14, 12)
    """
    weights = 4 if precision == "fp32" else 2 + 4
    return weights + 4 * len(moments)


def keeps_for_ever(checkpoint: Checkpoint, iteration: int) -> bool:
    """Return whether the checkpoint for this iteration is kept permanently."""
    return bool(checkpoint.keep_every) and iteration % checkpoint.keep_every == 0


def most_at_once(checkpoint: Checkpoint, iterations: int) -> int:
    """Return the largest number of checkpoints at any time, which is reached in the last save.

    A new checkpoint is complete before an old one is deleted.

    >>> most_at_once(Checkpoint("checkpoints", interval=10, keep=2), 100)
    3
    >>> most_at_once(Checkpoint("checkpoints", interval=10, keep=2, keep_every=20),
    ... 100)  # and 20, 40, 60
    6
    """
    if not checkpoint.saves:
        return 0
    newest_and_new = checkpoint.keep + 1
    if not (checkpoint.keep_every and checkpoint.interval):
        return newest_and_new
    saves_before_last = (iterations - 1) // checkpoint.interval
    pushed_out = max(0, saves_before_last - checkpoint.keep)
    last_pushed_out = pushed_out * checkpoint.interval
    return newest_and_new + last_pushed_out // math.lcm(checkpoint.interval, checkpoint.keep_every)


def all_saves(checkpoint: Checkpoint, iterations: int) -> int:
    """Return the number of checkpoints saved by a training program that never deletes any.

    Megatron-LM and Megatron-DeepSpeed, for example, delete no checkpoint.

    >>> all_saves(Checkpoint("checkpoints", interval=100, keep=2), 1500)
    15
    """
    if not checkpoint.saves:
        return 0
    if not checkpoint.interval:
        return 1
    return math.ceil(iterations / checkpoint.interval)
