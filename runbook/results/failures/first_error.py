"""Finds the first line that looks like an error and that no rule recognizes.

Lines about a lost connection or a timeout result from an error on another rank. If no rule
recognizes that error, the line with it is shown next to the remedy for a timeout. If the line is an
exception, it replaces such a remedy. Lines that merely contain words like "failed" are also printed
when nothing is wrong. Such a line therefore replaces only remedies for ranks lost or waiting
shortly afterwards, since these only advise looking for the first rank to fail.

In a log, output from one rank may come after output from another, so a lost connection may precede
the exception of the rank that was lost. That exception is also shown, but does not replace any
remedy.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from runbook.results.failures.error_lines import EXCEPTION, LAST_WORDS, MARKED
from runbook.results.failures.log_line import LogLine

SIGNS = (
    "cannot",
    "can't",
    "could not",
    "couldn't",
    "denied",
    "errno",
    "error",
    "exceeded",
    "exception",
    "fail",
    "fatal",
    "invalid",
    "mismatch",
    "nccl warn",
    "no such",
    "not found",
    "panic",
    "refused",
    "severe",
    "unable",
    "what():",
)
"""Every line that may be an error contains at least one of these lower-case strings."""
_HINT = re.compile(
    r"\b(?:[Cc]annot|[Cc]an't|[Cc]ould ?n[o']t|[Dd]enied|Errno|[Ee]xceeded|[Ff]ail(?:ed|ure)"
    r"|[Ii]nvalid|[Mm]ismatch|[Nn]o such|[Nn]ot found|[Rr]efused|[Uu]nable)\b"
)
"""Words that occur in errors, but also in lines that programs print when nothing is wrong."""
_OF_COMMUNICATION = re.compile(
    # An internal error in a library says more about the cause than a lost connection does.
    r"^(?!.*INTERNAL ASSERT).*(?:NCCL error|nccl\w*Error|WorkNCCL|ProcessGroup|TCPStore|c10d|\bc10::|[Ww]atchdog|DistBackend"
    r"|DistNetwork|[Gg]loo|socket)"
)
_UNTELLING = re.compile(
    r"Traceback|most recent call last|error_file|observed failure|^Failures:|\berrors?: (?:0|none|False)\b|SIGTERM|Interrupt"
)
"""Lines that do not report an error themselves."""
MAX_EVIDENCE = 300


@dataclass(frozen=True)
class FirstError:
    """An error no rule recognizes. All known failures in the same log may result from it."""

    line: int
    """Line number, counted from 1."""
    evidence: str
    rank: int | None = None
    host: str = ""
    is_exception: bool = False
    """Whether the line is an exception or the last line from a program, such as a panic.

    Other lines merely contain words that occur in errors.
    """
    is_marked: bool = False
    """Whether the program marks the line as an error."""
    followed_by: tuple[str, ...] = ()
    """Names of known failures in the log, possibly caused by this error."""
    precedes_all: bool = True
    """Whether the line with the error precedes all of these failures."""
    is_near_lost_peers: bool = False
    """Whether all failures are about lost or waiting ranks, and one follows within
    `LINES_TO_EFFECT` lines. After a line marked as an error, the failures may also be processes
    that ended.
    """

    @property
    def explains_effects(self) -> bool:
        """Return whether this error explains the failures, so their remedies would not help."""
        is_reason = self.is_exception or self.is_near_lost_peers
        return is_reason and self.precedes_all and bool(self.followed_by)


LINES_TO_EFFECT = 50
"""A program that prints more lines than this after an error has survived the error, unless it is an
exception.
"""
MAX_PROCESSES = 10_000
"""Maximum number of processes with an exception.

After that, lines are ignored until the next step.
"""


_Process = tuple[int | None, str]
"""Rank and host of a process, if lines from it contain them."""


class FirstErrorFinder:
    """Examines lines as they arrive, and stores the first errors by process since the last step.

    All lines that name the same host but no rank count as output from a single process.
    """

    def __init__(self) -> None:
        self._exceptions: dict[_Process, FirstError] = {}
        self._errors: dict[_Process, FirstError] = {}
        self._hints: dict[_Process, FirstError] = {}

    def look(self, log_line: LogLine, number: int) -> None:
        """Examine a line no rule recognizes."""
        process = (log_line.rank, log_line.host)
        if process in self._exceptions or len(self._exceptions) >= MAX_PROCESSES:
            return
        text = log_line.text
        if _UNTELLING.search(text) or _OF_COMMUNICATION.search(text):
            return
        evidence = text.strip()[:MAX_EVIDENCE]
        seen = FirstError(number, evidence, log_line.rank, log_line.host)
        if EXCEPTION.search(text) or LAST_WORDS.search(text):
            self._exceptions[process] = replace(seen, is_exception=True)
        elif process not in self._errors and MARKED.search(text):
            self._errors[process] = replace(seen, is_marked=True)
        elif process not in self._hints and _HINT.search(text):
            self._hints[process] = seen

    def note_progress(self) -> None:
        """Forget all errors up to now, since training survived them."""
        self._exceptions.clear()
        self._errors.clear()
        self._hints.clear()

    def forget_warnings_of(self, thread: str) -> None:
        """Forget NCCL warnings from a thread that continued: `host:process:thread [device]`."""
        for errors in (self._errors, self._hints):
            for process, error in [*errors.items()]:
                if "NCCL WARN" in error.evidence and thread in error.evidence:
                    del errors[process]

    def candidates(self, *, has_failure: bool) -> Iterator[FirstError]:
        """Yield the exceptions, then the other errors, each group in log order.

        Lines merely looking like errors are included only if the log contains a known failure.
        """
        yield from self._exceptions.values()
        yield from self._errors.values()
        if has_failure:
            yield from self._hints.values()
