"""The text that a run trains on, and its token files, whether created here or elsewhere."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runbook.core.errors import DataError
from runbook.params import Settings
from runbook.params.schema.entries import TOKENIZED, TextShare
from runbook.params.schema.value_types import parse_names
from runbook.phases.messages import PhaseMessage
from runbook.planning.data_plan import DataPlan, text_place
from runbook.tokens.pipeline.tokenize_options import TokenFiles, TokenizeOptions
from runbook.tokens.sources.dataset_files import (
    dataset_files,
    dataset_folder,
    holds_dataset,
    token_prefixes,
)
from runbook.tokens.sources.input_files import MOST_SAMPLED, whole_files


def tokenize_options(settings: Settings) -> TokenizeOptions:
    """Return the options used to tokenize the text."""
    data = settings.run.data
    return TokenizeOptions(
        tokenizer=settings.tokenizer,
        text_key=data.text_key,
        append_eod=data.append_eod,
        special_tokens=data.special_tokens,
        bad_records=data.bad_records,
        max_record_bytes=data.max_record_bytes,
        source_key=data.source_key,
        keep_sources=parse_names(data.keep_sources),
        drop_sources=parse_names(data.drop_sources),
        fix_text=data.fix_text,
        workers=data.workers,
    )


def text_home(settings: Settings, text: TextShare) -> Path:
    """Return the folder with the files for a text.

    If an earlier version downloaded the text into the project folder, that copy is used and
    the text is not downloaded again.
    """
    dataset = text.dataset
    earlier = dataset_folder(dataset, project=settings.project, folder=text.folder)
    planned = text_place(settings, text)
    if text.folder or planned == dataset.folder:
        return earlier
    home = Path(planned)
    if holds_dataset(earlier, dataset) and not holds_dataset(home, dataset):
        return earlier
    return home


def input_files(settings: Settings, text: TextShare | None = None) -> list[Path]:
    """Return the files for one of the texts, or those in data.folder if it is set.

    If no text is given, use the first one. data.folder may replace the shipped corpus with any
    text, so its files may have any name.
    """
    text = text or settings.texts[0]
    dataset = text.dataset
    folder = text.folder
    if not folder:
        home = text_home(settings, text)
        return dataset_files(dataset, project=settings.project, folder=str(home))

    pattern = "*" if dataset.kind == "corpus" else dataset.pattern
    dataset = dataset.model_copy(update={"files": [], "pattern": pattern})
    try:
        return dataset_files(dataset, project=settings.project, folder=folder)
    except DataError as error:
        where = settings.origins["data.folder"][-1]
        raise DataError(
            PhaseMessage.DATA_FOLDER, folder=folder, where=where, error=error
        ) from error


def token_groups(settings: Settings, data: DataPlan, folder: Path) -> list[tuple[list[Path], Path]]:
    """Return (input files, prefix) for each pair of token files.

    Each text has one pair, or one per file if whole files are held out.
    """
    prefixes = {part.dataset: part.prefix for part in data.parts or [data]}
    groups = []
    for text in settings.texts:
        if text.dataset.kind != TOKENIZED:
            prefix = folder / prefixes[text.name]
            groups += _groups_of(settings, text, prefix, held_out=bool(data.held_out))

    return groups


def _groups_of(
    settings: Settings,
    text: TextShare,
    prefix: Path,
    *,
    held_out: bool,
) -> list[tuple[list[Path], Path]]:
    inputs = input_files(settings, text)
    dataset = text.dataset
    if not held_out:
        return [(inputs, prefix)]
    groups = [[path] for path in inputs]
    names = [path.name for path in inputs]
    size = dataset.parts_together
    # A text may be split into more files than the catalogue lists. Then `size` consecutive files
    # form one listed file.
    if size and len(inputs) != len(dataset.paths):
        groups = [inputs[start : start + size] for start in range(0, len(inputs), size)]
        names = [Path(path).name for path in dataset.paths]
        if len(groups) != len(names):
            raise DataError(
                PhaseMessage.NUMBER_OF_GROUPS,
                number_of_inputs=len(inputs),
                number_of_groups=len(groups),
                size=size,
                number_of_names=len(names),
            )

    prefixes = [prefix.with_name(f"{name.split('.')[0]}_text_document") for name in names]
    return list(zip(groups, prefixes, strict=True))


def text_identity(settings: Settings, folder: Path) -> list[Any]:
    """Return name, size, date and a sample for each text file without a checksum in the catalogue.

    A different text gives different tokens. If the text was deleted after it was tokenized, these
    facts are taken from the manifests of the token files in the run folder.
    """
    texts = [text for text in settings.texts if _is_unvouched(text)]
    if not texts:
        return []
    try:
        files = _files_now(settings, texts)
    except DataError:
        files = _files_in_manifests(folder)

    is_sampled = len(files) <= MOST_SAMPLED
    identity = []
    for path, size, date, sample in files:
        identity.append([Path(path).name, size, date, sample if is_sampled else 0])
    return sorted(identity)


def _is_unvouched(text: TextShare) -> bool:
    """Return whether the catalogue lacks checksums for this text."""
    return text.dataset.kind != "mock" and bool(text.folder or not text.dataset.files)


def _files_now(settings: Settings, texts: Sequence[TextShare]) -> list[tuple[Any, ...]]:
    """Return (path, size, date, sample) for each text file. Raise `DataError` if one is missing."""
    paths: list[Path] = []
    for text in texts:
        paths += input_files(settings, text)
    return [
        (file.path, file.size, file.mtime_ns, file.sample)
        for file in whole_files(paths, empty=True)
    ]


def _files_in_manifests(folder: Path) -> list[tuple[Any, ...]]:
    """Return (path, size, date, sample) for each text file listed in the manifests."""
    files = []
    for path in (folder / "data").glob("*.manifest.json"):
        for file in json.loads(path.read_text())["inputs"]:
            files.append((file["path"], file["bytes"], file["mtime_ns"], file["sample"]))

    return files


def ready_pairs(settings: Settings, data: DataPlan, folder: Path) -> list[Path]:
    """Return the prefixes where the plan expects token files created elsewhere."""
    prefixes = []
    for text in settings.texts:
        if text.dataset.kind == TOKENIZED:
            prefixes += [folder / prefix for prefix in _planned_prefixes(text, data)]

    return prefixes


def link_ready_tokens(settings: Settings, data: DataPlan, folder: Path) -> list[Path]:
    """Link ready-made token files to where the plan expects them in the run folder.

    Return the linked files.
    """
    for text in settings.texts:
        planned = _linked_prefixes(text, data)
        if not planned:
            continue
        home = text_home(settings, text)
        present = token_prefixes(text.dataset, project=settings.project, folder=str(home))
        for prefix, ready in zip(planned, _match_prefixes(text, planned, present), strict=True):
            target = TokenFiles(folder / prefix, exact=True)
            source = TokenFiles.existing(ready)
            _link(target.bin, source.bin)
            _link(target.idx, source.idx)

    return linked_tokens(settings, data, folder)


def linked_tokens(settings: Settings, data: DataPlan, folder: Path) -> list[Path]:
    """Return the links in the run folder to token files created elsewhere."""
    links: list[Path] = []
    for text in settings.texts:
        for prefix in _linked_prefixes(text, data):
            target = TokenFiles(folder / prefix, exact=True)
            links += [target.bin, target.idx]

    return links


def _linked_prefixes(text: TextShare, data: DataPlan) -> list[str]:
    """Return the prefixes planned for a ready-made text that are links in the run folder.

    A site with its own data folder needs no links, because the files are already there.
    """
    if text.dataset.kind != TOKENIZED:
        return []
    planned = _planned_prefixes(text, data)
    if any(Path(prefix).is_absolute() for prefix in planned):
        return []
    return planned


def _link(link: Path, file: Path) -> None:
    """Make `link` point to the file. A regular file of that name belongs to the run and is kept."""
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.exists() or link.is_symlink():
        link.unlink(missing_ok=True)
        link.symlink_to(file.resolve())


def _planned_prefixes(text: TextShare, data: DataPlan) -> list[str]:
    for part in data.parts:
        if part.dataset == text.name:
            return [*part.train, *part.validation, *part.test]

    return [*data.train, *data.validation, *data.test]


def _match_prefixes(text: TextShare, planned: list[str], present: list[Path]) -> list[Path]:
    """Return the existing prefix for each planned prefix.

    The two have the same name, or there is only one prefix of each kind.
    """
    by_name = {prefix.name: prefix for prefix in present}
    if all(Path(prefix).name in by_name for prefix in planned):
        return [by_name[Path(prefix).name] for prefix in planned]
    if len(planned) == len(present) == 1:
        return present
    raise DataError(
        PhaseMessage.MORE_TOKEN_FILES_THAN_PLANNED,
        text_name=text.name,
        number_of_present=len(present),
        by_name=", ".join(sorted(by_name)[:4]),
        number_of_planned=len(planned),
        planned=", ".join(planned[:4]),
    )
