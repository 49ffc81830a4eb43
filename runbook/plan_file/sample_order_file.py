"""Checksums of the cached sample order.

The checksums are in `checksums.json`, next to the cached files. The trainer and `verify` read that
file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

CHECKSUMS = "checksums.json"


@dataclass(frozen=True)
class CachedFile:
    """A file in the cache, as it was when it was built."""

    bytes: int
    sha256: str


def read_checksums(folder: Path) -> dict[str, CachedFile]:
    """Return the cached files by name; empty if there is no usable list of checksums.

    A file with no checksum is built again.
    """
    try:
        files = json.loads((folder / CHECKSUMS).read_text(encoding="utf-8"))["files"]
        checksums: dict[str, CachedFile] = {}
        for name, entry in files.items():
            checksums[str(name)] = CachedFile(int(entry["bytes"]), str(entry["sha256"]))

        return checksums
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def checksums_text(files: Mapping[str, CachedFile]) -> str:
    """Return the content of checksums.json."""
    entries = {name: {"bytes": file.bytes, "sha256": file.sha256} for name, file in files.items()}
    return json.dumps({"schema": 1, "files": entries}, indent=1, sort_keys=True) + "\n"
