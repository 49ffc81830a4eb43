"""Fixtures that copy the project's parameters, and call the command line within this process."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from runbook.cli import main
from runbook.core.locks import HOLDER_VARIABLE
from runbook.runs.run_folder import RUNS_VARIABLE

REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True)
class Said:
    """The exit code, standard output and standard error from a command."""

    code: int
    out: str
    err: str


@pytest.fixture
def project(tmp_path: Path, monkeypatch) -> Path:
    root = tmp_path / "project"
    for name in ("params", "notebooks"):
        shutil.copytree(
            REPOSITORY / name, root / name, ignore=shutil.ignore_patterns(".ipynb_checkpoints")
        )
    monkeypatch.chdir(root)
    for name in (HOLDER_VARIABLE, RUNS_VARIABLE):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return root


@pytest.fixture
def runbook(project: Path, monkeypatch, capsys):
    """Return a function that calls `runbook WORD...` in the project folder. It raises errors that
    are not ours."""

    def call(*words: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["runbook", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return Said(ended.value.code or 0, out, err)

    return call


@pytest.fixture
def everything(project: Path):
    """Return a function that reads all files of the project, to check that a command changed none."""

    def read() -> dict[str, bytes]:
        return {
            str(path.relative_to(project)): path.read_bytes()
            for path in project.rglob("*")
            if path.is_file()
        }

    return read
