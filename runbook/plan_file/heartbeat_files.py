"""Where the ranks in a job write heartbeats and reports about a hang, and in which format.

A rank writes its heartbeats in `runbook/training/health/heartbeat.py`.
"""

import contextlib
import hashlib
import json
import os
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

# Subfolder in a job folder for reports about a hang, one from each machine
RANKS_FOLDER = "ranks"
# A file this old counts as a leftover. A live job writes twice per second, and a suspended job
# keeps its file open.
LEFTOVER_SECONDS = 3600.0
# Bytes reserved for each rank in the file for its machine
SLOT_BYTES = 2**14


def heartbeat_stem(ranks_folder: Path) -> Path:
    """Return the path to a job's heartbeat files on this machine, without a rank number.

    The files are kept in memory if possible.
    """
    shared = Path("/dev/shm")
    if os.access(shared, os.W_OK | os.X_OK):
        folder = shared
    else:
        folder = Path(tempfile.gettempdir())

    digest = hashlib.sha256(os.fsencode(ranks_folder.resolve())).hexdigest()
    return folder / f"runbook-{os.getuid()}-{digest[:16]}-"


def as_slot(values: dict[str, Any]) -> bytes:
    """Encode a heartbeat as bytes to write to its slot.

    A slot has a checksum, since it may be read while it is being written.
    """
    text = json.dumps(values, separators=(",", ":")).encode()
    return (b"%08x %s\n" % (zlib.crc32(text), text))[:SLOT_BYTES]


def read_slots(content: bytes) -> list[dict[str, Any]]:
    """Return the heartbeats in the file for a machine, except any that are just being written.

    >>> read_slots(as_slot({"rank": 3}) + b" torn")
    [{'rank': 3}]
    """
    beats = []
    for start in range(0, len(content), SLOT_BYTES):
        checksum, _, text = content[start : start + SLOT_BYTES].partition(b"\n")[0].partition(b" ")
        if checksum == b"%08x" % zlib.crc32(text) and text:
            beats.append(json.loads(text))

    return beats


def remove_leftovers() -> None:
    """Remove the heartbeats that killed jobs left on this machine.

    While a job is alive, its files are never as old as `LEFTOVER_SECONDS`.
    """
    for path in heartbeat_stem(Path()).parent.glob(f"runbook-{os.getuid()}-*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > LEFTOVER_SECONDS:
                path.unlink()
