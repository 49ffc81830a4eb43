"""The cells of a table that was printed as text, so that a test asks for values by their column."""

from __future__ import annotations

import re


def table_rows(text: str) -> list[list[str]]:
    """Return the cells of each line; two blanks or more stand between them."""
    return [re.split(r" {2,}", line.strip()) for line in text.splitlines()]


def titled_table(text: str, title: str) -> list[dict[str, str]]:
    """Return the rows of the table with this title, each cell by the name of its column.

    The line of dashes below the names says where each column stands. The table ends at an empty
    line. A cell that takes several lines gives a row of each.
    """
    lines = text.splitlines()
    names, rule, *others = lines[lines.index(title) + 1 :]
    places = [match.span() for match in re.finditer("-+", rule)]
    rows = []
    for line in others:
        if not line.strip():
            break
        rows.append({names[a:b].strip(): line[a:b].strip() for a, b in places})
    return rows
