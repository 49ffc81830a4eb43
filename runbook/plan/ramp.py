"""A global batch that begins small and grows: Megatron's rule, in steps and samples."""

from __future__ import annotations

from dataclasses import dataclass

from runbook.params.schema import Training
from runbook.plan.checks import Check, judge
from runbook.plan.choices import Choice
from runbook.plan.layout import Layout


@dataclass(frozen=True)
class Ramp:
    """From `start` to `full` sequences a step, `increment` at a time, over the first `samples`; start 0: full at once.

    >>> ramp = Ramp(start=2, increment=2, samples=30, full=8)
    >>> [ramp.batch(seen) for seen in (0, 9, 10, 20, 30)], ramp.samples_after(20), ramp.iterations_within(124)
    ([2, 2, 4, 6, 8], 114, 21)
    """

    start: int
    increment: int
    samples: int
    full: int

    @property
    def sound(self) -> bool:
        """Whether the numbers make a ramp, or none is asked for."""
        if not self.start:
            return not (self.increment or self.samples)
        positive = min(self.increment, self.samples) >= 1 and self.start <= self.full
        return positive and (self.full - self.start) % self.increment == 0

    def batch(self, consumed: int) -> int:
        """Sequences of the step after `consumed` samples."""
        if not self.start or not self.sound or consumed >= self.samples:
            return self.full
        stages = (self.full - self.start) // self.increment
        return min(self.full, self.start + consumed * stages // self.samples * self.increment)

    def samples_after(self, iterations: int) -> int:
        """Samples that this many steps from the beginning take."""
        samples = 0
        for done in range(iterations):
            size = self.batch(samples)
            if size == self.full:
                return samples + (iterations - done) * size
            samples += size
        return samples

    def iterations_within(self, samples: int) -> int:
        """Whole steps that these samples are enough for."""
        taken = done = 0
        while (size := self.batch(taken)) != self.full and taken + size <= samples:
            taken, done = taken + size, done + 1
        return done + (samples - taken) // self.full if size == self.full else done


def ramp_of(choice: Choice, layout: Layout) -> Ramp:
    """The ramp of a phase; a smoke test has none."""
    training: Training = choice.training
    if choice.smoke:
        return Ramp(0, 0, 0, layout.global_batch)
    return Ramp(training.rampup_start, training.rampup_increment, training.rampup_samples, layout.global_batch)


def check_ramp(choice: Choice, layout: Layout) -> list[Check]:
    """Every rule about the ramp; none where there is none."""
    ramp = ramp_of(choice, layout)
    if not (ramp.start or ramp.increment or ramp.samples):
        return []
    group = layout.micro_batch * layout.data * (layout.pipeline if layout.virtual_pipeline > 1 else 1)
    value = f"from {ramp.start} by {ramp.increment} to {ramp.full} sequences over {ramp.samples:,} samples"
    checks = [
        judge(
            f"{choice.phase}: batch ramp",
            ramp.sound,
            value,
            "rampup_start + a multiple of rampup_increment is global_batch, and all three ramp keys are given",
            "Choose training.rampup_start, rampup_increment and rampup_samples so that it is, or leave all three 0.",
        )
    ]
    if ramp.sound:
        checks.append(
            judge(
                f"{choice.phase}: batch ramp divides",
                ramp.start % group == 0 and ramp.increment % group == 0,
                f"{value}; all copies compute {group} at once",
                "every batch of the ramp divides by micro_batch x data parallel",
                f"Make training.rampup_start and rampup_increment multiples of {group}.",
            )
        )
    return checks
