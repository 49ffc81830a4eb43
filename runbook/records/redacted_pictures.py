"""Pictures and data: addresses for a redacted record: what in them is text is redacted, what is only seen is kept.

    keep_pictures(data, text)            an output's data by type, with each type redacted or left out
    inside_addresses(words, text)        words with what data: addresses hold redacted
    plain_png(content) -> bytes          a PNG without the words that programs write beside the picture

`text` is the function that redacts a text.
"""

from __future__ import annotations

import base64
import binascii
import re
import struct
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any

Redact = Callable[[str], str]

ADDRESS = re.compile(r"(?<!\w)data:([\w.+-]+/[\w.+-]+)?((?:;[\w=.+-]+)*),([A-Za-z0-9+/=%._~!$&*;:@-]*)")
PNG = b"\x89PNG\r\n\x1a\n"
_WORDS = frozenset({b"tEXt", b"zTXt", b"iTXt", b"eXIf", b"tIME"})
"""Parts of a PNG that are not seen: titles, programs, places, times."""
_TEXTUAL = re.compile(r"text/|.*(?:svg|xml|json|javascript|latex|markdown)")


def keep_pictures(data: dict[str, Any], value: Callable[[Any], Any]) -> None:
    """Redact an output's data in place: texts by `value`, a PNG loses its hidden words, other pictures are left out."""
    for kind in list(data):
        if kind == "image/png":
            data[kind] = _png_of(data[kind])
        elif is_text(kind):
            data[kind] = value(data[kind])
        else:  # what cannot be looked into could say anything
            del data[kind]
    if not data:
        data["text/plain"] = "[left out of the redacted copy]"


def is_text(kind: str) -> bool:
    """Whether a type of data is text that can be redacted.

    >>> [is_text(kind) for kind in ("text/html", "image/svg+xml", "application/vnd.runbook.v1+json", "image/jpeg")]
    [True, True, True, False]
    """
    return _TEXTUAL.match(kind) is not None


def inside_addresses(words: str, text: Redact) -> Iterator[tuple[str, bool]]:
    """Pieces of `words`, each with whether it still has to be redacted: what data: addresses hold is done here."""
    end = 0
    for found in ADDRESS.finditer(words):
        yield words[end : found.start()], True
        yield _address(found, text), False
        end = found.end()
    yield words[end:], True


def plain_png(content: bytes) -> bytes:
    """The same picture without its parts that hold words; what is no PNG stays as it is."""
    if not content.startswith(PNG):
        return content
    kept, at = [PNG], len(PNG)
    while at + 12 <= len(content):
        (length,) = struct.unpack_from(">I", content, at)
        part = content[at : at + 12 + length]
        if part[4:8] not in _WORDS:
            kept.append(part)
        at += 12 + length
        if part[4:8] == b"IEND":
            break
    return b"".join(kept)


def _png_of(encoded: Any) -> str:
    text = "".join(encoded) if isinstance(encoded, list) else str(encoded)
    content = _decoded(text)
    return text if content is None else base64.b64encode(plain_png(content)).decode()


def _address(found: re.Match[str], text: Redact) -> str:
    kind, options, body = found[1] or "text/plain", found[2], found[3]
    if not options.endswith(";base64"):
        return f"data:{found[1] or ''}{options},{urllib.parse.quote(text(urllib.parse.unquote(body)), safe='[]')}"
    content = _decoded(urllib.parse.unquote(body))
    if kind == "image/png" and content is not None:
        return f"data:{kind}{options},{base64.b64encode(plain_png(content)).decode()}"
    if is_text(kind) and content is not None:
        shown = text(content.decode("utf-8", errors="replace"))
        return f"data:{kind}{options},{base64.b64encode(shown.encode()).decode()}"
    return "data:,"  # what cannot be looked into could say anything


def _decoded(text: str) -> bytes | None:
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        return None
