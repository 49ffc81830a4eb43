"""Reads the table of typical cases: what people write about slow training, for each cause.

The cases are no observed stories. They state in general words what a cause looks like, so that a
text finds a cause for which no public story has the same words. An answer quotes them, and never
counts them as stories. `python tools/write_pages.py` writes the subjects column.
"""

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

TABLE = "typical_cases.csv"
"""Name of the file in this folder."""
_SEPARATOR = "; "


@dataclass(frozen=True)
class TypicalCase:
    """What a cause of slow training looks like."""

    cause: str
    text: str
    subjects: tuple[str, ...] = ()
    """What `story_subjects` finds in the text."""


@cache
def read_cases() -> tuple[TypicalCase, ...]:
    """Return all rows in the table."""
    text = files("runbook.tools.speed").joinpath(TABLE).read_text(encoding="utf-8")
    return tuple(_case(row) for row in csv.DictReader(text.splitlines()))


def as_table(cases: Iterable[TypicalCase]) -> str:
    """Return the cases as CSV text."""
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(("cause", "text", "subjects"))
    for case in cases:
        writer.writerow((case.cause, case.text, _SEPARATOR.join(case.subjects)))
    return table.getvalue()


def _case(row: dict[str, str]) -> TypicalCase:
    subjects = tuple(row["subjects"].split(_SEPARATOR)) if row["subjects"] else ()
    return TypicalCase(row["cause"], row["text"], subjects)
