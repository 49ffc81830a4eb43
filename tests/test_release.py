"""The release: the sdist and the wheel, installed without a clone."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest
import yaml
from suite.messages import says

from runbook.cli.messages import CliMessage
from runbook.phases.messages import PhaseMessage

sys.path.append(str(Path(__file__).parent / "pythons"))

from release import CLONE, build_release, installed_apart, own_environment

import runbook

VERSION = tomllib.loads((CLONE / "pyproject.toml").read_text())["project"]["version"]


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    return build_release(tmp_path_factory.mktemp("release"))


@pytest.fixture(scope="module")
def call(release, tmp_path_factory):
    """Return a function that runs a command from the installed wheel in an empty folder."""
    folder = tmp_path_factory.mktemp("installed")
    programs = installed_apart(sys.executable, release.wheel, folder / "environment")
    empty = folder / "empty"
    empty.mkdir()

    def run(*words: str, cwd: Path = empty) -> str:
        command = [str(programs / words[0]), *words[1:]]
        environment = own_environment(programs, sys.executable)
        ended = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    run.folder = empty
    return run


def test_the_wheel_alone_makes_a_project_in_an_empty_folder_and_plans_it(call):
    where = call("python", "-c", "import runbook; print(runbook.__file__)")
    assert str(CLONE) not in where
    assert call("runbook", "--version").strip().endswith(VERSION)
    written = call("runbook", "init", "project")
    assert says(written, CliMessage.PROJECT_WRITTEN, folder="project", existing="")
    project = call.folder / "project"
    assert len(list(project.glob("notebooks/*.ipynb"))) == 7
    checked = call("runbook", "check", "local", cwd=project)
    assert checked.splitlines()[-1] == f"local: {PhaseMessage.EVERYTHING_FITS.fill()}"
    call("runbook", "render", "slurm-oscar", "--placeholders", "--out", "scripts", cwd=project)
    assert (project / "scripts" / "jobs" / "04-training" / "job.sh").exists()


def test_the_sdist_holds_what_the_tests_and_the_docs_need(release):
    with tarfile.open(release.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for name in (
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "notebooks/00-plan.ipynb",
        "tests/test_release.py",
    ):
        assert name in names
    assert not any(name.startswith((".venv", "runs/", "build/")) for name in names)


def test_one_version_everywhere():
    citation = yaml.safe_load((CLONE / "CITATION.cff").read_text())
    assert (runbook.__version__, citation["version"]) == (VERSION, VERSION)
    changelog = (CLONE / "CHANGELOG.md").read_text()
    assert f"## {VERSION} ({citation['date-released']})" in changelog


def test_the_changelog_is_read_in_a_few_minutes():
    changelog = (CLONE / "CHANGELOG.md").read_text()
    assert len(changelog.splitlines()) <= 60
    assert changelog.index("## Unreleased") < changelog.index(f"## {VERSION} ")
