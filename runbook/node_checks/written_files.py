"""Tests whether files can be written to a folder."""

import tempfile
from pathlib import Path


def write_error(folder: Path) -> str:
    """Return the reason why no file can be written to a folder, or '' if one can be written.

    No file is left behind.
    """
    try:
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return error.strerror or str(error)
