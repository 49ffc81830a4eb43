"""Builds the sdist and the wheel, and an environment with one of them instead of the clone."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

CLONE = Path(__file__).parents[2]
BUILDERS = ("build>=1.2", "hatchling>=1.25")


@dataclass(frozen=True)
class Release:
    """The two files that PyPI would get."""

    sdist: Path
    wheel: Path


def build_release(folder: Path) -> Release:
    """Build the sdist from the clone, and the wheel from the sdist, so that a file missing from the
    sdist is noticed.
    """
    environment = folder / "builder"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    program = str(environment / "bin" / "python")
    pip = [program, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *BUILDERS], check=True)
    out = folder / "dist"
    build = [program, "-m", "build", "--no-isolation", "--outdir", str(out), str(CLONE)]
    subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
    return Release(next(out.glob("*.tar.gz")), next(out.glob("*.whl")))


def site_packages(program: str) -> Path:
    """Return the folder into which pip installs for a Python."""
    asked = [program, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    return Path(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip())


def installed_apart(program: str, package: Path, folder: Path) -> Path:
    """Create an environment with a package file and the other packages from an existing
    environment.

    Return its bin folder. Dependencies are added with a path file. The path files among them, such
    as the one for the editable clone, are then not read.
    """
    subprocess.run([program, "-m", "venv", str(folder)], check=True)
    own = str(folder / "bin" / "python")
    pip = [own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, str(package)], check=True)
    path_file = site_packages(own) / "dependencies.pth"
    path_file.write_text(f"{site_packages(program)}\n")
    return folder / "bin"


def own_environment(folder: Path, program: str) -> dict[str, str]:
    """Return the environment variables without those that could lead to a clone.

    The templates for Jupyter are in the environment that the dependencies come from.
    """
    left_out = ("PYTHONPATH", "RUNBOOK_PROJECT", "RUNBOOK_RUNS", "VIRTUAL_ENV")
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    kept["JUPYTER_PATH"] = str(Path(program).parent.parent / "share" / "jupyter")
    return {**kept, "PATH": f"{folder}:{kept['PATH']}"}
