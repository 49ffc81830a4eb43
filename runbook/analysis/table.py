"""What tables and figures are made of: rows with units in their column names, and wall time cut into parts."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Table:
    """Rows of one shape; every column name carries its unit, every table its source."""

    title: str
    rows: tuple[dict[str, Any], ...]
    source: str = ""
    """Files or pages the numbers come from."""
    notes: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def columns(self) -> list[str]:
        """Column names in the order they first appear."""
        return list({name: None for row in self.rows for name in row})

    def to_frame(self) -> Any:
        """The same as a pandas DataFrame (pandas is imported here)."""
        import pandas as pd

        frame = pd.DataFrame(list(self.rows), columns=self.columns)
        frame.attrs.update(title=self.title, source=self.source, notes=list(self.notes))
        return frame

    def to_csv(self) -> str:
        r"""The same as CSV text; an unknown value is an empty cell.

        >>> Table("t", ({"model": "a", "loss (nat)": None}, {"model": "b, c", "loss (nat)": 2.5})).to_csv()
        'model,loss (nat)\na,\n"b, c",2.5\n'
        """
        out = io.StringIO()
        writer = csv.DictWriter(out, self.columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        return out.getvalue()


class Waterfall(Protocol):
    """Wall time cut into parts; the last part is what was productive."""

    @property
    def wall_seconds(self) -> float:
        """All of it."""

    def parts(self) -> list[tuple[str, float]]:
        """(name, seconds) in the order of the fall."""
