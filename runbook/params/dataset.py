"""A source of text: its files, where they come from, and what is known of their size."""

from __future__ import annotations

from dataclasses import dataclass

from runbook.params.catalogue import Bytes
from runbook.params.schema import Strict, WholeOrZero


class SourceFile(Strict):
    """One file of a dataset."""

    path: str
    """Relative to the dataset's folder."""

    bytes: Bytes = 0
    """Its size; 0: not known."""

    sha256: str = ""
    """Its checksum; empty: not known."""


class FileGroup(Strict):
    """Files that are numbered without a gap."""

    path: str
    """With {number} in it, relative to the dataset's folder."""

    first: WholeOrZero = 0
    """The first number."""

    last: WholeOrZero
    """The last number."""


class Dataset(Strict):
    """A source of text."""

    title: str
    """One line for people."""

    kind: str
    """corpus (shipped), local (files of yours), mock (no text at all); more with the data phase."""

    folder: str = ""
    """Where the files lie; relative to the project, or inside the package for kind corpus."""

    pattern: str = "*"
    """Which files of the folder."""

    files: list[SourceFile] = []
    """The files by name, where they are known."""

    groups: list[FileGroup] = []
    """Numbered files, where there are too many to name."""

    parts: list[FileGroup] = []
    """The numbered files that are fetched, where `groups` names what several of them become together."""

    parts_together: WholeOrZero = 0
    """So many parts, in their order, become one pair of token files where files are held out."""

    @property
    def paths(self) -> list[str]:
        """Every file by name, numbered ones written out."""
        numbered = (
            group.path.replace("{number}", str(number))
            for group in self.groups
            for number in range(group.first, group.last + 1)
        )
        return [*(file.path for file in self.files), *numbered]

    url: str = ""
    """Where files are fetched: https://..., s3://bucket/folder or hf://datasets/OWNER/NAME@REVISION; empty: nowhere."""

    token: str = ""
    """Reference to the token that the source asks for, such as env:HF_TOKEN; empty: none."""

    licence: str
    """Under which terms."""

    source: str
    """Where it comes from."""

    documents: WholeOrZero = 0
    """Number of documents; 0: not known."""

    text_bytes: Bytes = 0
    """Bytes of text; 0: not known."""

    record_bytes: Bytes = 0
    """Bytes of the JSON lines before they are compressed; 0: not known."""

    download_bytes: Bytes = 0
    """Bytes of all files as they are fetched; 0: the sum of `files`, where they are named."""

    tokens: WholeOrZero = 0
    """GPT-2 tokens without end-of-document tokens; 0: not known."""


@dataclass(frozen=True)
class Text:
    """A dataset in a run: under its name, with its share of the samples."""

    name: str
    weight: float
    """Beside those of the run's other texts; their sum need not be 1."""
    dataset: Dataset
    folder: str = ""
    """Where its files lie, if not where the catalogue says."""
