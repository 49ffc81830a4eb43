"""Rules as data: what a rule is about, the values, and the keys to change.

Text is made here alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

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
