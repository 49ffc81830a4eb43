"""The manifest for a packed environment: what was packed, when, and the checksum."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

SCHEMA = 1
MANIFEST_NAME = "manifest.json"
NAME_DIGITS = 16
"""Number of checksum digits in the names of archives and copies on nodes."""

BASE = "base"
ENVIRONMENT = "environment"
PACKAGE = "package"


class ManifestError(Exception):
    """A manifest lacks a value, or is not JSON. The message gives the details."""


@dataclass(frozen=True)
class PackedPart:
    """A folder in the archive, and where its files come from."""

    name: str
    folder: str
    roots: tuple[str, ...]
    """Files and folders below the source that were packed.

    An empty path stands for the whole folder.
    """
    excluded: tuple[str, ...]
    """Paths below the source that were left out."""
    files: int
    fingerprint: str


@dataclass(frozen=True)
class EnvironmentManifest:
    """Facts about a packed environment that can be used without reading the archive."""

    schema: int
    archive: str
    """Path to the archive."""
    sha256: str
    archive_bytes: int
    disk_bytes: int
    """How many bytes the files occupy on a disk with 4 KiB blocks."""
    files: int
    compression: str
    """`zstd`, or `none`."""
    fingerprint: str
    """Checksum over names, sizes and times for all packed files."""
    python: str
    """The interpreter inside the archive, such as environment/bin/python3.11."""
    python_version: str
    interpreter: str
    """The interpreter the jobs use without a copy."""
    parts: tuple[PackedPart, ...]
    outside: tuple[str, ...]
    """Folders of `sys.path` that are not in the archive and stay on the shared file system."""
    uncompiled: int
    """Number of modules without a compiled file."""
    packed_at: float
    """Unix time at which the environment was packed."""
    seconds: float
    """How many seconds it took to pack."""

    @property
    def name(self) -> str:
        """Return the short name of this packed environment."""
        return self.sha256[:NAME_DIGITS]

    def as_text(self) -> str:
        """Return the text to write to the manifest file."""
        return json.dumps(asdict(self), indent=2) + "\n"


def parse_manifest(text: str) -> EnvironmentManifest:
    """Parse the text of a manifest. Raise `ManifestError` if it is not a complete manifest."""
    try:
        content = json.loads(text)
        parts = tuple(_parse_part(part) for part in content.pop("parts"))
        outside = tuple(content.pop("outside"))
        manifest = EnvironmentManifest(**content, parts=parts, outside=outside)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ManifestError(f"it is not a manifest of a packed environment: {error}") from error

    if manifest.schema != SCHEMA:
        raise ManifestError(f"its schema is {manifest.schema!r}, and this version reads {SCHEMA}")
    return manifest


def _parse_part(content: Any) -> PackedPart:
    roots = tuple(content.pop("roots"))
    excluded = tuple(content.pop("excluded"))
    return PackedPart(**content, roots=roots, excluded=excluded)


def read_manifest(path: Path) -> EnvironmentManifest | None:
    """Return the manifest in a file, or None if there is no file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None

    try:
        return parse_manifest(text)
    except ManifestError as error:
        raise ManifestError(f"{path}: {error}. Delete the file and pack again.") from error
