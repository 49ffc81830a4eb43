"""JSON lines that another process is still writing."""

import contextlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Tail:
    """The lines of a growing JSON-lines file, each read once; a half-written last line waits for its end."""

    path: Path
    rows: list[dict[str, Any]] = field(default_factory=list)
    _offset: int = 0

    def read(self) -> list[dict[str, Any]]:
        """All rows so far."""
        if self.path.exists():
            if self.path.stat().st_size < self._offset:
                self._offset, self.rows = 0, []
            with self.path.open("rb") as stream:
                stream.seek(self._offset)
                whole, newline, _ = stream.read().rpartition(b"\n")
            self._offset += len(whole) + len(newline)
            self.rows += _objects(whole.splitlines())
        return self.rows


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Every whole line of a file as it is now; none where there is no file."""
    return Tail(path).read()


def iterate_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The same one by one, so that a long file is never in memory as a whole."""
    with contextlib.suppress(FileNotFoundError), path.open("rb") as stream:
        yield from _objects(line for line in stream if line.endswith(b"\n"))


def _objects(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    for line in lines:
        with contextlib.suppress(ValueError, RecursionError):  # cut off by a kill; the analysis counts these
            row = json.loads(line)
            if isinstance(row, dict):
                yield row
