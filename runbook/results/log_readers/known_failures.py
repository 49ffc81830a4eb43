"""Known failures: the lines that show them in a log, the remedy, and the help page."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


class FailureClass:
    """A way in which training fails, known by its words.

    An after-effect of errors is also what the other ranks say when one of them has ended with an error of its own.
    """

    def __init__(
        self, name: str, remedy: str, *patterns: str, after_effect_of_errors: bool = False
    ) -> None:
        self.name = name
        self.remedy = remedy
        self.patterns = patterns
        self.after_effect_of_errors = after_effect_of_errors
        self.expression = re.compile("|".join(f"(?:{pattern})" for pattern in patterns))


@dataclass
class Failure:
    """A failure found in a log."""

    name: str
    line: int
    """The first line that shows it, counted from 1."""
    evidence: str
    count: int
    remedy: str


_TABLE = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
_WORDS = tuple(_TABLE["words"])
"""Every class's lines hold one of these: looking for words first is ten times as quick as the expressions."""
PAGE = tuple(
    FailureClass(
        name,
        row["remedy"],
        *row["patterns"],
        after_effect_of_errors=row.get("after_effect_of_errors", False),
    )
    for name, row in _TABLE["failures"].items()
)
"""Every known failure, in the order of the page docs/when-it-fails.md, which tools/write_help.py writes."""
CLASSES = PAGE[:-1]
HANG = PAGE[-1]
"""A build of kernels hangs only where the log ends with its words: each is also said by one that goes well."""
TITLE = "When it fails"
_TRACEBACK = "Traceback (most recent call last)"
_ERROR = re.compile(r"^(?:\[rank\d+\]: ?)?(?:\w+\.)*(?P<name>\w+(?:Error|Exception)): \S")
_OF_COMMUNICATION = re.compile(
    r"Dist\w*Error|Connection|BrokenPipe|EOFError|Timeout|ChildFailed|NCCL|nccl|[Gg]loo|[Ss]ocket|TCPStore|[Ww]atchdog"
)
"""Errors that a rank raises because it no longer reaches another one: a network failure has them too."""


class FailureFinder:
    """Looks at lines as they come; `found` may be asked for at any time."""

    def __init__(self) -> None:
        self._found: dict[str, Failure] = {}
        self._hang: Failure | None = None
        self._lines_since = 0
        self._in_traceback = False
        self._own_error = False

    def look(self, line: str, number: int) -> None:
        """Look at one line."""
        self._lines_since += 1
        if any(words in line for words in HANG.patterns):
            self._hang = Failure(HANG.name, number, line.strip(), 1, HANG.remedy)
            self._lines_since = 0
        self._look_for_own_error(line)
        if not any(word in line for word in _WORDS):
            return
        for one in CLASSES:
            if one.expression.search(line):
                if one.after_effect_of_errors and self._own_error:
                    return
                first = Failure(one.name, number, line.strip()[:300], 0, one.remedy)
                self._found.setdefault(one.name, first).count += 1
                return

    def _look_for_own_error(self, line: str) -> None:
        """Note when a rank ends with an error that is not about reaching another rank.

        Its process closes its connections, so that whatever the others say of theirs comes after this error.
        """
        if _TRACEBACK in line:
            self._in_traceback = True
        elif self._in_traceback and _ERROR.match(line):
            self._in_traceback = False
            self._own_error = self._own_error or not _OF_COMMUNICATION.search(line)

    def found(self, *, num_records: int = 0) -> list[Failure]:
        """All failures by first appearance; a kernel build hangs only where it is the log's last word."""
        if (
            self._hang is not None
            and not num_records
            and not self._found
            and self._lines_since <= 3
        ):
            return [self._hang]
        return sorted(self._found.values(), key=lambda failure: failure.line)


def find_failures(lines: Iterable[str]) -> list[Failure]:
    """The failures that these lines name.

    >>> [(one.name, one.line) for one in find_failures(["step 1", "error: *** JOB 7 CANCELLED DUE TO TIME LIMIT ***"])]
    [('time limit', 2)]
    """
    finder = FailureFinder()
    for number, line in enumerate(lines, start=1):
        finder.look(line, number)
    return finder.found()


def anchor(name: str) -> str:
    """The place of a failure on the page, as GitHub and mkdocs name it.

    >>> anchor("NaN in the loss")
    'nan-in-the-loss'
    """
    return name.lower().replace(" ", "-")
