"""Splits a printed table into cells, so that a test can get values by column."""

from __future__ import annotations

import re


def table_rows(text: str) -> list[list[str]]:
    """Return the cells of each line. Two or more blanks separate them."""
    return [re.split(r" {2,}", line.strip()) for line in text.splitlines()]


def titled_table(text: str, title: str) -> list[dict[str, str]]:
    """Return the rows of the table with this title, as cells by column name.

    The line of dashes below the names marks the columns. The table ends at an empty line. A line
    with an empty first cell continues the cells above.
    """
    lines = text.splitlines()
    names, rule, *others = lines[lines.index(title) + 1 :]
    places = [match.span() for match in re.finditer("-+", rule)]
    columns = [names[start:end].strip() for start, end in places]
    rows: list[dict[str, str]] = []
    for line in others:
        if not line.strip():
            break
        cells = [line[start:end].strip() for start, end in places]
        if cells[0] or not rows:
            rows.append(dict(zip(columns, cells, strict=True)))
            continue
        for column, cell in zip(columns, cells, strict=True):
            rows[-1][column] = f"{rows[-1][column]} {cell}".strip()
    return rows
