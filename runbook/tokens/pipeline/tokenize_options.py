"""Options for tokenizing, and the file names and manifest for a prefix."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from runbook.core.errors import DataError
from runbook.tokens.messages import TokenMessage
from runbook.tokens.pipeline.chosen_sources import ChosenSources
from runbook.tokens.sources.input_files import MAX_RECORD_BYTES

MANIFEST_SCHEMA = 2
MOST_REPORTED_RECORDS = 20
"""Number of bad records to report one by one; the others are only counted."""
NEUTRAL_VALUES: dict[str, Any] = {
    "keep_sources": (),
    "drop_sources": (),
    "source_key": "auto",
    "fix_text": "none",
    "max_record_bytes": MAX_RECORD_BYTES,
}
"""Values that give the same tokens as before the option existed.

A fingerprint leaves out a newer option with this value, so that finished work keeps its
fingerprint. These values must not change when the defaults change.
"""
_YOUNGER_OPTIONS = ("keep_sources", "fix_text", "max_record_bytes")
"""Options that are newer than the first manifests."""


@dataclass(frozen=True)
class TokenizeOptions:
    """Options for turning text into tokens.

    All options except `workers`, `shard_bytes`, `encoder` and `check_space` affect the result.
    """

    tokenizer: str = "gpt2"
    """`gpt2` (shipped), or a path to a Hugging Face tokenizer.json or a SentencePiece .model."""
    text_key: str = "text"
    """Key with the text in each JSON record, or column in a Parquet file."""
    append_eod: bool = True
    """Whether to add the end-of-document token after each document that is not empty."""
    eod_token: str = ""
    """Which token to use as end-of-document token, by name.

    If empty, use the first known name that the tokenizer has.
    """
    special_tokens: bool = False
    """Whether a literal <|endoftext|> in a text becomes that token, as in Megatron with Hugging
    Face tokenizers.
    """
    bad_records: str = "stop"
    """How to handle a bad record: stop, skip or quarantine.

    skip leaves the record out and counts it; quarantine also keeps it in PREFIX.quarantine.
    """
    max_record_bytes: int = MAX_RECORD_BYTES
    """Maximum record size in bytes. A longer record counts as bad.

    Only the beginning of a larger record is read into memory.
    """
    source_key: str = "auto"
    """Dotted key with the source of a record, such as meta.source.

    `auto` means a known key contained in the first record.
    """
    keep_sources: tuple[str, ...] = ()
    """Keep only documents from these sources; empty means all sources."""
    drop_sources: tuple[str, ...] = ()
    """Leave out documents from these sources."""
    fix_text: str = "none"
    """`none`, or `ftfy` to repair wrongly decoded characters first, as NeMo's --apply-ftfy does."""
    workers: int = 0
    """Number of processes; 0 means one process per core that this process may use."""
    encoder: str = "auto"
    """auto (the fastest installed encoder whose ids are exact), or tokenizers."""
    shard_bytes: int = 64_000_000
    """Bytes of text per shard. Work is finished shard by shard.

    Shards are smaller if the whole input is small.
    """
    check_space: bool = True
    """Whether to refuse to start if the disk is too small for the estimated output."""

    def __post_init__(self) -> None:
        """Raise `DataError` if a source is both kept and dropped."""
        _ = self.chosen_sources

    @property
    def chosen_sources(self) -> ChosenSources:
        """Return which sources are kept and which are dropped."""
        return ChosenSources(self.keep_sources, self.drop_sources)

    def choices(self) -> dict[str, Any]:
        """Return the options that determine the output."""
        others = ("workers", "shard_bytes", "encoder", "check_space")
        choices = {}
        for name, value in vars(self).items():
            is_neutral = name in _YOUNGER_OPTIONS and value == NEUTRAL_VALUES[name]
            if name in others or is_neutral:
                continue
            # A manifest is JSON, which has lists but no tuples.
            choices[name] = list(value) if isinstance(value, tuple) else value

        return choices


class TokenFiles:
    """The files of a prefix. `data/corpus` and `data/corpus_text_document` mean the same files.

    With `exact`, the .bin and .idx are named exactly like the prefix, as files from other tools may
    be.

    >>> TokenFiles(Path("data/corpus")).bin.as_posix()
    'data/corpus_text_document.bin'
    >>> TokenFiles(Path("data/corpus_text_document")).manifest.as_posix()
    'data/corpus.manifest.json'
    """

    def __init__(self, prefix: Path, *, exact: bool = False) -> None:
        self.prefix = prefix
        self.base = prefix.with_name(prefix.name.removesuffix("_text_document"))
        document_prefix = prefix if exact else f"{self.base}_text_document"
        self.bin = Path(f"{document_prefix}.bin")
        self.idx = Path(f"{document_prefix}.idx")
        self.bin_part = Path(f"{self.bin}.part")  # Used for the .bin while it is being written
        self.idx_part = Path(f"{self.idx}.part")
        # Lists the inputs and results; this file is written last.
        self.manifest = Path(f"{self.base}.manifest.json")
        self.quarantine = Path(f"{self.base}.quarantine")  # Records set aside
        # Folder for unfinished work: locks, done markers, waiting parts.
        self.parts = Path(f"{self.base}.parts")

    @classmethod
    def existing(cls, prefix: Path) -> TokenFiles:
        """Return the existing files for a prefix, whichever way they are named.

        If PREFIX.bin exists, return PREFIX.bin and PREFIX.idx; otherwise PREFIX_text_document.bin
        and .idx.
        """
        return cls(prefix, exact=Path(f"{prefix}.bin").exists())


@dataclass(kw_only=True)
class Counts:
    """Document counts for a shard, or for all shards."""

    records: int = 0
    """Documents read from the input, good or bad: documents + skipped_records + dropped."""
    documents: int = 0
    """Documents in the output, including empty ones."""
    empty: int = 0
    """Documents in the output that have no tokens."""
    sequences: int = 0
    tokens: int = 0
    """Includes end-of-document tokens."""
    text_bytes: int = 0
    skipped_records: int = 0
    skipped_files: int = 0
    dropped: int = 0
    """Documents left out by choice, because of their source."""
    blank_lines: int = 0
    judged: int = 0
    """Documents that were also encoded by the judge."""
    lengths: list[int] = field(default_factory=list)
    """Number of documents with 2^i to 2^(i+1) - 1 tokens, for each i."""


@dataclass(kw_only=True)
class Manifest(Counts):
    """Record of finished work, stored in PREFIX.manifest.json."""

    fingerprint: str
    """Hash over the inputs and options that determine the output.

    Equal hashes mean equal tokens.
    """
    inputs: list[dict[str, Any]]
    """path, bytes, mtime_ns and sample (`input_files.content_sample`) for each input, in order."""
    options: dict[str, Any]
    tokenizer: dict[str, Any]
    """name, vocabulary, sha256 of its files, encoder, judge, end_of_document."""
    dtype: str
    end_of_document_tokens: int
    problems: list[str]
    """Texts about the first records or files left out."""
    sources: dict[str, dict[str, int]]
    """Documents, text_bytes and tokens by source."""
    files: dict[str, dict[str, Any]]
    """Name, bytes and sha256 for the .bin and the .idx."""
    shards: list[dict[str, Any]]
    """Offset, bytes, documents and tokens for each shard."""
    seconds: dict[str, float]
    """Wall time for the last call, and the total worker time by stage.

    The worker time is summed over every call that finished a shard.
    """
    rates: dict[str, float]
    """Text tokenized in MB per second: for the whole call, and by stage on one worker."""
    workers: int
    made: str
    """When the work was completed, in UTC."""
    versions: dict[str, str]
    dropped_sources: dict[str, int] = field(default_factory=dict)
    """Number of documents left out, by source."""
    reused_shards: int = 0
    """Shards that an earlier, interrupted call had finished."""
    schema: int = MANIFEST_SCHEMA
    reused: bool = field(default=False, compare=False)
    """Whether everything was already done before this call. This flag is not stored in the file."""

    @property
    def text_tokens(self) -> int:
        """Return how many tokens there are besides end-of-document tokens."""
        return self.tokens - self.end_of_document_tokens


def unknown_sources(manifests: Sequence[Manifest]) -> list[str]:
    """Return the sources to keep or drop that do not occur in any record."""
    recorded = _recorded_sources(manifests)
    chosen: list[str] = []
    for key in ("keep_sources", "drop_sources"):
        names: dict[str, None] = {}
        for manifest in manifests:
            names.update(dict.fromkeys(manifest.options.get(key, ())))

        chosen += names

    return [name for name in chosen if name not in recorded]


def _recorded_sources(manifests: Sequence[Manifest]) -> set[str]:
    recorded: set[str] = set()
    for manifest in manifests:
        recorded.update(manifest.sources, manifest.dropped_sources)

    return recorded


def unknown_sources_text(*manifests: Manifest) -> str:
    """Return a warning about sources to keep or drop that do not occur in any record.

    They are probably misspelled. The text is empty if all sources occur.
    """
    unknown = unknown_sources(manifests)
    if not unknown:
        return ""
    recorded = sorted(_recorded_sources(manifests))
    return TokenMessage.UNKNOWN_SOURCE.fill(
        unknown=", ".join(unknown), recorded=", ".join(recorded)
    )


def read_manifest(prefix: Path) -> Manifest:
    """Return the manifest for a prefix. Raise `DataError` if it is missing or unreadable."""
    path = TokenFiles(prefix).manifest
    try:
        content = json.loads(path.read_text())
        if content.get("schema") != MANIFEST_SCHEMA:
            raise DataError(
                TokenMessage.MANIFEST_SCHEMA,
                path=path,
                schema=content.get("schema"),
                manifest_schema=MANIFEST_SCHEMA,
            )

        missing = []
        for count in fields(Counts):
            if count.name not in content:
                missing.append(count.name)

        if missing:
            raise ValueError(f"no {missing[0]}")
        return Manifest(**content)
    except FileNotFoundError:
        raise DataError(TokenMessage.NOT_TOKENIZED, path=path) from None
    except (ValueError, TypeError, AttributeError, OSError, RecursionError) as error:
        raise DataError(TokenMessage.MANIFEST_NOT_READABLE, path=path, error=error) from None
