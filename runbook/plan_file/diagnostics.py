"""Rules and messages as data: a code, its values, and the keys to change.

Only this module turns these data into text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from runbook.plan_file.text_enum import StrEnum

Value = str | int | float | bool


class Code(StrEnum):
    """The subject of a rule.

    Each package has its own enum, with a message for every member. Code and tests compare codes and
    values, and never parse the text.
    """

    @property
    def message(self) -> RuleText:
        """Return the templates of this code's text."""
        raise NotImplementedError


@dataclass(frozen=True)
class RuleText:
    """The text of a rule, or its templates, in which `{name}` stands for a value."""

    title: str
    """Name of the check, as in a table."""
    value: str
    """The values as text."""
    rule: str
    """The condition that must hold."""
    remedy: str
    """What to change if it does not hold."""


@dataclass(frozen=True, kw_only=True)
class RuleResult:
    """A rule applied to values."""

    code: Code
    holds: bool
    values: Mapping[str, Value]
    """Values by the names that the code's message templates use."""
    keys: tuple[str, ...]
    """Keys in the run file whose change can satisfy the rule, most likely first."""

    def render(self) -> RuleText:
        """Return the text, with every value filled in."""
        template = self.code.message
        return RuleText(
            title=template.title.format_map(self.values),
            value=template.value.format_map(self.values),
            rule=template.rule.format_map(self.values),
            remedy=template.remedy.format_map(self.values),
        )


class Message(Enum):
    """A message to a person.

    A member's value is its text, in which `{name}` stands for a value. Each package has its own
    enum in its `messages.py`, one row per message. Code and tests compare members and values.
    Nothing parses the text, so anyone can improve it.
    """

    @property
    def code(self) -> str:
        """Return the name of the message in the form for programs, such as `not-running`."""
        return self.name.lower().replace("_", "-")

    def fill(self, /, **values: object) -> str:
        """Return the text with its values filled in."""
        template: str = self.value
        return template.format_map(values)

    def of(self, /, **values: object) -> Statement:
        """Return the message together with its values, which become text only when needed."""
        return Statement(self, values)


@dataclass(frozen=True)
class Statement:
    """A message with its values, which can be rendered as text."""

    message: Message
    values: Mapping[str, object]

    def __str__(self) -> str:
        return self.message.fill(**self.values)
