r"""Text that a cell prints, kept as one output for each stream, with `\r` and `\b` applied as a terminal would.

    Streams().add(outputs, name, text) -> bool      False: the caller appends the output itself and calls `watch`
    Streams().flush()                               before the notebook is saved, and when a cell ends

nbclient can merge streams after a cell has ended; a cell that is killed then keeps its thousands of pieces, and merging
across other outputs shifts the places that display handles update. This merges as text arrives and never across another
output.
"""

from __future__ import annotations

import re
from typing import Any

_OVERWRITTEN = re.compile(r"[^\n]*\r(?=[^\n\r])")
_BEFORE_NEWLINE = re.compile(r"\r+\n")
_DELETED = re.compile(r"[^\n\x08]\x08")


def as_terminal(text: str) -> str:
    r"""The text that stays on a terminal: what a carriage return or backspace wrote over is gone.

    >>> as_terminal("10 %\r50 %\r100 %\ndone\r\n"), as_terminal("ab\b\bc")
    ('100 %\ndone\n', 'c')
    """
    while "\x08" in text:
        shorter = _DELETED.sub("", text)
        if shorter == text:
            break
        text = shorter
    return _OVERWRITTEN.sub("", _BEFORE_NEWLINE.sub("\n", text)) if "\r" in text else text


class Streams:
    """Pieces of text waiting to be joined to the outputs they belong to."""

    def __init__(self) -> None:
        self._pieces: list[tuple[Any, list[str]]] = []

    def watch(self, output: Any) -> None:
        """A stream output was appended to a cell; later text of the same stream may join it."""
        self._pieces.append((output, [output["text"]]))

    def add(self, outputs: list[Any], name: str, text: str) -> bool:
        """Join text to the cell's last output of that stream, unless another kind of output came since."""
        for output in reversed(outputs):
            if output["output_type"] != "stream":
                return False
            if output["name"] == name:
                pieces = next((pieces for known, pieces in self._pieces if known is output), None)
                if pieces is None:
                    return False
                pieces.append(text)
                return True
        return False

    def flush(self) -> None:
        """Bring the outputs up to date; text may still be added to them."""
        for output, pieces in self._pieces:
            if len(pieces) > 1 or "\r" in pieces[0] or "\x08" in pieces[0]:
                pieces[:] = [as_terminal("".join(pieces))]
                output["text"] = pieces[0]

    def end_cell(self) -> None:
        """The cell has ended: bring its outputs up to date and forget them."""
        self.flush()
        self._pieces.clear()
