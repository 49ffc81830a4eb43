"""Which files a dataset has at its source: named by the catalogue, numbered, or listed by the Hugging Face Hub."""

from __future__ import annotations

import json
import os
import re
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass

from runbook.errors import DataError
from runbook.params.dataset import Dataset, SourceFile

HUB = "https://huggingface.co"
_HF = re.compile(r"hf://(datasets/|)([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")
_NEXT = re.compile(r'<([^>]+)>;\s*rel="next"')

GetJson = Callable[[str], tuple[bytes, str]]
"""Takes a URL; gives the body and the Link header."""


@dataclass(frozen=True)
class RemoteFile:
    """A file to fetch, and what is known of it."""

    path: str
    """Below the dataset's folder."""

    url: str
    bytes: int = 0
    """0: not known."""

    sha256: str = ""
    """Empty: not known."""

    md5: str = ""
    """What a bucket says of a file; empty: not known."""


def expected_files(dataset: Dataset) -> list[SourceFile]:
    """The files that the catalogue promises, as they are fetched; numbered ones are written out."""
    files = list(dataset.files)
    for group in dataset.parts or dataset.groups:
        if "{number}" not in group.path or group.last < group.first:
            raise DataError(
                f"the dataset {dataset.title!r} has the group {group.path!r} from {group.first} to {group.last}: its "
                "path needs {number} in it, and the last number may not be below the first"
            )
        numbers = range(group.first, group.last + 1)
        files += [SourceFile(path=group.path.replace("{number}", str(number))) for number in numbers]
    return files


def remote_files(dataset: Dataset, get: GetJson) -> list[RemoteFile]:
    """The files with their addresses; the Hub is asked for sizes and checksums (a thousand files a request)."""
    if not dataset.url:
        raise DataError(
            f"the dataset {dataset.title!r} has no url to fetch from. Put its files where data.folder says, or give "
            "the catalogue an url."
        )
    files = expected_files(dataset)
    if match := _HF.fullmatch(dataset.url):
        return _hub_files(match[1] + match[2], match[3] or "main", files, dataset, get)
    if not dataset.url.startswith(("https://", "http://", "s3://")):
        raise DataError(
            f"{dataset.url!r} is no address to fetch from: https://, http://, s3:// or hf://datasets/OWNER/NAME@REVISION"
        )
    if not files:
        raise DataError(f"the dataset {dataset.title!r} names no files; list them under files or groups")
    base = dataset.url.rstrip("/") + "/"
    quote = urllib.parse.quote if not base.startswith("s3:") else str
    return [RemoteFile(file.path, base + quote(file.path), file.bytes, file.sha256.lower()) for file in files]


def hub_endpoint() -> str:
    """The Hub, or the mirror that HF_ENDPOINT names."""
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or HUB


def _hub_files(
    name: str, revision: str, promised: list[SourceFile], dataset: Dataset, get: GetJson
) -> list[RemoteFile]:
    endpoint = hub_endpoint()
    listed: dict[str, RemoteFile] = {}
    folders = sorted({file.path.rpartition("/")[0] for file in promised}) if promised else [""]
    for folder in folders:
        place = urllib.parse.quote(f"{revision}/{folder}".rstrip("/"))
        kind = "" if name.startswith("datasets/") else "models/"
        url = f"{endpoint}/api/{kind}{name}/tree/{place}?recursive=true"
        while url:
            body, link = get(url)
            for path, size, sha256 in _entries(body, url):
                address = f"{endpoint}/{name}/resolve/{urllib.parse.quote(revision)}/{urllib.parse.quote(path)}"
                listed[path] = RemoteFile(path, address, size, sha256)
            following = _NEXT.search(link)
            url = urllib.parse.urljoin(url, following[1]) if following else ""
    if not promised:
        import fnmatch

        found = [file for path, file in listed.items() if fnmatch.fnmatch(path.rpartition("/")[2], dataset.pattern)]
        if not found:
            raise DataError(f"{endpoint}/{name} at {revision} has no file matching {dataset.pattern!r}")
        return found
    missing = [file.path for file in promised if file.path not in listed]
    if missing:
        shown = ", ".join(missing[:10]) + (f" and {len(missing) - 10} more" if len(missing) > 10 else "")
        raise DataError(
            f"{len(missing)} of {len(promised)} files are not at {endpoint}/{name} (revision {revision}): "
            f"{shown}. Correct the catalogue, or name the revision that has them."
        )
    return [listed[file.path] for file in promised]


def _entries(body: bytes, url: str) -> list[tuple[str, int, str]]:
    try:
        return [
            (str(each["path"]), int(each["size"]), str((each.get("lfs") or {}).get("oid", "")))
            for each in json.loads(body)
            if each["type"] == "file"
        ]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DataError(f"{url} did not answer with a list of files but with {body[:80]!r}; is it a Hub?") from None
