"""Installs the Python and package versions used on a site.

Each version set is installed once on this machine, in a virtual environment.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from runbook.core import shell
from runbook.core.errors import RunbookError
from runbook.core.files import write_text
from runbook.core.locks import hold_file
from runbook.params.schema.site import Versions
from runbook.tools.try_upstream.messages import UpstreamMessage

TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""Index with CUDA-free wheels, which take 0.2 GB instead of 2 to 3 GB.

This index is tried first. The configured index has the same torch versions.
"""
INSTALL_SECONDS = 3600.0
_COMPLETE = "complete"
_TRY_ONCE = ["--retries", "0", "--timeout", "10"]


def cache_folder() -> Path:
    """Return the folder that contains these environments.

    The folder is XDG_CACHE_HOME/gpt3-runbook/versions, by default in ~/.cache.
    """
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "gpt3-runbook" / "versions"


def environment_name(versions: Versions) -> str:
    """Return the folder name for these versions.

    The name depends only on the versions, so sites with equal versions share a folder.

    >>> environment_name(Versions(python="3.10", packages=["torch==2.3.0"]))
    'python3.10-f03fe70b38'
    """
    digest = hashlib.sha256("\n".join(versions.packages).encode()).hexdigest()
    return f"python{versions.python}-{digest[:10]}"


def interpreter(versions: Versions) -> str:
    """Find an interpreter for this Python version on PATH or among those installed by pyenv.

    Raise `RunbookError` if it is not installed.
    """
    name = f"python{versions.python}"
    on_path = shutil.which(name)
    # pyenv puts a shim on PATH, which refuses to start a version that is not selected.
    if on_path and Path(on_path).parent.name != "shims":
        return on_path
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    builds = sorted(pyenv.glob(f"{versions.python}.*/bin/{name}"), key=_build_number)
    if builds:
        return str(builds[-1])
    raise RunbookError(
        UpstreamMessage.PYTHON_MISSING, python=versions.python, name=name, pyenv=pyenv
    )


def _build_number(path: Path) -> tuple[int, ...]:
    """Return the version numbers in a pyenv path, so that 3.10.13 comes after 3.10.9."""
    return tuple(map(int, re.findall(r"\d+", path.parents[1].name)))


def install(versions: Versions, say: Callable[[str], None]) -> Path:
    """Return the interpreter in an environment with these versions.

    Create the environment if it does not exist.

    Raise `RunbookError` with the last lines from pip if a version cannot be installed.
    """
    folder = cache_folder() / environment_name(versions)
    python = folder / "bin" / "python3"
    base = interpreter(versions)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with hold_file(folder.with_suffix(".lock"), "installing", wait_seconds=INSTALL_SECONDS):
        if (folder / _COMPLETE).exists():
            return python
        say(
            f"Installing Python {versions.python} with {', '.join(versions.packages)} into "
            f"{folder}: once, "
            "0.5 to 3 GB to download."
        )
        # An interrupted installation may have left this folder
        shutil.rmtree(folder, ignore_errors=True)
        shell.run([base, "-m", "venv", str(folder)], timeout=300)
        for packages in (_torch(versions), versions.packages):
            _pip(python, packages)
        write_text(folder / _COMPLETE, "\n".join(versions.packages) + "\n")

    return python


def _torch(versions: Versions) -> list[str]:
    """Return the pinned torch.

    torch is installed separately, because its CPU wheel comes from a different index.
    """
    return [package for package in versions.packages if package.startswith("torch==")]


def _pip(python: Path, packages: list[str]) -> None:
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    only_torch = bool(packages) and all(package.startswith("torch==") for package in packages)
    if only_torch:
        command = [*pip, *_TRY_ONCE, "--index-url", TORCH_CPU_INDEX, *packages]
        if shell.run(command, timeout=INSTALL_SECONDS, check=False).exit_code == 0:
            return

    if packages:
        shell.run([*pip, *packages], timeout=INSTALL_SECONDS)
