"""Copies of the masters to step through: they name their run, are never overwritten, and are not
records.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from suite.messages import containing, refuses
from toy_run import PROJECT

from runbook.core.errors import ParamsError
from runbook.params.messages import ParamsMessage
from runbook.params.parameters_cell import hand_edits
from runbook.phases import open_phase as phases
from runbook.phases.messages import PhaseMessage
from runbook.phases.notebook_copies import (
    SETTINGS_VARIABLE,
    copies_text,
    encryption_arguments,
    make_copies,
    server_arguments,
    with_our_settings,
)
from runbook.plan_file.phase_names import PHASES
from runbook.records.manifest import verify_run
from runbook.records.session import read_master
from runbook.runs.messages import RunMessage
from runbook.runs.run_folder import RUNS_VARIABLE
from runbook.runs.run_names import NamedRun, named_run


@pytest.fixture
def project(tmp_path: Path, monkeypatch) -> Path:
    root = tmp_path / "project"
    for name in ("params", "notebooks"):
        shutil.copytree(PROJECT / name, root / name)
    monkeypatch.delenv(RUNS_VARIABLE, raising=False)
    monkeypatch.chdir(root)
    return root


def test_notebooks_of_a_run_open_after_its_model_left_the_parameters(project):
    make_copies("local")
    catalogue = project / "params" / "models.yaml"
    catalogue.write_text(catalogue.read_text().replace("\nsmall:", "\nremoved:"))
    with refuses(ParamsError, ParamsMessage.INVALID_PARAMS):
        make_copies("local")
    (project / "runs" / "local" / "run.yaml").write_text("run: local\nmodel: small\n")
    copies = make_copies("local")
    assert copies.folder == project / "runs" / "local" / "lab"
    assert copies.problem and copies.problem in copies_text(copies)
    with refuses(ParamsError, ParamsMessage.INVALID_PARAMS):
        make_copies("local", set_words=["training.iterations=3"])


def test_kernels_of_jupyterlab_encrypt_their_messages(tmp_path):
    """Each kernel warned that it ran over TCP without encryption."""
    from jupyter_client.manager import KernelManager
    from traitlets.config.loader import KVArgParseConfigLoader

    arguments = encryption_arguments()
    if not arguments:
        pytest.skip("the installed jupyter-client cannot encrypt")
    manager = KernelManager(config=KVArgParseConfigLoader(arguments).load_config())
    log = tmp_path / "log"
    with log.open("wb") as stderr:
        manager.start_kernel(stderr=stderr)
        client = manager.blocking_client()
        client.start_channels()
        client.wait_for_ready(timeout=120)
        client.stop_channels()
        manager.shutdown_kernel()
    assert "WARNING" not in log.read_text()


def parameters(notebook: Path) -> dict[str, str]:
    """Return the values from the parameters cell in a notebook, as written."""
    (cell,) = [cell for cell in read_master(notebook) if cell.is_parameters]
    lines = [line.partition("  #")[0].partition(" = ") for line in cell.source.splitlines()]
    return {name.partition(":")[0]: value for name, _, value in lines}


def test_every_master_is_copied_with_the_run_in_its_parameters_cell_and_nothing_else_changed(
    project,
):
    copies = make_copies("lumi-13b:2n-zero2")
    assert copies.folder == project / "runs" / "lumi-13b--2n-zero2" / "lab"
    assert copies.written == tuple(f"{phase}.ipynb" for phase in PHASES)
    for name in copies.written:
        master, copy = (
            json.loads((folder / name).read_text())
            for folder in (project / "notebooks", copies.folder)
        )
        changed = [
            one["id"]
            for one, other in zip(master["cells"], copy["cells"], strict=True)
            if one != other
        ]
        assert changed == ["operation", "parameters"]
        assert "(../../../docs/when-it-fails.md)" in "".join(copy["cells"][1]["source"])
        assert {**master, "cells": 0} == {**copy, "cells": 0}
        assert parameters(copies.folder / name)["run"] == '"lumi-13b:2n-zero2"'
        (cell,) = [cell for cell in read_master(copies.folder / name) if cell.is_parameters]
        assert hand_edits(cell.source) == {}, "a copy can be executed headless too"
        assert cell.source.splitlines()[0].endswith("# a file in params/, or a path to one")


def test_a_second_time_what_a_person_changed_is_kept_and_named(project):
    folder = make_copies("local").folder
    edited = folder / "03-smoke-test.ipynb"
    edited.write_text(
        edited.read_text().replace("phase.launch(open_phase)", "phase.launch(open_phase)  # mine")
    )
    chosen = folder / "00-plan.ipynb"
    chosen.write_text(
        chosen.read_text().replace("training: dict = {}", "training: dict = {'seed': 7}")
    )
    (folder / "05-analysis.ipynb").unlink()
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    again = make_copies("local")
    assert again.written == ("05-analysis.ipynb",)
    assert again.edited == {"03-smoke-test.ipynb": ("launch",)}
    assert {name: (folder / name).read_bytes() for name in before} == before
    assert copies_text(again).splitlines() == [
        PhaseMessage.COPIES_WRITTEN.fill(folder=folder, number=1),
        PhaseMessage.COPIES_KEPT.fill(folder=folder, number=6),
        PhaseMessage.CELLS_DIFFER.fill(name="03-smoke-test.ipynb", cells="launch"),
        PhaseMessage.CELLS_COPIED_AGAIN.fill(),
    ]
    fresh = make_copies("local", fresh=True)
    assert (len(fresh.written), fresh.edited) == (7, {})
    assert fresh.moved is not None
    assert (fresh.moved / "03-smoke-test.ipynb").read_bytes() == before["03-smoke-test.ipynb"]


def test_a_folder_made_with_a_name_of_its_own_is_opened_by_it(project):
    phases.open_run_phase(
        phases.params.load("local", set_words=["model=tiny", "as=quick"]), "00-plan"
    )
    copies = make_copies("local--quick")
    assert copies.folder == project / "runs" / "local--quick" / "lab"
    values = parameters(copies.folder / "00-plan.ipynb")
    assert (values["run"], values["overrides"]) == ('"local"', '"as=quick"')


def test_values_and_a_name_given_to_lab_stand_in_the_parameters_cell(project):
    copies = make_copies("local", set_words=["training.sample_prompt=Two words"], as_name="mine")
    assert copies.folder == project / "runs" / "local--mine" / "lab"
    values = parameters(copies.folder / "00-plan.ipynb")
    assert values["run"] == '"local"'
    words = "\"'training.sample_prompt=Two words' as=mine\""
    assert values["overrides"] == words
    again = make_copies("local", set_words=["training.sample_prompt=Two words"], as_name="mine")
    assert (again.written, again.edited) == ((), {})


def test_values_for_copies_that_say_others_are_refused_and_not_dropped(project):
    folder = make_copies("local").folder
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with refuses(ParamsError, PhaseMessage.COPY_WITH_OTHER_OVERRIDES):
        make_copies("local", set_words=["training.iterations=3"])
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    fresh = make_copies("local", set_words=["training.iterations=3"], fresh=True)
    assert parameters(fresh.folder / "00-plan.ipynb")["overrides"] == '"training.iterations=3"'


@pytest.mark.parametrize(
    ("word", "as_name", "expected"),
    [
        ("local", "", NamedRun("local")),
        ("local", "mine", NamedRun("local", "mine")),
        ("local--quick", "", NamedRun("local", "quick")),
        ("local--quick", "quick", NamedRun("local", "quick")),
        ("lumi-13b--2n-zero2", "", NamedRun("lumi-13b:2n-zero2")),
        ("local--other", "", NamedRun("local--other")),
        ("params/local.yaml", "", NamedRun("params/local.yaml")),
    ],
)
def test_the_name_of_a_runs_folder_is_that_of_its_run(project, word, as_name, expected):
    words = [("local", ["model=tiny", "as=quick"]), ("lumi-13b:2n-zero2", [])]
    for run, set_words in words:
        settings = phases.params.load(run, set_words=set_words)
        folder = project / "runs" / settings.name
        folder.mkdir(parents=True)
        (folder / "run.yaml").write_text(settings.as_yaml())
    assert named_run(word, as_name) == expected
    if word == "local--quick":
        with refuses(ParamsError, RunMessage.NAMED_TWICE, word="local--quick"):
            named_run(word, "slow")


def test_where_run_folders_are_elsewhere_the_run_is_named_by_the_path_of_its_file(
    project, tmp_path, monkeypatch
):
    monkeypatch.setenv(RUNS_VARIABLE, str(tmp_path / "elsewhere"))
    copies = make_copies("lumi-13b:2n-zero2")
    assert parameters(copies.folder / "00-plan.ipynb")["run"] == json.dumps(
        f"{project / 'params' / 'lumi-13b.yaml'}:2n-zero2"
    )
    assert server_arguments(copies) == [
        f"--ServerApp.root_dir={tmp_path / 'elsewhere' / 'lumi-13b--2n-zero2' / 'lab'}",
        "--LabApp.default_url=/lab/tree/00-plan.ipynb",
        "--LabApp.news_url=None",
    ]


def test_an_unknown_run_makes_no_folder(project):
    with refuses(
        ParamsError, ParamsMessage.NO_SUCH_RUN, word="lokal", hint=containing("Did you mean local")
    ):
        make_copies("lokal")
    assert not (project / "runs").exists()


def test_copies_are_no_records_of_the_run(project):
    open_phase = phases.open_run_phase(
        phases.params.load("local", set_words=["model=tiny"]), "01-environment"
    )
    folder = make_copies("local").folder
    from runbook.phases import phase_end

    phase_end.plain_end(open_phase.phase)(open_phase)
    (folder / "00-plan.ipynb").write_text("{}")
    (folder / "my own.ipynb").write_text("{}")
    assert [str(finding) for finding in verify_run(open_phase.folder)] == []


def test_jupyterlab_shows_the_project_and_opens_the_first_copy(project):
    assert server_arguments(make_copies("local")) == [
        f"--ServerApp.root_dir={project}",
        "--LabApp.default_url=/lab/tree/runs/local/lab/00-plan.ipynb",
        "--LabApp.news_url=None",
    ]


def test_jupyterlab_asks_nobody_about_news(monkeypatch):
    from jupyterlab_server.config import get_page_config

    monkeypatch.setenv(SETTINGS_VARIABLE, with_our_settings({SETTINGS_VARIABLE: "/a"}))
    assert with_our_settings({SETTINGS_VARIABLE: "/a"}).startswith("/a:")
    disabled = get_page_config([])["disabledExtensions"]
    assert "@jupyterlab/apputils-extension:announcements" in disabled
