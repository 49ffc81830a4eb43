"""Finds the files for a catalogue dataset: on disk, at a URL, in a bucket or on the Hub."""

import fnmatch
import hashlib
import json
import os
import re
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from runbook.core.errors import DataError
from runbook.core.files import natural_key, sha256_of
from runbook.params.schema.entries import TOKENIZED, Dataset, SourceFile, names_pair
from runbook.tokens.messages import TokenMessage
from runbook.tokens.pipeline.tokenize_options import TokenFiles
from runbook.tokens.sources.input_files import find_inputs, path_inside, says_its_kind

HUB = "https://huggingface.co"
"""Address to use for the Hub if `HF_ENDPOINT` names no mirror."""
_HF = re.compile(r"hf://(datasets/|)([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")
_MAGIC = {
    ".zst": b"\x28\xb5\x2f\xfd",
    ".gz": b"\x1f\x8b",
    ".xz": b"\xfd7zXZ\x00",
    ".parquet": b"PAR1",
}

GetPage = Callable[[str], tuple[bytes, str]]
"""Function that fetches a URL, and returns the body and the URL for the next page."""


@dataclass(frozen=True)
class RemoteFile:
    """A file to download, with its size and checksums, if known.

    Unknown values are 0 or an empty string.
    """

    path: str
    """Path below the dataset folder."""
    url: str
    bytes: int = 0
    sha256: str = ""
    md5: str = ""
    """MD5 checksum given by a bucket for a file."""
    also: str = ""
    """An alternative path to the file below the dataset folder."""


def expected_files(dataset: Dataset) -> list[SourceFile]:
    """Return the files listed in the catalogue for a dataset, in joining order."""
    files = list(dataset.files)
    for group in dataset.parts or dataset.groups:
        if "{number}" not in group.path or group.last < group.first:
            raise DataError(
                TokenMessage.GROUP_NOT_POSSIBLE,
                title=dataset.title,
                group=group.path,
                first=group.first,
                last=group.last,
            )

        files += [
            SourceFile(path=path, also=group.also.replace("{number}", str(number)))
            for number, path in enumerate(group.paths, group.first)
        ]

    if dataset.parts_order == "names":
        files.sort(key=lambda file: (file.also or file.path).encode())
    return files


def place_of(folder: Path, file: SourceFile | RemoteFile) -> Path:
    """Return the path to a file, or its alternative path if only the alternative exists."""
    path = path_inside(folder, file.path)
    if not file.also or path.exists():
        return path
    second_path = path_inside(folder, file.also)
    return second_path if second_path.exists() else path


def holds_dataset(folder: Path, dataset: Dataset) -> bool:
    """Return whether a folder contains any file of the type needed by a dataset.

    The type is token files if the dataset is already tokenized, or else text files.
    """
    if dataset.kind == TOKENIZED and names_pair(str(folder)):
        return Path(f"{folder}.bin").is_file()
    if not folder.is_dir():
        return False
    if dataset.kind == TOKENIZED:
        return any(folder.rglob("*.bin"))
    return any(says_its_kind(path) for path in folder.rglob("*") if path.is_file())


def has_every_file(folder: Path, dataset: Dataset) -> bool:
    """Return whether a folder contains all files listed in the catalogue for a dataset.

    Return False if the dataset lists no files.

    Also return True if the folder contains the files that downloaded parts were joined to.
    """
    ways = [expected_files(dataset)]
    if dataset.parts:
        ways.append([SourceFile(path=path) for path in dataset.paths])
    return any(
        way and all(not file_fault(folder, file, checksums=False) for file in way) for way in ways
    )


def remote_files(dataset: Dataset, get: GetPage) -> list[RemoteFile]:
    """Return the files in a dataset with their addresses.

    For a dataset on the Hub, sizes and checksums are read from there, with a thousand files per
    request.
    """
    if dataset.kind in ("corpus", "mock"):
        raise DataError(TokenMessage.NOTHING_TO_DOWNLOAD, title=dataset.title)
    if not dataset.url:
        raise DataError(TokenMessage.DATASET_WITHOUT_URL, title=dataset.title)

    match = _HF.fullmatch(dataset.url)
    if match:
        return _hub_files(match[1] + match[2], match[3] or "main", dataset, get)
    if not dataset.url.startswith(("https://", "http://")):
        raise DataError(TokenMessage.NOT_AN_ADDRESS, url=dataset.url)

    files = expected_files(dataset)
    if not files:
        raise DataError(TokenMessage.DATASET_WITHOUT_FILES, title=dataset.title)

    base = dataset.url.rstrip("/") + "/"
    remote = []
    for file in files:
        remote.append(
            RemoteFile(
                file.path,
                base + urllib.parse.quote(file.path),
                file.bytes,
                file.sha256.lower(),
                also=file.also,
            )
        )

    return remote


def choose_files(
    listed: dict[str, RemoteFile],
    dataset: Dataset,
    source: str,
    remedy: str,
) -> list[RemoteFile]:
    """Return the files listed in the catalogue for a source.

    If the catalogue names no files, return the files that match its pattern.

    Raises:
        DataError: a named file is not at the source, or has a different size there.
    """
    promised = expected_files(dataset)
    if not promised:
        return _matching_files(listed, dataset, source, remedy)
    missing = [file.path for file in promised if file.path not in listed]
    if missing:
        first_missing = join_first(missing, 10, ", ", " and {} more")
        raise DataError(
            TokenMessage.FILES_NOT_AT_SOURCE,
            number_of_missing=len(missing),
            number_of_promised=len(promised),
            source=source,
            first_missing=first_missing,
            remedy=remedy,
        )

    chosen = []
    for file in promised:
        there = listed[file.path]
        if file.bytes and there.bytes != file.bytes:
            raise DataError(
                TokenMessage.WRONG_SIZE_AT_SOURCE,
                url=there.url,
                bytes_there=there.bytes,
                bytes_expected=file.bytes,
            )

        sha256 = file.sha256.lower() or there.sha256
        chosen.append(replace(there, sha256=sha256, also=file.also))

    return chosen


def _matching_files(
    listed: dict[str, RemoteFile],
    dataset: Dataset,
    source: str,
    remedy: str,
) -> list[RemoteFile]:
    """Return the files whose names match the pattern for the dataset.

    Raise `DataError` if no file matches.
    """
    matching = []
    for path, file in listed.items():
        if fnmatch.fnmatch(PurePosixPath(path).name, dataset.pattern):
            matching.append(file)

    if not matching:
        raise DataError(
            TokenMessage.NOTHING_MATCHES_AT_SOURCE,
            source=source,
            pattern=dataset.pattern,
            remedy=remedy,
        )
    return matching


def _hub_files(
    name: str,
    revision: str,
    dataset: Dataset,
    get: GetPage,
) -> list[RemoteFile]:
    """List the files in a Hub repository without huggingface_hub.

    huggingface_hub does not check the sha256, and its threads do not pause together after a 429
    answer.
    """
    endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or HUB
    listed: dict[str, RemoteFile] = {}
    files = f"{endpoint}/{name}/resolve/{urllib.parse.quote(revision)}/"
    kind = "" if name.startswith("datasets/") else "models/"
    # If no files are named, list the whole repository from its top folder down.
    folders = sorted({file.path.rpartition("/")[0] for file in expected_files(dataset)}) or [""]
    for folder in folders:
        quoted_folder = urllib.parse.quote(f"{revision}/{folder}".rstrip("/"))
        url = f"{endpoint}/api/{kind}{name}/tree/{quoted_folder}?recursive=true"
        while url:
            body, next_url = get(url)
            try:
                for file in _files_on_page(json.loads(body), files):
                    listed[file.path] = file
            except (ValueError, KeyError, TypeError, AttributeError):
                raise DataError(TokenMessage.NOT_A_LIST_OF_FILES, url=url, body=body[:80]) from None

            url = urllib.parse.urljoin(url, next_url) if next_url else ""

    source = f"{endpoint}/{name} (revision {revision})"
    return choose_files(
        listed, dataset, source, "Correct the catalogue, or name the revision that has them."
    )


def _files_on_page(entries: Any, base: str) -> Iterator[RemoteFile]:
    """Yield the files on a page returned by the Hub. `base` is the repository address.

    Large files are stored in Git LFS, where a file's id is its sha256.
    """
    for entry in entries:
        if entry["type"] == "file":
            path = str(entry["path"])
            sha256 = str((entry.get("lfs") or {}).get("oid", ""))
            yield RemoteFile(path, base + urllib.parse.quote(path), int(entry["size"]), sha256)


def dataset_folder(dataset: Dataset, *, project: Path, folder: str = "") -> Path:
    """Return the folder for a dataset.

    This is the requested folder, or else the one in the catalogue. The shipped corpus is inside
    the package.
    """
    if folder:
        return project / Path(folder).expanduser()
    if not dataset.folder:
        raise DataError(TokenMessage.DATASET_WITHOUT_FOLDER, title=dataset.title)

    if dataset.kind == "corpus":
        base = Path(__file__).parents[2]
    else:
        base = project

    return base / Path(dataset.folder).expanduser()


def dataset_files(dataset: Dataset, *, project: Path, folder: str = "") -> list[Path]:
    """Return the files to tokenize, in order.

    All files that the catalogue names are compared with their entries before any fault is reported.

    Raises:
        DataError: a file is missing, or its size differs from the catalogue; each is named.
    """
    reason = {"mock": "has no text", TOKENIZED: "is tokens already"}.get(dataset.kind)
    if reason:
        raise DataError(TokenMessage.NOTHING_TO_TOKENIZE, title=dataset.title, reason=reason)
    home = dataset_folder(dataset, project=project, folder=folder)
    listed = expected_files(dataset)
    if dataset.parts and any((home / path).exists() for path in dataset.paths):
        # These are the files that the downloaded parts were joined to.
        listed = [SourceFile(path=path) for path in dataset.paths]

    _refuse_faults(dataset, home, listed)
    if not listed:
        return find_inputs([home], dataset.pattern)
    return find_inputs([place_of(home, file) for file in listed])


def token_prefixes(dataset: Dataset, *, project: Path, folder: str = "") -> list[Path]:
    """Return the prefixes for a dataset that is already tokenized, in natural order.

    Each prefix has a .bin and an .idx.

    `verification.verify` also accepts such a prefix. Without a manifest, `verify` checks the two
    files against each other.

    Raises:
        DataError: there are no token files, one file of a pair is missing, or a file differs from the catalogue.
    """
    home = dataset_folder(dataset, project=project, folder=folder)
    listed = expected_files(dataset)
    _refuse_faults(dataset, home, listed)
    paths = [path_inside(home, file.path) for file in listed] or _token_bins(home)
    bins = [path for path in paths if path.suffix == ".bin"]
    if not bins:
        raise DataError(TokenMessage.NO_TOKEN_FILES, home=home)
    prefixes = [path.with_suffix("") for path in bins]
    single = []
    for prefix in prefixes:
        if not TokenFiles.existing(prefix).idx.is_file():
            single.append(prefix.name)

    if single:
        raise DataError(
            TokenMessage.TOKEN_FILES_WITHOUT_INDEX,
            number_of_single=len(single),
            number_of_bins=len(bins),
            home=home,
            single=", ".join(single[:5]),
        )

    return prefixes


def _token_bins(home: Path) -> list[Path]:
    """Return the .bin files in the folder `home`, or the only .bin file if `home` is its prefix."""
    pair = Path(f"{home}.bin")
    if names_pair(str(home)) and pair.is_file():
        return [pair]
    return sorted(home.rglob("*.bin"), key=natural_key)


def _refuse_faults(dataset: Dataset, home: Path, listed: list[SourceFile]) -> None:
    wrong = []
    for file in listed:
        if fault := file_fault(home, file, checksums=False):
            wrong.append(fault)

    if wrong:
        raise DataError(
            TokenMessage.DATASET_INCOMPLETE,
            number_of_wrong=len(wrong),
            number_of_listed=len(listed),
            title=dataset.title,
            home=home,
            wrong=join_first(wrong, 20),
        )


def join_first(
    texts: list[str],
    most: int,
    between: str = "\n  ",
    more: str = "\n  ... and {} more",
) -> str:
    """Join the first few texts, and say how many are left out."""
    text = between.join(texts[:most])
    if len(texts) > most:
        text += more.format(len(texts) - most)
    return text


def file_fault(folder: Path, file: SourceFile, *, checksums: bool = True) -> str:
    """Return a text to say what is wrong with a listed file.

    The text is empty if the file agrees with the list.
    """
    fault = content_fault(place_of(folder, file), file, checksums=checksums)
    return fault and TokenMessage.FILE_FAULT.fill(file=file.path, fault=fault)


def content_fault(path: Path, file: SourceFile | RemoteFile, *, checksums: bool = True) -> str:
    """Say what is wrong with the file size or, with `checksums`, the content.

    The text is empty if nothing is wrong.
    """
    if not path.is_file():
        return TokenMessage.FILE_MISSING.fill()
    size = path.stat().st_size
    suffix = Path(file.path).suffix
    if file.bytes and size != file.bytes:
        return TokenMessage.FILE_SIZE.fill(size=size, expected=file.bytes)
    if size == 0:
        return "empty"
    if not checksums:
        return ""
    with path.open("rb") as content:
        head = content.read(6)
    if not head.startswith(_MAGIC.get(suffix, b"")):
        return TokenMessage.OTHER_CONTENT.fill(head=head, suffix=suffix)
    if file.sha256 and (sha256 := sha256_of(path)) != file.sha256.lower():
        return TokenMessage.FILE_CHECKSUM.fill(sha256=sha256, expected=file.sha256)
    if isinstance(file, RemoteFile) and file.md5:
        with path.open("rb") as content:
            md5 = hashlib.file_digest(
                content, lambda: hashlib.md5(usedforsecurity=False)
            ).hexdigest()

        if md5 != file.md5:
            return f"md5 {md5}, but the bucket says {file.md5}"

    return ""
