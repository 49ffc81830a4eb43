"""Takes what tells people and places out of records: users, hosts, accounts, paths, buckets, addresses.

    redactor = Redactor({"mmuster": "user", "nid001": "host"})      known words, each with what it is
    redactor.text(words)      redactor.value(json value)            the same with [user], [host], [path] ... in place

Known words are found wherever they stand, in any case of letters, also inside data: addresses; paths, buckets and
addresses are known by their shape.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from runbook.records.redacted_pictures import inside_addresses

BUCKET = re.compile(r"\b(?:s3a?|gs|abs|abfss?|wasbs?|adl|hdfs|az|oss)://[^\s\"'<>\\)\],;]+")
MAIL = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
ADDRESS = re.compile(
    r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])|\b(?:[0-9a-f]{1,4}:){7}[0-9a-f]{1,4}\b"
    r"|\b(?:fe80|f[cd][0-9a-f]{2}|2[0-9a-f]{3})(?::[0-9a-f]{1,4})*::(?:[0-9a-f]{1,4}(?::[0-9a-f]{1,4})*)?"
)
HOST = re.compile(r"\b(?:ssh|pdsh|ping|hostname[:=]?|host[:=]?|node[:=])\s+([A-Za-z][\w.-]*\d[\w.-]*)")
LIKE_A_HOST = re.compile(
    r"\b(?:nid|cn|gpu|compute|login|node|worker|ip)-?\d{2,}[\w-]*(?:\.[\w-]+)*"  # nid004711, ip-10-0-0-1
    r"|\bx\d{3,}c\d+s\d+b\d+n\d+[\w.-]*"  # HPE Cray
    r"|\b[\w-]+(?:\.[\w-]+)*\.(?:internal|cluster|lan|gov|edu)\b"
)
PATH = re.compile(r"(?<![\w/.<+%)\]}])(?:file://[\w.-]*)?(?:~[\w.-]*)?/[\w.@+%=~-]+(?:/[\w.@+%=~-]*)+")
ENCODED_PATH = re.compile(r"(?:%2F[\w.@+=~-]+){2,}(?:%2F)?", re.I)
"""As in the query of a link."""
HOME = re.compile(
    r"(?<![\w/])(?:~[\w-]+|/(?:root|home|Users|scratch|project|projects|work|gpfs|lustre|mnt|data|tmp))\b(?!\w)"
)
SHORTEST = 3
"""Letters of a known word; shorter ones stand inside ordinary text."""
ORDINARY = frozenset(
    {
        "root", "user", "users", "staff", "wheel", "nobody", "nogroup", "admin", "local", "localhost", "node", "none",
        "null", "true", "false", "runbook",
    }
)  # fmt: skip
"""Names that tell nobody anything, and words that a report cannot do without."""


class Redactor:
    """Knows the words of one run."""

    def __init__(self, words: Mapping[str, str]) -> None:
        lower = {word.lower(): kind for word, kind in words.items()}
        kept = {word: kind for word, kind in lower.items() if len(word) >= SHORTEST and word not in ORDINARY}
        self._kinds = kept
        longest_first = sorted(kept, key=len, reverse=True)
        # An underscore parts words here: in jdoe_run the user is still to be seen.
        edged = (rf"(?<![^\W_]){re.escape(word)}(?![^\W_])" for word in longest_first)
        self._known = re.compile("|".join(edged) or r"(?!)", re.IGNORECASE)

    def text(self, text: str) -> str:
        """A text without them; it reads on.

        >>> Redactor({"mmuster": "user"}).text("mmuster wrote /scratch/p1/run and s3://bkt/x, 3 tokens/s")
        '[user] wrote [path] and [bucket], 3 tokens/s'
        """
        pieces = inside_addresses(text, self.text)
        return "".join(self._plain(piece) if is_plain else piece for piece, is_plain in pieces)

    def _plain(self, text: str) -> str:
        text = BUCKET.sub("[bucket]", text)
        text = MAIL.sub("[address]", text)
        text = PATH.sub("[path]", text)  # before the words: a path is one thing, whatever stands inside
        text = ENCODED_PATH.sub("[path]", text)
        text = self._known.sub(lambda match: f"[{self._kinds.get(match[0].lower(), 'word')}]", text)
        text = HOME.sub("[path]", text)
        text = LIKE_A_HOST.sub("[host]", text)
        text = HOST.sub(lambda match: match[0].replace(match[1], "[host]"), text)
        return ADDRESS.sub("[address]", text)

    def value(self, value: Any) -> Any:
        """A JSON value with all its texts redacted, the names of keys too."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(key)): self.value(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        return value
