"""Recognizes exceptions a program survives: in destructors, exit callbacks and threads."""

import re
from dataclasses import dataclass

from runbook.results.failures.error_lines import EXCEPTION
from runbook.results.failures.log_line import split_prefix

HEADING = "Exception ignored "
"""Beginning of the line above an exception that the program survives."""
THREAD_HEADING = "Exception in thread "
"""Beginning of the line above an exception that only ends a thread."""
_STILL_TRUE = re.compile(
    r"No space left on device|[Qq]uota exceeded|killed by signal: (?:Killed|Bus error)"
)
"""Errors that are a fact about the machine even if Python ignores the exception."""
_CHAINED = re.compile(r"^(?:During handling of|The above exception was)")
_HAS_INDENT = re.compile(r"\s|Traceback \(")
MAX_STRANGERS = 10
"""Maximum number of unprefixed lines from other processes that may occur inside a traceback."""
LINES_BETWEEN = 2
"""Maximum number of lines between two tracebacks in a chain, including an empty line."""


@dataclass
class _Ignored:
    """State of a process that prints an ignored exception."""

    is_complete: bool = False
    """Whether the exception has been printed completely.

    Another exception in the same chain may follow.
    """
    num_others: int = 0
    """Number of lines since the exception, or from other processes within the traceback."""


class SurvivedExceptions:
    """Tracks which lines belong to such exceptions, for each rank and host."""

    def __init__(self, heading: str = HEADING) -> None:
        self._heading = heading
        self._open: dict[tuple[int | None, str], _Ignored] = {}

    def contains(self, line: str) -> bool:
        """Return whether a line is part of an ignored exception."""
        if self._heading in line:
            log_line = split_prefix(line)
            if log_line.text.startswith(self._heading):
                self._open[log_line.rank, log_line.host] = _Ignored()
                return True
        if not self._open:
            return False

        log_line = split_prefix(line)
        key = (log_line.rank, log_line.host)
        ignored = self._open.get(key)
        if ignored is None:
            return False
        is_part = _read(ignored, log_line.text)
        limit = LINES_BETWEEN if ignored.is_complete else MAX_STRANGERS
        if ignored.num_others > limit:
            del self._open[key]
        return is_part and not _STILL_TRUE.search(log_line.text)


def _read(ignored: _Ignored, text: str) -> bool:
    """Return whether the next line from a process is part of the ignored exception."""
    if _CHAINED.match(text):
        ignored.is_complete = False
        ignored.num_others = 0
        return True
    if not ignored.is_complete and (_HAS_INDENT.match(text) or not text):
        return True
    if not ignored.is_complete and EXCEPTION.match(text):
        ignored.is_complete = True
        ignored.num_others = 0
        return True
    ignored.num_others += 1
    return False
