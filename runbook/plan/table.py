"""A table of the plan: rows of words under the same columns."""

from __future__ import annotations

from dataclasses import dataclass

Row = dict[str, str]
UNKNOWN = "not known"


@dataclass(frozen=True)
class Table:
    """Rows under the same columns, and what a reader should know beside them."""

    title: str
    rows: tuple[Row, ...]
    note: str = ""
