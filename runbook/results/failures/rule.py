"""Types for the failure table: a kind of failure, and a rule that finds it in a line."""

import re
from dataclasses import dataclass, field

from runbook.plan_file.text_enum import StrEnum
from runbook.results.failures.error_lines import reports_error
from runbook.results.messages import ResultMessage


class Level(StrEnum):
    """How directly a line shows the cause.

    Failures with the strongest level in a log are the candidates for the cause.
    """

    CAUSE = "cause"
    """The line names the cause."""
    SYMPTOM = "symptom"
    """The line shows an effect that may have different causes."""
    CONSEQUENCE = "consequence"
    """The line was printed because another rank or process ended."""

    @property
    def strength(self) -> int:
        """Return a number that is larger the stronger the level is."""
        return _STRENGTHS[self]


_STRENGTHS = {Level.CAUSE: 2, Level.SYMPTOM: 1, Level.CONSEQUENCE: 0}


class NextStep(StrEnum):
    """What to do with the job before it is submitted again."""

    FIX_FIRST = "fix_first"
    RETRY_SAME = "retry_same"
    RETRY_OTHER_NODE = "retry_other_node"
    RETRY_AFTER_WAIT = "retry_after_wait"
    UNKNOWN = "unknown"

    @property
    def advice(self) -> str:
        """Return the decision as a sentence."""
        return _ADVICE[self]


_ADVICE = {
    NextStep.FIX_FIRST: "fix this first; the same job would fail again.",
    NextStep.RETRY_SAME: "submit the job again as it is.",
    NextStep.RETRY_OTHER_NODE: "submit it again without the node that failed.",
    NextStep.RETRY_AFTER_WAIT: "wait some minutes, then submit it again.",
    NextStep.UNKNOWN: "unclear from this log; if the same happens twice, find the cause first.",
}


@dataclass(frozen=True, kw_only=True)
class FailureKind:
    """A kind of failure that ends jobs, with a remedy."""

    name: str
    remedy: str
    decision: NextStep = NextStep.FIX_FIRST
    level: Level = Level.CAUSE


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule that recognizes a kind of failure in a line.

    The first rule that matches a line decides what it means.
    """

    kind: FailureKind
    patterns: tuple[str, ...] = ()
    """Regular expressions.

    At least one of them must match the text in the line, without prefixes.
    """
    error_patterns: tuple[str, ...] = ()
    """Regular expressions that only count in lines reporting an error.

    Programs also print the words in these patterns when they announce what they will do.
    """
    example: str
    """A line printed by a program and recognized by the rule."""
    source: str
    """Where the example was found: a public thread, or the program that prints the line."""
    unless: str = ""
    """A pattern that must not match the line."""
    counterexample: str = ""
    """A line the rule must not match."""
    after: str = ""
    """A pattern that must match one of the ten lines before the line."""
    example_before: str = ""
    """A line that must precede the example, and which `after` matches."""
    level: Level | None = None
    """Level for this line; None means the level set for the kind of failure."""
    decision: NextStep | None = None
    """Decision for this line; None means the decision set for the kind of failure."""
    also: FailureKind | None = None
    """Another kind of failure that can print the same line."""
    check: str = ""
    """How to distinguish the two kinds."""
    in_warnings: bool = False
    """Whether the rule also applies to lines marked as information or warnings."""
    may_go_on: bool = False
    """Whether programs often continue after the line. If so, it counts as a warning."""
    expression: re.Pattern[str] | None = field(
        init=False,
        repr=False,
        compare=False,
    )
    error_expression: re.Pattern[str] | None = field(
        init=False,
        repr=False,
        compare=False,
    )
    exception: re.Pattern[str] | None = field(
        init=False,
        repr=False,
        compare=False,
    )
    context: re.Pattern[str] | None = field(
        init=False,
        repr=False,
        compare=False,
    )

    def __post_init__(self) -> None:
        """Compile the patterns, and reject a rule that cannot be tested."""
        if not self.example or not self.source:
            message = ResultMessage.RULE_NOT_CHECKABLE.fill(pattern=repr(self.first_pattern))
            raise ValueError(message)
        if bool(self.also) != bool(self.check):
            raise ValueError(
                f"the rule of {self.first_pattern!r} needs a check for its second kind"
            )
        object.__setattr__(self, "expression", _any_of(self.patterns))
        object.__setattr__(self, "error_expression", _any_of(self.error_patterns))
        object.__setattr__(self, "exception", re.compile(self.unless) if self.unless else None)
        object.__setattr__(self, "context", re.compile(self.after) if self.after else None)

    def matches(self, text: str) -> bool:
        """Return whether a line shows this failure, regardless of the lines around it."""
        if self.exception is not None and self.exception.search(text):
            return False
        if self.expression is not None and _begins_word(self.expression, text):
            return True
        if self.error_expression is None or not reports_error(text):
            return False
        return _begins_word(self.error_expression, text)

    @property
    def first_pattern(self) -> str:
        """Return the pattern that messages use to name the rule."""
        return (*self.patterns, *self.error_patterns, "")[0]


def _any_of(patterns: tuple[str, ...]) -> re.Pattern[str] | None:
    return re.compile("|".join(patterns)) if patterns else None


def _begins_word(expression: re.Pattern[str], text: str) -> bool:
    """Return whether an expression matches at the beginning of a word."""
    match = expression.search(text)
    while match is not None and is_inside_word(text, match.start()):
        match = expression.search(text, match.start() + 1)
    return match is not None


def is_inside_word(text: str, position: int) -> bool:
    """Return whether a position is inside a word, where no pattern may begin.

    Patterns match only at the beginning of a word, so `link down` does not match `blink down`. In a
    class name, a capital letter after a lower-case letter starts a new word.

    >>> is_inside_word("bootstrap", 3)
    True
    >>> is_inside_word("MyError", 2)
    False
    """
    before = text[position - 1 : position]
    first = text[position : position + 1]
    is_letter_pair = before.isalpha() and first.isalpha()
    return is_letter_pair and not (before.islower() and first.isupper())
