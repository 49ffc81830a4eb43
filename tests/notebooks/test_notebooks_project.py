"""`runbook init` from an installed wheel, and the rules that masters are held to before a commit."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from toy_project import BIN, MASTERS

from runbook.plan_file.phase_names import PHASES

LINT = [sys.executable, str(MASTERS / "tools" / "lint_notebooks.py")]


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """The wheel, unpacked where nothing of the repository is near; other packages are those of this environment."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    names = ("runbook", "notebooks", "params", "docs", "pyproject.toml", "README.md", "LICENSE")
    ignored = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints")
    for name in names:
        path = MASTERS / name
        (
            shutil.copytree(path, source / name, ignore=ignored)
            if path.is_dir()
            else shutil.copy(path, source / name)
        )
    made = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-deps", "-q", "-w", str(folder), str(source)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    wheels = list(folder.glob("*.whl"))
    if made.returncode or not wheels:
        pytest.skip(
            f"no wheel can be built here, its build backend cannot be fetched: {made.stderr[-200:]}"
        )
    with zipfile.ZipFile(wheels[0]) as wheel:
        wheel.extractall(folder / "site")
    return folder / "site"


def call(installed: Path, cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`runbook` of the wheel."""
    code = "import sys; from runbook.cli import main; main()"
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("RUNBOOK_")
    }
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=cwd,
        env=environment | {"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_an_installed_package_gives_a_project_that_works(installed, tmp_path):
    made = call(installed, tmp_path, "init", "mine")
    assert made.returncode == 0, made.stderr
    assert made.stdout.startswith("mine: ")
    assert "Next: cd mine; runbook run local" in made.stdout
    project = tmp_path / "mine"
    for phase in PHASES:
        name = f"notebooks/{phase}.ipynb"
        assert (project / name).read_bytes() == (MASTERS / name).read_bytes()
    for path in (MASTERS / "params").rglob("*.yaml"):
        assert (project / path.relative_to(MASTERS)).read_bytes() == path.read_bytes()
    assert (project / "docs" / "when-it-fails.md").exists(), "the notebooks link there"
    assert "runs/" in (project / ".gitignore").read_text()
    checked = call(installed, project, "check", "local")
    assert checked.returncode == 0, checked.stderr
    assert checked.stdout.endswith("local: every value is right, and they fit together.\n")


def test_the_wheel_brings_what_joins_a_page_to_a_running_cell(installed):
    (place,) = installed.glob("gpt3_runbook-*.data/data/share/jupyter/labextensions/gpt3-runbook")
    told = json.loads((place / "package.json").read_text())
    assert (place / told["jupyterlab"]["_build"]["load"]).is_file()
    assert told["name"] == place.name


def test_what_is_there_is_kept(tmp_path):
    subprocess.run([BIN / "runbook", "init", tmp_path / "mine"], check=True, capture_output=True)
    own = tmp_path / "mine" / "params" / "local.yaml"
    own.write_text("mine")
    (tmp_path / "mine" / "notebooks" / "00-plan.ipynb").unlink()
    again = subprocess.run(
        [BIN / "runbook", "init", tmp_path / "mine"], capture_output=True, text=True
    )
    assert again.stdout.startswith(f"{tmp_path / 'mine'}: 1 files written; ")
    assert own.read_text() == "mine"
    assert (tmp_path / "mine" / "notebooks" / "00-plan.ipynb").exists()
    refused = subprocess.run([BIN / "runbook", "init", own], capture_output=True, text=True)
    assert (refused.returncode, "is a file; a project is a folder" in refused.stderr) == (1, True)


def test_the_masters_pass_the_lint():
    said = subprocess.run(LINT, capture_output=True, text=True)
    assert (said.returncode, said.stdout) == (0, "")


BAD = {
    "starts a program by a magic": "!squeue",
    "starts a program by a magic:": "%%bash\nexit 3",
    "holds a program (FunctionDef)": "def helper():\n    return 1",
    "holds a program (Try)": "try:\n    open_phase\nexcept OSError:\n    open_phase",
    "names a place of one machine": 'open("/scratch/me/x")',
    "is no Python": "phase.(open_phase)",
}


@pytest.mark.parametrize(("said", "source"), BAD.items())
def test_a_cell_that_breaks_a_rule_is_named(tmp_path, said, source):
    assert f"bad.ipynb: sizes: {said}" in lint(
        tmp_path, lambda cells: cells["sizes"].update(source=[source])
    )


def test_output_metadata_parameters_ids_and_prose_are_looked_at(tmp_path):
    out = {"output_type": "stream", "name": "stdout", "text": ["x"]}
    assert "sizes: holds output: strip it" in lint(
        tmp_path, lambda cells: cells["sizes"].update(outputs=[out])
    )
    assert "sizes: metadata papermill" in lint(
        tmp_path, lambda cells: cells["sizes"]["metadata"].update(papermill={})
    )
    assert "cell id 'bind' is missing, used twice" in lint(
        tmp_path, lambda cells: cells["sizes"].update(id="bind")
    )
    assert "0 cells are tagged parameters" in lint(
        tmp_path, lambda cells: cells["parameters"]["metadata"].clear()
    )
    changed = lint(
        tmp_path, lambda cells: cells["parameters"].update(source=['run: str = "azure"  # another'])
    )
    assert "are not the schema's" in changed
    code = {"cell_type": "code", "source": ["1"], "outputs": [], "execution_count": None}
    assert "sizes-text: no prose before it" in lint(
        tmp_path, lambda cells: cells["sizes-text"].update(code)
    )


def lint(folder: Path, change) -> str:
    """What the lint says of 00-plan with one thing changed; it must not pass."""
    notebook = json.loads((MASTERS / "notebooks" / "00-plan.ipynb").read_text())
    change({cell["id"]: cell for cell in notebook["cells"]})
    path = folder / "bad.ipynb"
    path.write_text(json.dumps(notebook))
    said = subprocess.run([*LINT, str(path)], capture_output=True, text=True)
    assert said.returncode == 1, said.stdout
    return said.stdout


def test_the_hooks_hold_the_same_words_as_make_check():
    hooks = (MASTERS / ".pre-commit-config.yaml").read_text()
    (words,) = [
        line.partition(":= ")[2].strip()
        for line in (MASTERS / "Makefile").read_text().splitlines()
        if line.startswith("STRIPPED :=")
    ]
    assert words in hooks
    for hook in (
        "nbstripout",
        "tools/lint_notebooks.py",
        "ruff format",
        "ruff check",
        "mypy",
        "lint-imports",
    ):
        assert hook in hooks
