"""Which text a run is made from, and how a change of it is noticed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runbook.data.sources import TOKENIZED, dataset_files
from runbook.errors import DataError
from runbook.params import Settings
from runbook.params.dataset import Text


def input_files(settings: Settings, text: Text | None = None) -> list[Path]:
    """The files of one of the run's texts (its first where none is named), or of data.folder where one is given.

    In place of the shipped corpus that folder holds anybody's text, so its files may have any name.
    """
    text = text or settings.texts[0]
    dataset, folder = text.dataset, text.folder
    if not folder:
        return dataset_files(dataset, project=settings.project, checksums=False)
    pattern = "*" if dataset.kind == "corpus" else dataset.pattern
    dataset = dataset.model_copy(update={"files": [], "pattern": pattern})
    try:
        return dataset_files(dataset, project=settings.project, folder=folder, checksums=False)
    except DataError as error:
        where = settings.origins["data.folder"][-1]
        raise DataError(f"data.folder is {folder!r}, from {where}: {error}") from error


def token_groups(settings: Settings, data: Mapping[str, Any], folder: Path) -> list[tuple[list[Path], Path]]:
    """(input files, prefix) of each pair of token files: one for all text, or one a file where files are held out.

    `data` is the plan's section of that name.
    """
    prefixes = {part["dataset"]: part["prefix"] for part in data.get("parts") or [data]}
    return [
        group
        for text in settings.texts
        if text.dataset.kind != TOKENIZED
        for group in _groups_of(settings, text, folder / prefixes[text.name], held_out=bool(data["held_out"]))
    ]


def _groups_of(settings: Settings, text: Text, prefix: Path, *, held_out: bool) -> list[tuple[list[Path], Path]]:
    inputs = input_files(settings, text)
    if not held_out:
        return [(inputs, prefix)]
    dataset = text.dataset
    if dataset.parts_together and len(inputs) != len(dataset.paths):
        cuts = range(0, len(inputs), dataset.parts_together)
        together = [inputs[start : start + dataset.parts_together] for start in cuts]
        names = [Path(path).name.split(".")[0] for path in dataset.paths]
        if len(together) != len(names):
            raise DataError(
                f"{len(inputs)} files give {len(together)} groups of {dataset.parts_together}, and the catalogue names "
                f"{len(names)}: files are missing, or there are too many"
            )
        return [(files, prefix.with_name(f"{name}_text_document")) for files, name in zip(together, names, strict=True)]
    return [([path], prefix.with_name(f"{path.name.split('.')[0]}_text_document")) for path in inputs]


def identity(settings: Settings, folder: Path) -> list[Any]:
    """Name, size and date of each text file that no catalogue vouches for: other text means other tokens.

    Once the text is gone, what the token files' manifests in the run's folder say was read: tokens outlive their text.
    """
    texts = [text for text in settings.texts if not _is_vouched_for(text)]
    if not texts:
        return []
    try:
        stats = [(path.name, path.stat()) for text in texts for path in input_files(settings, text)]
        return sorted([name, stat.st_size, stat.st_mtime_ns] for name, stat in stats)
    except DataError:
        manifests = [json.loads(path.read_text()) for path in (folder / "data").glob("*.manifest.json")]
        read = [one for manifest in manifests for one in manifest["inputs"]]
        return sorted([Path(one["path"]).name, one["bytes"], one["mtime_ns"]] for one in read)


def _is_vouched_for(text: Text) -> bool:
    return text.dataset.kind == "mock" or bool(text.dataset.files and not text.folder)
