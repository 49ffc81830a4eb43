"""Defines the path, file names and permissions for a training run's folder in node memory."""

import contextlib
import hashlib
import os
import re
import shutil
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from runbook.plan_file.checkpoint_folder import PART
from runbook.plan_file.errors import TrainingError
from runbook.plan_file.schema import PhasePlan
from runbook.training.messages import TrainingMessage

_NAME = re.compile(r"iter_(\d{7,})\.rank_(\d{5,})", re.ASCII)


@dataclass(frozen=True)
class NodePlace:
    """The folder for a training run on a node."""

    folder: Path
    node: str
    """A name for the node with this folder, shared only by ranks with the same folder."""

    def path(self, iteration: int, rank: int) -> Path:
        """Return the file for the state of one rank."""
        return self.folder / f"iter_{iteration:07d}.rank_{rank:05d}"

    def part(self, name: str) -> Path:
        """Return the path to use for a file while it is being written."""
        return self.folder / f"{name}{PART}"

    def files(self) -> Iterator[tuple[Path, int, int]]:
        """Yield complete files, each with its iteration and rank."""
        for path in sorted(self.folder.iterdir()):
            match = _NAME.fullmatch(path.name)
            if match:
                yield path, int(match[1]), int(match[2])

    def remove_all_but(self, kept: set[Path]) -> None:
        """Remove all files for this training run on this node except those in `kept`."""
        for path in self.folder.iterdir():
            if path not in kept:
                path.unlink(missing_ok=True)


def training_name(spec: PhasePlan) -> str:
    """Return a name based on the run, the fingerprint and where the checkpoints are."""
    root = spec.root.resolve()
    checkpoints = hashlib.sha256(str(spec.path(spec.checkpoint.folder).resolve()).encode())
    return f"{root.name}-{spec.fingerprint[:12]}-{checkpoints.hexdigest()[:8]}"


STALE_SECONDS = 2 * 86_400.0
"""Copies older than this count as abandoned.

An active run writes more often.
"""


def _remove_stale(top: Path, kept: str) -> None:
    """Remove copies from abandoned training runs, since they occupy node memory."""
    oldest = time.time() - STALE_SECONDS
    for folder in top.iterdir():
        # A different rank on this node may have removed it already
        with contextlib.suppress(OSError):
            times = [path.stat().st_mtime for path in (folder, *folder.iterdir())]
            if folder.name != kept and max(times) < oldest:
                shutil.rmtree(folder, ignore_errors=True)


def top_folder(near_folder: str) -> Path:
    """Return the folder used for all training runs by this user.

    Raise `TrainingError` if an environment variable in the path is not set.
    """
    expanded = os.path.expandvars(near_folder)
    if "$" in expanded:
        raise TrainingError(TrainingMessage.VARIABLE_NOT_SET, near_folder=near_folder)
    return Path(expanded) / f"runbook-near-{os.getuid()}"


def open_place(near_folder: str, training: str) -> NodePlace:
    """Create the folder, accessible only to this user. Raise `TrainingError` if that fails."""
    user = os.getuid()
    top = top_folder(near_folder)
    try:
        top.mkdir(
            mode=0o700,
            parents=True,
            exist_ok=True,
        )
        status = top.lstat()
        if top.is_symlink() or status.st_uid != user:
            raise TrainingError(TrainingMessage.FOLDER_OF_SOMEBODY_ELSE, top=top)
        _remove_stale(top, training)
        folder = top / training
        folder.mkdir(mode=0o700, exist_ok=True)
        about = folder.stat()
    except OSError as error:
        raise TrainingError(TrainingMessage.NEAR_FOLDER_NOT_MADE, top=top, error=error) from None

    return NodePlace(folder, f"{socket.gethostname()} {about.st_dev} {about.st_ino}")
