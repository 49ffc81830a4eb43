"""Documents of many megabytes: read from their line in pieces, so that no second copy of the text is needed.

Python's str takes up to four bytes a character, and encoders copy what they are given; a document of 100 MB would need
half a gigabyte. A piece ends only where GPT-2's pre-tokenizer ends a token whatever comes before and after: after a
word of ASCII letters that a space and another letter follow. The ids are those of the whole text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

HUGE = 16 << 20
"""Bytes of a line, or of a text file, from which on it is read in pieces."""

PIECE = 4 << 20

# The space before the word makes sure that its letters are not part of a JSON escape such as \n or \u00e9.
_BORDER = re.compile(rb" [A-Za-z]+(?= [A-Za-z])")


class BadTextError(Exception):
    """A piece that is no text; the whole document is bad."""


class HugeText:
    """The text of one document, still as bytes."""

    def __init__(self, content: memoryview, decode: Callable[[bytes], str]) -> None:
        self._content = content
        self._decode = decode
        """Bytes of a piece to text; raises BadTextError."""

    def pieces(self, cut: bool) -> Iterator[str]:
        """The text in pieces of a few megabytes; in one where `cut` is False, or where no border is found."""
        start = 0
        while start < len(self._content):
            border = _BORDER.search(self._content, start + PIECE) if cut else None
            end = border.end() if border else len(self._content)
            yield self._decode(bytes(self._content[start:end]))
            start = end


def decode_plain(piece: bytes) -> str:
    """A piece of a text file."""
    try:
        return piece.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadTextError(f"invalid UTF-8: {error.reason}") from None
