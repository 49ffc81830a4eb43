"""A table that reads well as text, as HTML in a notebook and as markdown, and can be copied from each.

Table(rows, title="", notes=())      rows are dictionaries; every column name carries its unit: "loss (nat)"
show_table(rows, title="", notes=())
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from runbook.display.place import mime_bundle, show

WIDEST_CELL = 60
"""Characters of a cell in text before it goes on in the next line."""
CELL_STYLE = "padding:.2em .8em;border-bottom:1px solid rgba(128,128,128,.35);vertical-align:top;"


class Table:
    """Rows with the same columns; a missing value is an empty cell."""

    def __init__(self, rows: Iterable[Mapping[str, Any]], title: str = "", notes: Sequence[str] = ()) -> None:
        self.rows = [dict(row) for row in rows]
        self.title = title
        self.notes = tuple(notes)
        self.columns = list({name: None for row in self.rows for name in row})
        self._numeric = {name: self._is_numeric(name) for name in self.columns}

    def as_text(self) -> str:
        """Columns aligned with spaces, numbers to the right.

        >>> print(Table([{"model": "a", "loss (nat)": 2.5}, {"model": "bc", "loss (nat)": 10.25}]).as_text())
        model  loss (nat)
        -----  ----------
        a             2.5
        bc          10.25
        """
        cells = [self.columns, *[[show_value(row.get(name)) for name in self.columns] for row in self.rows]]
        wrapped = [[_wrap(cell) for cell in row] for row in cells]
        widths = [
            max((width(line) for row in wrapped for line in row[at]), default=0) for at in range(len(self.columns))
        ]
        lines = [line for row in wrapped for line in self._lines(row, widths)]
        head = len(self._lines(wrapped[0], widths)) if self.columns else 0
        rule = "  ".join("-" * wide for wide in widths)
        body = [*lines[:head], rule, *lines[head:]] if self.columns else ["(no rows)"]
        return "\n".join([*([self.title] if self.title else []), *body, *self.notes])

    def as_html(self) -> str:
        """A plain table whose only style is inline, so that a saved notebook needs nothing else."""
        head = "".join(self._html_cell("th", name, name) for name in self.columns)
        rows = [
            "<tr>" + "".join(self._html_cell("td", name, show_value(row.get(name))) for name in self.columns) + "</tr>"
            for row in self.rows
        ]
        caption = (
            f'<caption style="text-align:left;font-weight:600">{escape(self.title)}</caption>' if self.title else ""
        )
        notes = "".join(f'<div style="opacity:.75;font-size:90%">{escape(note)}</div>' for note in self.notes)
        return (
            '<div style="overflow-x:auto" tabindex="0">'
            '<table style="border-collapse:collapse;font-variant-numeric:tabular-nums">'
            f"{caption}<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>{notes}"
        )

    def as_markdown(self) -> str:
        r"""A table as GitHub reads it.

        >>> print(Table([{"key": "a|b", "n": 2}]).as_markdown())
        | key | n |
        | --- | ---: |
        | a\|b | 2 |
        """
        rules = ["---:" if self._numeric[name] else "---" for name in self.columns]
        rows = [[show_value(row.get(name)) for name in self.columns] for row in self.rows]
        lines = ["| " + " | ".join(_markdown_cell(cell) for cell in row) + " |" for row in [self.columns, rules, *rows]]
        title = [f"**{self.title}**", ""] if self.title else []
        return "\n".join([*title, *lines, *[f"\n{note}" for note in self.notes]])

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        return mime_bundle(self)

    def _is_numeric(self, name: str) -> bool:
        values = [row[name] for row in self.rows if row.get(name) not in (None, "")]
        return bool(values) and all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)

    def _lines(self, row: list[list[str]], widths: Sequence[int]) -> list[str]:
        height = max((len(cell) for cell in row), default=0)
        lines = []
        for at in range(height):
            parts = [
                _pad(cell[at] if at < len(cell) else "", wide, self._numeric[name])
                for cell, wide, name in zip(row, widths, self.columns, strict=True)
            ]
            lines.append("  ".join(parts).rstrip())
        return lines

    def _html_cell(self, tag: str, name: str, text: str) -> str:
        side = "right" if self._numeric[name] else "left"
        return f'<{tag} style="{CELL_STYLE}text-align:{side}">{escape(text)}</{tag}>'


def show_table(rows: Iterable[Mapping[str, Any]], title: str = "", notes: Sequence[str] = ()) -> None:
    """Show rows as a table; the title and notes of a table that has some (`analysis.Table`) are kept."""
    show(Table(rows, title or getattr(rows, "title", ""), notes or getattr(rows, "notes", ())))


def show_value(value: Any) -> str:
    """A value for a cell: whole numbers grouped, other numbers to six digits, nothing for None.

    >>> show_value(64633856), show_value(0.00061803398), show_value(None), show_value(True), show_value(float("nan"))
    ('64,633,856', '0.000618034', '', 'yes', 'not a number')
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    if isinstance(value, float):
        if math.isnan(value):
            return "not a number"
        return f"{value:,.0f}" if abs(value) >= 100_000 and math.isfinite(value) else f"{value:.6g}"
    return str(value)


def width(text: str) -> int:
    """Columns a text takes on a terminal: wide characters take two, combining ones none."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _wrap(text: str) -> list[str]:
    import textwrap

    lines = []
    for line in text.splitlines() or [""]:
        lines += textwrap.wrap(line, WIDEST_CELL, break_long_words=False, break_on_hyphens=False) or [""]
    return lines


def _pad(text: str, wide: int, right: bool) -> str:
    space = " " * (wide - width(text))
    return space + text if right else text + space


def _markdown_cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", "<br>")
