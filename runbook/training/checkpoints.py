"""Folders of checkpoints that are whole or not there: names, checksums, the tracker, what to load; no torch.

A checkpoint is written as `iter_0000050.part`, gets its `metadata.json` with the sha256 of every file last, and is
renamed; the tracker `latest_checkpointed_iteration.txt` follows by rename. So a kill at any moment leaves either the
new checkpoint or the ones before it, and a later change of one byte is found.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runbook.training import faults
from runbook.training.errors import RefusedError

TRACKER = "latest_checkpointed_iteration.txt"
METADATA = "metadata.json"
SHARDS = "torch_dist"
"""Folder inside a checkpoint with the state in megatron-core's own layout."""


@dataclass(frozen=True)
class Found:
    """A checkpoint folder and what its metadata says."""

    folder: Path
    iteration: int
    metadata: dict[str, Any]


def name_of(iteration: int) -> str:
    """Folder name of a checkpoint, as Megatron-LM writes it."""
    return f"iter_{iteration:07d}"


def clean(root: Path) -> list[str]:
    """Remove what a killed save left behind; its names."""
    if not root.is_dir():
        return []
    left = sorted(path for path in root.glob("iter_*.part") if path.is_dir())
    left += sorted(path for path in root.glob(f"{TRACKER}.part"))
    for path in left:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return [path.name for path in left]


def begin(root: Path, iteration: int) -> Path:
    """An empty folder to write the shards of a new checkpoint into."""
    part = root / f"{name_of(iteration)}.part"
    if part.exists():
        shutil.rmtree(part)
    (part / SHARDS).mkdir(parents=True)
    return part


def finish(part: Path, metadata: dict[str, Any], checksums: dict[str, str], keep: int, keep_every: int = 0) -> Path:
    """Seal, rename, point the tracker at it, and only then remove checkpoints beyond the newest `keep`.

    Those whose iteration is a multiple of `keep_every` stay for ever.
    """
    root, final = part.parent, part.with_suffix("")
    metadata = {**metadata, "files": checksums}
    faults.save("metadata")
    _write(part / METADATA, json.dumps({**metadata, "seal": _seal(metadata)}, indent=1, sort_keys=True) + "\n")
    for folder in (part / SHARDS, part):
        sync_folder(folder)
    if final.exists():  # a broken one of this iteration, which was not loaded
        shutil.rmtree(final)
    faults.save("rename")
    part.rename(final)
    sync_folder(root)
    faults.save("tracker")
    point_to(root, int(metadata["iteration"]))
    faults.save("pruning")
    for old in _folders(root)[keep:]:
        if keep_every and int(old.name[5:]) % keep_every == 0:
            continue
        going = old.rename(old.with_suffix(".old.part"))  # killed from here on, `clean` ends the work
        shutil.rmtree(going)
    return final


def point_to(root: Path, iteration: int) -> None:
    """Write the tracker in one step."""
    _write(root / f"{TRACKER}.part", f"{iteration}\n")
    (root / f"{TRACKER}.part").rename(root / TRACKER)
    sync_folder(root)


def tracked(root: Path) -> int | None:
    """The iteration the tracker names; None where it is missing, empty or garbage."""
    try:
        text = (root / TRACKER).read_text(encoding="ascii").strip()
    except (FileNotFoundError, UnicodeDecodeError):
        return None
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None


def newest_iteration(root: Path) -> int:
    """The iteration of the newest checkpoint by its folder's name, whole or not; 0 where there is none."""
    return int(_folders(root)[0].name[5:]) if _folders(root) else 0


def tracker_fault(root: Path, newest: int) -> str:
    """Why the tracker cannot be believed, or nothing: a kill between two renames leaves it one checkpoint behind."""
    if tracked(root) is not None:
        named = root / name_of(tracked(root) or 0)
        return "" if named.is_dir() else f"{root / TRACKER} names {named.name}, which is not there"
    if not newest:
        return ""
    if not (root / TRACKER).exists():
        return f"{root / TRACKER} is missing"
    content = (root / TRACKER).read_bytes()[:40]
    return f"{root / TRACKER} is empty" if not content.strip() else f"{root / TRACKER} holds {content!r}"


def candidates(root: Path) -> tuple[list[Found], list[str]]:
    """Checkpoints by their folders, newest first, and what is wrong with those that cannot even be opened.

    The folders are asked, not the tracker: it may be older than the newest checkpoint (killed between the two
    renames), empty or garbage.
    """
    found, problems = [], []
    for folder in _folders(root):
        try:
            metadata = json.loads((folder / METADATA).read_text(encoding="utf-8"))
            if metadata.pop("seal") != _seal(metadata):
                raise ValueError("its seal does not match: it was changed after it was written")
            found.append(Found(folder, int(metadata["iteration"]), metadata))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            problems.append(f"{folder / METADATA} cannot be used: {error}")
    return found, problems


def has_trace(root: Path) -> bool:
    """Whether a checkpoint was ever finished here."""
    return bool(_folders(root)) or (root / TRACKER).exists()


def broken(found: Found, files: list[str]) -> str:
    """What is wrong with these files of a checkpoint: the file, what is expected and what is there; or nothing."""
    for name in files:
        path, expected = found.folder / name, str(found.metadata["files"][name])
        try:
            actual = sha256(path)
        except FileNotFoundError:
            return f"{path} is missing"
        except OSError as error:
            return f"{path} cannot be read: {error}"
        if actual != expected:
            return f"{path} has sha256 {actual[:16]}..., expected {expected[:16]}... ({path.stat().st_size} bytes)"
    return ""


def shape_difference(saved: dict[str, Any], wanted: dict[str, Any]) -> str:
    """Every number of the model's shape in which a checkpoint differs from the plan, or nothing."""
    return ", ".join(
        f"{key} {saved.get(key)} (plan: {wanted[key]})" for key in sorted(wanted) if saved.get(key) != wanted[key]
    )


def refuse_none_left(root: Path, problems: list[str]) -> RefusedError:
    """The error for a folder that has had checkpoints, of which none is whole."""
    return RefusedError(
        f"{root} has held checkpoints, but none of them is whole:\n"
        + "\n".join(f"  {problem}" for problem in problems or [f"{root / TRACKER} names one that is not there"])
        + "\nTraining does not silently start again: bring one back, or move the folder away to start anew"
    )


def sha256(path: Path) -> str:
    """Checksum of a file's content."""
    digest = hashlib.sha256()
    buffer = bytearray(2**20)
    with path.open("rb", buffering=0) as stream:
        while count := stream.readinto(buffer):
            digest.update(memoryview(buffer)[:count])
    return digest.hexdigest()


def sync_folder(folder: Path) -> None:
    """Make the names in a folder last through a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _folders(root: Path) -> list[Path]:
    if not root.is_dir():
        return []
    folders = (path for path in root.iterdir() if re.fullmatch(r"iter_\d{7,}", path.name) and path.is_dir())
    return sorted(folders, key=lambda path: int(path.name[5:]), reverse=True)


def _seal(metadata: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(metadata, sort_keys=True).encode()).hexdigest()


def _write(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
