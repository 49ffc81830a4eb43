"""The order of documents and sequences, and which part each data-parallel replica uses."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy


@dataclass(frozen=True)
class DataParallelShare:
    """Selects the samples in each global batch that belong to one data-parallel replica."""

    micro: int
    copies: int
    copy: int

    def indices(self, consumed_samples: int, num_microbatches: int) -> Iterator[range]:
        """Return the sample numbers for each micro-batch in the step after `consumed_samples`.

        Whatever the number of replicas, a step uses the same samples, which follow
        `consumed_samples`.

        >>> [list(part) for part in DataParallelShare(micro=2, copies=2, copy=1).indices(100, 2)]
        [[102, 103], [106, 107]]
        """
        for step in range(num_microbatches):
            start = consumed_samples + (step * self.copies + self.copy) * self.micro
            yield range(start, start + self.micro)


def shuffled_epochs(
    documents: numpy.ndarray[Any, Any],
    ends: list[int],
    seed: int,
) -> tuple[numpy.ndarray[Any, Any], numpy.ndarray[Any, Any]]:
    """Return the document order and the sample order, both shuffled within each epoch.

    `ends` contains the number of samples up to the end of each epoch.

    >>> short, long = (shuffled_epochs(numpy.arange(5), ends, seed=1) for ends in ([3], [3, 7]))
    >>> [part.tolist() for part in short], [part.tolist() for part in long]
    ([[2, 1, 4, 0, 3], [0, 2, 1]], [[2, 1, 4, 0, 3, 3, 2, 0, 1, 4], [0, 2, 1, 3, 6, 5, 4]])
    """
    strung = numpy.tile(documents.astype(numpy.int32), len(ends))
    shuffled = numpy.arange(ends[-1], dtype=numpy.uint32 if ends[-1] < 2**32 - 2 else numpy.int64)
    for epoch, (begin, end) in enumerate(zip([0, *ends], ends, strict=False)):
        random = numpy.random.RandomState([seed, epoch] if epoch else seed)
        random.shuffle(strung[epoch * len(documents) : (epoch + 1) * len(documents)])
        random.shuffle(shuffled[begin:end])

    return strung, shuffled
