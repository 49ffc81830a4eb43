"""Files that are evidence: written whole or not at all, and known by their checksum.

write_text(path, text)      write_bytes(path, content)      sha256_of(path) -> str      utc_now() -> str
"""

from __future__ import annotations

import hashlib
import os
from datetime import UTC, datetime
from pathlib import Path

from runbook.errors import RecordError


def write_text(path: Path, text: str) -> None:
    """Write a text beside its place, then rename it there; the old file stays until the new one is whole."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write bytes beside their place, synced, then rename them there; `RecordError` says why it could not be done."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise RecordError(
            f"{path} could not be written: {error.strerror or error}. A record is written whole or not at all; what "
            "was there before is unchanged. Free space or rights in that folder, then run the cell or phase again."
        ) from error


def sha256_of(path: Path) -> str:
    """Checksum of a file, read in pieces."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def utc_now() -> str:
    """The time now, as records write it: UTC, microseconds, `Z`."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def name_time(moment: str) -> str:
    """A record's time as it stands in a file name.

    >>> name_time("2025-11-21T06:32:11.123456Z")
    '20251121T063211Z'
    """
    return datetime.fromisoformat(moment).astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
