"""Problems in a parameter file: unusable or missing values, secrets, and traps in YAML 1.1."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from runbook.core.errors import ParamsError
from runbook.core.visible_text import find_hidden, visible
from runbook.params.messages import ParamsMessage
from runbook.params.secrets import find_token, mask
from runbook.params.yaml12 import compose, scalar_value, scalars, write_scalar
from runbook.plan_file.diagnostics import Statement

FILL_IN = "FILL_IN"
"""Placeholder in a parameter file for a value that the user must still fill in."""


@dataclass(frozen=True)
class Problem:
    """An unusable value: its key, where it was written, the rule and the remedy."""

    key: str
    where: str
    rule: Statement
    """The rule, and what to do instead."""
    value: Any = ...
    """`...` if there is no value to show."""

    def text(self) -> str:
        """Return the problem in one or two sentences.

        >>> Problem("training.seed", "params/x.yaml:4", ParamsMessage.ONE_VALUE.of(), 0).text()
        'training.seed = 0 (params/x.yaml:4): accepts one value, not a list or a mapping.'
        """
        value_text = "" if self.value is ... else f" = {show(self.value)}"
        return visible(mask(f"{self.key}{value_text} ({self.where}): {self.rule}"))


def show(value: Any) -> str:
    """Return a value as a user would write it, shortened.

    >>> show(True), show("12"), show("bf16"), show({"a": 1})
    ('true', '"12"', 'bf16', '{a: 1}')
    """
    if value is None:
        text = "nothing"
    elif isinstance(value, dict):
        text = (
            "{" + ", ".join(f"{key}: {show(item)}" for key, item in list(value.items())[:4]) + "}"
        )
    elif isinstance(value, list | tuple):
        text = "[" + ", ".join(map(show, value[:4])) + "]"
    elif isinstance(value, str):
        if value and not value[0].isdigit() and value == value.strip():
            text = value
        else:
            text = f'"{value}"'
    else:
        if isinstance(value, int | float):
            text = write_scalar(value)
        else:
            text = str(value)

    text = mask(text)
    return text if len(text) <= 60 else f"{text[:57]}..."


class InvalidParams(ParamsError):
    """Raised for parameters with one or more problems. Each problem is reported once."""

    def __init__(self, title: str, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        texts = list(dict.fromkeys(problem.text() for problem in problems))
        if len(texts) == 1:
            head = texts[0]
        else:
            head = ParamsMessage.MANY_THINGS.fill(number=len(texts))

        if len(texts) > 1:
            rows = [f"\n  {number}. {text}" for number, text in enumerate(texts, 1)]
        else:
            rows = []

        super().__init__(ParamsMessage.INVALID_PARAMS, title=title, head=head, rows="".join(rows))


def statement_of(error: ParamsError) -> Statement:
    """Return the message in an error, to be reported with other problems."""
    if error.message is None:
        return ParamsMessage.PLAIN_TEXT.of(text=str(error))
    return Statement(error.message, error.values)


def token_problem(key: str, where: str) -> Problem:
    """Return the problem for a secret in a place where only a reference to it is allowed."""
    rule = ParamsMessage.LOOKS_LIKE_A_SECRET.of()
    return Problem(key, where, rule)


def marks_in(text: str, where: str) -> list[Problem]:
    """Return a problem for every value in a file that must still be filled in.

    The comment after such a value describes what to fill in.
    """
    problems = []
    lines = text.splitlines()
    for path, node in scalars(compose(text, where)) if FILL_IN in text else ():
        if node.value == FILL_IN:
            line = node.start_mark.line
            comment = lines[line].partition("#")[2].strip()
            if comment:
                rule = ParamsMessage.TO_BE_FILLED_IN.of(comment=comment)
            else:
                rule = ParamsMessage.TO_BE_FILLED_IN_WITHOUT_COMMENT.of()

            problems.append(Problem(".".join(path), f"{where}:{line + 1}", rule))

    return problems


def tokens_in(text: str, where: str) -> list[Problem]:
    """Return a problem for every line, comments included, that seems to contain a real secret."""
    problems = []
    for number, line in enumerate(text.splitlines(), 1):
        if find_token(line):
            key = "this line"
            if ":" in line:
                key = mask(line).partition(":")[0].strip(" #-")
            problems.append(token_problem(key, f"{where}:{number}"))

    return problems


def hidden_problem(key: str, where: str, character: str) -> Problem:
    """Return the problem for an invisible character, written literally or as an escape."""
    rule = ParamsMessage.HIDDEN_CHARACTER.of(character=character)
    return Problem(key, where, rule)


def hidden_in(text: str, where: str) -> list[Problem]:
    """Return a problem for every line in a file that contains an invisible character.

    A line with an invisible character does not show its real content.
    """
    problems = []
    for number, line in enumerate(text.split("\n"), 1):
        character = find_hidden(line.removesuffix("\r"))
        if character:
            problems.append(hidden_problem("this line", f"{where}:{number}", character))

    return problems


class PapermillLoader(yaml.SafeLoader):
    """Reads YAML 1.1 as papermill does for `-f` and `-y`: with the safe loader, and dates as text."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def read_as_papermill(text: str) -> Any:
    r"""Return what `papermill -f` would read from a file.

    Keys become text, because papermill writes them into the notebook.

    >>> read_as_papermill("walltime: 12:00:00\nlr: 6e-5\nanswer: no")
    {'walltime': 43200, 'lr': '6e-5', 'answer': False}
    """
    return _text_keys(yaml.load(text, Loader=PapermillLoader))


def differences(text: str, where: str) -> list[Problem]:
    """Return every unquoted word that the two YAML versions read differently, with a fix."""
    problems = []
    nodes = scalars(compose(text, where))
    old_nodes = scalars(compose(text, where, PapermillLoader))
    for (path, node), (_, old_node) in zip(nodes, old_nodes, strict=True):
        if node.style:
            continue  # The value is quoted, or is a block of text
        new = scalar_value(node)
        try:
            old = PapermillLoader("").construct_object(old_node)
        except (yaml.YAMLError, ValueError):
            old = ...

        if (type(old), old) != (type(new), new):
            readings = ParamsMessage.READINGS.fill(
                word=node.value, old=_as_read(old), new=_as_read(new)
            )
            rule = ParamsMessage.YAML_VERSIONS_DIFFER.of(
                readings=readings, remedy=_remedy(node.value, old, new)
            )
            problems.append(Problem(".".join(path), f"{where}:{node.start_mark.line + 1}", rule))

    return problems


def _as_read(value: Any) -> str:
    """Return the value that a word has in one YAML version, or `...` if it has none there."""
    if value is ...:
        return "an error"
    if isinstance(value, str):
        return ParamsMessage.READ_AS_TEXT.fill(text=value)
    if isinstance(value, bool):
        return ParamsMessage.READ_AS_TRUTH_VALUE.fill(value=show(value))
    return "nothing" if value is None else ParamsMessage.READ_AS_NUMBER.fill(value=show(value))


def _remedy(text: str, old: Any, new: Any) -> str:
    if isinstance(new, int | float):
        return write_scalar(new)
    if isinstance(old, bool):
        return ParamsMessage.WORD_OR_TRUTH_VALUE.fill(word=text, truth_value=show(old))
    if isinstance(old, int | float) and ":" not in text:
        return f'"{text}" for the text, or {write_scalar(old)} for the number'
    return f'"{text}"'


def _text_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _text_keys(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_text_keys(item) for item in value]
    return value
