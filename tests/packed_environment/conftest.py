"""A small environment that is packed once: a virtual environment without pip, with one module and
one script.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from runbook.packed_environment.copy_lock import lock_file
from runbook.packed_environment.interpreter import QUESTION, Interpreter, parse_answer
from runbook.packed_environment.manifest import MANIFEST_NAME, EnvironmentManifest
from runbook.packed_environment.pack import pack

PROJECT = Path(__file__).parents[2]
MODULE = "ANSWER = 42\n"


def make_environment(folder: Path) -> Path:
    """Create a virtual environment for this Python, with a module `answers` and a script."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    packages = next((folder / "lib").glob("python3*/site-packages"))
    (packages / "answers.py").write_text(MODULE)
    script = folder / "bin" / "say-prefix"
    script.write_text(f"#!{folder}/bin/python\nimport sys\nprint(sys.prefix)\n")
    script.chmod(0o755)
    return folder


def make_package(folder: Path) -> Path:
    """Create a folder like a clone, with a package `runbook` in it."""
    (folder / "runbook").mkdir(parents=True)
    (folder / "runbook" / "__init__.py").write_text("")
    return folder


def ask(python: Path) -> Interpreter:
    """Return what an interpreter reports about itself."""
    answered = subprocess.run(
        [str(python), "-c", QUESTION], capture_output=True, text=True, check=True
    )
    return parse_answer(answered.stdout)


@contextlib.contextmanager
def in_use(copy):
    """Hold the lock that each rank in a training run keeps until it ends."""
    copy.parent.mkdir(parents=True, exist_ok=True)
    with lock_file(copy).open("a") as stream:
        fcntl.flock(stream, fcntl.LOCK_SH)
        yield


class Packed:
    """An environment, its archive, and the disk in a node."""

    def __init__(self, root: Path, compression: str = "none") -> None:
        self.root = root
        self.compression = compression
        self.environment = make_environment(root / "shared" / "venv")
        self.package = make_package(root / "shared" / "clone")
        self.folder = root / "shared" / "archives"
        self.disk = root / "disk"
        self.disk.mkdir()
        # The installation counts as part of the node, because packing it would take seconds.
        real = ask(self.environment / "bin" / "python")
        self.interpreter = replace(real, base_prefix="/usr")
        self.manifest = self.pack()

    @property
    def manifest_path(self) -> Path:
        return self.folder / MANIFEST_NAME

    @property
    def packages(self) -> Path:
        return next((self.environment / "lib").glob("python3*/site-packages"))

    @property
    def archive(self) -> Path:
        return Path(self.manifest.archive)

    def pack(self) -> EnvironmentManifest:
        return pack(self.interpreter, self.package, self.folder, self.compression, lambda *_: None)


@pytest.fixture
def packed(tmp_path) -> Packed:
    return Packed(tmp_path)


@pytest.fixture
def packed_with_zstd(tmp_path) -> Packed:
    if shutil.which("zstd") is None:
        pytest.skip("no zstd here")
    return Packed(tmp_path, "zstd")
