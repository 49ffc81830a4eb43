"""What a person may choose about tokenizing, and where its files go."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runbook.errors import DataError

if TYPE_CHECKING:
    from runbook.params.schema import Data

POLICIES = ("stop", "skip", "quarantine")
ENCODERS = ("auto", "fastokens", "tokenizers", "sentencepiece")


@dataclass(frozen=True)
class TokenizeOptions:
    """How text becomes tokens. Only `workers`, `shard_bytes`, `encoder` and `check_space` do not change the result."""

    tokenizer: str = "gpt2"
    """`gpt2` (shipped), or a path to a Hugging Face tokenizer.json or a SentencePiece .model."""

    text_key: str = "text"
    """Key of the text in each JSON record, or column of a Parquet file."""

    append_eod: bool = True
    """Put the end-of-document token after each document that is not empty."""

    eod_token: str = ""
    """Name of that token; empty: the one of a known name that the tokenizer has."""

    special_tokens: bool = False
    """Read a literal <|endoftext|> inside a text as the token, as Megatron with Hugging Face does."""

    bad_records: str = "stop"
    """stop, skip (left out and counted), or quarantine (left out, counted and kept in PREFIX.quarantine)."""

    keep_empty: bool = True
    """An empty text keeps its place in the document index, as in Megatron's files; False leaves it out."""

    source_key: str = "auto"
    """Dotted key that names a record's source (meta.source); `auto` takes a known one of the first record."""

    keep_sources: tuple[str, ...] = ()
    """Only documents of these sources; empty: all."""

    drop_sources: tuple[str, ...] = ()
    """No documents of these sources."""

    workers: int = 0
    """Processes; 0: one for each core this process may use."""

    encoder: str = "auto"
    """auto (the fastest exact one installed), fastokens, tokenizers or sentencepiece."""

    shard_bytes: int = 64_000_000
    """Text in one shard, the unit that is done or not done; less where the whole input is small."""

    check_space: bool = True
    """Refuse to begin when the disk is too small for the estimate."""

    def __post_init__(self) -> None:
        """Refuse values outside their few choices, in one go."""
        wrong = []
        if self.bad_records not in POLICIES:
            wrong.append(f"bad_records is {self.bad_records!r}: choose one of {', '.join(POLICIES)}")
        if self.encoder not in ENCODERS:
            wrong.append(f"encoder is {self.encoder!r}: choose one of {', '.join(ENCODERS)}")
        if self.workers < 0:
            wrong.append(f"workers is {self.workers}: give a number of processes, or 0 for one on each core")
        if self.shard_bytes < 1:
            wrong.append(f"shard_bytes is {self.shard_bytes}: give a size of at least one byte")
        if both := sorted(set(self.keep_sources) & set(self.drop_sources)):
            wrong.append(f"{', '.join(both)} is both in keep_sources and in drop_sources: name it once")
        if wrong:
            raise DataError("; ".join(wrong))

    @classmethod
    def from_params(cls, data: Data) -> TokenizeOptions:
        """The options a run file's `data` section chooses."""
        return cls(
            tokenizer=data.tokenizer,
            text_key=data.text_key,
            append_eod=data.append_eod,
            special_tokens=data.special_tokens,
            bad_records=str(data.bad_records),
            workers=data.workers,
        )

    def choices(self) -> dict[str, Any]:
        """The options that decide which bytes come out."""
        free = ("workers", "shard_bytes", "encoder", "check_space")
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in asdict(self).items()
            if key not in free
        }


@dataclass(frozen=True)
class Output:
    """The files of one prefix.

    >>> Output(Path("data/corpus")).bin.as_posix(), Output(Path("data/corpus_text_document")).manifest.as_posix()
    ('data/corpus_text_document.bin', 'data/corpus.manifest.json')
    """

    prefix: Path
    exact: bool = False
    """The two files have the prefix's own name, as files made elsewhere may."""

    @classmethod
    def found(cls, prefix: Path) -> Output:
        """The files that are there: PREFIX.bin where it exists under that very name, else PREFIX_text_document.bin."""
        return cls(prefix, exact=prefix.with_name(prefix.name + ".bin").exists())

    @property
    def base(self) -> Path:
        """The prefix without Megatron's ending: data/corpus and data/corpus_text_document mean the same files."""
        return self.prefix.with_name(self.prefix.name.removesuffix("_text_document"))

    @property
    def document_prefix(self) -> Path:
        """What a trainer is given: PREFIX_text_document."""
        return self.prefix if self.exact else self.base.with_name(self.base.name + "_text_document")

    @property
    def bin(self) -> Path:
        """The tokens."""
        return self.document_prefix.with_name(self.document_prefix.name + ".bin")

    @property
    def idx(self) -> Path:
        """Lengths, pointers and documents."""
        return self.document_prefix.with_name(self.document_prefix.name + ".idx")

    @property
    def manifest(self) -> Path:
        """What went in, what came out; written last."""
        return self.base.with_name(self.base.name + ".manifest.json")

    @property
    def quarantine(self) -> Path:
        """Records set aside."""
        return self.base.with_name(self.base.name + ".quarantine")

    @property
    def parts(self) -> Path:
        """Folder of unfinished work: done-marks, waiting parts, locks."""
        return self.base.with_name(self.base.name + ".parts")

    @property
    def bin_part(self) -> Path:
        """The tokens while they are being written."""
        return self.bin.with_name(self.bin.name + ".part")

    @property
    def idx_part(self) -> Path:
        """The index while it is being written."""
        return self.idx.with_name(self.idx.name + ".part")
