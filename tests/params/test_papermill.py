"""The same values with unmodified papermill: a real kernel, and a cell that papermill really
injected.
"""

import json
import logging
from pathlib import Path

import pytest
from suite.messages import containing, says

from runbook.params import PARAMETERS, load
from runbook.params.messages import ParamsMessage

pytestmark = pytest.mark.notebooks


@pytest.fixture
def execute(project: Path, monkeypatch):
    """Return a function that runs a notebook with two cells through the papermill command.

    The function returns what `bind` returned, or its error.
    """
    nbformat = pytest.importorskip("nbformat")
    cli = pytest.importorskip("papermill.cli", exc_type=ImportError)
    from click.testing import CliRunner

    cell = nbformat.v4.new_code_cell(
        "\n".join(f"{name} = {value!r}" for name, value in PARAMETERS.items())
    )
    cell.metadata["tags"] = ["parameters"]
    body = (
        "import json\nfrom runbook.params import bind\nsettings = bind(globals())\n"
        "print(json.dumps([settings.as_yaml(), settings.parameters()]))"
    )
    notebook = nbformat.v4.new_notebook(cells=[cell, nbformat.v4.new_code_cell(body)])
    notebook.metadata["kernelspec"] = {
        "name": "python3",
        "display_name": "Python 3",
        "language": "python",
    }
    path = project / "notebooks" / "one.ipynb"
    path.write_text(nbformat.writes(notebook))
    monkeypatch.chdir(project)
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")

    def execute(*words: str):
        out = project / "out.ipynb"
        result = CliRunner().invoke(
            cli.papermill, [str(path), str(out), "--no-progress-bar", *words]
        )
        outputs = nbformat.read(out, 4).cells[-1].outputs
        if result.exit_code:
            return next(output["evalue"] for output in outputs if output["output_type"] == "error")
        return json.loads(outputs[-1]["text"])

    return execute


def test_p_and_f_and_load_are_equal(project: Path, execute, caplog):
    caplog.set_level(logging.WARNING)
    settings = load("toy", project=project)
    assert execute("-p", "run", "toy") == [settings.as_yaml(), settings.parameters()]
    assert execute("-f", "params/toy.yaml") == [settings.as_yaml(), settings.parameters()]
    assert "unknown parameter" not in caplog.text  # papermill knew every name that it was given


def test_two_runs_mixed_and_unknown_names_stop_the_notebook(execute):
    answer = execute("-p", "run", "toy", "-f", "params/other.yaml")
    assert says(answer, ParamsMessage.TWO_RUNS_MIXED, run="toy", foreign=containing("site"))
    hint = containing("training?")
    answer = execute("-p", "run", "toy", "-p", "trainng", "3")
    assert says(answer, ParamsMessage.UNKNOWN_PARAMETER, hint=hint)
    problem = "trainng = 3 (papermill): "
    assert problem in answer
