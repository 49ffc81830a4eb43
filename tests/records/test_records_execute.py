"""Phases executed in this process by every tool that executes notebooks, and filed with their run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import nbformat
import pytest
from notebook_project import BIN, ERROR, KILL, PHASE, TEXT_OF_ERROR, WORK, Project, start
from suite.messages import containing, refuses

from runbook.core.errors import RecordError
from runbook.records.engine.execute import execute_phase, file_finished_notebook
from runbook.records.manifest import verify_run
from runbook.records.messages import RecordMessage
from runbook.records.session import MIME

pytestmark = pytest.mark.notebooks

TIMES = ("started", "ended")


def _without_times(record: Path) -> dict:
    content = json.loads(record.read_text())
    return {key: value for key, value in content.items() if key not in TIMES}


def test_record_is_the_same_whatever_executed_the_notebook(tmp_path):
    project = Project(tmp_path)
    notebook = project.notebook(WORK)
    records = {}
    outcome = execute_phase(notebook, project.run_folder, PHASE, {"run": "toy"})
    assert (outcome.state, outcome.exit_code, outcome.message) == ("done", 0, "")
    records["ours"] = _without_times(project.record(".json"))
    others = {
        "stock.ipynb": ["papermill", notebook, "stock.ipynb", "-p", "run", "toy"],
        "converted.ipynb": [
            *("jupyter-nbconvert", "--to", "notebook", "--execute", notebook),
            *("--output-dir", tmp_path, "--output", "converted.ipynb"),
        ],
        "executed.ipynb": ["jupyter-execute", notebook, f"--output={tmp_path / 'executed.ipynb'}"],
    }
    for name, (program, *words) in others.items():
        shutil.rmtree(project.run_folder)
        process = start([str(BIN / program), *map(str, words)], tmp_path)
        log, _ = process.communicate(timeout=600)
        assert process.returncode == 0, log
        records[name] = _without_times(project.record(".json"))
        _adopt(project, tmp_path / name)
        assert _without_times(project.record(".json")) == records[name], "filing changes nothing"
    for name in others:
        assert records[name] == records["ours"], name
    assert [cell["state"] for cell in records["ours"]["cells"]] == ["completed"] * 4
    assert records["ours"]["verdict"] == "pass"
    time_of = json.loads(project.record(".json").read_text())["started"]
    with refuses(
        RecordError,
        RecordMessage.RECORD_IS_NEWER,
        notebook=containing("stock.ipynb"),
        started=time_of,
    ):
        file_finished_notebook(tmp_path / "stock.ipynb")


def _adopt(project: Project, executed: Path) -> None:
    before = executed.read_bytes()
    outcome = file_finished_notebook(executed)
    assert (outcome.exit_code, outcome.notebook) == (0, project.record(".ipynb"))
    assert executed.read_bytes() == before, "the notebook itself stays as it is"
    assert verify_run(project.run_folder) == []


def test_second_execution_moves_the_first_to_history_and_an_edit_of_it_is_still_found(tmp_path):
    project = Project(tmp_path)
    notebook = project.notebook(WORK)
    execute_phase(notebook, project.run_folder, PHASE, {})
    first = {suffix: project.record(suffix).read_bytes() for suffix in (".ipynb", ".html", ".json")}
    edited = project.record(".json")
    edited.write_text(edited.read_text().replace("1024", "9999"))
    outcome = execute_phase(project.notebook(WORK, ERROR), project.run_folder, PHASE, {})
    assert (outcome.state, outcome.exit_code) == ("failed", 1)
    assert outcome.message == f"ValueError: {TEXT_OF_ERROR}"
    history = {path.suffix: path for path in (project.run_folder / "records" / "history").iterdir()}
    assert history[".ipynb"].read_bytes() == first[".ipynb"]
    assert history[".html"].read_bytes() == first[".html"]
    findings = verify_run(project.run_folder)
    assert [(finding.kind, finding.file) for finding in findings] == [
        ("changed", history[".json"].relative_to(project.run_folder).as_posix())
    ]
    assert "sha256" in findings[0].expected


def test_notebook_that_stops_before_its_record_is_open_has_a_record_all_the_same(tmp_path):
    project = Project(tmp_path)
    refusal = "modell is not a key; did you mean model?"
    refused = f"from runbook.core.errors import ParamsError\nraise ParamsError({refusal!r})"
    outcome = execute_phase(project.notebook(refused, bind=False), project.run_folder, PHASE, {})
    assert outcome.exit_code == 1
    assert outcome.message == f"ParamsError: {refusal}"
    record = json.loads(project.record(".json").read_text())
    assert [cell["state"] for cell in record["cells"]] == ["completed", "failed", "pending"]
    assert (record["state"], record["verdict"], record["run"], record["phase"]) == (
        "failed",
        "fail",
        "toy",
        PHASE,
    )


def test_notebook_without_its_last_cell_is_not_done(tmp_path):
    project = Project(tmp_path)
    outcome = execute_phase(project.notebook(WORK, finish=False), project.run_folder, PHASE, {})
    assert (outcome.state, outcome.exit_code) == ("failed", 1)
    assert outcome.message == RecordMessage.LAST_CELL_MISSING.fill()


def test_braces_in_a_path_are_not_fields(tmp_path):
    project = Project(tmp_path / "a{b}c")
    assert execute_phase(project.notebook(WORK), project.run_folder, PHASE, {}).exit_code == 0


def test_record_of_a_kernel_that_died_under_stock_papermill_does_not_claim_to_be_done(tmp_path):
    """If the kernel died, the notebook marks every cell as completed. The record was never
    completed, and says so when it is filed.
    """
    project = Project(tmp_path)
    process = project.papermill(
        project.notebook(WORK, KILL), tmp_path / "stock.ipynb", engine="nbclient"
    )
    process.communicate(timeout=600)
    assert process.returncode == 138
    outcome = file_finished_notebook(tmp_path / "stock.ipynb")
    assert (outcome.state, outcome.exit_code) == ("interrupted", 130)
    reason = RecordMessage.STILL_RUNNING.fill()
    assert outcome.message == RecordMessage.NEVER_FINISHED.fill(reason=reason)
    assert "interrupted" in project.record(".html").read_text()
    assert verify_run(project.run_folder) == []


def test_error_that_a_traceback_handler_hid_is_in_the_notebook(tmp_path):
    hide = "get_ipython().set_custom_exc((Exception,), lambda *words, **options: None)"
    project = Project(tmp_path)
    outcome = execute_phase(project.notebook(hide, ERROR), project.run_folder, PHASE, {})
    assert outcome.message == f"ValueError: {TEXT_OF_ERROR}"
    failed = next(
        cell for cell in nbformat.read(outcome.notebook, as_version=4).cells if cell.source == ERROR
    )
    assert [(output.ename, output.evalue) for output in failed.outputs] == [
        ("ValueError", TEXT_OF_ERROR)
    ]


def test_adopting_refuses_what_names_no_run(tmp_path):
    project = Project(tmp_path)
    master = project.notebook(WORK)
    with refuses(
        RecordError, RecordMessage.NOTEBOOK_OF_NO_RUN, notebook=containing("02-data.ipynb")
    ):
        file_finished_notebook(master)
    with refuses(RecordError, RecordMessage.NOTEBOOK_MISSING, path=containing("none.ipynb")):
        file_finished_notebook(tmp_path / "none.ipynb")
    (tmp_path / "broken.ipynb").write_text("{not json")
    with refuses(RecordError, RecordMessage.NOTEBOOK_NOT_READABLE, path=containing("broken.ipynb")):
        file_finished_notebook(tmp_path / "broken.ipynb")
    told = nbformat.read(master, as_version=4)
    data = {
        MIME: {"run_folder": str(tmp_path / "gone"), "phase": PHASE, "execution": "x"},
        "text/plain": "",
    }
    told.cells[1].outputs = [nbformat.v4.new_output("display_data", data=data)]
    nbformat.write(told, tmp_path / "moved.ipynb")
    with refuses(RecordError, RecordMessage.RUN_FOLDER_GONE, belongs=containing("gone")):
        file_finished_notebook(tmp_path / "moved.ipynb")
    with refuses(
        RecordError,
        RecordMessage.NO_NOTEBOOK,
        notebook=containing("nothing.ipynb"),
        phase="02-data",
    ):
        execute_phase(tmp_path / "nothing.ipynb", project.run_folder, PHASE, {})
