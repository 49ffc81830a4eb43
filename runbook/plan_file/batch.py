"""The number of sequences in each step, and the ramp that raises it at first."""

from dataclasses import dataclass, field

from runbook.plan_file.json_records import OMIT_DEFAULT


@dataclass(frozen=True)
class Ramp:
    """Batch ramp: `start` sequences, increased by `increment` at a time over the first `samples`.

    A start of 0 means no ramp.
    """

    start: int = 0
    increment: int = 0
    samples: int = 0


@dataclass(frozen=True)
class Batch:
    """The number of sequences in a step (with a ramp, in a step after the ramp).

    >>> batch = Batch(micro=1, global_=8, num_microbatches=8, ramp=Ramp(start=2, increment=2,
    ... samples=30))
    >>> [batch.at(consumed) for consumed in (0, 9, 10, 20, 30, 99)]
    [2, 2, 4, 6, 8, 8]
    >>> batch.samples_after(20), Batch(1, 8, 8).samples_after(20), batch.iterations_within(124)
    (114, 160, 21)
    """

    micro: int
    global_: int
    num_microbatches: int
    ramp: Ramp = field(default=Ramp(), metadata=OMIT_DEFAULT)

    @property
    def ramp_is_sound(self) -> bool:
        """Whether the ramp ends exactly at the global batch, or there is no ramp."""
        ramp = self.ramp
        if not ramp.start:
            return not (ramp.increment or ramp.samples)
        positive = min(ramp.increment, ramp.samples) >= 1 and ramp.start <= self.global_
        return positive and (self.global_ - ramp.start) % ramp.increment == 0

    def at(self, consumed_samples: int) -> int:
        """Return the batch size after `consumed_samples`, as Megatron's rampup-batch-size does."""
        ramp = self.ramp
        if not ramp.start or not self.ramp_is_sound or consumed_samples >= ramp.samples:
            return self.global_
        stages = (self.global_ - ramp.start) // ramp.increment
        return min(
            self.global_, ramp.start + consumed_samples * stages // ramp.samples * ramp.increment
        )

    def samples_after(self, iterations: int) -> int:
        """Return the number of samples used in the first `iterations` steps.

        Only steps in the ramp are counted one by one.
        """
        samples = 0
        for iteration in range(iterations):
            size = self.at(samples)
            if size == self.global_:
                return samples + (iterations - iteration) * size
            samples += size

        return samples

    def iterations_within(self, samples: int) -> int:
        """Return the number of whole steps that fit into this many samples."""
        consumed = iterations = 0
        while (size := self.at(consumed)) != self.global_ and consumed + size <= samples:
            consumed = consumed + size
            iterations = iterations + 1

        if size == self.global_:
            return iterations + (samples - consumed) // self.global_
        return iterations
