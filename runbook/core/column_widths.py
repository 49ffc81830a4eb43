"""Divides the terminal width among the columns of a text table."""

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass

LINE_LIMIT: ContextVar[int] = ContextVar("LINE_LIMIT", default=0)
"""Maximum line length in a text table, in characters; 0 for no limit.

The command line sets it if its output is a terminal. A file or another program gets whole lines.
"""
GAP = 2
"""Spaces between two columns."""


@dataclass(frozen=True)
class ColumnWidth:
    """Widths allowed for a column, in characters."""

    natural: int
    """Width without a limit."""
    least: int
    """Width below which a word, or a short value, would be divided."""


def divide_width(columns: Sequence[ColumnWidth], limit: int) -> list[dict[int, int]]:
    """Divide a table into blocks, and return the columns in each as widths by column number.

    Usually there is one block, in which wide columns are narrowed until a line fits. If even the
    least widths do not fit into a line, the remaining columns form further blocks, which repeat the
    first column. A column that is wider than the limit stays as wide as its longest word.

    >>> name, path = ColumnWidth(8, 8), ColumnWidth(60, 20)
    >>> divide_width([name, path], 0), divide_width([name, path], 40)
    ([{0: 8, 1: 60}], [{0: 8, 1: 30}])
    >>> divide_width([name, path, path], 40)
    [{0: 8, 1: 30}, {0: 8, 2: 30}]
    """
    if not limit:
        return [{number: column.natural for number, column in enumerate(columns)}]

    blocks: list[list[int]] = [[]]
    for number in range(len(columns)):
        least = [columns[member].least for member in (*blocks[-1], number)]
        # The first column alone is no block, neither at first nor as a repetition.
        if len(least) > 2 and _line_width(least) > limit:
            blocks.append([0])
        blocks[-1].append(number)

    return [_narrowed(columns, block, limit) for block in blocks]


def _narrowed(columns: Sequence[ColumnWidth], block: Sequence[int], limit: int) -> dict[int, int]:
    """Return the column widths in a block. The widest columns are narrowed first."""
    widths = {number: columns[number].natural for number in block}
    while _line_width(list(widths.values())) > limit:
        wider = [number for number in block if widths[number] > columns[number].least]
        if not wider:
            break
        widest = max(wider, key=lambda number: widths[number])
        widths[widest] -= 1

    return widths


def _line_width(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)
