"""Token files that were made elsewhere: found, and put under the names that the plan reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runbook.data.options import Output
from runbook.data.sources import TOKENIZED, token_prefixes
from runbook.errors import DataError
from runbook.params import Settings
from runbook.params.dataset import Text


def ready_pairs(settings: Settings, data: Mapping[str, Any], folder: Path) -> list[Path]:
    """The prefixes of all token files of the run that are not made in it; `data` is the plan's section of that name."""
    found: list[Path] = []
    for text in _ready_texts(settings):
        named = [folder / prefix for prefix in _planned(text, data)]
        there = named and all(Output.found(prefix).bin.is_file() for prefix in named)
        found += named if there else token_prefixes(text.dataset, project=settings.project, folder=text.folder)
    return found


def place(settings: Settings, data: Mapping[str, Any], folder: Path) -> list[Path]:
    """Link ready token files to where the plan reads them, in the run's folder; the files that are there then.

    Where the site has its own place for data, they lie there already, and nothing is linked.
    """
    made: list[Path] = []
    for text in _ready_texts(settings):
        planned = _planned(text, data)
        if any(Path(prefix).is_absolute() for prefix in planned):
            continue
        found = token_prefixes(text.dataset, project=settings.project, folder=text.folder)
        for prefix, source in zip(planned, _matched(text, planned, found), strict=True):
            target = Output(folder / prefix, exact=True)
            for link, file in ((target.bin, Output.found(source).bin), (target.idx, Output.found(source).idx)):
                link.parent.mkdir(parents=True, exist_ok=True)
                if not link.exists() or link.is_symlink():
                    link.unlink(missing_ok=True)
                    link.symlink_to(file.resolve())
                made.append(link)
    return made


def _ready_texts(settings: Settings) -> list[Text]:
    return [text for text in settings.texts if text.dataset.kind == TOKENIZED]


def _planned(text: Text, data: Mapping[str, Any]) -> list[str]:
    part = next((one for one in data.get("parts") or [] if one["dataset"] == text.name), data)
    return [prefix for use in ("train", "validation", "test") for prefix in part[use]]


def _matched(text: Text, planned: list[str], found: list[Path]) -> list[Path]:
    """Of each planned name the files that were found: by the name, or the only ones there are."""
    by_name = {prefix.name: prefix for prefix in found}
    if all(Path(prefix).name in by_name for prefix in planned):
        return [by_name[Path(prefix).name] for prefix in planned]
    if len(planned) == len(found) == 1:
        return found
    raise DataError(
        f"{text.name} has {len(found)} pairs of token files ({', '.join(sorted(by_name)[:4])}), and the plan reads "
        f"{len(planned)} ({', '.join(planned[:4])}): list the .bin files under `files` of {text.name} in "
        f"params/datasets.yaml, so that the plan knows them"
    )
