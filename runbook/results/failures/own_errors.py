"""Finds fatal errors no rule recognizes, with exception, message, place and rank.

A rule knows what a line means. All that is known about these errors is that the process wrote
nothing after them, so they are used only if no rule matches.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from runbook.results.failures.log_line import LogLine, split_prefix
from runbook.results.failures.rule import Level, NextStep, Rule
from runbook.results.failures.tracebacks import (
    ARGUMENT_ERROR,
    BEGINNINGS,
    FRAME,
    Join,
    RaisedError,
    TracebackReader,
)
from runbook.results.messages import ResultMessage

DETERMINISTIC = frozenset(
    (
        "TypeError",
        "AttributeError",
        "NameError",
        "UnboundLocalError",
        "SyntaxError",
        "IndentationError",
        "AssertionError",
        "ValueError",
        "KeyError",
        "IndexError",
        "NotImplementedError",
        "ZeroDivisionError",
        ARGUMENT_ERROR,
    )
)
"""Errors that recur as long as the program, the arguments and the data stay the same."""
_REPORTS_OF_OTHERS = frozenset(
    (
        "KeyboardInterrupt",
        "SystemExit",
        "GeneratorExit",
        "SignalException",
        "ChildFailedError",
        "CalledProcessError",
        "RemoteTraceback",
        "RayTaskError",
        "ProcessRaisedException",
        "ProcessExitedException",
    )
)
"""Exceptions a process raises when another process fails, or when a user ends the process."""
_OF_COMMUNICATION = re.compile(
    r"Dist\w*Error|Connection|BrokenPipe|EOFError|Timeout|ChildFailed|NCCL|nccl|[Gg]loo|[Ss]ocket"
    r"|TCPStore|[Ww]atchdog"
)
"""Errors a rank raises because it can no longer reach another rank."""
LINES_OF_MESSAGE = 10
"""If a rule matches one of this many lines after an exception, the error counts as a known failure.
"""
MAX_LINES_AFTER = 300
"""A process that prints more lines than this after a traceback is still running."""
LINES_BETWEEN = 50
"""A process that prints this many lines between two tracebacks has survived the first one."""
MAX_MESSAGE = 200
MAX_PROCESSES = 10_000


@dataclass(frozen=True)
class OwnError:
    """An error in the program that no rule recognizes."""

    raised: RaisedError
    line: int
    """Number of the line with the exception in the log, counted from 1."""
    rank: int | None
    host: str
    had_steps: bool
    """Whether the training had completed a step before the error."""

    @property
    def evidence(self) -> str:
        """Return the error as readable text: exception, message and where it was raised."""
        error = self.raised.exception
        if self.raised.message:
            message = self.raised.message[:MAX_MESSAGE]
            error = ResultMessage.EXCEPTION.fill(exception=error, message=message)
        if self.raised.place:
            return ResultMessage.RAISED_AT.fill(error=error, place=self.raised.place)
        return error

    @property
    def decision(self) -> NextStep:
        """Return what to do with the job. This is known only for errors that will recur."""
        name = self.raised.exception.rpartition(".")[2]
        if name in DETERMINISTIC and not self.had_steps:
            return NextStep.FIX_FIRST
        return NextStep.UNKNOWN


class _Process:
    """Output from a process.

    All lines from a host that name no rank count as output from one process.
    """

    def __init__(self) -> None:
        self.reader = TracebackReader()
        self.error: OwnError | None = None
        self.error_chain = 0
        self.known_chain = 0
        """The newest traceback chain in which a rule recognized a line."""
        self.lines_after = 0
        self.needs_message = False

    def drop_error(self) -> None:
        """Forget the error, because it turned out to be known or to concern another process."""
        self.error = None
        self.needs_message = False


class OwnErrorFinder:
    """Examines lines as they arrive, and stores the error each process ended with."""

    def __init__(self) -> None:
        self.has_error = False
        """Whether a process raised an error other than a lost connection to another process."""
        self._processes: dict[tuple[int | None, str], _Process] = {}
        self._num_records = 0
        self._ended_badly = False
        """Whether a launcher has reported a failed process since the first error."""
        self._has_steps_here = False
        """Whether the current file contains training steps."""
        self._beside: list[OwnError] = []
        """Errors a launcher reported in a file without steps, such as the stderr of a job."""
        self._is_beside_newest = False
        self._of_earlier_files: list[OwnError] = []
        """Other errors from earlier files.

        If a later file contains a step, training survived these errors.
        """

    def look(
        self,
        line: str,
        lines_before: Sequence[str],
        number: int,
        rule: Rule | None,
    ) -> None:
        """Examine one line.

        `lines_before` are the lines before this line, and `rule` is the rule that matches it.
        """
        begins = any(beginning in line for beginning in BEGINNINGS)
        if not begins and not self._processes:
            return
        if rule is not None and _level_of(rule) is Level.CONSEQUENCE:
            self._ended_badly = True
        log_line = split_prefix(line)
        process = self._process_of(log_line, may_be_new=begins)
        if process is None:
            return

        self._look_after_error(process, log_line.text, rule)
        reader = process.reader
        was_reading = reader.is_reading
        before = ""
        # A log with stacks from many ranks has thousands of frames. Only the first frame in each
        # stack starts a traceback.
        if begins and not (was_reading and FRAME in line):
            before = _last_of_process(lines_before, log_line)
        raised = reader.read(log_line.text, before)
        if rule is not None and (was_reading or reader.is_reading or raised is not None):
            process.known_chain = reader.chain
        if raised is not None:
            had_steps = self._num_records > 0
            error = OwnError(raised, number, log_line.rank, log_line.host, had_steps)
            self._take(process, error, log_line.text)

    def _process_of(self, log_line: LogLine, *, may_be_new: bool) -> _Process | None:
        """Return the process that wrote a line.

        Return None if the process has not raised an exception up to now.
        """
        key = (log_line.rank, log_line.host)
        if may_be_new and len(self._processes) < MAX_PROCESSES:
            return self._processes.setdefault(key, _Process())
        return self._processes.get(key)

    def next_file(self) -> None:
        """Record that the following lines are from a different file.

        The relative order of lines in two files is unknown. If a launcher reported an error in this
        file, steps in the next file therefore do not cancel the error, but steps in later files do.
        """
        errors = self._errors_here()
        if self._has_steps_here:
            self._is_beside_newest = False
            self._of_earlier_files += errors
        elif self._ended_badly and errors:
            self._beside += errors
            self._is_beside_newest = True
        else:
            self._of_earlier_files += errors
        self._processes.clear()
        self._ended_badly = False
        self._has_steps_here = False

    def note_progress(self, num_records: int) -> None:
        """Forget the errors that training survived."""
        self._num_records = num_records
        self._processes.clear()
        self._ended_badly = False
        self._has_steps_here = True
        self._of_earlier_files = []
        if self._is_beside_newest:
            self._beside = [replace(error, had_steps=True) for error in self._beside]
        else:
            self._beside = []

    def first(self, root_rank: int | None = None) -> OwnError | None:
        """Return the first error raised, preferably by the rank `root_rank`.

        Return None if no process ended with an error.
        """
        errors = self._errors()
        of_root = [error for error in errors if error.rank == root_rank]
        if root_rank is not None and of_root:
            errors = of_root
        return min(errors, key=lambda error: error.line, default=None)

    def count(self) -> int:
        """Return the number of processes that ended with an error no rule recognizes."""
        return len(self._errors())

    def _errors(self) -> list[OwnError]:
        return [*self._beside, *self._of_earlier_files, *self._errors_here()]

    def _errors_here(self) -> list[OwnError]:
        """Return the errors in the file being read."""
        errors = []
        for process in self._processes.values():
            goes_on = process.lines_after > MAX_LINES_AFTER and not self._ended_badly
            if process.error is not None and not goes_on:
                errors.append(process.error)

        return errors

    @staticmethod
    def _look_after_error(process: _Process, text: str, rule: Rule | None) -> None:
        """Count a line after an exception, and use it as the message if that is missing."""
        error = process.error
        if error is None:
            return
        process.lines_after += 1
        if process.needs_message and text.strip():
            raised = replace(error.raised, message=text.strip())
            process.error = replace(error, raised=raised)
            process.needs_message = False

        if rule is not None and process.lines_after <= LINES_OF_MESSAGE:
            decision = rule.decision or rule.kind.decision
            # `Aborted` and `Killed` show how a process ended, but not why.
            if _level_of(rule) is not Level.CONSEQUENCE and decision is NextStep.FIX_FIRST:
                process.drop_error()

    def _take(self, process: _Process, error: OwnError, text: str) -> None:
        """Store an error, unless it is about a different process or belongs to a known failure."""
        chain = process.reader.chain
        if _is_about_another_process(error.raised):
            process.known_chain = chain
        else:
            self.has_error = True

        is_of_chain = process.error is not None and process.error_chain == chain
        if process.known_chain == chain:
            if is_of_chain:
                process.drop_error()
        elif error.raised.is_fatal and self._is_telling(process, error.raised, is_of_chain):
            process.error = error
            process.error_chain = chain
            process.lines_after = 0
            process.needs_message = not error.raised.message and text.rstrip().endswith(":")

    def _is_telling(self, process: _Process, raised: RaisedError, is_of_chain: bool) -> bool:
        """Return whether an error explains better than the previous one why the process ended."""
        if process.error is None:
            return True
        if is_of_chain:
            return raised.join is not Join.FOLLOWS
        return process.lines_after > LINES_BETWEEN and not self._ended_badly


def _is_about_another_process(raised: RaisedError) -> bool:
    name = raised.exception.rpartition(".")[2]
    if name in DETERMINISTIC:
        # For example, KeyError: 'nccl_timeout' contains a word about connections, but a lost
        # connection never raises a KeyError.
        return False
    if name in _REPORTS_OF_OTHERS:
        return True
    return bool(_OF_COMMUNICATION.search(f"{raised.exception}: {raised.message}"))


def _last_of_process(lines: Sequence[str], log_line: LogLine) -> str:
    """Return the text in the last of `lines` from the same process as `log_line`, or ''."""
    for line in reversed(lines):
        candidate = split_prefix(line)
        if (candidate.rank, candidate.host) == (log_line.rank, log_line.host):
            return candidate.text
    return ""


def _level_of(rule: Rule) -> Level:
    return rule.level or rule.kind.level
