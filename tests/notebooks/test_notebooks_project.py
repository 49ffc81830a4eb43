"""`runbook init` from an installed wheel, and the rules that masters must follow before a commit."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import lint_notebooks
import pytest
from lint_notebooks import Fault, Rule
from suite.messages import says, says_only
from toy_project import BIN, MASTERS

from runbook.cli.messages import CliMessage
from runbook.params import PARAMETERS
from runbook.phases.messages import PhaseMessage
from runbook.plan_file.phase_names import PHASES

LINT = [sys.executable, str(MASTERS / "tools" / "lint_notebooks.py")]


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """Unpack the wheel outside the repository. Other packages come from this environment."""
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
    """Call `runbook` from the wheel."""
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
    written, next_step = made.stdout.splitlines()
    assert says_only(written, CliMessage.PROJECT_WRITTEN, folder="mine", existing="")
    assert next_step == CliMessage.NEXT_STEP.fill(change_folder="cd mine; ")
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
    assert checked.stdout.endswith(f"local: {PhaseMessage.EVERYTHING_FITS.fill()}\n")


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
    assert says(
        again.stdout,
        CliMessage.PROJECT_WRITTEN,
        folder=tmp_path / "mine",
        number=1,
        existing=CliMessage.PROJECT_KEPT.of(),
    ), again.stdout
    assert own.read_text() == "mine"
    assert (tmp_path / "mine" / "notebooks" / "00-plan.ipynb").exists()
    refused = subprocess.run([BIN / "runbook", "init", own], capture_output=True, text=True)
    assert refused.returncode == 1
    assert says(refused.stderr, PhaseMessage.PROJECT_IS_A_FILE, folder=own)


def test_the_masters_pass_the_lint():
    said = subprocess.run(LINT, capture_output=True, text=True)
    assert (said.returncode, said.stdout) == (0, "")


BAD = {
    "!squeue": Fault("sizes", Rule.MAGIC),
    "%%bash\nexit 3": Fault("sizes", Rule.MAGIC),
    "def helper():\n    return 1": Fault("sizes", Rule.PROGRAM, "FunctionDef"),
    "try:\n    open_phase\nexcept OSError:\n    open_phase": Fault("sizes", Rule.PROGRAM, "Try"),
    'open("/scratch/me/x")': Fault("sizes", Rule.PLACE),
    "phase.(open_phase)": Fault("sizes", Rule.SYNTAX, "invalid syntax"),
}


@pytest.mark.parametrize(("source", "fault"), BAD.items())
def test_a_cell_that_breaks_a_rule_is_named(tmp_path, source, fault):
    assert lint(tmp_path, lambda cells: cells["sizes"].update(source=[source])) == [fault]


def test_output_metadata_parameters_ids_and_prose_are_looked_at(tmp_path):
    out = {"output_type": "stream", "name": "stdout", "text": ["x"]}
    assert lint(tmp_path, lambda cells: cells["sizes"].update(outputs=[out])) == [
        Fault("sizes", Rule.OUTPUT)
    ]
    assert lint(tmp_path, lambda cells: cells["sizes"]["metadata"].update(papermill={})) == [
        Fault("sizes", Rule.METADATA, "papermill")
    ]
    assert lint(tmp_path, lambda cells: cells["sizes"].update(id="bind")) == [
        Fault("bind", Rule.CELL_ID)
    ]
    assert lint(tmp_path, lambda cells: cells["parameters"]["metadata"].clear()) == [
        Fault("", Rule.PARAMETERS_CELLS, "0")
    ]
    (changed,) = lint(
        tmp_path, lambda cells: cells["parameters"].update(source=['run: str = "azure"  # another'])
    )
    assert (changed.cell, changed.rule) == ("parameters", Rule.SCHEMA)
    assert ast.literal_eval(changed.value) == {"run": "azure"} != PARAMETERS
    code = {"cell_type": "code", "source": ["1"], "outputs": [], "execution_count": None}
    assert Fault("sizes-text", Rule.NO_PROSE) in lint(
        tmp_path, lambda cells: cells["sizes-text"].update(code)
    )


def lint(folder: Path, change) -> list[Fault]:
    """Lint 00-plan with one thing changed, as the command does.

    It must print each fault and fail.
    """
    notebook = json.loads((MASTERS / "notebooks" / "00-plan.ipynb").read_text())
    change({cell["id"]: cell for cell in notebook["cells"]})
    path = folder / "bad.ipynb"
    path.write_text(json.dumps(notebook))
    faults = list(lint_notebooks.faults(notebook))
    said = subprocess.run([*LINT, str(path)], capture_output=True, text=True)
    assert (said.returncode, said.stdout.splitlines()) == (1, [f"bad.ipynb: {it}" for it in faults])
    return faults


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
