"""Lines of a log, parsed as if they were a file."""

from __future__ import annotations

from collections.abc import Iterable

from runbook.log_readers.read import LogReader
from runbook.log_readers.record import ParsedLog


def parse_lines(lines: Iterable[str]) -> ParsedLog:
    """Return the parsed log that these lines form."""
    reader = LogReader()
    reader.next_file("lines")
    reader.feed(lines)
    return reader.finish()
