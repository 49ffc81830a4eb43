"""PREFIX.manifest.json: what went in, what came out, with which choices, how fast; written last, by rename."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runbook.data.indexed import HEADER
from runbook.data.options import Output
from runbook.errors import DataError

SCHEMA = 1


@dataclass(frozen=True)
class Manifest:
    """The finished work, as it stands in the file."""

    fingerprint: str
    """Of the inputs and the choices: equal means that the same tokens would come out."""

    inputs: list[dict[str, Any]]
    """path, bytes, mtime_ns of each file, in order."""

    options: dict[str, Any]
    tokenizer: dict[str, Any]
    """name, vocabulary, sha256 of its files, encoder, judge, end_of_document."""

    dtype: str
    documents: int
    empty: int
    sequences: int
    tokens: int
    """With end-of-document tokens."""

    end_of_document_tokens: int
    text_bytes: int
    records: int
    """Read from the input; documents + skipped_records + dropped."""

    skipped_records: int
    skipped_files: int
    dropped: int
    blank_lines: int
    judged: int
    """Documents that were encoded by the judge as well."""

    problems: list[str]
    """The first things left out, in words."""

    sources: dict[str, dict[str, int]]
    """documents, text_bytes, tokens by source."""

    lengths: list[int]
    """Documents with 2^i to 2^(i+1) - 1 tokens."""

    files: dict[str, dict[str, Any]]
    """bin and idx: name, bytes, sha256."""

    shards: list[dict[str, Any]]
    """offset, bytes, documents, tokens of each."""

    seconds: dict[str, float]
    """Wall time of the last call, and the sums of all workers' time by stage (of every call that did a shard)."""

    rates: dict[str, float]
    """MB of text a second: the whole call, and by stage on one worker."""

    speed: list[list[float]]
    """Seconds since the start and bytes of text done, along the way."""

    workers: int
    made: str
    """When, in UTC."""

    versions: dict[str, str]
    reused_shards: int = 0
    """Shards that an earlier, interrupted call had done."""

    schema: int = SCHEMA
    reused: bool = field(default=False, compare=False)
    """True where this call found everything done; not in the file."""

    def as_dict(self) -> dict[str, Any]:
        """What the file holds."""
        content = dict(vars(self))
        del content["reused"]
        return content

    @property
    def text_tokens(self) -> int:
        """Tokens without the end-of-document ones."""
        return self.tokens - self.end_of_document_tokens


def read_manifest(prefix: Path) -> Manifest:
    """The manifest of a prefix; DataError where there is none, or none that can be read."""
    path = Output(prefix).manifest
    try:
        content = json.loads(path.read_text())
        if content.get("schema") != SCHEMA:
            raise DataError(
                f"{path} has schema {content.get('schema')!r}; this version reads {SCHEMA}. Tokenize again."
            )
        return Manifest(**content)
    except FileNotFoundError:
        raise DataError(
            f"{path} does not exist: nothing was tokenized to this prefix, or it was not finished. "
            "Run `runbook data tokenize INPUT... --out PREFIX` (again); it does only what is missing."
        ) from None
    except (ValueError, TypeError, AttributeError, OSError, RecursionError) as error:
        raise DataError(f"{path} is not a manifest that can be read ({error}). Tokenize again.") from None


def write_manifest(prefix: Path, manifest: Manifest) -> None:
    """Write it whole, by rename."""
    path = Output(prefix).manifest
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(manifest.as_dict(), indent=1) + "\n")
    part.rename(path)


def finished(prefix: Path, fingerprint: str) -> Manifest | None:
    """The manifest, where the same work was done before and its two files are there at full size."""
    output = Output(prefix)
    try:
        manifest = read_manifest(prefix)
        sizes = {"bin": output.bin.stat().st_size, "idx": output.idx.stat().st_size}
        with output.idx.open("rb") as file:
            head = file.read(HEADER.size)
    except (DataError, OSError):
        return None
    if manifest.fingerprint != fingerprint or len(head) < HEADER.size:
        return None
    same = all(manifest.files[name]["bytes"] == size for name, size in sizes.items())
    return manifest if same and HEADER.unpack(head)[3] == manifest.sequences else None
