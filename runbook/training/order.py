"""Which samples a step takes, and which of them each data-parallel copy computes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Share:
    """Which samples of each global batch belong to one data-parallel copy."""

    micro: int
    copies: int
    copy: int

    def indices(self, consumed_samples: int, num_microbatches: int) -> Iterator[range]:
        """Sample numbers of each micro-batch of the step after `consumed_samples`.

        A step takes the same samples whatever the number of copies: those after `consumed_samples`.

        >>> [list(part) for part in Share(micro=2, copies=2, copy=1).indices(100, 2)]
        [[102, 103], [106, 107]]
        """
        for step in range(num_microbatches):
            start = consumed_samples + (step * self.copies + self.copy) * self.micro
            yield range(start, start + self.micro)
