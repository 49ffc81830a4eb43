"""An environment that is small to pack but can train: packages stay in place, as in an editable
install.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

PROJECT = Path(__file__).parents[2]


def make_thin_environment(folder: Path) -> Path:
    """Create a virtual environment that reads torch from the packages of this Python. Return its
    interpreter.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    packages = next((folder / "lib").glob("python3*/site-packages"))
    lines = [sysconfig.get_path("purelib"), str(PROJECT)]
    (packages / "elsewhere.pth").write_text("".join(f"{line}\n" for line in lines))
    return folder / "bin" / "python"
