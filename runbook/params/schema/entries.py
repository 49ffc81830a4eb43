"""Entries of the catalogues: models (models.yaml), datasets (datasets.yaml)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from runbook.params.schema.value_types import (
    Bytes,
    PartsOrder,
    Positive,
    Strict,
    Whole,
    WholeOrZero,
)


class SourceFile(Strict):
    """One file of a dataset."""

    path: str
    """Relative to the dataset's folder."""
    bytes: Bytes = 0
    """Its size; 0: not known."""
    sha256: str = ""
    """Its checksum; empty: not known."""
    also: str = ""
    """Another path at which the file is accepted, such as the name that a document's own script
    gives it; empty: none.
    """


class FileGroup(Strict):
    """Files that are numbered without a gap."""

    path: str
    """With {number} in it, relative to the dataset's folder."""
    first: WholeOrZero = 0
    """The first number."""
    last: WholeOrZero
    """The last number."""
    also: str = ""
    """As `also` of a file, with {number} in it."""

    @property
    def paths(self) -> list[str]:
        """Return every file of the group by name."""
        paths: list[str] = []
        for number in range(self.first, self.last + 1):
            paths.append(self.path.replace("{number}", str(number)))

        return paths


TOKENIZED = "tokenized"
"""The kind of a dataset of .bin/.idx pairs that were made elsewhere: each is read as it is."""


def names_pair(folder: str) -> bool:
    """Return whether data.folder names one pair of token files, by its prefix as Megatron's --data-path has it.

    >>> names_pair("/data/my-gpt_text_document"), names_pair("/data/texts")
    (True, False)
    """
    return folder.endswith("_document")


class Dataset(Strict):
    """A source of text."""

    title: str
    """One line for people."""
    kind: str
    """corpus (shipped), local (files of yours), mock (no text at all); more with the data phase."""
    folder: str = ""
    """Folder of the files; relative to the project, or inside the package for kind corpus."""
    pattern: str = "*"
    """Pattern of the files in the folder."""
    files: list[SourceFile] = []
    """The files by name, where they are known."""
    groups: list[FileGroup] = []
    """Numbered files, where there are too many to name."""
    parts: list[FileGroup] = []
    """The numbered files that are fetched, where `groups` names what several of them become
    together.
    """
    parts_together: WholeOrZero = 0
    """So many parts, in their order, become one pair of token files where files are held out."""
    parts_order: PartsOrder = "listed"
    """listed, or names: by their other names (`also`), byte by byte, as a shell's * lists them in
    the C locale.
    """

    @property
    def paths(self) -> list[str]:
        """Return every file by name, with numbered ones written out."""
        return [file.path for file in self.files] + [
            path for group in self.groups for path in group.paths
        ]

    url: str = ""
    """Where files are fetched: https://..., s3://bucket/folder or
    hf://datasets/OWNER/NAME@REVISION; empty: nowhere.
    """
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

    def identity(self) -> dict[str, Any]:
        """Return the part of the entry that goes into a fingerprint.

        Alternative names of files are included only if there are any, because earlier fingerprints
        had none.
        """
        content = self.model_dump(mode="json")
        for file in [*content["files"], *content["groups"], *content["parts"]]:
            del file["also"]
        if self.parts_order == "listed":
            del content["parts_order"]
        return content


@dataclass(frozen=True)
class TextShare:
    """A dataset in a run: under its name, with its share of the samples."""

    name: str
    weight: float
    """Next to those of the run's other texts; their sum need not be 1."""
    dataset: Dataset
    folder: str = ""
    """Folder of its files, where it is not the catalogue's."""


class Model(Strict):
    """The shape of a GPT."""

    label: str
    """What people call it ("375M"); the computed count is shown next to it."""
    parameters: WholeOrZero = 0
    """The computed count, its vocabulary padded for one tensor rank; 0: not written down."""
    layers: Whole
    """Transformer layers."""
    hidden: Whole
    """Width of the residual stream."""
    heads: Whole
    """Attention heads; hidden / heads is the head size."""
    kv_heads: WholeOrZero = 0
    """Heads of keys and values (grouped-query attention); 0: as many as heads."""
    ffn_hidden: WholeOrZero = 0
    """Width inside the feed-forward block; 0: 4 x hidden."""
    sequence_length: Whole = 2048
    """Tokens in a sequence."""
    positions: WholeOrZero = 0
    """Learned position embeddings; 0: as many as the sequence is long. The documents fix 2048."""
    vocabulary: Whole = 50257
    """Tokens of the tokenizer; padded to a multiple of 128 (x tensor for the documents' own
    frameworks).
    """
    tied_embeddings: bool = True
    """The output layer uses the input embedding's weights."""
    position_embedding: Literal["learned", "rope"] = "learned"
    """learned or rope."""
    normalization: Literal["layernorm", "rmsnorm"] = "layernorm"
    """layernorm or rmsnorm."""
    activation: Literal["gelu", "swiglu"] = "gelu"
    """gelu or swiglu."""
    biases: bool = True
    """Linear layers have biases."""
    qkv_biases: bool = False
    """With biases: false, those of queries, keys and values all the same, as in Qwen2."""
    norm_epsilon: Positive = 1e-5
    """What a norm adds to the variance; many Llama-type models have 1e-6."""
    rope_base: Whole = 10_000
    """Base of the rotary angles; larger for longer sequences, such as 500,000 for Llama 3."""
    source: str
    """Where the shape comes from."""
    note: str = ""
    """What a reader should know, such as a label that does not fit the count."""
    training: dict[str, Any] = {}
    """The source's own batch, learning rate and init std for this size (shown as advice, never
    applied).
    """


def with_shape(model: Model, chosen: Mapping[str, int]) -> Model:
    """Return the model with the chosen values.

    If they change its size, the model's label is no longer used.
    """
    changed = {name: value for name, value in chosen.items() if value}
    if not changed:
        return model
    if "hidden" in changed and "ffn_hidden" not in changed:
        changed["ffn_hidden"] = 0
    if "heads" in changed and "kv_heads" not in changed:
        changed["kv_heads"] = 0
    resized = {"layers", "hidden", "ffn_hidden", "kv_heads"} & changed.keys()
    layers = changed.get("layers", model.layers)
    hidden = changed.get("hidden", model.hidden)
    label = f"{layers} x {hidden}" if resized else model.label
    return model.model_copy(update={**changed, "label": label, "parameters": 0})
