"""Records put in order: each iteration once, restarts counted, copies by other ranks dropped."""

from __future__ import annotations

import re
from collections import Counter

from runbook.analysis.parsers.record import Record, Validation

NEAR = 3
"""How many records late a copy by another rank may come; a restart goes back further or shows other numbers."""
_RANK = re.compile(
    r"\[?(?:rank|default)[\s-]*(\d+)\]?|\bpid=(\d+)|^\s*(\d+):\s|^\s*\[?([A-Za-z][\w.-]*\d[\w.-]*(?::\d+)?)\]?:\s?"
    r"|^\s*[\w.-]+/(\d+)\s"
)
CLOSE_LINES = 64
"""A record that repeats the last one within so many lines was printed by another rank, even where its clock differs."""


class Assembly:
    """What one parser found in a run, iteration by iteration."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.validation: list[Validation] = []
        self.counts: Counter[str] = Counter()
        """Things worth a note, by text."""
        self.file = 0
        self.line = 0
        self._last = -1
        self._start = 0
        self._segment = 0
        self._restarting = False
        self._new_file = False
        self._prefix = ""

    def restart(self) -> None:
        """The log says that training starts; what follows the next record belongs to a new segment."""
        if len(self.records) > self._start:
            self._restarting = True

    def next_file(self, index: int) -> None:
        """What comes now is from another file of the same run."""
        self.file = index
        self._new_file = len(self.records) > self._start

    def last_iteration(self) -> int | None:
        """Of the newest record."""
        return self.records[-1].iteration if self.records else None

    def previous(self) -> Record | None:
        """The newest record of this segment."""
        return self.records[-1] if len(self.records) > self._start and not self._restarting else None

    def add(self, record: Record, prefix: str = "", *, rounded: bool = False) -> bool:
        """Keep the record, unless it is a copy of one that is kept; True where it was kept.

        `rounded`: the log rounds its counter, so that the same number may be a later step.
        """
        record.file = self.file
        later = record.iteration > self._last or (rounded and record.iteration == self._last)
        if later and not self._restarting:
            self._new_file = False
        elif self._is_copy(record, prefix):
            self.counts["records printed by several ranks, counted once"] += 1
            return False
        elif self.records:
            self._segment += 1
            self._start = len(self.records)
            self._restarting = self._new_file = False
        self._last = record.iteration
        self._prefix = prefix
        record.segment = self._segment
        self.records.append(record)
        return True

    def _is_copy(self, record: Record, prefix: str) -> bool:
        place = self._find(record.iteration)
        if place is None:
            return False
        twin = self.records[place]
        alike = (
            twin.loss == record.loss
            and twin.grad_norm == record.grad_norm
            and twin.learning_rate == record.learning_rate
        )
        same = alike and _close(twin.seconds, record.seconds)
        if self._new_file:
            return same
        if self._restarting:
            return False
        other = _other_rank(self._prefix, prefix)
        if alike and record.loss is not None:
            last = twin is self.records[-1] and 0 <= record.line - twin.line <= CLOSE_LINES
            if last or other:
                return True
        return len(self.records) - 1 - place <= NEAR and (same or other)

    def _find(self, iteration: int) -> int | None:
        """Place of an iteration in this segment, where iterations rise: a binary search."""
        low, high = self._start, len(self.records)
        while low < high:
            middle = (low + high) // 2
            if self.records[middle].iteration < iteration:
                low = middle + 1
            else:
                high = middle
        found = low < len(self.records) and self.records[low].iteration == iteration
        return low if found else None

    def evaluate(
        self, iteration: int | None, loss: float, perplexity: float | None = None, name: str = "validation"
    ) -> None:
        """Keep an evaluation; a repeat of the one before it (another rank, another refresh of a bar) is dropped."""
        one = Validation(iteration, loss, perplexity, name, self.line, self.file)
        if any((other.iteration, other.loss, other.name) == (iteration, loss, name) for other in self.validation[-4:]):
            return
        self.validation.append(one)


def _close(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one - other) <= 0.02 * max(abs(one), abs(other))


def _other_rank(one: str, other: str) -> bool:
    """Whether two prefixes name two ranks.

    >>> _other_rank("[rank0]:", "[rank1]:"), _other_rank("0: ", "0: "), _other_rank("", "3: ")
    (True, False, False)
    >>> _other_rank("[lrdn3321:3]: ", "[lrdn3321:2]: "), _other_rank("trainer/0 ", "trainer/7 ")
    (True, True)
    """
    first, second = _RANK.search(one), _RANK.search(other)
    return bool(first and second and first.groups() != second.groups())
