"""Checks as a table: what was looked at, how it went, the value, the rule, and what to do about it.

CheckTable(checks)      show_checks(checks)      checks: plan.Check, or anything with its fields
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any

from runbook.display.place import colour_is_wanted, mime_bundle, show
from runbook.display.table import CELL_STYLE, Table
from runbook.display.verdict import verdict_html, verdict_text
from runbook.plan.checks import Check

ORDER = ("fail", "warn", "unknown", "pass")
"""The order in which a person wants to read them."""


class CheckTable:
    """Checks, those that need a person first."""

    def __init__(self, checks: Iterable[Check], title: str = "Checks") -> None:
        self.checks = sorted(checks, key=lambda check: ORDER.index(check.verdict))
        self.title = title

    def summary(self) -> str:
        """How many went how.

        >>> CheckTable([Check("a", "pass", "1", "1"), Check("b", "fail", "2", "1")]).summary()
        '2 checks: 1 fail, 1 pass'
        """
        counts = [(word, sum(check.verdict == word for check in self.checks)) for word in ORDER]
        words = ", ".join(f"{count} {word}" for word, count in counts if count)
        number = len(self.checks)
        return f"{number} check{'' if number == 1 else 's'}" + (f": {words}" if words else "")

    def as_text(self) -> str:
        """A table for terminal and log."""
        return Table(self._rows(), f"{self.title} ({self.summary()})").as_text()

    def as_coloured_text(self) -> str:
        """The same with the verdicts coloured; symbol and word stay."""
        text = self.as_text()
        for word in ORDER:
            text = text.replace(f"{verdict_text(word)} ", f"{verdict_text(word, colour=True)} ")
        return text

    def as_html(self) -> str:
        """A table for a notebook and its report."""
        rows = self._rows()
        columns = list(rows[0]) if rows else []
        head = "".join(f'<th style="{CELL_STYLE}text-align:left">{name}</th>' for name in columns)
        body = "".join(f"<tr>{''.join(_html_cell(name, row[name]) for name in columns)}</tr>" for row in rows)
        return (
            '<div style="overflow-x:auto" tabindex="0"><table style="border-collapse:collapse">'
            f'<caption style="text-align:left;font-weight:600">{escape(self.title)} ({self.summary()})</caption>'
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        )

    def as_markdown(self) -> str:
        """A table as GitHub reads it."""
        return Table(self._rows(), f"{self.title} ({self.summary()})").as_markdown()

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        return mime_bundle(self)

    def _rows(self) -> list[dict[str, str]]:
        with_remedy = any(_remedy(check) for check in self.checks)
        return [
            {"Check": check.name, "Verdict": verdict_text(check.verdict), "Value": check.value, "Rule": check.rule}
            | ({"What to do": _remedy(check)} if with_remedy else {})
            for check in self.checks
        ]


def show_checks(checks: Iterable[Check], title: str = "Checks") -> None:
    """Show checks as a table, those that need a person first."""
    table = CheckTable(checks, title)
    if colour_is_wanted():
        print(table.as_coloured_text(), flush=True)
    else:
        show(table)


def _remedy(check: Check) -> str:
    return check.remedy if check.verdict != "pass" else ""


def _html_cell(name: str, text: str) -> str:
    inside = verdict_html(text.partition(" ")[2]) if name == "Verdict" else escape(text)
    return f'<td style="{CELL_STYLE}text-align:left">{inside}</td>'
