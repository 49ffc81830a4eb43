"""What a killed writer left beside the files of a run: unfinished copies, removed by whoever holds the run next."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from runbook.schedulers.processes import identify

_OF_PROCESS = re.compile(r"\..+\.(\d{1,9})\.part")
"""As `records.files.write_bytes` names them: the number is the writer's."""
_OF_NOBODY = re.compile(r"(?!lock\.json|submit\.lock).+\.[0-9a-f]{8}\.part")
"""As `render.folder.write_whole` names them: only who holds the run writes these."""
_ELSEWHERE = frozenset({"checkpoints", "data", "tensorboard", "history"})
"""Folders whose own readers clean up: the trainer and the tokenizer."""


def remove_leftovers(folder: Path) -> list[str]:
    """Remove what no process writes any more and tell its names; call it while holding the run."""
    removed = []
    for place, below, names in os.walk(folder):
        below[:] = [name for name in below if name not in _ELSEWHERE]
        for name in names:
            if _is_left(name):
                path = Path(place, name)
                with contextlib.suppress(OSError):
                    path.unlink()
                    removed.append(path.relative_to(folder).as_posix())
    return sorted(removed)


def _is_left(name: str) -> bool:
    if found := _OF_PROCESS.fullmatch(name):
        return identify(int(found[1])) is None
    return _OF_NOBODY.fullmatch(name) is not None
