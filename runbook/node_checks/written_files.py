"""Tests whether files can be written to a folder."""

import errno
import os
import tempfile
from pathlib import Path

WRITTEN_BYTES = 64 << 10
"""A full quota accepts empty files, and some file systems keep a few bytes without a block."""
FULL = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))
"""How reasons begin if a disk is full or a quota is used up."""
NO_INODES = "no inodes are free, though bytes are"


def write_error(folder: Path) -> str:
    """Return the reason why no file can be written to a folder, or '' if one can be written.

    No file is left behind. A file server may report a full quota only when the content is sent. If
    a file system has free bytes but no free inodes, the kernel's error only says that no space is
    left, so the inodes are added.
    """
    try:
        with tempfile.TemporaryFile(dir=folder) as stream:
            stream.write(b"x" * WRITTEN_BYTES)
            stream.flush()
            os.fsync(stream.fileno())
        return ""
    except OSError as error:
        reason = error.strerror or str(error)
        lacks_space = error.errno == errno.ENOSPC

    if lacks_space and _lacks_only_inodes(folder):
        return f"{reason}: {NO_INODES}"
    return reason


def _lacks_only_inodes(folder: Path) -> bool:
    status = os.statvfs(folder)
    return bool(status.f_files) and status.f_favail == 0 and status.f_bavail > 0
