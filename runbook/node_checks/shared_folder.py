"""Checks a shared folder, and the clock on the file server.

All nodes must see the same files, and all file operations used in training must work.
"""

import contextlib
import fcntl
import mmap
import os
import time
from pathlib import Path

from runbook.node_checks.answers import Facts, node_names, own_name
from runbook.node_checks.mounts import mount_of

TOKEN_NAME = "token"
"""A file written at submission. Each node must read the same content from it."""
SEEN_SECONDS = 20.0
"""Time within which a node must see a file written by another node.

NFS keeps attributes for up to 60 s, but looks up a new name in a changed folder (acdirmin of 30 s
applies to unchanged folders).
"""
POLL_SECONDS = 0.1
WRITE_ATTEMPTS = 3
SUSPECT_WRITE_SECONDS = 0.5
"""If writing a megabyte takes longer than this many seconds, it is repeated."""
SUSPECT_STREAM_SECONDS = 0.05
"""If a megabyte takes longer, the time for each further megabyte is measured too."""
STREAM_MEBIBYTES = 4


def look_at_folder(folder: Path, token: str) -> Facts:
    """Read the token, use a file like the trainer does, and wait for files from the other nodes.

    The file is written, renamed, linked, locked and mapped into memory.

    `written` and `looked_until` are times on the node clock: when it wrote its own file, and when
    it last looked for files from other nodes.

    Raise `OSError` if the folder cannot be used at all. Failed file operations are reported in
    `errors`.
    """
    errors: Facts = {}
    mount = mount_of(folder)
    status = os.statvfs(folder)
    facts: Facts = {
        "folder": str(folder),
        "file_system": mount.kind,
        "mount_point": mount.point,
        "read_only": mount.is_read_only,
        "free": status.f_bavail * status.f_frsize,
        "free_inodes": status.f_favail if status.f_files else None,
        "token": _read_token(folder, token),
        "errors": errors,
        "write_seconds": 0.0,
        "stream_seconds": 0.0,
        "unseen": [],
        "written": 0.0,
        "looked_until": 0.0,
    }
    own_file = folder / f"seen-{own_name()}"
    for step in (_write, _rename, _link, _lock, _map):
        try:
            step(own_file)
        except OSError as error:
            errors[step.__name__.lstrip("_")] = error.strerror or str(error)
            if step is _write or step is _rename:
                return facts

    facts["written"] = time.time()
    speed_file = folder / f"speed-{own_name()}"
    write_seconds = _write_seconds(speed_file)
    facts["write_seconds"] = write_seconds
    if SUSPECT_STREAM_SECONDS < write_seconds < SUSPECT_WRITE_SECONDS:
        facts["stream_seconds"] = _stream_seconds(speed_file, write_seconds)
    facts["unseen"] = _unseen_nodes(folder)
    facts["looked_until"] = time.time()
    return facts


def _read_token(folder: Path, token: str) -> str:
    """Return `same`, `other` (for an older or different folder), or why the token cannot be read."""
    try:
        text = (folder / TOKEN_NAME).read_text()
    except OSError as error:
        return error.strerror or str(error)

    return "same" if text.strip() == token else "other"


def _write(path: Path, mebibytes: int = 1) -> None:
    part = path.with_suffix(".part")
    with part.open("wb") as stream:
        stream.write(os.urandom(mebibytes << 20))
        stream.flush()
        os.fsync(stream.fileno())


def _write_seconds(
    path: Path,
    mebibytes: int = 1,
    suspect_seconds: float = SUSPECT_WRITE_SECONDS,
) -> float:
    """Return the seconds that `_write` needs: the best of several attempts if the first is slow.

    A busy file server delays single writes.
    """
    best = float("inf")
    for _ in range(WRITE_ATTEMPTS):
        start = time.monotonic()
        _write(path, mebibytes)
        best = min(best, time.monotonic() - start)
        if best < suspect_seconds:
            break

    path.with_suffix(".part").unlink()
    return best


def _stream_seconds(path: Path, first_seconds: float) -> float:
    """Return the seconds for each further MiB in a file if the first MiB takes `first_seconds`.

    A server that answers late delays the first MiB in a file, and a slow path delays every MiB.
    """
    suspect_seconds = STREAM_MEBIBYTES * SUSPECT_STREAM_SECONDS
    all_seconds = _write_seconds(path, STREAM_MEBIBYTES, suspect_seconds)
    if all_seconds <= first_seconds:
        # Something else delayed the first MiB.
        return all_seconds / STREAM_MEBIBYTES
    return (all_seconds - first_seconds) / (STREAM_MEBIBYTES - 1)


def _rename(path: Path) -> None:
    path.with_suffix(".part").replace(path)


def _link(path: Path) -> None:
    link = path.with_suffix(".link")
    link.unlink(missing_ok=True)
    try:
        os.link(path, link)
    finally:
        link.unlink(missing_ok=True)


def _lock(path: Path) -> None:
    with path.open("rb+") as stream:
        fcntl.lockf(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _map(path: Path) -> None:
    """Map the file as token files are mapped. Some file servers refuse it (ENODEV)."""
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as area:
        _ = area[-1]


def _unseen_nodes(folder: Path) -> list[str]:
    """Return the nodes from which no file appeared in time."""
    missing = set(node_names())
    deadline = time.monotonic() + SEEN_SECONDS
    while missing and time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            there = {path.name.removeprefix("seen-") for path in folder.iterdir()}
            missing -= there

        if missing:
            time.sleep(POLL_SECONDS)

    return sorted(missing)


def look_at_clock(folder: Path) -> Facts:
    """Return how many seconds the clock on the file server is ahead of ours.

    The number is negative if the server clock is behind.
    """
    path = folder / f"clock-{own_name()}"
    before = time.time()
    path.write_bytes(b"now")
    written = path.stat().st_mtime
    after = time.time()
    path.unlink(missing_ok=True)
    # The offset is zero if the file time is between `before` and `after`. A coarse clock counts
    # jiffies of 10 ms.
    ahead = min(0.0, written - before) + max(0.0, written - after)
    return {"ahead": ahead}
