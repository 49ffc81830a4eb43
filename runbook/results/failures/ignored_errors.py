"""Exceptions that Python prints and ignores: in destructors, and in callbacks at the end."""

import re
from dataclasses import dataclass

from runbook.results.failures.error_lines import EXCEPTION
from runbook.results.failures.log_line import split_prefix

HEADING = "Exception ignored "
"""The beginning of the line above an exception after which the program continues."""
_STILL_TRUE = re.compile(
    r"No space left on device|[Qq]uota exceeded|killed by signal: (?:Killed|Bus error)"
)
"""What an ignored exception says about the machine remains true."""
_CHAINED = re.compile(r"^(?:During handling of|The above exception was)")
_HAS_INDENT = re.compile(r"\s|Traceback \(")
MAX_STRANGERS = 10
"""Most lines from other processes, without a prefix, that may occur inside such a traceback."""
LINES_BETWEEN = 2
"""Most lines between two tracebacks of a chain, of which one is empty."""


@dataclass
class _Ignored:
    """A process that prints an ignored exception."""

    is_complete: bool = False
    """Whether the exception has been printed. Another one of its chain may follow."""
    num_others: int = 0
    """Lines since then, or lines of other processes within the traceback."""


class IgnoredErrors:
    """Follows the lines of ignored exceptions, for each rank and host."""

    def __init__(self) -> None:
        self._open: dict[tuple[int | None, str], _Ignored] = {}

    def contains(self, line: str) -> bool:
        """Return whether a line is part of an ignored exception."""
        if HEADING in line:
            log_line = split_prefix(line)
            if log_line.text.startswith(HEADING):
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
    """Return whether the next line of a process is part of its ignored exception."""
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
