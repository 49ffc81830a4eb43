"""Sockets of a kernel in a private folder with a short path, instead of open TCP ports.

private_folder() -> Path | None      None where no folder is short enough: the kernel then uses TCP
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

LONGEST_SOCKET = 100
"""A unix socket's path holds 107 characters on Linux and 103 on macOS; a cluster's TMPDIR or home can be longer."""
NAME_LENGTH = len("/rb-12345678/k-5")


def private_folder() -> Path | None:
    """A new folder that only we can enter (mode 700), where a socket's path stays short enough."""
    wanted = [os.environ.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm"]
    for name in wanted:
        if name and len(os.fsencode(name)) + NAME_LENGTH <= LONGEST_SOCKET and os.access(name, os.W_OK | os.X_OK):
            try:
                return Path(tempfile.mkdtemp(prefix="rb-", dir=name))
            except OSError:  # full, or read-only after all
                continue
    return None
