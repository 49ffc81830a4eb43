"""Values given to a run by hand need not be given again, and are never applied to another run."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from suite.messages import containing, refuses, says
from toy_run import PROJECT, TOY

import runbook
from runbook import params
from runbook.core.errors import ParamsError, RecordError
from runbook.display.output_place import SERVER_VARIABLE
from runbook.params import PARAMETERS
from runbook.params.messages import ParamsMessage
from runbook.params.project import PROJECT_VARIABLE
from runbook.phases import open_phase as phases
from runbook.phases import runner as run
from runbook.phases.messages import PhaseMessage
from runbook.phases.runner import RunRequest
from runbook.records.engine.execute import Outcome
from runbook.runs.messages import RunMessage
from runbook.runs.run_folder import RUNS_VARIABLE
from runbook.runs.status import run_folder

GIVEN = {
    "model": "tiny",
    "training": {"iterations": 30},
    "jobs": {"training": {"walltime": "00:20:00"}},
}


@pytest.fixture
def project(tmp_path: Path, runs: Path, monkeypatch) -> Path:
    """Create a separate project whose files may be changed."""
    root = tmp_path / "project"
    for name in ("params", "notebooks"):
        shutil.copytree(PROJECT / name, root / name)
    monkeypatch.chdir(root / "notebooks")
    return root


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch) -> Path:
    """Change to a folder outside any project, like a kernel that papermill started there."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv(PROJECT_VARIABLE, "")
    monkeypatch.delenv(PROJECT_VARIABLE)
    return folder


def bind(phase: str, **given: Any) -> phases.OpenPhase:
    return phases.bind_phase(phase, {**PARAMETERS, **given})


def test_a_kernel_in_another_folder_opens_the_run_that_it_bound(project, elsewhere):
    open_phase = bind("00-plan", run=str(project / "params" / "local.yaml"))
    assert not open_phase.folder.is_relative_to(project)
    opened = runbook.open(open_phase.folder).plan
    assert opened.settings.project == project
    assert opened.plan.model == open_phase.plan.model
    assert os.environ[PROJECT_VARIABLE] == str(project), "processes that it starts find it too"


def test_a_kernel_inside_the_project_needs_no_variable(project, elsewhere, monkeypatch):
    monkeypatch.chdir(project / "notebooks")
    bind("00-plan")
    assert PROJECT_VARIABLE not in os.environ


def test_a_kernel_in_another_project_reads_the_models_of_its_own(project, elsewhere):
    shutil.copytree(project / "params", elsewhere / "params")
    bind("00-plan", run=str(project / "params" / "local.yaml"))
    assert params.project_root() == project


def test_a_run_file_named_by_its_path_leads_to_its_runs_from_anywhere(
    project, elsewhere, monkeypatch
):
    monkeypatch.delenv(RUNS_VARIABLE)
    file = str(project / "params" / "local.yaml")
    folder = bind("00-plan", run=file).folder
    monkeypatch.delenv(PROJECT_VARIABLE)
    assert run_folder(file) == folder == project / "runs" / "local"
    assert runbook.open(file).folder == folder


def test_a_folder_that_is_no_runs_is_not_taken_for_a_run_file(project, elsewhere):
    os.environ[PROJECT_VARIABLE] = str(project)
    with refuses(ParamsError, RunMessage.FOLDER_OF_NO_RUN, folder=containing("elsewhere")):
        runbook.open(elsewhere)


def test_the_next_notebook_goes_on_with_what_the_first_one_was_given(project, capsys):
    first = bind("00-plan", **GIVEN)
    written = (first.folder / "run.yaml").read_bytes()
    overrides = (first.folder / "overrides.yaml").read_text()
    assert overrides.startswith(RunMessage.OVERRIDES_HEAD.fill(run="local"))
    assert yaml.safe_load(overrides) == {
        "model": "tiny",
        "training": {"iterations": 30},
        "jobs": {"training": {"walltime": "00:20:00"}},
    }
    capsys.readouterr()
    second = bind("01-environment")
    assert second.settings.run == first.settings.run
    assert (first.folder / "run.yaml").read_bytes() == written
    origin = str(second.settings.origins["training.iterations"][-1])
    assert origin.endswith("overrides.yaml:4 (given before)")
    assert says(
        capsys.readouterr().out,
        PhaseMessage.KEPT_OVERRIDES,
        run="local",
        file="overrides.yaml",
        values="model=tiny, training.iterations=30, jobs.training.walltime=00:20:00",
    )
    assert bind("02-data", training={"iterations": 30}).settings.run == first.settings.run, (
        "given again in part"
    )


def test_an_executed_copy_is_not_bound_to_another_run(project, monkeypatch):
    """Its first parameters cell has the defaults, and the second one names the run."""
    folder = bind("00-plan", model="tiny", overrides="as=mine").folder
    monkeypatch.setenv(SERVER_VARIABLE, str(folder / "records" / "00-plan.ipynb"))
    told = PhaseMessage.RECORD_OF_OTHER_RUN.of(recorded="local--mine", bound="local")
    with refuses(ParamsError, told):
        bind("00-plan")
    assert not (folder.parent / "local").exists()
    assert bind("00-plan", overrides="as=mine").folder == folder
    monkeypatch.setenv(SERVER_VARIABLE, str(folder / "lab" / "00-plan.ipynb"))
    assert bind("00-plan").folder.name == "local"


def test_another_value_in_a_cell_is_refused_with_its_place_and_what_to_do(project):
    folder = bind("00-plan", model="tiny").folder
    remedies = PhaseMessage.PUT_CELL_BACK.fill() + PhaseMessage.KEEP_BOTH_OR_DO_AGAIN.fill(
        run="local"
    )
    other_values = PhaseMessage.FOLDER_OF_OTHER_VALUES.of(
        folder=folder,
        changes=PhaseMessage.VALUE_CHANGED.fill(
            key="training.iterations", old=100, new=30, origin=' (cell "parameters", training)'
        ),
        remedies=remedies + PhaseMessage.LONGER_TRAINING_GOES_ON.fill(),
    )
    with refuses(ParamsError, other_values):
        bind("01-environment", training={"iterations": 30})


def test_a_run_file_that_changed_meanwhile_is_not_passed_over(project):
    bind("00-plan", model="tiny")
    path = project / "params" / "local.yaml"
    path.write_text(path.read_text().replace("iterations: 100", "iterations: 90"))
    change = PhaseMessage.VALUE_CHANGED.fill(
        key="training.iterations", old=100, new=90, origin=" (params/local.yaml:"
    )
    with refuses(ParamsError, PhaseMessage.FOLDER_OF_OTHER_VALUES, changes=containing(change)):
        bind("01-environment")


def test_a_name_given_for_one_decision_is_not_kept_for_the_next(project):
    folder = bind("04-training", training={"smoke": {"waived_by": "A. Person"}}).folder
    assert not (folder / "overrides.yaml").exists()
    assert bind("04-training").settings.run.training.smoke.waived_by == ""


def test_a_site_given_by_hand_rehearses_again_as_it_did(project):
    first = bind("00-plan", run="lumi-13b", site="local", model="tiny")
    assert bind("01-environment", run="lumi-13b").settings.run == first.settings.run


@pytest.fixture
def executed(monkeypatch) -> list[tuple[str, Any]]:
    """Return the phases that `runbook run` would execute, with their settings.

    No notebook is executed.
    """
    seen: list[tuple[str, Any]] = []

    def run_phase(request, settings, plan, folder, phase, say):
        seen.append((phase, settings))
        return Outcome("done", 0, "", None)

    monkeypatch.setattr(run, "run_phase", run_phase)
    return seen


def test_the_command_line_takes_over_too_and_begins_anew_where_it_is_told_to(project, executed):
    said: list[str] = []
    words = tuple(word for word in TOY if not word.startswith("training.smoke"))
    _, folder = run.run_phases(RunRequest("local", words, to_phase="0"), said.append)
    run.run_phases(RunRequest("local", from_phase="1", to_phase="1"), said.append)
    assert executed[0][1].run == executed[1][1].run
    assert said == [
        PhaseMessage.KEPT_OVERRIDES.fill(
            run="local",
            file="overrides.yaml",
            values=", ".join(words),
        )
    ]
    run.run_phases(RunRequest("local", redo="0", to_phase="0"), said.append)
    assert executed[2][1].run == params.load("local").run
    assert not (folder / "overrides.yaml").exists()
    (history,) = (folder / "history").glob("run-*")
    assert (history / "overrides.yaml").exists()


def test_a_run_whose_folder_was_moved_says_so(project, runs, monkeypatch):
    def run_phase(request, settings, plan, folder, phase, say):
        folder.rename(folder.with_name("moved"))
        return Outcome("failed", 1, "", folder / "records" / f"{phase}.ipynb")

    monkeypatch.setattr(run, "run_phase", run_phase)
    with refuses(RecordError, RunMessage.RUN_FOLDER_MOVED, folder=runs / "local", name="local"):
        run.run_phases(RunRequest("local", to_phase="0"), print)


def test_a_hand_edit_in_a_master_is_refused_before_anything_is_written(project, runs, executed):
    path = project / "notebooks" / "02-data.ipynb"
    path.write_text(
        path.read_text().replace("training: dict = {}", 'training: dict = {\\"iterations\\": 30}')
    )
    changed_cell = ParamsMessage.CELL_CHANGED_BY_HAND.of(
        notebook="notebooks/02-data.ipynb", shown_edits="training = {'iterations': 30}"
    )
    with refuses(ParamsError, changed_cell):
        run.run_phases(RunRequest("local"), print)
    assert (executed, runs.exists()) == ([], False)
