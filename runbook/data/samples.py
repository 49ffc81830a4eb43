"""Documents of a .bin decoded back to text, with their token boundaries."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from runbook.data.indexed import IndexedReader
from runbook.data.manifest import read_manifest
from runbook.data.options import Output
from runbook.data.tokenizer import load_tokenizer
from runbook.errors import DataError


@dataclass(frozen=True)
class Document:
    """One document of the output."""

    number: int
    tokens: int
    """All of its tokens, of which at most a few are shown."""

    ids: list[int]
    pieces: list[str]
    """The text of each id."""

    text: str
    """The ids decoded together."""


def show(prefix: Path, count: int = 3, *, max_tokens: int = 200, numbers: list[int] | None = None) -> list[Document]:
    """Documents spread evenly over the output (or the given ones), each cut after `max_tokens` tokens."""
    output = Output.found(Path(prefix))
    reader = IndexedReader(output.bin, output.idx)
    tokenizer = load_tokenizer(str(read_manifest(prefix).tokenizer["name"]))
    if numbers is None:
        count = min(count, reader.num_documents)
        numbers = [each * reader.num_documents // count for each in range(count)]
    if not numbers:
        raise DataError(f"{output.idx} has no documents to show")
    shown = []
    for number in numbers:
        tokens = reader.document(number)
        ids = [int(each) for each in tokens[:max_tokens]]
        shown.append(Document(number, len(tokens), ids, tokenizer.pieces(ids), tokenizer.decode(ids)))
    return shown
