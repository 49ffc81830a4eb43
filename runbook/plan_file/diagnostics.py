"""Rules and messages as data: what they are about, the values, and the keys to change.

Text is made here alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum

Value = str | int | float | bool


class Code(StrEnum):
    """What a rule is about. Each package has an enum of its own, with a message for every member.

    Code and tests ask for a code and its values. Nothing reads the text again.
    """

    @property
    def message(self) -> RuleText:
        """Return the templates of this code's text."""
        raise NotImplementedError


@dataclass(frozen=True)
class RuleText:
    """Text of a rule, or the templates of it, where `{name}` stands for a value."""

    title: str
    """Name of the check in a table."""
    value: str
    """What the values are."""
    rule: str
    """What must hold."""
    remedy: str
    """What to change where it does not hold."""


@dataclass(frozen=True, kw_only=True)
class RuleResult:
    """A rule applied to values."""

    code: Code
    holds: bool
    values: Mapping[str, Value]
    """Values by the names that the templates of the code's message use."""
    keys: tuple[str, ...]
    """Keys of the run file that can fix it, the likeliest first."""

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
    """What is said to a person. A member's value is its text, where `{name}` stands for a value.

    Each package has an enum of its own in its `messages.py`, one row per message. Code and tests
    ask for a member and its values. Nothing reads the text again, so that anyone can improve it.
    """

    @property
    def code(self) -> str:
        """Return the name of the message as programs write it, such as `not-running`."""
        return self.name.lower().replace("_", "-")

    def fill(self, /, **values: object) -> str:
        """Return the text with its values filled in."""
        template: str = self.value
        return template.format_map(values)

    def of(self, /, **values: object) -> Statement:
        """Return the message with its values, to be read later."""
        return Statement(self, values)


@dataclass(frozen=True)
class Statement:
    """A message with its values. Its text is for people."""

    message: Message
    values: Mapping[str, object]

    def __str__(self) -> str:
        return self.message.fill(**self.values)
