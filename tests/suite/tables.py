"""The cells of a table that was printed as text, so that a test asks for values by their column."""

from __future__ import annotations

import re


def table_rows(text: str) -> list[list[str]]:
    """Return the cells of each line; two blanks or more stand between them."""
    return [re.split(r" {2,}", line.strip()) for line in text.splitlines()]
