"""Assert the code and the values in a message, so that anyone can improve its text."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from runbook.core.checks import Check
from runbook.params.problems import InvalidParams, Problem
from runbook.plan_file.diagnostics import Code, Message, Statement
from runbook.plan_file.errors import CodedError


@dataclass(frozen=True)
class Part:
    """A value that is only partly known, such as a path below a temporary folder."""

    texts: tuple[object, ...]

    @property
    def pattern(self) -> str:
        """Return a regular expression for the known texts, in this order."""
        return ".*?".join(_known_pattern(text) for text in self.texts)


def containing(*texts: object) -> Part:
    """Return a value that matches every string that contains these strings, in this order.

    A string may also be a message, such as `TokenMessage.PLACE_IN_LINES.of(line=3)`, with or
    without its values.
    """
    return Part(texts)


def is_value(actual: object, expected: object) -> bool:
    """Return whether a value in a message equals the expected one, as a value or as text."""
    if isinstance(expected, Part):
        return re.search(expected.pattern, str(actual), re.DOTALL) is not None
    if isinstance(expected, Statement):
        return is_statement(actual, expected)
    if isinstance(expected, Message):
        return isinstance(actual, Statement) and actual.message is expected
    return actual == expected or str(actual) == str(expected)


def is_statement(actual: object, expected: Statement) -> bool:
    """Return whether a value is a statement with the same message and at least the expected values."""
    return (
        isinstance(actual, Statement)
        and actual.message is expected.message
        and all(
            name in actual.values and is_value(actual.values[name], value)
            for name, value in expected.values.items()
        )
    )


@contextmanager
def refuses(
    error: type[CodedError], message: Message | Statement, /, **values: object
) -> Iterator[pytest.ExceptionInfo[CodedError]]:
    """Expect an error with this code and at least these values."""
    if isinstance(message, Statement):
        values = dict(message.values)
        message = message.message
    with pytest.raises(error) as caught:
        yield caught
    assert_about(caught.value, message, **values)


def assert_about(error: CodedError, message: Message, /, **values: object) -> None:
    """Assert an error code and at least these values in the error."""
    assert error.message is message, str(error)
    shown = {name for _, name, _, _ in string.Formatter().parse(message.value)}
    assert values.keys() <= shown, f"{message.name} shows only {sorted(filter(None, shown))}"
    for name, expected in values.items():
        assert name in error.values, f"{message.name} has no value {name}: {sorted(error.values)}"
        actual = error.values[name]
        assert is_value(actual, expected), f"{name} is {actual!r}, not {expected!r}"


def says(text: str, message: Message | str, /, **values: object) -> bool:
    """Return whether a longer text, such as command output, contains this message with these
    values.

    Part of the text for a rule, such as `PlanCode.LENGTH.message.value`, is also a message. Values
    that are not given may be anything. A blank matches any white space, because a terminal wraps
    lines.
    """
    return re.search(_pattern_of_message(message, values), text, re.DOTALL) is not None


def says_only(text: str, message: Message | str, /, **values: object) -> bool:
    """Return whether a text is this message with these values.

    A value that is not given may be any text, even at the beginning or the end of the message.
    """
    return re.fullmatch(_pattern_of_message(message, values), text, re.DOTALL) is not None


def count_of(text: str, message: Message | str, /, **values: object) -> int:
    """Return how often a longer text contains this message with these values."""
    return len(re.findall(_pattern_of_message(message, values), text, re.DOTALL))


def _pattern_of_message(message: Message | str, values: Mapping[str, object]) -> str:
    template = message if isinstance(message, str) else message.value
    pattern = ""
    names = set()
    for literal, name, spec, conversion in string.Formatter().parse(template):
        pattern += _pattern_of(literal)
        if name is None:
            continue
        names.add(name)
        pattern += _value_pattern(values.get(name, ...), spec or "", conversion)

    unknown = values.keys() - names
    assert not unknown, f"{template!r} has no value {sorted(unknown)}, only {sorted(names)}"
    return pattern


def _pattern_of(literal: str) -> str:
    return r"\s+".join(re.escape(piece) for piece in re.split(r"\s+", literal))


def _value_pattern(value: Any, spec: str, conversion: str | None) -> str:
    if value is ...:
        return ".*?"
    if isinstance(value, Part):
        return f".*?{value.pattern}.*?"
    if isinstance(value, Statement):
        return _known_pattern(value)
    written = format(repr(value) if conversion == "r" else value, spec)
    return _pattern_of(written)


def _known_pattern(value: object) -> str:
    """Return a regular expression for a text, or for a message with some known values."""
    if isinstance(value, Statement):
        return _pattern_of_message(value.message, value.values)
    return _pattern_of(str(value))


def check_about(checks: Iterable[Check], code: Code, phase: str = "", /, **values: object) -> Check:
    """Return the check with this rule, this phase (if given) and at least these values."""
    of_rule = [check for check in checks if check.code is code and check.name.startswith(phase)]
    assert of_rule, f"no check of {code}: {[check.name for check in checks]}"
    for check in of_rule:
        if all(is_value(check.values[name], value) for name, value in values.items()):
            return check
    raise AssertionError([dict(check.values) for check in of_rule])


def problem_of(error: BaseException, key: str) -> Problem:
    """Return the problem that a parameter error reports for a key."""
    assert isinstance(error, InvalidParams), repr(error)
    keys = [problem.key for problem in error.problems]
    assert key in keys, keys
    return error.problems[keys.index(key)]


def has_problem(
    error: BaseException, where: str, key: str, message: Message, /, **values: object
) -> bool:
    """Return whether a parameter error reports this key, at this place, for this rule."""
    problem = problem_of(error, key)
    return problem.where == where and has_rule(problem, message, **values)


def has_rule(problem: Problem, message: Message, /, **values: object) -> bool:
    """Return whether a problem is about this rule, with at least these values."""
    rule = problem.rule
    return rule.message is message and all(
        name in rule.values and is_value(rule.values[name], value) for name, value in values.items()
    )
