"""Uses one bad record to recognize a whole file in another encoding or form of JSON."""

import re

from runbook.tokens.messages import TokenMessage

_CONTINUATION_BYTES = bytes(range(0x80, 0xC0))
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")


def format_hint(raw: bytes) -> str:
    r"""Guess the format of the file that a bad record comes from, and say how to convert it.

    Return an empty string if the record does not suggest one.

    >>> format_hint('{"text": "größer"}'.encode("latin-1")) == TokenMessage.MAYBE_LATIN_1.fill(
    ...     byte=0xF6, character="ö"
    ... )
    True
    >>> format_hint(b"[\n") == TokenMessage.MAYBE_ARRAY.fill()
    True
    >>> format_hint(b'{"text": 1}')
    ''
    """
    stripped = raw.strip()
    if stripped.startswith(b"["):
        return TokenMessage.MAYBE_ARRAY.fill()
    if stripped == b"{":
        return TokenMessage.MAYBE_INDENTED.fill()

    # The first bytes may be the rest of a character cut in two.
    text = raw.lstrip(_CONTINUATION_BYTES)
    try:
        text.decode("utf-8")
    except UnicodeDecodeError as error:
        wrong_byte = text[error.start : error.start + 1]
    else:
        return ""

    if not _is_latin_1(text):
        return ""
    return TokenMessage.MAYBE_LATIN_1.fill(
        byte=wrong_byte[0], character=wrong_byte.decode("cp1252")
    )


def _is_latin_1(text: bytes) -> bool:
    """Return whether bytes that are not UTF-8 are text in Latin-1, or in Windows-1252.

    Windows-1252 has printable characters in place of the controls from 0x80 on. Bytes in which
    other characters are correct UTF-8 are a damaged file instead.
    """
    try:
        decoded = text.decode("cp1252")
    except UnicodeDecodeError:
        return False

    has_utf8 = any(ord(character) > 127 for character in text.decode("utf-8", errors="ignore"))
    return not has_utf8 and _CONTROL.search(decoded) is None
