"""The global batch as a function of the samples seen: it may begin small and grow (Megatron's rampup-batch-size)."""

from __future__ import annotations

from runbook.training.spec import Batch


def global_batch(batch: Batch, consumed_samples: int) -> int:
    """Sequences of the step after `consumed_samples`.

    >>> from runbook.training.spec import Ramp
    >>> batch = Batch(micro=1, global_=8, num_microbatches=8, ramp=Ramp(start=2, increment=2, samples=30))
    >>> [global_batch(batch, seen) for seen in (0, 9, 10, 20, 30, 99)]
    [2, 2, 4, 6, 8, 8]
    """
    ramp = batch.ramp
    if not ramp.start or consumed_samples >= ramp.samples:
        return batch.global_
    stages = (batch.global_ - ramp.start) // ramp.increment
    return min(batch.global_, ramp.start + consumed_samples * stages // ramp.samples * ramp.increment)


def samples_after(batch: Batch, iterations: int) -> int:
    """Samples that this many steps from the beginning take; only the steps of the ramp are counted one by one.

    >>> from runbook.training.spec import Ramp
    >>> samples_after(Batch(1, 8, 8, Ramp(2, 2, 30)), 20), samples_after(Batch(1, 8, 8), 20)
    (114, 160)
    """
    samples = 0
    for done in range(iterations):
        size = global_batch(batch, samples)
        if size == batch.global_:
            return samples + (iterations - done) * size
        samples += size
    return samples
