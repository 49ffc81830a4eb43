"""JSON lines that another process is still writing."""

from __future__ import annotations

import contextlib
import json
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
            for line in whole.splitlines():
                with contextlib.suppress(ValueError, RecursionError):  # cut off by a kill; the analysis counts these
                    row = json.loads(line)
                    if isinstance(row, dict):
                        self.rows.append(row)
        return self.rows


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Every whole line of a file as it is now; none where there is no file."""
    return Tail(path).read()
