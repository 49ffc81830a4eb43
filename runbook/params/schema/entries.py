"""Catalogue entries: models (models.yaml), datasets (datasets.yaml)."""

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
    """A file in a dataset."""

    path: str
    """Path to the file, relative to the dataset folder."""
    bytes: Bytes = 0
    """File size; 0: not known."""
    sha256: str = ""
    """File checksum; empty: not known."""
    also: str = ""
    """Another path where the file is accepted, such as the name that the script from a document
    uses; empty: none.
    """


class FileGroup(Strict):
    """Files with consecutive numbers."""

    path: str
    """Path to a file relative to the dataset folder, with {number} in it."""
    first: WholeOrZero = 0
    """Number of the first file."""
    last: WholeOrZero
    """Number of the last file."""
    also: str = ""
    """Another path where the files are accepted, with {number} in it; empty: none."""

    @property
    def paths(self) -> list[str]:
        """Return the paths to all files in the group."""
        paths: list[str] = []
        for number in range(self.first, self.last + 1):
            paths.append(self.path.replace("{number}", str(number)))

        return paths


TOKENIZED = "tokenized"
"""The `kind` for datasets that consist of finished .bin/.idx pairs. These are read unchanged."""


def names_pair(folder: str) -> bool:
    """Return whether data.folder is the prefix for a pair of token files, as in --data-path.

    >>> names_pair("/data/my-gpt_text_document"), names_pair("/data/texts")
    (True, False)
    """
    return folder.endswith("_document")


class Dataset(Strict):
    """A text to train on, and where to get it."""

    title: str
    """Title of the dataset, in one line."""
    kind: str
    """corpus (shipped), local (your own files), mock (no text at all), download (from an
    address), or tokenized (finished token files)."""
    folder: str = ""
    """Folder with the files; relative to the project, or inside the package for kind corpus."""
    pattern: str = "*"
    """Pattern that file names in the folder must match."""
    files: list[SourceFile] = []
    """The files by name, if they are known."""
    groups: list[FileGroup] = []
    """Numbered files, if there are too many to list."""
    parts: list[FileGroup] = []
    """The numbered files to download, if several of them become one file in `groups`."""
    parts_together: WholeOrZero = 0
    """How many consecutive parts become one pair of token files if files are held out."""
    parts_order: PartsOrder = "listed"
    """How to order the parts: listed, or names (by the paths in `also`, byte by byte, as * in a
    shell sorts them in the C locale).
    """

    @property
    def paths(self) -> list[str]:
        """Return the paths to all files, including the numbered files."""
        return [file.path for file in self.files] + [
            path for group in self.groups for path in group.paths
        ]

    url: str = ""
    """Address that files are downloaded from: https://..., s3://bucket/folder or
    hf://datasets/OWNER/NAME@REVISION; empty: none.
    """
    token: str = ""
    """Reference to the token that the source requires, such as env:HF_TOKEN; empty: none."""
    licence: str
    """Licence of the text."""
    source: str
    """Origin of the text."""
    documents: WholeOrZero = 0
    """Number of documents; 0: not known."""
    text_bytes: Bytes = 0
    """Bytes of text; 0: not known."""
    record_bytes: Bytes = 0
    """Bytes of the JSON lines before compression; 0: not known."""
    download_bytes: Bytes = 0
    """Bytes of all files to download; 0: the sum of `files`, if they are listed."""
    tokens: WholeOrZero = 0
    """GPT-2 tokens without end-of-document tokens; 0: not known."""

    def identity(self) -> dict[str, Any]:
        """Return what a fingerprint includes from this entry.

        Alternative file names are included only if there are any, because earlier fingerprints
        did not include them.
        """
        content = self.model_dump(mode="json")
        for file in [*content["files"], *content["groups"], *content["parts"]]:
            del file["also"]
        if self.parts_order == "listed":
            del content["parts_order"]
        return content


@dataclass(frozen=True)
class TextShare:
    """A dataset that a run uses, with its name and its share of the samples."""

    name: str
    weight: float
    """Weight relative to the other texts in the run; the weights need not add up to 1."""
    dataset: Dataset
    folder: str = ""
    """Folder with the dataset files, if it differs from the one in the catalogue."""


class Model(Strict):
    """The shape of a GPT."""

    label: str
    """Common name for the model size ("375M"); the computed count is shown next to it."""
    parameters: WholeOrZero = 0
    """Computed count, with the vocabulary padded for one tensor rank; 0: not recorded."""
    layers: Whole
    """Transformer layers."""
    hidden: Whole
    """Width of the residual stream."""
    heads: Whole
    """Attention heads; hidden / heads is the head size."""
    kv_heads: WholeOrZero = 0
    """Heads of keys and values (grouped-query attention); 0: the same as heads."""
    ffn_hidden: WholeOrZero = 0
    """Width inside the feed-forward block; 0: 4 x hidden."""
    sequence_length: Whole = 2048
    """Tokens in a sequence."""
    positions: WholeOrZero = 0
    """Learned position embeddings; 0: the sequence length. The documents always use 2048."""
    vocabulary: Whole = 50257
    """Tokens in the tokenizer; padded to a multiple of 128 (x tensor for the frameworks from the
    documents).
    """
    tied_embeddings: bool = True
    """The output layer shares its weights with the input embedding."""
    position_embedding: Literal["learned", "rope"] = "learned"
    """learned or rope."""
    normalization: Literal["layernorm", "rmsnorm"] = "layernorm"
    """layernorm or rmsnorm."""
    activation: Literal["gelu", "swiglu"] = "gelu"
    """gelu or swiglu."""
    biases: bool = True
    """Linear layers have biases."""
    qkv_biases: bool = False
    """With biases: false, use biases for queries, keys and values anyway, as in Qwen2."""
    norm_epsilon: Positive = 1e-5
    """Epsilon that a norm adds to the variance; many Llama-type models use 1e-6."""
    rope_base: Whole = 10_000
    """Base for the rotary angles; larger for longer sequences, such as 500,000 for Llama 3."""
    source: str
    """Where the shape comes from."""
    note: str = ""
    """Note for readers, for example about a label that does not match the count."""
    training: dict[str, Any] = {}
    """Batch, learning rate and initialization that the source uses for this size (shown as advice,
    never applied).
    """


def with_shape(model: Model, chosen: Mapping[str, int]) -> Model:
    """Return the model with the chosen values.

    If they change its size, the model loses its label.
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
