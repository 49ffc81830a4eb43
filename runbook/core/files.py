"""Writes files atomically, computes checksums, and reads JSON records and growing JSON-lines files.

write_text(path, text)      with replacing(path) as stream: ...      sha256_of(path, length=None) ->
str read_json_record(path, kind, meaning, remedy) -> kind | None
"""

import contextlib
import functools
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from runbook.core.errors import RecordError, RunbookError
from runbook.core.messages import CoreMessage

Record = TypeVar("Record")


def write_text(
    path: Path,
    text: str,
    *,
    mode: int = 0o666,
    error: type[RunbookError] = RecordError,
) -> None:
    """Write text to a temporary file next to the target, and then rename that file.

    The old file remains until the new one is complete.
    """
    with replacing(path, mode=mode, error=error) as stream:
        stream.write(text.encode())


@contextlib.contextmanager
def replacing(
    path: Path, *, mode: int = 0o666, error: type[RunbookError] = RecordError
) -> Iterator[BinaryIO]:
    """Yield a stream to a temporary file, which is synced and then renamed to the target.

    Raise `error` with the reason if the file cannot be written.

    Readers see either the complete file or none, even from a different machine or after a power
    loss. The umask applies to `mode`.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        opened = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(opened, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())

        part.replace(path)
    except OSError as problem:
        raise error(
            CoreMessage.NOT_WRITTEN, path=path, reason=problem.strerror or problem
        ) from problem
    finally:
        # The temporary file has been renamed, or was never created.
        with contextlib.suppress(OSError):
            part.unlink()


def read_json_record(
    path: Path,
    kind: type[Record],
    meaning: str,
    remedy: str,
    error: type[RunbookError] = RecordError,
) -> Record | None:
    """Return the dataclass stored in a JSON file, or None if there is no file.

    Raise `RecordError` if a value does not strictly have its declared type. For any other fault,
    raise `error` with `meaning` (what the file should be), the reason and the remedy.
    """
    from pydantic import ValidationError

    try:
        return _reader_of(kind).validate_json(path.read_bytes(), strict=True)  # type: ignore[arg-type,no-any-return]
    except FileNotFoundError:
        return None
    except OSError as refused:
        problem = refused.strerror or str(refused)
    except ValidationError as invalid:
        first = invalid.errors()[0]
        problem = ": ".join(map(str, [*first["loc"], first["msg"]]))

    raise error(
        CoreMessage.RECORD_UNREADABLE, path=path, meaning=meaning, problem=problem, remedy=remedy
    )


@functools.cache
def _reader_of(kind: type) -> Any:
    # Imported here, so that --help does not have to wait for it.
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def sha256_of(path: Path, length: int | None = None) -> str:
    """Return the checksum of a file, or of its first `length` bytes. The file is read in pieces."""
    with path.open("rb") as stream:
        if length is None:
            return hashlib.file_digest(stream, "sha256").hexdigest()
        digest = hashlib.sha256()
        while length > 0 and (piece := stream.read(min(length, 2**20))):
            digest.update(piece)
            length -= len(piece)

        return digest.hexdigest()


def utc_now() -> str:
    """Return the current time in the format used in records: UTC, microseconds, `Z`."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def make_dated_folder(parent: Path, name: str) -> Path:
    """Make a folder in `parent`, named after the current time.

    A number is appended if a folder with the same time exists.
    """
    folder = parent / free_name(parent, f"{name}-{name_time(utc_now())}")
    folder.mkdir(parents=True)
    return folder


def free_name(folder: Path, stem: str, suffixes: Sequence[str] = ("",)) -> str:
    """Return a name that is free with each of these suffixes.

    The name is `stem`, or `stem-2`, `stem-3`, ...
    """
    name = stem
    number = 1
    while any((folder / (name + suffix)).exists() for suffix in suffixes):
        number += 1
        name = f"{stem}-{number}"

    return name


def natural_key(name: Path | str) -> list[tuple[int, int | str]]:
    """Return a sort key to put chunk_2 before chunk_10."""
    parts: list[tuple[int, int | str]] = []
    for part in re.split(r"(\d+)", str(name)):
        if part.isdecimal():
            parts.append((0, int(part)))
        elif part:
            parts.append((1, part))

    return parts


def name_time(moment: str) -> str:
    """Convert a time from a record to the form used in file names.

    >>> name_time("2025-11-21T06:32:11.123456Z")
    '20251121T063211Z'
    """
    return datetime.fromisoformat(moment).astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")


@dataclass
class Tail:
    """Reads a growing JSON-lines file, each line once.

    An incomplete last line is not read until it is complete.
    """

    path: Path
    rows: list[dict[str, Any]] = field(default_factory=list)
    _offset: int = 0

    def read(self) -> list[dict[str, Any]]:
        """Return all rows read so far."""
        if self.path.exists():
            if self.path.stat().st_size < self._offset:
                self._offset = 0
                self.rows = []

            with self.path.open("rb") as stream:
                stream.seek(self._offset)
                whole, newline, _ = stream.read().rpartition(b"\n")

            self._offset += len(whole) + len(newline)
            self.rows += _objects(whole.splitlines())

        return self.rows


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the rows of all lines that are complete now, or an empty list if there is no file."""
    return Tail(path).read()


def iterate_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows from `read_lines` one by one, so long files need little memory."""
    with contextlib.suppress(FileNotFoundError), path.open("rb") as stream:
        yield from _objects(line for line in stream if line.endswith(b"\n"))


def _objects(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    for line in lines:
        # A killed process may have left this line incomplete. The analysis counts such lines.
        with contextlib.suppress(ValueError, RecursionError):
            row = json.loads(line)
            if isinstance(row, dict):
                yield row
