"""The token files a run reads, and how many tokens they contain.

The rules about them are in data_rules.py, and the cost of making them in token_preparation.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import PurePosixPath
from typing import ClassVar

from runbook.core.files import natural_key
from runbook.params.schema.entries import TOKENIZED, Dataset, TextShare, names_pair
from runbook.params.settings import STAGE, Settings
from runbook.plan_file.json_records import OMIT_DEFAULT
from runbook.plan_file.schema import Source
from runbook.plan_file.token_index import index_bytes, token_bytes
from runbook.planning.messages import PlanningMessage


@dataclass(frozen=True, kw_only=True)
class PlannedFiles:
    """Prefixes for .bin/.idx files, relative to plan.json, and estimates of what they contain."""

    dataset: str
    prefix: str
    train: tuple[str, ...]
    validation: tuple[str, ...]
    test: tuple[str, ...]
    num_files: int
    """Number of input files; 0 if this is only known after reading the folder."""
    estimated_tokens: int
    """Number of tokens, including end-of-document tokens; 0 if unknown."""
    estimated_bytes: int
    """Total size in bytes of the .bin and .idx files; 0 if unknown."""
    tokens_from: str


@dataclass(frozen=True, kw_only=True)
class BlendPart(PlannedFiles):
    """One text in a blend, with a relative weight."""

    weight: float
    train_share: float
    """Share of the tokens in this text that is used for training."""


@dataclass(frozen=True)
class TextFiles:
    """The files of a text whose tokens nobody has counted yet."""

    file_bytes: int
    """Size of all files on disk."""
    text_bytes: float
    """Estimated bytes of text in them; more than `file_bytes` if files are compressed."""


BYTES_OF_TEXT_PER_TOKEN = 4.0
"""Approximate bytes per GPT-2 token in English prose (measured: 4.13 for books, 3.13 for technical
text).
"""

RECORD_SHARE = 1.04
"""Ratio of JSON-lines bytes to text bytes, used if only the size of the plain text is known (685 to
659 MB).
"""

COMPRESSED_SHARE = 0.36
"""Ratio of zstd bytes to JSON-lines bytes (1.5 to 4.2 GB in a sample of SlimPajama)."""

GPT2_END_OF_DOCUMENT = 50256
"""Highest token id in the GPT-2 tokenizer."""

MOCK = "mock"


@dataclass(frozen=True, kw_only=True)
class DataPlan(PlannedFiles):
    """All texts a training run reads."""

    COMPUTED: ClassVar = ("train_share",)

    mock: bool
    split: str
    held_out: int
    parts: tuple[BlendPart, ...] = field(default=(), metadata=OMIT_DEFAULT)
    """The texts in a blend; empty if there is only one text."""

    @property
    def train_share(self) -> float:
        """Return the share of all tokens used for training, assuming files of equal size."""
        if not self.parts:
            return _train_share(self.num_files, self.held_out, self.split)
        if not self.estimated_tokens:
            return 0.0
        trained = sum(part.estimated_tokens * part.train_share for part in self.parts)
        return trained / self.estimated_tokens

    def weighted(self, use: str) -> tuple[Source, ...]:
        """Return the files for train, validation or test (`use`), with their weights.

        Files that belong to the same text will share its weight in proportion to their tokens, once
        these have been counted.
        """
        if not self.parts:
            prefixes = getattr(self, use)
            return _equal_sources(self.dataset, float(len(prefixes)), prefixes)

        sources = list[Source]()
        for part in self.parts:
            sources += _equal_sources(part.dataset, part.weight, getattr(part, use))
        return tuple(sources)


def _equal_sources(text: str, weight: float, prefixes: Sequence[str]) -> tuple[Source, ...]:
    """Return the files for a text, with the weight shared equally among them.

    If there is only one file, the name of the text is left out.
    """
    shared_text = text if len(prefixes) > 1 else ""
    return tuple(Source(weight / len(prefixes), prefix, shared_text) for prefix in prefixes)


def plan_data(settings: Settings) -> DataPlan:
    """Return file prefixes and estimated sizes, based on what the catalogue lists for the texts."""
    data = settings.run.data
    parts = tuple(_part(settings, text) for text in settings.texts)
    is_mock = settings.dataset.kind == MOCK
    read_parts = () if is_mock else parts
    counted_parts = read_parts if all(part.estimated_tokens for part in parts) else ()
    return DataPlan(
        dataset=data.dataset,
        mock=is_mock,
        prefix=next(part.prefix for part in parts if part.dataset == data.dataset),
        train=_files_of(read_parts, "train"),
        validation=_files_of(read_parts, "validation"),
        test=_files_of(read_parts, "test"),
        split=data.split,
        held_out=data.held_out,
        num_files=sum(part.num_files for part in parts),
        estimated_tokens=sum(part.estimated_tokens for part in counted_parts),
        tokens_from=_tokens_from(parts, is_mock=is_mock),
        estimated_bytes=sum(part.estimated_bytes for part in counted_parts),
        parts=parts if len(parts) > 1 else (),
    )


def _files_of(parts: Sequence[BlendPart], use: str) -> tuple[str, ...]:
    return tuple(chain(*(getattr(part, use) for part in parts)))


def _tokens_from(parts: Sequence[BlendPart], *, is_mock: bool) -> str:
    """Return where the number of tokens in each text is stated."""
    if is_mock:
        return PlanningMessage.TOKENS_OF_MOCK.fill()
    if len(parts) == 1:
        return parts[0].tokens_from
    return "; ".join(f"{part.dataset}: {part.tokens_from}" for part in parts)


def _part(settings: Settings, text: TextShare) -> BlendPart:
    data = settings.run.data
    dataset = text.dataset
    folder = _token_folder(settings, text)
    prefix = f"{folder}/{text.name}_text_document"
    if dataset.kind == TOKENIZED and names_pair(text.folder):
        prefix = text.folder
    train, validation, test = _prefixes(settings, text, folder, prefix)
    tokens, tokens_from = _tokens(settings, text)
    estimated_bytes = 0
    if tokens:
        token_width = token_bytes(settings.model.vocabulary)
        index = index_bytes(dataset.documents, dataset.documents + 1)
        estimated_bytes = tokens * token_width + index

    return BlendPart(
        dataset=text.name,
        weight=text.weight,
        prefix=prefix,
        train=tuple(train),
        validation=tuple(validation),
        test=tuple(test),
        num_files=len(dataset.paths),
        estimated_tokens=tokens,
        estimated_bytes=estimated_bytes,
        tokens_from=tokens_from,
        train_share=_train_share(len(dataset.paths), data.held_out, data.split),
    )


def _token_folder(settings: Settings, text: TextShare) -> str:
    """Return the folder for the token files of a text.

    If the site has a data folder, each dataset has its own folder there. Token files in data.folder
    are read there if their names are known; otherwise, they are read through links in the run
    folder.
    """
    if text.dataset.kind == TOKENIZED and text.folder:
        is_known = text.folder.startswith("/") and bool(text.dataset.paths)
        return text.folder.rstrip("/") if is_known else "data"

    site_folder = settings.site.paths.get("data", "")
    return f"{site_folder.rstrip('/')}/{text.name}" if site_folder else "data"


def _prefixes(
    settings: Settings,
    text: TextShare,
    folder: str,
    prefix: str,
) -> tuple[list[str], list[str], list[str]]:
    """Return the token file prefixes for a text: (train, validation, test).

    If no files are held out, text that has yet to be tokenized gets the single file `prefix`.
    """
    data = settings.run.data
    dataset = text.dataset
    token_files: list[str] = []
    if dataset.kind == TOKENIZED:
        token_files = [f"{folder}/{path.removesuffix('.bin')}" for path in dataset.paths]
    if not data.held_out:
        return token_files or [prefix], [], []
    if not token_files:
        stems = [PurePosixPath(path).name.split(".")[0] for path in dataset.paths]
        token_files = [f"{folder}/{stem}_text_document" for stem in stems]

    return held_out_split(token_files, data.held_out)


def text_place(settings: Settings, text: TextShare) -> str:
    """Return the folder for the text itself, either relative to the project or absolute.

    If the site has a data folder, downloads go there, next to the token files.
    """
    dataset = text.dataset
    if text.folder:
        return text.folder
    shared = _shared_folder(settings)
    if shared and dataset.url and not PurePosixPath(dataset.folder).is_absolute():
        return f"{shared}/{text.name}"
    return dataset.folder


def _shared_folder(settings: Settings) -> str:
    """Return the site folder for data, with {stage} not yet filled in.

    Return an empty string if the site has no such folder.
    """
    folder = settings.site.paths.get("data", "").rstrip("/")
    return folder if folder.startswith(("/", STAGE)) else ""


def fetched_bytes(dataset: Dataset) -> int:
    """Return the download size for a text in bytes; 0 if unknown."""
    listed_bytes = dataset.download_bytes or sum(file.bytes for file in dataset.files)
    return listed_bytes or round(record_bytes(dataset) * COMPRESSED_SHARE)


def text_on_site(settings: Settings) -> dict[str, int]:
    """Return the size of each text downloaded to the site's data folder; 0 if unknown."""
    shared = _shared_folder(settings)
    text_bytes: dict[str, int] = {}
    for text in settings.texts:
        if shared and text.dataset.url and text_place(settings, text).startswith(f"{shared}/"):
            text_bytes[text.name] = fetched_bytes(text.dataset)

    return text_bytes


def record_bytes(dataset: Dataset) -> int:
    """Return the size of a text in bytes when stored as JSON lines; 0 if unknown."""
    return dataset.record_bytes or round(dataset.text_bytes * RECORD_SHARE)


def _train_share(num_files: int, held_out: int, split: str) -> float:
    if not held_out:
        return split_shares(split)[0]
    if not num_files:
        return 0.0
    return max(0, num_files - 2 * held_out) / num_files


def held_out_split(prefixes: list[str], held_out: int) -> tuple[list[str], list[str], list[str]]:
    """Return the files for training, validation and test.

    The last `held_out` files are used for validation, the `held_out` files before them for testing,
    and the rest for training.

    Files are ordered by the numbers in their names, to put file 10 after file 9. If there are too
    few files, all lists are empty: a file is never both trained on and held out.

    >>> held_out_split([f"part{n}" for n in (1, 2, 10, 9, 3)], 1)
    (['part1', 'part2', 'part3'], ['part10'], ['part9'])
    >>> held_out_split(["a", "b"], 1)
    ([], [], [])
    """
    if held_out < 1 or len(prefixes) <= 2 * held_out:
        return [], [], []
    ordered = sorted(prefixes, key=natural_key)
    return ordered[: -2 * held_out], ordered[-held_out:], ordered[-2 * held_out : -held_out]


def split_shares(split: str) -> tuple[float, float, float]:
    """Return the shares for train, validation and test, which sum to 1.

    All shares are 0 if all three numbers are 0.

    >>> split_shares("949,50,1")
    (0.949, 0.05, 0.001)
    """
    first, second, third = (float(part) for part in split.split(","))
    total = first + second + third
    if not total:
        return (0.0, 0.0, 0.0)
    return (first / total, second / total, third / total)


def is_counted(text: TextShare) -> bool:
    """Return whether the catalogue has the size of a text.

    It does not if data.folder replaces the shipped corpus, because that may be any text.
    """
    dataset = text.dataset
    is_replaced = dataset.kind == "corpus" and bool(text.folder)
    return bool(dataset.tokens or dataset.text_bytes) and not is_replaced


def _tokens(settings: Settings, text: TextShare) -> tuple[int, str]:
    if not is_counted(text):
        return 0, PlanningMessage.TOKENS_NOT_KNOWN.fill()
    data = settings.run.data
    dataset = text.dataset
    ends = dataset.documents if data.append_eod else 0
    if dataset.tokens:
        if data.tokenizer == "gpt2":
            counted = "GPT-2 tokens"
        else:
            counted = "GPT-2 tokens (although another tokenizer is used)"

        source = PlanningMessage.TOKENS_OF_CATALOGUE.fill(counted=counted, ends=ends)
        return dataset.tokens + ends, source

    tokens = round(dataset.text_bytes / BYTES_OF_TEXT_PER_TOKEN)
    source = PlanningMessage.TOKENS_OF_TEXT.fill(
        text_bytes=dataset.text_bytes,
        bytes_per_token=BYTES_OF_TEXT_PER_TOKEN,
    )
    return tokens + ends, source
