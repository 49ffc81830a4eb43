"""`runbook.open`: the page's examples, a fresh kernel, and the messages about things that do not
exist.
"""

from __future__ import annotations

import doctest
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from recorded_run import WORDS, write_recorded_run
from suite.messages import containing, refuses, says
from toy_run import PROJECT, open_run

import runbook
from runbook.core import table
from runbook.core.errors import ParamsError, PlanError, RecordError
from runbook.core.messages import CoreMessage
from runbook.params.messages import ParamsMessage
from runbook.phases.messages import PhaseMessage
from runbook.phases.p00_plan import phase as plan
from runbook.phases.p05_analysis import phase as analysis
from runbook.planning.rule_codes import PlanCode
from runbook.results.history import History, RankTimes, Step
from runbook.results.messages import ResultMessage
from runbook.results.metrics import slow_steps_table
from runbook.runs.messages import RunMessage
from runbook.tools.speed import gap

THREE_LINES = {
    "step times of a run as a DataFrame": (
        'run = runbook.open("local")\nrun.history[["step time (s)"]]',
        ("DataFrame", "<th>step time (s)</th>"),
    ),
    "losses of two runs in one figure": (
        'runbook.open("local").loss_figure(runbook.open("local--again"))',
        ("Figure", "<svg"),
    ),
    "plan with another micro batch and the difference": (
        'plan = runbook.open("local").plan\nplan.difference(plan.with_(micro_batch=2))',
        ("Table", "training.micro_batch"),
    ),
    "ten slowest steps with their reasons": (
        'runbook.open("local").slowest_steps(10)',
        ("Table", "restart", "data wait", "slow rank", "save", "evaluation", "unknown"),
    ),
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        runs = tmp_path_factory.mktemp("recorded")
        patch.setenv("RUNBOOK_RUNS", str(runs))
        patch.delenv("RUNBOOK_HOLDER", raising=False)
        return write_recorded_run(runs)


@pytest.fixture
def here(recorded, monkeypatch) -> Path:
    monkeypatch.setenv("RUNBOOK_RUNS", str(recorded.parent))
    monkeypatch.chdir(PROJECT)
    return recorded


def test_the_page_on_exploring_a_run_says_what_happens(here):
    text = re.sub(
        r"^```\w*$", "", (PROJECT / "docs" / "explore.md").read_text(), flags=re.MULTILINE
    )
    page = doctest.DocTestParser().get_doctest(text, {}, "explore.md", "docs/explore.md", 0)
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    result = runner.run(page, out=said.append)
    assert result.failed == 0, "".join(said)
    assert result.attempted > 20


@pytest.mark.notebooks
def test_from_a_fresh_kernel_three_lines_suffice(here):
    """Run all four examples in one kernel. Each cell begins with its own import."""
    import nbclient
    import nbformat

    cells = [
        nbformat.v4.new_code_cell(f"import runbook\n{code}") for code, _ in THREE_LINES.values()
    ]
    notebook = nbformat.v4.new_notebook(cells=cells)
    nbclient.NotebookClient(
        notebook, timeout=600, resources={"metadata": {"path": str(PROJECT)}}
    ).execute()
    for (name, (_, words)), cell in zip(THREE_LINES.items(), notebook.cells, strict=True):
        assert len(cell.source.splitlines()) <= 3, name
        (output,) = cell.outputs
        html = output["data"]["text/html"]
        assert [word for word in words[1:] if word not in html] == [], name


def test_each_object_can_be_used(here):
    for code, (kind, *_) in THREE_LINES.values():
        *lines, last = code.splitlines()
        names = {"runbook": runbook}
        exec("\n".join(lines), names)
        assert type(eval(last, names)).__name__ == kind


def test_a_later_step_that_was_done_again_counts_once_and_both_can_be_slow(here):
    run = runbook.open("local")
    assert run.history.index.tolist() == list(range(1, 25))
    assert run.history.loc[7, "segment"] == 1
    assert len(run.slowest_steps(100)) == 25


def test_an_even_straggler_does_not_explain_a_slow_step():
    """A rank that lags in every step also lengthens the median step."""
    steps = [Step(n, 2.0 if n == 8 else 1.0, loss=3.0, time=100.0 + n) for n in range(1, 13)]
    ranks = tuple(RankTimes(n, 1, 0, [0.1, 0.9]) for n in range(1, 13))
    (row,) = slow_steps_table(History(tuple(steps), rank_times=ranks), count=1)
    assert (row["iteration"], row["reason"]) == (8, "unknown")
    late = tuple(replace(one, seconds=[0.1, 1.9]) if one.iteration == 8 else one for one in ranks)
    (row,) = slow_steps_table(History(tuple(steps), rank_times=late), count=1)
    assert row["reason"] == "slow rank"


def test_a_run_that_was_never_started_has_its_plan_and_says_what_it_lacks(here):
    run = runbook.open("azure-175b")
    assert "never run" in repr(run) and "175" in repr(run.plan)
    with refuses(RecordError, RunMessage.NO_PLAN_YET, path=containing("azure-175b/plan.json")):
        run.history  # noqa: B018


def test_wrong_names_are_refused_with_the_right_ones(here):
    with refuses(
        ParamsError,
        PhaseMessage.NO_FOLDER_AND_NO_FILE,
        no_folder=containing("loca is not a run's folder; there are local", "Did you mean local?"),
    ):
        runbook.open("loca")
    plan = runbook.open("local").plan
    with refuses(
        ParamsError,
        ParamsMessage.NO_SUCH_KEY,
        key="micro_bach",
        hint="Did you mean training.micro_batch?",
    ):
        plan.with_(micro_bach=2)
    with pytest.raises(PlanError) as error:
        plan.with_(micro_batch=8)
    (check,) = error.value.checks
    assert check.code is PlanCode.BATCH_DIVIDES
    values = {"micro_batch": 8, "batch_key": "training.global_batch", "nearest": 16}
    assert values.items() <= check.values.items()
    assert plan.with_(nodes=1).set_words == ("jobs.training.nodes=1",)
    assert plan.with_(mp_size=2, global_batch=16).set_words == (
        "parallel.tensor=2",
        "training.global_batch=16",
    )


def test_a_plan_equal_to_another_has_no_difference_and_opening_writes_nothing(here):
    before = sorted(path.relative_to(here) for path in here.rglob("*"))
    plan = runbook.open("local").plan
    assert plan.difference(plan.with_(micro_batch=4)).notes == (PhaseMessage.NO_DIFFERENCE.fill(),)
    assert sorted(path.relative_to(here) for path in here.rglob("*")) == before


def test_a_mailed_folder_is_opened_by_its_path(here, tmp_path):
    shutil.copytree(here, tmp_path / "mailed")
    assert runbook.open(tmp_path / "mailed").history.shape == (24, 19)


def test_what_a_cell_shows_can_be_used(here, tmp_path, monkeypatch, capsys):
    shutil.copytree(here.parent, tmp_path / "runs")
    monkeypatch.setenv("RUNBOOK_RUNS", str(tmp_path / "runs"))
    open_phase = open_run("05-analysis", *WORDS, runs=tmp_path / "runs")
    assert [type(figure).__name__ for figure in analysis.show_timeline(open_phase).figures] == [
        "Figure"
    ]
    for show in (analysis.show_step_parts, gap.show_gap):
        view = show(open_phase)
        assert [type(figure).__name__ for figure in view.figures] == ["Figure"]
        # If this machine is slow at the moment, the plan expects a slower step than was recorded,
        # so there is no gap to explain.
        assert len(view.tables[0].to_frame()) > 0 or show is gap.show_gap
        assert view._repr_html_().count("<svg") == 1
        said = repr(view)
        assert view[0][1] in said and view.tables[0].title in said
        capsys.readouterr()
        view._ipython_display_()  # outside a notebook: only the text
        assert [line in capsys.readouterr().out for line in said.splitlines()[:1]] == [True]
    sizes = plan.show_sizes(open_phase)
    assert sizes.tables[0].as_html().startswith("<div") and "<math" in sizes._repr_html_()
    assert says(repr(sizes), ResultMessage.PARAMETERS_SUM, layers=6, per_layer=789_760)


def test_without_pandas_the_extra_is_named(here, monkeypatch):
    def absent(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(table.importlib, "import_module", absent)
    with pytest.raises(ModuleNotFoundError) as error:
        runbook.open("local").history  # noqa: B018
    assert str(error.value) == CoreMessage.NEEDS_PANDAS.fill(error="No module named 'pandas'")
    assert error.value.name == "pandas"  # the name of the extra on the command line
