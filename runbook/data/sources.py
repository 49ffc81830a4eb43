"""Where a dataset of the catalogue lies, and whether its files are the ones that the catalogue names."""

from __future__ import annotations

import hashlib
from pathlib import Path

from runbook.data.inputs import find_inputs, inside, natural
from runbook.data.options import Output
from runbook.data.remote import expected_files
from runbook.errors import DataError
from runbook.params.dataset import Dataset, SourceFile

TOKENIZED = "tokenized"


def dataset_folder(dataset: Dataset, *, project: Path, folder: str = "") -> Path:
    """The folder of a dataset: the given one, else the catalogue's (inside the package for the shipped corpus)."""
    if folder:
        return project / Path(folder).expanduser()
    if not dataset.folder:
        raise DataError(f"the dataset {dataset.title!r} names no folder; set data.folder to where its files lie")
    base = Path(__file__).parent.parent if dataset.kind == "corpus" else project
    return base / Path(dataset.folder).expanduser()


def dataset_files(dataset: Dataset, *, project: Path, folder: str = "", checksums: bool = True) -> list[Path]:
    """The files to tokenize, in order; files that the catalogue names are compared with it, all at once.

    Raises:
        DataError: a file is missing, or has another size or checksum than the catalogue says; each is named.
    """
    if dataset.kind == "mock":
        raise DataError(f"the dataset {dataset.title!r} has no text: nothing is to be tokenized")
    if dataset.kind == TOKENIZED:
        raise DataError(f"the dataset {dataset.title!r} is tokens already: nothing is to be tokenized")
    home = dataset_folder(dataset, project=project, folder=folder)
    listed = _listed(dataset, home)
    if not listed:
        return find_inputs([home], dataset.pattern)
    _refuse_faults(dataset, home, listed, checksums)
    return find_inputs([inside(home, file.path) for file in listed])


def _listed(dataset: Dataset, home: Path) -> list[SourceFile]:
    """The parts as fetched; or what they become, where that lies there: somebody went the documents' way."""
    if dataset.parts and any((home / path).exists() for path in dataset.paths):
        return [SourceFile(path=path) for path in dataset.paths]
    return expected_files(dataset)


def token_prefixes(dataset: Dataset, *, project: Path, folder: str = "", checksums: bool = False) -> list[Path]:
    """The prefixes of a dataset that is tokens already, in natural order; each has its .bin and its .idx.

    `runbook.data.verify` takes such a prefix as well; without a manifest it checks what the two files say themselves.

    Raises:
        DataError: no token files, one of a pair is missing, or a listed file is not the one that the catalogue names.
    """
    home = dataset_folder(dataset, project=project, folder=folder)
    listed = expected_files(dataset)
    _refuse_faults(dataset, home, listed, checksums)
    found = [inside(home, file.path) for file in listed] or sorted(home.rglob("*.bin"), key=natural)
    bins = [path for path in found if path.suffix == ".bin"]
    if not bins:
        raise DataError(f"{home} holds no .bin files; set data.folder to where the token files lie")
    prefixes = [path.with_suffix("") for path in bins]
    if single := [prefix.name for prefix in prefixes if not Output.found(prefix).idx.is_file()]:
        raise DataError(
            f"{len(single)} of {len(bins)} .bin files in {home} have no .idx beside them: {', '.join(single[:5])}"
        )
    return prefixes


def _refuse_faults(dataset: Dataset, home: Path, listed: list[SourceFile], checksums: bool) -> None:
    wrong = [fault for file in listed if (fault := file_fault(home, file, checksums=checksums))]
    if wrong:
        shown = "\n  ".join(wrong[:20]) + (f"\n  ... and {len(wrong) - 20} more" if len(wrong) > 20 else "")
        raise DataError(
            f"{len(wrong)} of {len(listed)} files of the dataset {dataset.title!r} are missing or not the ones "
            f"that the catalogue names, in {home}:\n  {shown}\n"
            "Fetch these again (runbook data download), or correct the catalogue."
        )


def file_fault(folder: Path, file: SourceFile, *, checksums: bool = True) -> str:
    """What is wrong with one file of a list; empty where nothing is, as far as the list says."""
    path = inside(folder, file.path)
    if not path.is_file():
        return f"{file.path}: missing"
    size = path.stat().st_size
    if file.bytes and size != file.bytes:
        return f"{file.path}: {size} bytes, {file.bytes} expected"
    if size == 0:
        return f"{file.path}: empty"
    if checksums and file.sha256:
        with path.open("rb") as content:
            found = hashlib.file_digest(content, "sha256").hexdigest()
        if found != file.sha256.lower():
            return f"{file.path}: sha256 {found}, {file.sha256} expected"
    return ""
