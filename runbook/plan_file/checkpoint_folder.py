"""Checkpoint names on disk, for the trainer and for programs that watch it.

No other module builds or parses these names.

    checkpoints/
      iter_0000050/                            complete: renamed after its metadata.json was written
        metadata.json  torch_dist/
      iter_0000100.part/                       being written, or left by a save that was killed
      latest_checkpointed_iteration.txt        the tracker

This module uses only the standard library and Python 3.10 syntax.
"""

from __future__ import annotations

import re
from pathlib import Path

TRACKER = "latest_checkpointed_iteration.txt"
METADATA = "metadata.json"
SHARDS = "torch_dist"
"""Folder in a checkpoint that contains the state in megatron-core's own layout."""
PART = ".part"
"""Suffix for an incomplete folder, one that is being written or removed."""

_NAME = re.compile(r"iter_(\d{7,})", re.ASCII)


def folder_name(iteration: int) -> str:
    """Return the folder name used for a checkpoint, which is the same as in Megatron-LM.

    >>> folder_name(50), folder_name(12345678)
    ('iter_0000050', 'iter_12345678')
    """
    return f"iter_{iteration:07d}"


def iteration_of(name: str) -> int | None:
    """Return the iteration from a complete checkpoint's folder name, or None for any other name.

    >>> iteration_of("iter_0000050"), iteration_of("iter_0000050.part"), iteration_of("iter_50")
    (50, None, None)
    """
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def checkpoint_folders(root: Path) -> list[Path]:
    """Return all complete checkpoint folders, newest first; none if `root` is not a folder."""
    if not root.is_dir():
        return []
    by_iteration = {}
    for path in root.iterdir():
        if (iteration := iteration_of(path.name)) is not None and path.is_dir():
            by_iteration[iteration] = path

    return [by_iteration[iteration] for iteration in sorted(by_iteration, reverse=True)]


def newest_checkpoint(root: Path) -> Path | None:
    """Return the folder with the newest complete checkpoint, or None if there is none."""
    folders = checkpoint_folders(root)
    return folders[0] if folders else None


def saved_iterations(root: Path) -> list[int]:
    """Return the iterations for which there is a complete checkpoint, newest first."""
    numbers = (iteration_of(path.name) for path in checkpoint_folders(root))
    return [number for number in numbers if number is not None]


def unfinished_folders(root: Path) -> list[Path]:
    """Return the folders left behind by a save or a removal that was killed."""
    return sorted(path for path in root.glob(f"iter_*{PART}") if path.is_dir())
