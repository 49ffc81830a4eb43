"""Redacts records for outsiders: names, hosts, paths, buckets and secrets are removed.

    redactor = Redactor({"mmuster": "user", "nid001": "host"})     # known words and their kinds
    redactor.text(text), .value(json_value), .markup(html)         # the same with [user], [host] ...

Known words are found everywhere, in upper and lower case, and also inside data: addresses. Paths,
buckets and addresses are recognized by their form. A limitation: if an unquoted path does not name
a file and its last part contains a space, the text after that space is kept.
"""

import base64
import re
import struct
import urllib.parse
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from runbook.params.secrets import replace_secrets
from runbook.records.pages.html_rewriting import Rewriter
from runbook.tools.redact.addresses import redact_addresses, redact_numbers

Redact = Callable[[str], str]

DATA_ADDRESS = re.compile(
    r"(?<!\w)data:([\w.+-]+/[\w.+-]+)?((?:;[\w=.+-]+)*),([A-Za-z0-9+/=%._~!$&*;:@-]*)"
)
PNG = b"\x89PNG\r\n\x1a\n"
_WORDS = frozenset({b"tEXt", b"zTXt", b"iTXt", b"eXIf", b"tIME"})
"""Invisible chunks in a PNG, such as titles, programs, places and times."""
_TEXTUAL = re.compile(r"text/|.*(?:svg|xml|json|javascript|latex|markdown)")


def keep_pictures(data: dict[str, Any], value: Callable[[Any], Any], markup: Redact) -> None:
    """Redact the text, HTML and SVG in an output in place.

    Remove invisible text from a PNG. Remove other formats completely, because an unreadable format
    could contain anything.
    """
    if "image/svg+xml" in data:
        # The output also contains the figure in a format that cannot be searched for words
        data.pop("image/png", None)

    for kind in list(data):
        if kind == "image/png":
            picture = _decoded("".join(data[kind]))
            if picture is not None:
                data[kind] = base64.b64encode(plain_png(picture)).decode()
        elif is_markup(kind):
            data[kind] = markup("".join(data[kind]))
        elif is_text(kind):
            data[kind] = value(data[kind])
        else:
            del data[kind]

    if not data:
        data["text/plain"] = "[left out of the redacted copy]"


def is_text(kind: str) -> bool:
    """Return whether a media type is text that can be redacted.

    >>> [is_text(kind) for kind in ("text/html", "image/svg+xml", "application/vnd.runbook.v1+json", "image/jpeg")]
    [True, True, True, False]
    """
    return _TEXTUAL.match(kind) is not None


def is_markup(kind: str) -> bool:
    """Return whether a media type consists of tags with words between them."""
    return kind == "text/html" or "xml" in kind


def plain_png(content: bytes) -> bytes:
    """Return the same picture without the chunks that contain words. Only a PNG is changed.

    Pillow is not used, because it would encode the picture again, and would keep only one frame in
    an animation.
    """
    if not content.startswith(PNG):
        return content
    parts = [PNG]
    start = len(PNG)
    # A chunk consists of its length (4 bytes), its name (4), its content and a checksum (4).
    while start + 12 <= len(content):
        (length,) = struct.unpack_from(">I", content, start)
        end = start + 12 + length
        part = content[start:end]
        name = part[4:8]
        if name not in _WORDS:
            parts.append(part)
        if name == b"IEND":
            break
        start = end

    return b"".join(parts)


def _address(match: re.Match[str], text: Redact, markup: Redact) -> str:
    """Return a `data:` address with its content redacted, or '' if it cannot be read."""
    kind = match[1] or "text/plain"
    options = match[2]
    body = urllib.parse.unquote(match[3])
    redact = markup if is_markup(kind) else text
    if not options.endswith(";base64"):
        quoted = urllib.parse.quote(redact(body), safe="[]")
        return f"data:{match[1] or ''}{options},{quoted}"

    content = _decoded(body)
    if content is None:
        return "data:,"
    if kind == "image/png":
        redacted = plain_png(content)
    elif is_text(kind):
        redacted = redact(content.decode("utf-8", errors="replace")).encode()
    else:
        # A format that cannot be read could contain anything
        return "data:,"

    return f"data:{kind}{options},{base64.b64encode(redacted).decode()}"


def _decoded(text: str) -> bytes | None:
    """Decode base64 text, or return None if it is not base64."""
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except ValueError:
        return None


BUCKET = re.compile(r"\b(?:s3a?|gs|abs|abfss?|wasbs?|adl|hdfs|az|oss)://[^\s\"'<>\\)\],;]+")
MAIL = re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
HOST = re.compile(
    r"\b(?:ssh|pdsh|ping|hostname[:=]?|host[:=]?|node[:=])\s+([A-Za-z][\w.-]*\d[\w.-]*)"
)
_HOST_KEY = (
    r"(?:master|head|main|coordinator|leader|rdzv|rendezvous|c10d|server|peer|remote|init)"
    r"[ _-]?(?:addr(?:ess)?|endpoint|host|ip|node)"
)
# As c10d logs it: [head]:29400
NAMED_HOST = re.compile(
    # MASTER_ADDR=head, --rdzv_endpoint head:29400, "master_addr": "head"
    rf"(?i:\b(?:\w+_)?{_HOST_KEY}[\"']?\s*(?:[:=]|\s)\s*[\"']?)(?P<key>[A-Za-z][\w.-]*(?::\d+)?)(?<!\.)(?![\w:])"
    r"|(?i:\b(?:connect(?:ed|ing|ion)?(?: refused)?(?: to| from| "
    r"by)|reach|resolve)\s+)(?P<call>[A-Za-z][\w.-]*:\d{2,5})\b"
    r"|(?P<bracket>\[[A-Za-z][\w.-]*\]:\d{2,5})\b"
    r"|(?<![\w./:-])(?P<port>(?:localhost|[A-Za-z][\w-]*\d):\d{4,5})(?![\w:.])"
)
"""A name marked as a host in the text, or one that contains a digit and is followed by a port."""
_NOT_A_HOST = frozenset({"localhost", "is", "and", "or", "the", "not", "of", "for", "env", "auto"})
# Host names on SGI and HPE ICE, which state rack, unit and node
LIKE_A_HOST = re.compile(
    r"(?<![\w.-])(?:[a-z0-9]+-)*?(?:"
    # nid004711, ip-10-0-0-1, acme-gpu-node-17
    r"(?:nid|cn|gpu|compute|login|node|worker|ip|srv|host|server|rack|blade|batch|pod|vm)-?\d{2,}"
    r"|(?:dgx|hgx|bastion|jump(?:host|box)?|mgmt|slurm(?:ctld?)?|frontend|headnode|dtn|nas|nfs)-?\d+"
    r"|(?:head|master|host|server|login|node|worker|admin|jump|bastion|storage|mds|oss)-\d+"
    r"|(?:dgx|hgx)-?(?:a100|h100|h200|b[23]00|gb[23]00)-?\d+"
    r"|(?:a100|h100|h200|b[23]00|gb[23]00|mi250|mi300)-(?:node|host|gpu)-?\d+"
    r"|r\d+i\d+n\d+"
    r")[\w-]*(?:\.[\w-]+)*"
    r"|\bx\d{3,}c\d+s\d+b\d+n\d+[\w.-]*"  # HPE Cray
    r"|(?<![\w.-])[\w-]+(?:\.[\w-]+)*\.(?:internal|cluster|lan|gov|edu)\b",
    re.IGNORECASE,
)
_PART = r"[\w.@+%=~-]+(?:\\ [\w.@+%=~-]+)*"
_SPACED = rf"{_PART}(?: [\w.@+%=-]+){{1,3}}(?=/[\w.@+%=~-]{{2}})"
"""The name of a folder, which may contain spaces.

Another path component must follow, to distinguish it from `tokens/s`.
"""
_BELOW = rf"(?:/(?:{_SPACED}|{_PART})?)"
PATH = re.compile(
    rf"(?<![\w/.<+%)\]}}])(?:file://[\w.-]*)?(?:~[\w.-]*)?/(?:{_SPACED}|{_PART}){_BELOW}+"
)
QUOTED_PATH = re.compile(r"""(["'`])(?:file://)?~?/[^"'`\n<>/]+[/ ][^"'`\n<>]*\1""")
"""A path in quotes, which ends at the closing quote."""
WHOLE_PATH = re.compile(r"(?:file://)?~?(?:/[^/\n:]+){2,}/?")
ENCODED_PATH = re.compile(r"(?:%2F[\w.@+=~-]+){2,}(?:%2F)?", re.I)  # In the query string of a link
SERVER_PATH = re.compile(
    r"(?<![\w:/])//[\w.$-]+(?:/[\w.@+%=~$-]+)+/?"  # //server/share/x
    r"|(?<![\w\\])\\{2,4}[\w.$-]+(?:\\{1,2}[\w.@+%=~$-]+)+\\*"  # \\server\share
    r"|(?<![\w\\])[A-Za-z]:\\{1,2}(?:[\w.@+%=~$-]+\\{0,2})+"  # C:\Users\ada
    r"|(?<![\w.:/-])[\w-]+(?:\.[\w-]+)*:/(?:[\w.@+%=~-]+/)+[\w.@+%=~-]*"  # nfs01:/export/home
)
"""Paths on other machines, and Windows paths."""
HOME = re.compile(
    r"(?<![\w/])(?:~[\w-]+|/(?:root|home|Users|scratch|project|projects|work|gpfs|lustre|mnt|data|tmp))\b(?!\w)"
)
# Shorter words also occur in ordinary text. Therefore their case must match, and they are not
# removed from tags.
SHORT = 2
ORDINARY = frozenset(
    {
        "root",
        "user",
        "users",
        "staff",
        "wheel",
        "nobody",
        "nogroup",
        "admin",
        "local",
        "localhost",
        "node",
        "none",
        "null",
        "true",
        "false",
        "runbook",
        "run",
        "phase",
        "state",
        "verdict",
        "started",
        "ended",
        "reason",
        "commit",
        "versions",
        "parameters",
        "plan",
        "results",
        "checks",
        "cells",
        "schema",
        "name",
        "value",
        "rule",
        "id",
        "origin",
    }
)
"""Words that are never redacted, because they identify nobody or a report needs them."""


class Redactor:
    """Removes sensitive words about a run from texts, markup and JSON values."""

    def __init__(self, replacements: Mapping[str, str]) -> None:
        telling = {}
        for word, kind in replacements.items():
            if word.lower() not in ORDINARY:
                telling[word] = kind

        lower = {word.lower(): kind for word, kind in telling.items()}
        self._kinds = {word: kind for word, kind in lower.items() if len(word) > SHORT}
        places = [word for word in self._kinds if word.startswith(("/", "~"))]
        # Underscores separate words, so that the user does not remain visible in jdoe_run.
        self._known = _any_of(self._kinds, r"(?<![^\W_])", r"(?![^\W_])", re.IGNORECASE)
        self._places = _any_of(places, r"(?<![^\W_])", rf"(?![\w-]){_BELOW}*", re.IGNORECASE)
        self._short_kinds: dict[str, str] = {}
        for word, kind in telling.items():
            if 0 < len(word) <= SHORT and not word.isdecimal():
                self._short_kinds[word] = kind
                self._short_kinds[word.upper()] = kind

        self._short = _any_of(self._short_kinds, r"(?<![^\W_])(?<!</)(?<!<)", r"(?![^\W_])")

    def text(self, text: str) -> str:
        """Replace known words in the text with readable placeholders.

        >>> Redactor({"mmuster": "user"}).text("mmuster wrote /scratch/p1/run and s3://bkt/x, 3 tokens/s")
        '[user] wrote [path] and [bucket], 3 tokens/s'
        """
        pieces = []
        end = 0
        for match in DATA_ADDRESS.finditer(text):
            pieces.append(self._plain(text[end : match.start()]))
            pieces.append(_address(match, self.text, self.markup))
            end = match.end()

        pieces.append(self._plain(text[end:]))
        return "".join(pieces)

    def markup(self, text: str) -> str:
        """Return HTML or SVG without the known words, in any encoding.

        The words are removed from text and attributes. Comments, scripts, and tags or attributes
        whose name contains a known word are removed completely.
        """
        return _Markup(self).rewrite(text)

    def _plain(self, text: str) -> str:
        text = redact_addresses(BUCKET.sub("[bucket]", text))
        text = replace_secrets(text, lambda _: "[secret]")
        text = MAIL.sub("[address]", text)
        text = SERVER_PATH.sub("[path]", text)
        # Known paths are replaced before other paths, because they may contain spaces.
        text = self._places.sub("[path]", text)
        text = QUOTED_PATH.sub(r"\1[path]\1", text)
        # Paths are replaced before words, because a path is replaced as a whole, whatever words it
        # contains.
        text = ENCODED_PATH.sub("[path]", PATH.sub("[path]", text))
        text = self._known.sub(lambda match: f"[{self._kinds.get(match[0].lower(), 'word')}]", text)
        text = self._short.sub(lambda match: f"[{self._short_kinds[match[0]]}]", text)
        text = LIKE_A_HOST.sub("[host]", HOME.sub("[path]", text))
        text = HOST.sub(lambda match: match[0].replace(match[1], "[host]"), text)
        return redact_numbers(NAMED_HOST.sub(_named_host, text))

    def value(self, value: Any) -> Any:
        """Redact all texts in a JSON value, including key names, and return the new value."""
        if isinstance(value, str):
            if WHOLE_PATH.fullmatch(value):
                return "[path]"
            return self.text(value)

        if isinstance(value, Mapping):
            return {self.text(str(key)): self.value(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        return value


def _named_host(match: re.Match[str]) -> str:
    """Replace the host in a match with `[host]`. Keep a port number that follows."""
    host = match[match.lastgroup or 0]
    if ":" in host:
        name, colon, port = host.rpartition(":")
    else:
        name, colon, port = host, "", ""

    if name.lower() in _NOT_A_HOST or not re.search(r"[A-Za-z]", name):
        return match[0]
    before = match[0][: -len(host)]
    return f"{before}[host]{colon}{port}"


class _Markup(Rewriter):
    """HTML or SVG that a redactor rewrites."""

    def __init__(self, redactor: Redactor) -> None:
        super().__init__()
        self.text = redactor.text  # type: ignore[method-assign]

    def renamed(self, tag: str) -> str | None:
        return tag if tag != "script" and self._is_harmless(tag) else None

    def attribute(
        self,
        tag: str,
        name: str,
        value: str,
    ) -> str | None:
        if name in _DRAWN or name.startswith("xmlns"):
            return value
        return self.text(value) if self._is_harmless(name) else None

    def raw(self, element: str, text: str) -> str:
        return self.text(text)

    def _is_harmless(self, name: str) -> bool:
        """Return whether the name of a tag or attribute contains no known word."""
        return len(name) <= SHORT or self.text(name) == name


_DRAWN = ("d", "points", "transform", "viewbox", "gradienttransform")
"""Attributes whose values are numbers and single letters."""


def _any_of(
    alternatives: Iterable[str],
    before: str,
    after: str,
    flags: int = 0,
) -> re.Pattern[str]:
    """Compile a pattern to match any of the words, trying the longest first.

    Without any words, the pattern never matches.
    """
    longest_first = sorted(alternatives, key=len, reverse=True)
    words_pattern = "|".join(map(re.escape, longest_first))
    if not words_pattern:
        return re.compile(r"(?!)", flags)
    return re.compile(rf"{before}(?:{words_pattern}){after}", flags)
