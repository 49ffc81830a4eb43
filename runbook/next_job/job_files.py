"""Job and run files that a decision about an attempt depends on."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from runbook.next_job.attempts import LOG_LINES

ATTEMPT_LINE = re.compile(r"runbook: attempt \d+ ")
"""The first line for each attempt, in both logs from a job."""
TAIL_BYTES = 200_000


@dataclass(frozen=True)
class JobFiles:
    """Paths to the job and run files that a decision about an attempt depends on."""

    folder: Path
    events: Path
    metrics: Path
    tracker: Path | None
    """File in which an upstream program records its newest checkpoint, or None for our trainer."""

    @property
    def name(self) -> str:
        """The job name as it appears in events."""
        return self.folder.name

    def nodes(self) -> list[str]:
        """Return the nodes in the attempt, in rank order."""
        return read_or_empty(self.folder / "hostfile").split()

    def ranks_per_node(self) -> int:
        """Return how many ranks run on each node."""
        return int(read_or_empty(self.folder / "ranks_per_node").strip() or 1)

    def log_lines(self) -> list[str]:
        """Return the last lines of both logs since the attempt began."""
        return [*_log_of_attempt(self.folder / "err"), *_log_of_attempt(self.folder / "out")]


def _log_of_attempt(path: Path) -> list[str]:
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - TAIL_BYTES))
            lines = stream.read().decode("utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []

    for index in reversed(range(len(lines))):
        if ATTEMPT_LINE.match(lines[index]):
            return lines[index + 1 :][-LOG_LINES:]

    return lines[-LOG_LINES:]


def read_or_empty(path: Path) -> str:
    """Read a file, or return an empty string if there is no such file."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""
