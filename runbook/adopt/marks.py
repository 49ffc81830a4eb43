"""Where a piece of text came from, kept inside the text: lines and unknown parts survive variables and quoting."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_LINE = re.compile("\ue000(\\d+)\ue001")
_UNKNOWN = re.compile("\ue002([^\ue003]*)\ue003")
_PRIVATE = re.compile("[\ue000-\ue005]")
GLUE = "\ue004"
"""Stands for a blank that was quoted and does not separate words."""


@dataclass(frozen=True)
class Word:
    """One word as a program would get it, and the line that its value was written in."""

    text: str
    line: int

    @property
    def known(self) -> bool:
        """Whether the word could be read without running anything."""
        return not _UNKNOWN.search(self.text)

    @property
    def shown(self) -> str:
        """The word for people, with the unknown parts as they are written."""
        return shown(self.text)


def clean(text: str) -> str:
    """A script's text without the letters that are used as marks here."""
    return _PRIVATE.sub("", text)


def at(line: int) -> str:
    """The mark that says: what follows was written in this line."""
    return f"\ue000{line}\ue001"


def unknown(source: str) -> str:
    """The mark of a part that only running would tell, such as $(hostname)."""
    source = re.sub(r"[ \t\n]+", GLUE, _PRIVATE.sub("", source))
    return f"\ue002{source}\ue003"


def is_known(text: str) -> bool:
    """Whether nothing of the text is unknown."""
    return not _UNKNOWN.search(text)


def plain(text: str) -> str:
    """The text without marks of lines, quoted blanks as blanks."""
    return _LINE.sub("", text).replace(GLUE, " ")


def shown(text: str) -> str:
    """The text for people.

    >>> shown(at(3) + "a" + unknown("$(hostname)"))
    'a$(hostname)'
    """
    return _UNKNOWN.sub(lambda found: found[1], plain(text))


def line_of(text: str, default: int) -> int:
    """The line of the last piece of text, or `default` where none is marked."""
    found = [int(match[1]) for match in _LINE.finditer(text)]
    return found[-1] if found else default


def first_line(text: str, default: int) -> int:
    """The line that the first letters come from.

    >>> first_line(at(4) + "8" + at(9), 9)
    4
    """
    line = default
    for piece in re.split("(\ue000\\d+\ue001)", text):
        if match := _LINE.fullmatch(piece):
            line = int(match[1])
        elif piece.strip():
            return line
    return line


def split(text: str, line: int) -> Iterator[Word]:
    """The words of a text that was not quoted, each with the line its first letters come from."""
    for piece in re.split(r"[ \t\r\n]+", text):
        start = first_line(piece, line)
        letters = plain(piece)
        if letters:
            yield Word(letters, start)
        line = line_of(piece, line)
