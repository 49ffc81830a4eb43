"""Lines of a log, parsed as a file of them would be."""

from __future__ import annotations

from collections.abc import Iterable

from runbook.log_readers.read import LogReader
from runbook.log_readers.record import ParsedLog


def parse_lines(lines: Iterable[str]) -> ParsedLog:
    """A log given as lines."""
    reader = LogReader()
    reader.next_file("lines")
    reader.feed(lines)
    return reader.finish()
