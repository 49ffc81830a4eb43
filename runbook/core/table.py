"""Tables: rows with the same columns, as text, HTML, Markdown, CSV or a data frame."""

import csv
import importlib
import io
import itertools
import math
import re
import textwrap
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from runbook.core.column_widths import LINE_LIMIT, ColumnWidth, divide_width
from runbook.core.messages import CoreMessage
from runbook.core.units import show_quantity

Row = Mapping[str, Any]
"""A row in a table. A column name states its unit: "loss (nat)"."""
# Text shown for a missing value in a text cell
UNKNOWN = "not known"
# Columns whose unit is stated in the row, not in the column name
VALUES = ("value", "planned", "actual", "before", "after")
# Rounding error, in seconds, when two equal times are subtracted
_NO_TIME = 1e-9
# Maximum line length in a cell of a text table; a longer text continues on the next line
WIDEST_CELL = 60
# A cell with at most this number of characters, such as "2 min 24 s", stays on one line
SHORT_CELL = 12


_CODE = re.compile(
    r"[\w./=-]*[A-Za-z0-9]_\w[\w./=-]*|[a-z]+(?:\.[a-z0-9]+)+=\w(?:[\w./-]|,(?=\w))*(?<![./-])"
)
"""A key or a file name: a word with an underscore, or a dotted name with a value."""
_QUANTITY = re.compile(r"[0-9][0-9.,]* [^\s0-9]+")
"""A number and its unit, which stay on one line in a narrow column."""
_CELL_STYLE = (
    "padding:.2em .8em;border-bottom:1px solid rgba(128,128,128,.35);vertical-align:top;text-align:"
)


@dataclass(frozen=True)
class Table:
    """Rows with the same columns; a missing value is an empty cell."""

    rows: Sequence[Row]
    title: str = ""
    # Notes for the reader, shown below the rows
    notes: Sequence[str] = ()
    # Files or pages from which the values were taken
    source: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", tuple(self.rows))
        object.__setattr__(self, "notes", tuple(self.notes))

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def columns(self) -> list[str]:
        """Return the column names in the order in which they first appear."""
        # A dict keeps the order in which keys were added; a set would not.
        columns: dict[str, None] = {}
        for row in self.rows:
            columns.update(dict.fromkeys(row))

        return list(columns)

    def as_text(self) -> str:
        """Return the table as text. Columns are aligned with spaces, and numbers to the right.

        >>> rows = [{"model": "a", "loss (nat)": 2.5}, {"model": "bc", "loss (nat)": 10.25}]
        >>> print(Table(rows).as_text())
        model  loss (nat)
        -----  ----------
        a             2.5
        bc          10.25
        """
        return self._as_text_within(LINE_LIMIT.get())

    def _as_text_within(self, limit: int) -> str:
        """Return the table as text with lines of at most `limit` characters, or 0 for no limit."""
        rows = [self.columns, *self._rounded_cells()]
        columns = [_column_width(cells) for cells in zip(*rows, strict=True)]
        blocks = ["(no rows)"]
        if columns:
            blocks = [self._block(rows, widths) for widths in divide_width(columns, limit)]

        title = _within(self.title, limit) if self.title else []
        notes = [line for note in self.notes for line in _within(note, limit)]
        return "\n".join([*title, "\n\n".join(blocks), *notes])

    def _block(self, rows: Sequence[Sequence[str]], limits: Mapping[int, int]) -> str:
        """Return some columns of the table as text. `limits` has their widths by their number."""
        wrapped = [[_wrap(row[number], limit) for number, limit in limits.items()] for row in rows]
        widths = []
        for column in zip(*wrapped, strict=True):
            widths.append(max(width(line) for cell in column for line in cell))

        numeric = self._numeric()
        right = [numeric[number] for number in limits]
        head, *body = [_text_lines(row, widths, right) for row in wrapped]
        rule = "  ".join("-" * columns for columns in widths)
        return "\n".join([*head, rule, *itertools.chain(*body)])

    def as_html(self) -> str:
        """Return a table with inline styles only, so that a saved notebook needs no style sheet."""
        styles = [_CELL_STYLE + ("right" if numeric else "left") for numeric in self._numeric()]
        columns = list(zip(self.columns, styles, strict=True))
        head = "".join(f'<th style="{style}">{escape(name)}</th>' for name, style in columns)
        body = "".join(self._row_html(row, columns) for row in self.rows)
        title = ""
        if self.title:
            title = (
                f'<caption style="text-align:left;font-weight:600">{escape(self.title)}</caption>'
            )

        notes = "".join(
            f'<div style="opacity:.75;font-size:90%">{html_with_code(note)}</div>'
            for note in self.notes
        )
        return (
            '<div style="overflow-x:auto" tabindex="0">'
            '<table style="border-collapse:collapse;font-variant-numeric:tabular-nums">'
            f"{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{notes}"
        )

    def _row_html(self, row: Row, columns: Sequence[tuple[str, str]]) -> str:
        """Return a row as HTML; `columns` contains the columns' names and styles."""
        cells = []
        for name, style in columns:
            text, exact = _rounded(_quantity(name, row), row.get(name))
            if _QUANTITY.fullmatch(text):
                style = f"{style};white-space:nowrap"
            cells.append(f'<td style="{style}"{exact}>{self.cell_html(name, text)}</td>')

        return f"<tr>{''.join(cells)}</tr>"

    def cell_html(self, column: str, text: str) -> str:
        """Return the text in a cell as HTML. Subclasses override this method for special cells."""
        return html_with_code(text)

    def as_markdown(self) -> str:
        r"""Return a table in GitHub markdown.

        >>> print(Table([{"key": "a|b", "n": 2}]).as_markdown())
        | key | n |
        | --- | ---: |
        | a\|b | 2 |
        """
        rules = ["---:" if numeric else "---" for numeric in self._numeric()]
        head = _markdown_row(self.columns)
        body = [_markdown_row(cells) for cells in self._rounded_cells()]
        title = [f"**{self.title}**", ""] if self.title else []
        notes = [f"\n{note}" for note in self.notes]
        return "\n".join([*title, head, f"| {' | '.join(rules)} |", *body, *notes])

    def as_latex(self) -> str:
        """Return a LaTeX `tabular` with booktabs rules, written by pandas."""
        frame = pandas().DataFrame(self._rounded_cells(), columns=self.columns)
        return str(frame.to_latex(index=False, escape=True))

    def to_csv(self) -> str:
        r"""Return the rows as CSV text; an unknown value is an empty cell.

        >>> rows = [{"model": "a", "loss (nat)": None}, {"model": "b, c", "loss (nat)": 2.5}]
        >>> Table(rows).to_csv()
        'model,loss (nat)\na,\n"b, c",2.5\n'
        """
        out = io.StringIO()
        writer = csv.DictWriter(out, self.columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        return out.getvalue()

    def to_frame(self) -> Any:
        """Return the rows as a pandas DataFrame. pandas is imported only here."""
        frame = pandas().DataFrame(list(self.rows), columns=self.columns)
        frame.attrs.update(
            title=self.title,
            source=self.source,
            notes=list(self.notes),
        )
        return frame

    def mime_bundle(self, **_: Any) -> dict[str, str]:
        """Return the table in every format that notebooks can show."""
        return {
            "text/plain": self._as_text_within(0),
            "text/html": self.as_html(),
            "text/markdown": self.as_markdown(),
        }

    _repr_mimebundle_ = mime_bundle

    def _rounded_cells(self) -> list[list[str]]:
        rows = []
        for row in self.rows:
            cells = [_rounded(_quantity(name, row), row.get(name)) for name in self.columns]
            rows.append([text for text, *_ in cells])

        return rows

    def _numeric(self) -> list[bool]:
        """Return for each column whether it contains only numbers."""
        return [self._is_numeric(name) for name in self.columns]

    def _is_numeric(self, column: str) -> bool:
        values = []
        for row in self.rows:
            if row.get(column) not in (None, ""):
                values.append(row[column])

        return bool(values) and all(map(_is_plain_number, values))


def pandas() -> Any:
    """Return the pandas package, imported on demand because only a DataFrame needs it."""
    try:
        return importlib.import_module("pandas")
    except ModuleNotFoundError as error:
        message = CoreMessage.NEEDS_PANDAS.fill(error=error)
        raise ModuleNotFoundError(message, name=error.name) from error


def show_value(value: Any) -> str:
    """Return a value for a cell: integers with grouped digits, others with six digits, '' for None.

    >>> show_value(64633856), show_value(0.00061803398), show_value(None), show_value(True)
    ('64,633,856', '0.000618034', '', 'yes')
    >>> show_value(float("nan"))
    'not a number'
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
        is_large = abs(value) >= 100_000 and math.isfinite(value)
        return f"{value:,.0f}" if is_large else f"{value:.6g}"

    return str(value)


def _quantity(column: str, row: Row) -> str:
    """Return the name that states the unit of a cell: the name of its column or its row."""
    if column not in VALUES or "what" not in row:
        return column
    unit = f" ({row['unit']})" if row.get("unit") else ""
    return f"{row['what']}{unit}"


def _rounded(name: str, value: Any) -> tuple[str, str]:
    """Return a value formatted for display, and an HTML attribute with all its digits as a tooltip.

    Measured values are shown with four digits. The attribute is empty if rounding changes nothing.
    """
    # The neighbouring cell shows the same value in a larger unit.
    if name == "unit" and value == "B":
        return "", ""
    is_size = name.endswith("(B)") and isinstance(value, int) and not isinstance(value, bool)
    is_measured = isinstance(value, float) and math.isfinite(value)
    if not is_size and not is_measured:
        return show_value(value), ""
    if "(s" in name and abs(value) < _NO_TIME:
        value = 0.0
    # Sizes are shown in the most readable unit. Durations stay in seconds, as their column states.
    quantity = name if is_size else name.replace("(s", "(")
    text = show_quantity(quantity, value)
    is_exact = text.replace(",", "") in (str(value), f"{value:.0f}")
    if is_exact:
        return text, ""
    return text, f' title="{value!r}"'


def html_with_code(text: str) -> str:
    """Return text as HTML, with keys and file names marked as code.

    They are recognized by an underscore, or by a dotted name with a value.

    >>> html_with_code("rank_times.jsonl < all")
    '<code>rank_times.jsonl</code> &lt; all'
    >>> html_with_code("data.split=949,50,1: 94.9%")
    '<code>data.split=949,50,1</code>: 94.9%'
    """
    return _CODE.sub(r"<code>\g<0></code>", escape(text, quote=False))


def width(text: str) -> int:
    """Return how many columns a string occupies on a terminal."""
    return sum(map(_character_width, text))


def _character_width(character: str) -> int:
    """Return 2 for a wide character (Chinese, most emoji), 0 for a combining character, or else 1."""
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _column_width(cells: Iterable[str]) -> ColumnWidth:
    """Return the widths that a column with these cells can have."""
    natural = 0
    longest_word = 0
    for cell in cells:
        natural = max(natural, *map(width, _wrap(cell, WIDEST_CELL)))
        longest_word = max(longest_word, *map(width, cell.split()), 0)

    return ColumnWidth(natural, min(natural, max(longest_word, SHORT_CELL)))


def _within(text: str, limit: int) -> list[str]:
    """Return the lines of a title or note, divided where they are longer than the limit."""
    lines = []
    for line in text.splitlines():
        if limit and width(line) > limit:
            lines += _wrap(line, limit)
        else:
            lines.append(line)

    return lines


def _wrap(text: str, columns: int) -> list[str]:
    """Divide a text into lines of at most this many columns, unless a word is longer."""
    wrapper = textwrap.TextWrapper(max(columns, 1), break_long_words=False, break_on_hyphens=False)
    lines: list[str] = []
    for line in text.splitlines() or [""]:
        lines += wrapper.wrap(line) or [""]
    return lines


def _markdown_row(cells: Iterable[str]) -> str:
    escapes = str.maketrans({"|": "\\|", "\n": "<br>"})
    return f"| {' | '.join(cell.translate(escapes) for cell in cells)} |"


def _is_plain_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text_lines(
    row: Sequence[Sequence[str]], widths: Sequence[int], numeric: Sequence[bool]
) -> list[str]:
    lines = []
    for texts in itertools.zip_longest(*row, fillvalue=""):
        parts = []
        for text, columns, right in zip(texts, widths, numeric, strict=True):
            space = " " * (columns - width(text))
            parts.append(space + text if right else text + space)

        lines.append("  ".join(parts).rstrip())

    return lines
