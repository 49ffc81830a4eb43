"""Finds known failures in log lines, and decides which one is the cause."""

import re
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from runbook.results.failures.error_lines import (
    continues,
    denies_failure,
    echoes_command,
    reports_error,
    supposes,
)
from runbook.results.failures.first_ended import WORDS as RANK_WORDS
from runbook.results.failures.first_ended import FirstEndedFinder, LookNext
from runbook.results.failures.first_error import (
    LINES_TO_EFFECT,
    SIGNS,
    FirstError,
    FirstErrorFinder,
)
from runbook.results.failures.harmless_lines import is_beside_the_point, is_harmless, is_information
from runbook.results.failures.kinds import (
    BUILD_HANGS,
    CANCELLED,
    INTERFACE,
    KILLED,
    LAUNCHER,
    OWN_ERROR,
    OWN_ERROR_EXAMPLES,
    PEER_DIED,
    PROGRAM_ENDED,
    RANK_HUNG,
    RENDEZVOUS,
    TIMEOUT,
)
from runbook.results.failures.log_line import LogLine, split_prefix
from runbook.results.failures.own_errors import OwnErrorFinder
from runbook.results.failures.rule import FailureKind, Level, NextStep, Rule
from runbook.results.failures.rules import RULES
from runbook.results.failures.signal_words import SIGNAL_WORDS
from runbook.results.failures.survived_exceptions import THREAD_HEADING, SurvivedExceptions
from runbook.results.failures.tracebacks import FRAME, without_margin

CONTEXT_LINES = 10
MAX_CONTEXT_LINES = 40
"""The last `CONTEXT_LINES` lines from a process are looked for in this many lines."""
LINES_TO_MARK = 10
"""A sentence without a mark may belong to a marked error up to this many lines later."""
_UNKNOWN_PROCESS = (None, "")
"""Rank and host for a line without a prefix."""
MAX_EVIDENCE = 300
MAX_TEXT = 4000
"""Only this many characters are examined in each line, since no program prints an error after them.
"""
_CHANGING_NUMBERS = re.compile(r"\d+(?:[:.,]\d+)+|\d{4,}")
"""Numbers that change from line to line, such as times and counters.

Shorter numbers do not match, as they may be exit codes or signals, which rules depend on.
"""
_NUMBERS = re.compile(r"\d+")
_SAME_DIGITS = str.maketrans("123456789", "000000000")
MAX_SHAPES = 10_000
MAX_LAST_LINES = 3
"""A build is considered hung only if at most this many lines follow the last output from it."""

_FRAME = re.compile(r'^\s*File "[^"]*", line \d+')
_CODE = re.compile(
    r"\s{4,}(?:"
    # A block header, either with body or comment, or cut off after a bracket or an operator.
    r"(?:if|elif|while|for|with|def|class) .*"
    r"(?::\s*(?:#.*|(?:return|raise|continue|break|pass)\b.*)?|[(\[{\\]\s*|\b(?:and|or)\s*)$"
    r"|return (?:[A-Za-z_][\w.]*(?:[(\[]|\s*$)|[A-Za-z_]\w*\.\w|not |f?['\"])"
    r"|raise \w+\(f['\"])"
)
"""Source text outside a traceback. Some programs print source code at the start of a log.

An indented sentence may begin with the same words, so the pattern requires the end of a statement.
"""
_RAISES = re.compile(r"\s*raise\b")

WAITING = frozenset((TIMEOUT.name, RANK_HUNG.name))
"""Failures a rank reports because it has waited for another rank."""
LOST_PEERS = WAITING | {PEER_DIED.name}
"""Failures for which the remedy is to look for the rank that failed first."""
EFFECTS = LOST_PEERS | {KILLED.name, PROGRAM_ENDED.name, CANCELLED.name}
"""Failures that usually follow from an error on another rank."""
MAY_BE_EFFECTS = WAITING | {RENDEZVOUS.name, INTERFACE.name, LAUNCHER.name, CANCELLED.name}
"""Failures with symptoms that may follow from a failure on another rank.

A rank that waits for a failed rank, or loses the rank with the store, blames the network or the
launcher. When one rank in a job step fails, Slurm cancels the others.
"""
_NCCL_GOES_ON = re.compile(r"(?P<thread>\S+:\d+:\d+ \[\d+\]) NCCL INFO (?!\S+:\d+ -> \d)")
"""A line showing that an NCCL thread has continued. Lines such as `init.cc:1491 -> 1`, which a
thread prints while it returns from an error, do not match.
"""
_NCCL_STARTED = re.compile(
    r"(?P<process>\S+:\d+:)\d+ \[\d+\] NCCL INFO "
    r".*(?:Init COMPLETE|Connected all (?:rings|trees)|Bootstrap timings total)"
)
"""A line showing that NCCL has started in a process in spite of all earlier warnings."""
_ENDS_BY_ITSELF = "destroy_process_group() was not called before program exit"
"""Warning that PyTorch prints on a rank where the program ends by itself.

It is not printed on a rank that is killed.
"""
_DEEPSPEED_ENDED_WELL = re.compile(r"launch\.py:\d+:main\] Process \d+ exits successfully")
_LOST_STORE = re.compile(r"\[W\d* .{0,40}(?:TCPStore|ProcessGroupNCCL)\.cpp:\d+\]")
"""A message from a PyTorch thread that still queried the store after the rank with the store had
ended.
"""
ROOT_CAUSE = "Root Cause (first observed failure):"
_ROOT_HOST = re.compile(r"^\s*host\s*: (\S+)")
_ROOT_RANK = re.compile(r"^\s*rank\s*: (\d+)")
_EXIT_STATUS = re.compile(r"exitcode\s*:")


class _WordsInLine(NamedTuple):
    """Whether a line contains a word for which it is examined more closely."""

    has_signal: bool
    """Whether a rule may match the line."""
    has_sign: bool
    """Whether the line may be an error no rule recognizes."""
    has_rank: bool
    """Whether the line may name the first rank to end."""


@dataclass
class Failure:
    """A known failure that appears in a log."""

    name: str
    line: int
    """Number of the first line showing the failure, counted from 1."""
    evidence: str
    count: int
    remedy: str
    level: Level
    decision: NextStep
    source: str
    rank: int | None = None
    host: str = ""
    also: str = ""
    """Another kind of failure that can print the same line."""
    check: str = ""
    """How to distinguish the two kinds of failure."""
    overcome: bool = False
    """Whether the training completed steps after the failure."""
    is_warning: bool = False
    """Whether all lines that show the failure are warnings: by their mark, or by their rule."""
    is_statement: bool = False
    """Whether only a `raise` statement in a traceback shows the failure."""
    last_line: int = 0
    """Number of the last line showing the failure."""
    is_marked: bool = False
    """Whether a line showing the failure is marked as an error, or names an exception."""

    @property
    def is_specific(self) -> bool:
        """Return whether this kind says more than just that the program raised an error."""
        return self.name != OWN_ERROR.name

    def may_explain(self, line: int) -> bool:
        """Return whether this failure may be the reason for an error in a certain line.

        Programs continue after warnings, and a `raise` statement is only source text, so these
        explain only an error that soon follows.
        """
        if not self.is_warning and not self.is_statement:
            return True
        return 0 <= line - self.last_line <= LINES_TO_EFFECT


class FailureFinder:
    """Examines log lines as they arrive.

    `found` and `cause` may be called at any time.
    """

    def __init__(self) -> None:
        self._found: dict[str, Failure] = {}
        self._context: deque[str] = deque(maxlen=MAX_CONTEXT_LINES)
        # A warning printed at each step is examined only once, since it takes 0.1 to 0.4 ms to
        # apply all rules.
        self._harmless_shapes: set[str] = set()
        self._words: dict[str, _WordsInLine] = {}
        """Words found in lines so far; each key is a line with all digits replaced by zeros."""
        self._in_frame = False
        self._build: Failure | None = None
        self._lines_since_build = 0
        self._num_records = 0
        self._own_errors = OwnErrorFinder()
        self._first_error = FirstErrorFinder()
        self._first_ended = FirstEndedFinder()
        self._ignored_errors = SurvivedExceptions()
        self._thread_errors = SurvivedExceptions(THREAD_HEADING)
        self._in_root_cause = False
        self._root_host = ""
        self._root_rank: int | None = None
        self._root: LookNext | None = None
        """The rank that torchrun names as the root cause."""
        self._ended_ranks: set[int] = set()
        """Ranks on which the program has ended and was not killed."""

    def look(self, line: str, number: int) -> None:
        """Examine a log line."""
        self._lines_since_build += 1
        self._look_for_build(line, number)
        self._look_for_root_cause(line, number)
        self._drop_survived_warnings(line)
        is_ignored = self._ignored_errors.contains(line[:MAX_TEXT])
        is_of_thread = self._thread_errors.contains(line[:MAX_TEXT])
        is_source = self._is_source(line) or is_ignored
        words_in_line = self._words_of(line[:MAX_TEXT].lower())
        rule = None
        if words_in_line.has_signal and not is_source:
            log_line = split_prefix(line[:MAX_TEXT])
            rule = self._rule_of(log_line)
            # A thread does not end the program if it has lost a connection, and threads in a
            # tracker lose theirs at the end of every run.
            is_lost_thread = is_of_thread and rule is not None and rule.kind is PEER_DIED
            if (
                rule is not None
                and not is_lost_thread
                and not self._is_after_effect(rule, log_line)
            ):
                self._keep(rule, log_line, line, number)

        if rule is None and words_in_line.has_sign and not is_source:
            log_line = split_prefix(line[:MAX_TEXT])
            if not is_beside_the_point(log_line.text):
                self._first_error.look(log_line, number)

        if words_in_line.has_rank:
            self._first_ended.look(line[:MAX_TEXT], number)
        if _ENDS_BY_ITSELF in line:
            self._note_end(line)

        self._own_errors.look(line[:MAX_TEXT], self._context, number, rule)
        self._context.append(line[:MAX_TEXT])

    def next_file(self) -> None:
        """Note that the following lines are from a different file."""
        self._own_errors.next_file()

    def note_progress(self, num_records: int) -> None:
        """Set the number of steps the log has shown so far.

        A failure that training survived does not explain the end.
        """
        has_progress = num_records > self._num_records
        # The number may also fall, since a reader drops a step another rank has already printed.
        self._num_records = num_records
        if not has_progress:
            return
        self._own_errors.note_progress(num_records)
        self._first_error.note_progress()
        self._first_ended.forget()
        for name, failure in [*self._found.items()]:
            if failure.level is Level.CAUSE:
                failure.overcome = True
            else:
                del self._found[name]

    def found(self) -> list[Failure]:
        """Return all failures, ordered by first line.

        A build counts as hung only if the log ends with its output.
        """
        failures = [*self._found.values()]
        own_error = self._own_error()
        if own_error is not None:
            failures.append(own_error)
        has_error = any(self._first_error.candidates(has_failure=False))
        nothing_else = not self._num_records and not failures and not has_error
        if self._build is not None and nothing_else and self._lines_since_build <= MAX_LAST_LINES:
            return [self._build]
        return sorted(failures, key=lambda failure: failure.line)

    def first_error(self) -> FirstError | None:
        """Return the first error no rule recognizes, in addition to the failures in `found`.

        Return None if the log contains a failure this error did not cause.
        """
        failures = self.found()
        candidates = [*self._first_error.candidates(has_failure=bool(failures))]
        survived = _survived_messages(candidates, failures)
        for error in candidates:
            if not error.is_exception and _message(error) in survived:
                continue
            if all(_may_follow(failure, error) for failure in failures):
                precedes_all = all(_follows(failure, error) for failure in failures)
                names = tuple(failure.name for failure in failures)
                return replace(
                    error,
                    followed_by=names,
                    precedes_all=precedes_all,
                    is_near_lost_peers=_is_near_lost_peers(failures, error),
                )

        return None

    def cause(self) -> Failure | None:
        """Return the failure considered the cause: the earliest one on the strongest level.

        If torchrun names a rank as the root cause, prefer a failure on that rank.
        """
        return find_cause(self.found(), self._root_rank)

    def look_next(self) -> LookNext | None:
        """Return the rank or node to read output from next, if the log names one.

        Return None if the log shows a cause other than a lost or waiting rank.
        """
        cause = self.cause()
        if cause is None or cause.name not in LOST_PEERS:
            return None
        return self._root or self._first_ended.first

    def _own_error(self) -> Failure | None:
        """Return the error raised by the program itself, which no rule recognizes.

        Return None if there is no such error, or if a rule recognizes the cause.
        """
        error = self._own_errors.first(self._root_rank)
        if error is None:
            return None
        level = OWN_ERROR.level
        for failure in self._found.values():
            is_cause = failure.level is Level.CAUSE and not failure.overcome
            if is_cause and failure.may_explain(error.line):
                return None
            # An error explains why another rank waited for this one, but it does not explain other
            # failures.
            is_earlier = failure.line < error.line and failure.level is Level.SYMPTOM
            if is_earlier and failure.name not in WAITING:
                level = Level.SYMPTOM

        return Failure(
            name=OWN_ERROR.name,
            line=error.line,
            evidence=error.evidence[:MAX_EVIDENCE],
            count=self._own_errors.count(),
            remedy=OWN_ERROR.remedy,
            level=level,
            decision=error.decision,
            source="",
            rank=error.rank,
            host=error.host,
        )

    def _words_of(self, lowered: str) -> _WordsInLine:
        """Return which words a lower-case line contains.

        Most lines differ from an earlier line only in digits.
        """
        shape = lowered.translate(_SAME_DIGITS)
        words_in_line = self._words.get(shape)
        if words_in_line is not None:
            return words_in_line
        words_in_line = _WordsInLine(
            any(word in lowered for word in SIGNAL_WORDS),
            any(sign in lowered for sign in SIGNS),
            any(word in lowered for word in RANK_WORDS),
        )
        if len(self._words) < MAX_SHAPES:
            self._words[shape] = words_in_line
        return words_in_line

    def _rule_of(self, log_line: LogLine) -> Rule | None:
        """Return the first rule that matches the text, or None."""
        text = log_line.text
        shape = _CHANGING_NUMBERS.sub("0", text)
        if shape in self._harmless_shapes or is_harmless(text):
            return None
        if continues(text) or denies_failure(text) or supposes(text) or echoes_command(text):
            return None
        only_in_warnings = is_information(text)
        depends_on_context = False
        for rule in RULES:
            if only_in_warnings and not rule.in_warnings:
                continue
            if rule.matches(text):
                if self._has_context(rule, log_line):
                    return rule
                depends_on_context = True

        if not depends_on_context and len(self._harmless_shapes) < MAX_SHAPES:
            self._harmless_shapes.add(shape)
        return None

    def _has_context(self, rule: Rule, log_line: LogLine) -> bool:
        """Return whether the lines before a line contain what the rule requires there."""
        if rule.context is None:
            return True
        # Few lines match, so few lines are split into prefix and text.
        if not any(rule.context.search(line) for line in self._context):
            return False
        return any(rule.context.search(line) for line in self._context_of(log_line))

    def _context_of(self, log_line: LogLine) -> list[str]:
        """Return the last lines that the process behind `log_line` may have written before it.

        Other ranks write between these lines. A line without a prefix may come from any process.
        """
        process = (log_line.rank, log_line.host)
        own_lines: list[str] = []
        other_lines: list[str] = []
        for distance, line in enumerate(reversed(self._context), start=1):
            earlier = split_prefix(line)
            if (earlier.rank, earlier.host) in (_UNKNOWN_PROCESS, process):
                own_lines.append(line)
            elif process == _UNKNOWN_PROCESS and distance <= CONTEXT_LINES:
                other_lines.append(line)
        return own_lines[:CONTEXT_LINES] + other_lines

    def _keep(
        self,
        rule: Rule,
        log_line: LogLine,
        line: str,
        number: int,
    ) -> None:
        name = rule.kind.name
        level = rule.level or rule.kind.level
        is_warning = rule.may_go_on or is_information(log_line.text)
        earlier = self._found.get(name)
        if (
            earlier is not None
            and earlier.level.strength >= level.strength
            and not earlier.overcome
        ):
            earlier.count += 1
            earlier.last_line = number
            earlier.is_marked = earlier.is_marked or reports_error(log_line.text)
            earlier.is_warning = earlier.is_warning and is_warning
            earlier.is_statement = earlier.is_statement and bool(_RAISES.match(log_line.text))
            return

        count = 1 if earlier is None else earlier.count + 1
        self._found[name] = Failure(
            name=name,
            line=number,
            evidence=line.strip()[:MAX_EVIDENCE],
            count=count,
            remedy=rule.kind.remedy,
            level=level,
            decision=rule.decision or rule.kind.decision,
            source=rule.source,
            rank=log_line.rank,
            host=log_line.host,
            also=rule.also.name if rule.also else "",
            check=rule.check,
            is_warning=is_warning,
            is_statement=bool(_RAISES.match(log_line.text)),
            last_line=number,
            is_marked=reports_error(log_line.text),
        )

    def _look_for_build(self, line: str, number: int) -> None:
        if any(end in line for end in BUILD_HANGS.ends):
            self._build = None
        elif any(sentence in line for sentence in BUILD_HANGS.words):
            self._build = Failure(
                name=BUILD_HANGS.kind.name,
                line=number,
                evidence=line.strip()[:MAX_EVIDENCE],
                count=1,
                remedy=BUILD_HANGS.kind.remedy,
                level=BUILD_HANGS.kind.level,
                decision=BUILD_HANGS.kind.decision,
                source=BUILD_HANGS.source,
            )
            self._lines_since_build = 0

    def _is_after_effect(self, rule: Rule, log_line: LogLine) -> bool:
        """Return whether a lost connection follows from an end that other lines explain.

        An unexplained end is an error no rule recognizes, or a program that ended by itself.
        """
        if rule.kind is not PEER_DIED:
            return False
        return self._own_errors.has_error or self._is_of_shutdown(log_line)

    def _is_of_shutdown(self, log_line: LogLine) -> bool:
        """Return whether a rank lost the store only because training has ended."""
        if not _LOST_STORE.search(log_line.text):
            return False
        if log_line.rank in self._ended_ranks:
            return True
        last_lines = [*self._context][-CONTEXT_LINES:]
        return any(_DEEPSPEED_ENDED_WELL.search(line) for line in last_lines)

    def _note_end(self, line: str) -> None:
        """Store the rank on which the program has ended by itself."""
        rank = split_prefix(line[:MAX_TEXT]).rank
        if rank is not None:
            self._ended_ranks.add(rank)

    def _is_source(self, line: str) -> bool:
        """Return whether a line shows source text, for example in a traceback.

        Source text contains argument and function names (`store = TCPStore(host, timeout)`), but
        does not say what happened. A `raise` statement does say so, and some logs end with one.
        """
        if not self._in_frame and FRAME not in line:
            return bool(_CODE.match(line))
        text = without_margin(split_prefix(line[:MAX_TEXT]).text)
        if _FRAME.match(text):
            self._in_frame = True
            return True

        was_in_frame = self._in_frame
        self._in_frame = False
        return was_in_frame and text.startswith("    ") and not _RAISES.match(text)

    def _drop_survived_warnings(self, line: str) -> None:
        """Forget warnings from a process in which NCCL started in spite of them.

        NCCL tries networks and features one after the other, and prints a warning about each it
        cannot use.
        """
        if "NCCL INFO" not in line:
            return
        going_on = _NCCL_GOES_ON.search(line[:MAX_TEXT])
        if going_on is not None:
            self._first_error.forget_warnings_of(going_on["thread"])
        started = _NCCL_STARTED.search(line[:MAX_TEXT])
        if started is None:
            return
        for name, failure in [*self._found.items()]:
            is_of_process = started["process"] in failure.evidence
            if is_of_process and "NCCL WARN" in failure.evidence:
                del self._found[name]

    def _look_for_root_cause(self, line: str, number: int) -> None:
        if ROOT_CAUSE in line:
            self._in_root_cause = True
            self._root_host = ""
        elif self._in_root_cause and (host := _ROOT_HOST.match(line)):
            self._root_host = host[1]
        elif self._in_root_cause and (rank := _ROOT_RANK.match(line)):
            self._root_rank = int(rank[1])
            self._root = LookNext(number, line.strip(), self._root_rank, self._root_host)
        elif _EXIT_STATUS.search(line):
            self._in_root_cause = False


def _may_follow(failure: Failure, error: FirstError) -> bool:
    """Return whether a failure may result from an error no rule recognizes."""
    if _follows(failure, error):
        return not _is_survived(error, failure)
    # Output from the failed rank may come after output from ranks losing the connection to it.
    are_ranks_known = error.rank is not None and failure.rank is not None
    is_of_other_rank = are_ranks_known and error.rank != failure.rank
    is_effect = failure.name in EFFECTS or failure.level is not Level.CAUSE
    return error.is_exception and is_of_other_rank and is_effect and failure.is_specific


def _is_near_lost_peers(failures: Sequence[Failure], error: FirstError) -> bool:
    """Return whether all failures are lost or waiting ranks, and one follows soon after the error.

    A rank waits for minutes before it reports a timeout. If a line just before this report merely
    contains words like "failed", that line is rarely the reason.
    """
    effects = EFFECTS if error.is_marked else LOST_PEERS
    if not all(failure.name in effects for failure in failures):
        return False
    has_waited = any(failure.name in WAITING for failure in failures)
    if has_waited and not error.is_marked and not error.is_exception:
        return False
    return any(failure.line - error.line <= LINES_TO_EFFECT for failure in failures)


def _follows(failure: Failure, error: FirstError) -> bool:
    """Return whether a failure comes after an error, and is of a kind usually caused by errors."""
    return failure.name in EFFECTS and error.line < failure.line


def _is_survived(error: FirstError, effect: Failure) -> bool:
    """Return whether the rank with the error continued.

    The rank continued if it later waited for, or lost, other ranks.
    """
    is_same_rank = error.rank is not None and error.rank == effect.rank
    return is_same_rank and (effect.name in WAITING or effect.name == PEER_DIED.name)


def _survived_messages(candidates: Sequence[FirstError], failures: Sequence[Failure]) -> set[str]:
    """Return the messages that did not stop a rank, and so are not fatal."""
    messages = set[str]()
    for error in candidates:
        if any(_is_survived(error, failure) for failure in failures):
            messages.add(_message(error))
    return messages


def _message(error: FirstError) -> str:
    """Return an error's text with all numbers replaced, since they may differ between ranks."""
    return _NUMBERS.sub("0", error.evidence)


def find_cause(failures: Sequence[Failure], root_rank: int | None = None) -> Failure | None:
    """Return the earliest failure on the strongest level, preferably on the rank `root_rank`.

    A symptom on a rank takes precedence over symptoms on ranks waiting for it, because the latter
    may be printed first. A line that reports an error takes precedence over a warning, since
    programs also continue after warnings. A warning that is not soon followed by an error counts
    only if no error was reported, whatever its level. A sentence not marked as an error gives way
    to a marked one that comes much later. Return None if there is no failure.
    """
    last = _without_doubtful([failure for failure in failures if not failure.overcome])
    if not last:
        return None
    strongest = max(failure.level.strength for failure in last)
    strong = [failure for failure in last if failure.level.strength == strongest]
    specific = _without_own_error(strong)
    reported = [failure for failure in specific if _is_reported(failure)]
    if all(failure.name in MAY_BE_EFFECTS for failure in reported):
        # If ranks do not meet, a warning just before the error may have reported the cause.
        reported = specific
    reported = _without_distant_sentences(reported)
    of_rank_itself = [failure for failure in reported if not may_be_effect(failure)]
    return _earliest(of_rank_itself or reported, root_rank)


def _without_distant_sentences(failures: Sequence[Failure]) -> list[Failure]:
    """Return the failures except unmarked ones that end well before the first marked one.

    Other ranks and programs also print sentences that resemble those about a failure. A sentence
    about an error is close to the error.
    """
    marked_lines = [failure.line for failure in failures if failure.is_marked]
    if not marked_lines:
        return [*failures]
    first_marked = min(marked_lines)
    return [
        failure
        for failure in failures
        if failure.is_marked or failure.last_line >= first_marked - LINES_TO_MARK
    ]


def _without_own_error(failures: Sequence[Failure]) -> list[Failure]:
    """Return the specific failures, or the program's own error if these are only warnings."""
    specific = [failure for failure in failures if failure.is_specific]
    if any(_is_reported(failure) for failure in specific):
        return specific
    return [failure for failure in failures if not failure.is_specific] or specific


def _is_reported(failure: Failure) -> bool:
    """Return whether a line reports the failure as an error."""
    return not failure.is_warning and not failure.is_statement


def _without_doubtful(failures: Sequence[Failure]) -> list[Failure]:
    """Return the failures without the warnings that explain none of the reported errors.

    Return all failures if none is reported as an error.
    """
    reported = [failure for failure in failures if _is_reported(failure)]
    if not reported:
        return [*failures]
    return [
        failure
        for failure in failures
        if _is_reported(failure) or any(failure.may_explain(error.line) for error in reported)
    ]


def may_be_effect(failure: Failure) -> bool:
    """Return whether a failure may result from another failure in the log."""
    is_symptom = failure.level is Level.SYMPTOM
    return failure.level is Level.CONSEQUENCE or (is_symptom and failure.name in MAY_BE_EFFECTS)


def _earliest(failures: Sequence[Failure], root_rank: int | None) -> Failure:
    of_root = [failure for failure in failures if failure.rank == root_rank]
    candidates = of_root if root_rank is not None and of_root else failures
    return min(candidates, key=lambda failure: failure.line)


def find_failures(lines: Iterable[str]) -> list[Failure]:
    """Return the known failures in these lines.

    >>> lines = ["step 1", "error: *** JOB 7 CANCELLED DUE TO TIME LIMIT ***"]
    >>> [(failure.name, failure.line) for failure in find_failures(lines)]
    [('time limit', 2)]
    """
    finder = FailureFinder()
    for number, line in enumerate(lines, start=1):
        finder.look(line, number)
    return finder.found()


def anchor(name: str) -> str:
    """Return the anchor for a failure on the docs page, as generated by GitHub and mkdocs.

    >>> anchor("NaN in the loss")
    'nan-in-the-loss'
    """
    return name.lower().replace(" ", "-")


def examples_of(kind: FailureKind) -> list[tuple[str, str]]:
    """Return log lines showing a kind of failure, each with its source."""
    examples = [(rule.example, rule.source) for rule in RULES if rule.kind is kind]
    if kind is BUILD_HANGS.kind:
        examples += [(sentence, BUILD_HANGS.source) for sentence in BUILD_HANGS.words]
    if kind is OWN_ERROR:
        examples += OWN_ERROR_EXAMPLES
    return examples
