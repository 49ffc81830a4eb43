r"""Shows hidden content: characters that control a terminal become escapes (`\u202e`).

A job script, a note, a log or a run file from someone else may contain escape sequences that rename
a terminal window, write to the clipboard or hide lines. It may also contain Unicode direction
marks, which make a line look different from its real content.
"""

import contextlib
import io
import re
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast

_CONTROLS = "\x00-\x08\x0b-\x1f\x7f-\x9f"
"""The control characters: C0 except tab and line feed, DEL, and C1, in which U+009B starts a
sequence as ESC [ does.
"""
_DIRECTIONS = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_UNSEEN = "\u00ad\u180e\u200b\u2028\u2029\u2060-\u2064\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"
"""The invisible characters: soft hyphen, separators, zero-width spaces, tags.

The joiners U+200C and U+200D are not included, because words and emoji contain them.
"""
_HIDDEN = re.compile(f"[{_CONTROLS}{_DIRECTIONS}{_UNSEEN}]")
_COLOUR = r"\x1b\[(?:0|1|2|4|22|24|39|3[1-7]|9[0-7])?(?:;(?:0|1|2|4|22|24|39|3[1-7]|9[0-7]))*m"
"""Matches only foreground colours and font weights.

Concealed text (8), background colours and black (30) can hide text.
"""
_ON_TERMINAL = re.compile(rf"({_COLOUR}|\r)|[{_CONTROLS}{_DIRECTIONS}{_UNSEEN}]")


def visible(text: str) -> str:
    r"""Return text in which each invisible character is replaced by its escape.

    >>> visible("a\x1b]0;title\x07b"), visible("safe\u202edne"), visible("two\nlines\tstay")
    ('a\\u001b]0;title\\u0007b', 'safe\\u202edne', 'two\nlines\tstay')
    """
    return _HIDDEN.sub(_escape, text)


def find_hidden(text: str) -> str:
    """Return the first invisible character in a string, such as U+202E, or '' if there is none."""
    match = _HIDDEN.search(text.replace("\r\n", "\n").removeprefix("\ufeff"))
    return f"U+{ord(match[0]):04X}" if match else ""


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def for_terminal(text: str) -> str:
    r"""Return a string that is safe to show on a terminal.

    Like `visible`, this replaces invisible characters, but it keeps colours and carriage returns in
    progress lines.

    >>> for_terminal("\x1b[33mwarn\x1b[0m \x1b[8mhidden\x9b2J")
    '\x1b[33mwarn\x1b[0m \\u001b[8mhidden\\u009b2J'
    """
    return _ON_TERMINAL.sub(lambda match: match[1] or _escape(match), text)


class TerminalStream:
    """A text stream that passes everything through `for_terminal` before it writes it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the text as `for_terminal` returns it, and return the original length."""
        self._stream.write(for_terminal(text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write each of these texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def replace_unprintable() -> None:
    """Make standard output and error print question marks for characters outside their encoding.

    A terminal in Latin-1 (LANG=en_US on many clusters) has no check mark, and no UTF-8 terminal
    shows a file name whose bytes are not UTF-8. Python would raise an error instead.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")


@contextlib.contextmanager
def protected_terminal() -> Iterator[None]:
    """Within the block, pass all text for standard output and error through `for_terminal`."""
    out, err = (cast(TextIO, TerminalStream(stream)) for stream in (sys.stdout, sys.stderr))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield
