"""Rules and messages as data: a code, values, and the keys to change.

Only this module turns these data into text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from runbook.plan_file.text_enum import StrEnum

Value = str | int | float | bool


class Code(StrEnum):
    """Identifies a rule.

    Each package has an enum, with a message for every member. Code and tests compare codes and
    values, and never parse the text.
    """

    @property
    def message(self) -> RuleText:
        """Return the text templates for this code."""
        raise NotImplementedError


@dataclass(frozen=True)
class RuleText:
    """The text for a rule, or templates in which `{name}` stands for a value."""

    title: str
    """Name of the check, as shown in tables."""
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
    """Values, under the names used in the message templates."""
    keys: tuple[str, ...]
    """Run-file keys that can be changed to satisfy the rule, most likely first."""

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
    """A message for people.

    The value of a member is a text in which `{name}` stands for a value. Each package has such an
    enum in `messages.py`, one row per message. Code and tests compare members and values. Nothing
    parses the text, so anyone can improve it.
    """

    @property
    def code(self) -> str:
        """Return the message name in the form used by programs, such as `not-running`."""
        return self.name.lower().replace("_", "-")

    def fill(self, /, **values: object) -> str:
        """Return the text with the values filled in."""
        template: str = self.value
        return template.format_map(values)

    def of(self, /, **values: object) -> Statement:
        """Return the message together with values that become text only when needed."""
        return Statement(self, values)


@dataclass(frozen=True)
class Statement:
    """A message with values, which can be rendered as text."""

    message: Message
    values: Mapping[str, object]

    def __str__(self) -> str:
        return self.message.fill(**self.values)
