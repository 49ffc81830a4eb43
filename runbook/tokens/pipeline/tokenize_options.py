"""Tokenizing options, the file names of a prefix, and its manifest."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from runbook.core.errors import DataError
from runbook.tokens.messages import TokenMessage
from runbook.tokens.sources.input_files import MAX_RECORD_BYTES

MANIFEST_SCHEMA = 2


@dataclass(frozen=True)
class TokenizeOptions:
    """How text becomes tokens.

    Only `workers`, `shard_bytes`, `encoder` and `check_space` do not change the result.
    """

    tokenizer: str = "gpt2"
    """`gpt2` (shipped), or a path to a Hugging Face tokenizer.json or a SentencePiece .model."""
    text_key: str = "text"
    """Key of the text in each JSON record, or column of a Parquet file."""
    append_eod: bool = True
    """Put the end-of-document token after each document that is not empty."""
    eod_token: str = ""
    """Name of that token; empty: the first known name that the tokenizer has."""
    special_tokens: bool = False
    """Read a literal <|endoftext|> inside a text as the token, as Megatron with Hugging Face does.
    """
    bad_records: str = "stop"
    """stop, skip (left out and counted), or quarantine (left out, counted and kept in
    PREFIX.quarantine).
    """
    max_record_bytes: int = MAX_RECORD_BYTES
    """Longest record; a longer one is a bad record.

    Of it only the beginning is ever in memory.
    """
    source_key: str = "auto"
    """Dotted key that names a record's source (meta.source); `auto` takes a known one of the first
    record.
    """
    keep_sources: tuple[str, ...] = ()
    """Only documents of these sources; empty: all."""
    drop_sources: tuple[str, ...] = ()
    """No documents of these sources."""
    fix_text: str = "none"
    """none, or ftfy: repair wrongly decoded characters first, as NeMo's --apply-ftfy does."""
    workers: int = 0
    """Processes; 0: one for each core this process may use."""
    encoder: str = "auto"
    """auto (the fastest exact one installed) or tokenizers."""
    shard_bytes: int = 64_000_000
    """Text in one shard, the unit that is done or not done; less where the whole input is small."""
    check_space: bool = True
    """Refuse to begin when the disk is too small for the estimate."""

    def __post_init__(self) -> None:
        """Raise `DataError` if a source is both kept and dropped."""
        both = sorted(set(self.keep_sources) & set(self.drop_sources))
        if both:
            raise DataError(TokenMessage.SOURCE_KEPT_AND_DROPPED, both=", ".join(both))

    @property
    def chooses_sources(self) -> bool:
        """Whether some sources are left out."""
        return bool(self.keep_sources or self.drop_sources)

    def wants(self, source: str) -> bool:
        """Return whether documents of a source are wanted."""
        if self.keep_sources and source not in self.keep_sources:
            return False
        return source not in self.drop_sources

    def choices(self) -> dict[str, Any]:
        """The options that decide which bytes come out."""
        others = ("workers", "shard_bytes", "encoder", "check_space")
        # Younger than the first manifests: where they choose nothing, finished work keeps its
        # fingerprint.
        younger = {
            "keep_sources": (),
            "fix_text": "none",
            "max_record_bytes": MAX_RECORD_BYTES,
        }
        choices = {}
        for name, value in vars(self).items():
            if name in others or younger.get(name, ...) == value:
                continue
            # A manifest is JSON, which has lists and no tuples.
            choices[name] = list(value) if isinstance(value, tuple) else value

        return choices


class TokenFiles:
    """The files of one prefix; `data/corpus` and `data/corpus_text_document` mean the same files.

    With `exact`, the .bin and .idx have the prefix's own name, as files made elsewhere may.

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
        self.bin_part = Path(f"{self.bin}.part")  # while it is being written
        self.idx_part = Path(f"{self.idx}.part")
        # What went in, what came out; written last.
        self.manifest = Path(f"{self.base}.manifest.json")
        self.quarantine = Path(f"{self.base}.quarantine")  # records set aside
        # Folder of unfinished work: locks, done-marks, waiting parts.
        self.parts = Path(f"{self.base}.parts")

    @classmethod
    def existing(cls, prefix: Path) -> TokenFiles:
        """The files that are there.

        PREFIX.bin where it exists under that very name, else PREFIX_text_document.bin.
        """
        return cls(prefix, exact=Path(f"{prefix}.bin").exists())


@dataclass(kw_only=True)
class Counts:
    """Sums over documents, of a shard or of all."""

    records: int = 0
    """Read from the input, good or bad: documents + skipped_records + dropped."""
    documents: int = 0
    """In the output, empty ones included."""
    empty: int = 0
    """Of them without a token."""
    sequences: int = 0
    tokens: int = 0
    """With end-of-document tokens."""
    text_bytes: int = 0
    skipped_records: int = 0
    skipped_files: int = 0
    dropped: int = 0
    """Left out by choice: of sources that are not wanted."""
    blank_lines: int = 0
    judged: int = 0
    """Documents that were encoded by the judge as well."""
    lengths: list[int] = field(default_factory=list)
    """Documents with 2^i to 2^(i+1) - 1 tokens."""


@dataclass(kw_only=True)
class Manifest(Counts):
    """The finished work, as it stands in PREFIX.manifest.json."""

    fingerprint: str
    """Of the inputs and the choices: equal means that the same tokens would come out."""
    inputs: list[dict[str, Any]]
    """path, bytes, mtime_ns, sample (see `input_files.content_sample`), in order."""
    options: dict[str, Any]
    tokenizer: dict[str, Any]
    """name, vocabulary, sha256 of its files, encoder, judge, end_of_document."""
    dtype: str
    end_of_document_tokens: int
    problems: list[str]
    """The first things left out, in words."""
    sources: dict[str, dict[str, int]]
    """documents, text_bytes, tokens by source."""
    files: dict[str, dict[str, Any]]
    """bin and idx: name, bytes, sha256."""
    shards: list[dict[str, Any]]
    """Offset, bytes, documents, tokens of each."""
    seconds: dict[str, float]
    """Wall time of the last call; all workers' time by stage, of every call that did a shard."""
    rates: dict[str, float]
    """MB of text a second: the whole call, and by stage on one worker."""
    workers: int
    made: str
    """When, in UTC."""
    versions: dict[str, str]
    dropped_sources: dict[str, int] = field(default_factory=dict)
    """Documents left out by source."""
    reused_shards: int = 0
    """Shards that an earlier, interrupted call had done."""
    schema: int = MANIFEST_SCHEMA
    reused: bool = field(default=False, compare=False)
    """This call found everything done; not in the file."""

    @property
    def text_tokens(self) -> int:
        """Tokens without the end-of-document ones."""
        return self.tokens - self.end_of_document_tokens


def unknown_sources(manifests: Sequence[Manifest]) -> list[str]:
    """Return the sources that were to be kept or dropped, and that no record names."""
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
    """Return a warning of chosen sources that no record names, most likely typing errors.

    Empty if there is none.
    """
    unknown = unknown_sources(manifests)
    if not unknown:
        return ""
    recorded = sorted(_recorded_sources(manifests))
    return (
        f"no record is of source {', '.join(unknown)}; the records' sources: {', '.join(recorded)}"
    )


def read_manifest(prefix: Path) -> Manifest:
    """The manifest of a prefix; DataError where there is none, or none that can be read."""
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
