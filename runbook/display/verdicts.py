"""Tables of checks: each verdict by word, symbol and colour.

The colours are blue and orange of Okabe and Ito's palette: the common forms of colour blindness tell them apart.
"""

from collections import Counter
from collections.abc import Iterable
from html import escape

from runbook.core.checks import Check, counted
from runbook.core.table import Table
from runbook.display.output_place import colour_is_wanted, show, show_text

BAD = "#d55e00"
MARKS = {
    "fail": ("✗", BAD, "\x1b[1;33m"),
    "warn": ("!", "#b58900", "\x1b[33m"),
    "unknown": ("?", "currentColor", ""),
    "pass": ("✓", "#0072b2", "\x1b[34m"),
}
"""Symbol, colour on a page and on a terminal, in the order in which a person wants to read the verdicts."""


class CheckTable(Table):
    """Checks as a table, those that need a person first."""

    def __init__(self, checks: Iterable[Check], title: str = "Checks") -> None:
        self.checks = sorted(checks, key=lambda check: list(MARKS).index(check.verdict))
        rows = [
            {"Check": check.name, "Verdict": _text(check.verdict), "Value": check.value, "Rule": check.rule}
            for check in self.checks
        ]
        remedies = [check.remedy if check.verdict != "pass" else "" for check in self.checks]
        if any(remedies):
            rows = [row | {"What to do": remedy} for row, remedy in zip(rows, remedies, strict=True)]
        super().__init__(rows, f"{title} ({self.summary()})")

    def summary(self) -> str:
        """How many checks have each verdict.

        >>> CheckTable([Check("a", "pass", "1", "1"), Check("b", "fail", "2", "1")]).summary()
        '2 checks: 1 fail, 1 pass'
        """
        counts = Counter(check.verdict for check in self.checks)
        words = ", ".join(f"{counts[verdict]} {verdict}" for verdict in MARKS if counts[verdict])
        return counted(len(self.checks), "check") + (f": {words}" if words else "")

    def as_text(self, colour: bool = False) -> str:
        """For terminal and log; in colour, verdicts keep their symbol and word."""
        text = super().as_text()
        for verdict, (_, _, ansi) in MARKS.items():
            if colour and ansi:
                text = text.replace(f"{_text(verdict)} ", f"{ansi}{_text(verdict)}\x1b[0m ")
        return text

    def cell_html(self, column: str, text: str) -> str:
        """A verdict in bold with a coloured bar; the word itself keeps the page's own colour."""
        if column != "Verdict":
            return super().cell_html(column, text)
        colour = MARKS[text.partition(" ")[2]][1]
        style = f"border-left:.3em solid {colour};padding-left:.4em;white-space:nowrap;font-weight:600"
        return f'<span style="{style}">{escape(text)}</span>'


def show_checks(checks: Iterable[Check], title: str = "Checks") -> None:
    """Show checks as a table, those that need a person first; in colour on a terminal."""
    table = CheckTable(checks, title)
    if colour_is_wanted():
        show_text(table.as_text(colour=True))
    else:
        show(table)


def _text(verdict: str) -> str:
    return f"{MARKS[verdict][0]} {verdict}"
