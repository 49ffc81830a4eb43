"""The record while a person steps through a notebook: errors, repeated cells, a second round, and
no kernel at all.
"""

from __future__ import annotations

import atexit
import json
from types import SimpleNamespace

import numpy
import pytest
from IPython.core.interactiveshell import InteractiveShell
from notebook_project import BIND, ERROR, FINISH, PARAMETERS, PHASE, WORK, Project
from suite.messages import refuses
from traitlets.config import Config

from runbook.core.checks import Check
from runbook.core.errors import RecordError
from runbook.records import session as sessions
from runbook.records.engine.execution_end import ExecutionState
from runbook.records.messages import RecordMessage
from runbook.records.phase_record import find_phase_record

NOT_YET = ValueError("not yet")


def text_of_error(error: Exception) -> str:
    """Return the reason that a record gives for an error in a cell."""
    return f"{type(error).__name__}: {error}"


@pytest.fixture
def shell():
    """Start a real IPython shell in this process, without a history file."""
    config = Config()
    config.HistoryManager.enabled = False
    made = InteractiveShell.instance(config=config)
    yield made
    atexit.unregister(made.atexit_operations)
    InteractiveShell.clear_instance()


class Stepping:
    """A project with a notebook that is run cell by cell, as a user would."""

    def __init__(self, root, shell, *cells):
        self.project = Project(root)
        self.project.notebook(*cells)
        self.shell = shell
        self.bind = BIND.format(project=str(root), phase=PHASE)

    def run(self, *sources):
        for source in sources:
            self.shell.run_cell(source, store_history=True)

    @property
    def record(self):
        return find_phase_record(self.project.run_folder, PHASE)

    @property
    def states(self):
        return [cell.state for cell in self.record.cells]

    @property
    def history(self):
        folder = self.project.run_folder / "records" / "history"
        return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_open_record_says_that_it_is_not_finished(tmp_path, shell):
    step = Stepping(tmp_path, shell, WORK)
    step.run(PARAMETERS, step.bind)
    assert (step.record.state, step.record.verdict, step.record.ended) == (
        ExecutionState.INTERRUPTED,
        "unknown",
        "",
    )
    assert step.record.reason == RecordMessage.STILL_RUNNING.fill()
    assert step.states == ["completed", "completed", "pending", "pending"]


def test_changed_parameters_cell_counts_as_run(tmp_path, shell):
    step = Stepping(tmp_path, shell, WORK)
    step.run(PARAMETERS.replace("toy", "other"), step.bind)
    assert step.states == ["completed", "completed", "pending", "pending"]


def test_failed_cell_that_is_mended_and_run_again_lets_the_record_go_on(tmp_path, shell):
    broken = f"if 'mended' not in globals():\n    raise {NOT_YET!r}"
    step = Stepping(tmp_path, shell, WORK, broken)
    step.run(PARAMETERS, step.bind, WORK, broken)
    failed = step.record
    assert (failed.state, failed.verdict, failed.reason) == (
        ExecutionState.FAILED,
        "fail",
        text_of_error(NOT_YET),
    )
    assert step.states == ["completed", "completed", "completed", "failed", "pending"]
    step.run("mended = True", broken, FINISH)
    assert (step.record.state, step.record.verdict, step.record.reason) == (
        ExecutionState.DONE,
        "pass",
        "",
    )
    assert step.record.started == failed.started
    assert step.history == []


def test_running_any_cell_twice_changes_nothing(tmp_path, shell):
    step = Stepping(tmp_path, shell, WORK)
    step.run(PARAMETERS, step.bind, WORK)
    once = step.record
    step.run(step.bind, WORK, WORK)
    assert step.record == once
    step.run(FINISH)
    assert (step.record.state, step.states) == (ExecutionState.DONE, ["completed"] * 4)


def test_second_round_in_the_same_kernel_is_a_new_execution(tmp_path, shell):
    step = Stepping(tmp_path, shell, WORK)
    step.run(PARAMETERS, step.bind, WORK, FINISH)
    first = step.record
    step.run(PARAMETERS, step.bind)
    assert step.record.started > first.started
    assert step.states == ["completed", "completed", "pending", "pending"]
    assert len(step.history) == 1
    assert (
        json.loads((step.project.run_folder / "records" / "history" / step.history[0]).read_text())[
            "state"
        ]
        == "done"
    )
    step.run(WORK, FINISH)
    assert (step.record.state, len(step.history)) == (ExecutionState.DONE, 1)


def test_interrupted_cell_and_cell_with_a_syntax_error(tmp_path, shell):
    wait = "raise KeyboardInterrupt"
    wrong = "1 +"
    step = Stepping(tmp_path, shell, WORK, wait, wrong)
    step.run(PARAMETERS, step.bind, WORK, wait)
    assert (step.record.state, step.record.reason, step.record.verdict) == (
        ExecutionState.INTERRUPTED,
        RecordMessage.CELL_INTERRUPTED.fill(),
        "unknown",
    )
    assert step.record.ended
    assert "interrupted" in step.states
    assert "failed" not in step.states
    step.run(step.bind, WORK, wrong)
    assert step.record.state is ExecutionState.FAILED
    assert step.record.reason.startswith("SyntaxError: ")


def test_cell_outside_the_master_counts_until_the_next_one_runs(tmp_path, shell):
    step = Stepping(tmp_path, shell, WORK)
    step.run(PARAMETERS, step.bind, ERROR)
    assert step.record.state is ExecutionState.FAILED
    assert "failed" not in step.states
    step.run(WORK, FINISH)
    assert step.record.state is ExecutionState.DONE


def test_nothing_that_runs_after_the_end_changes_a_finished_record(tmp_path, shell):
    step = Stepping(tmp_path, shell, WORK)
    step.run(PARAMETERS, step.bind, WORK, FINISH)
    done = step.record
    for source in (
        "session.add_results({'loss': 'mine'})",
        "raise KeyboardInterrupt",
        "1 +",
        WORK,
        ERROR,
    ):
        step.run(source)
        assert step.record == done, source
    assert (done.state, done.verdict) == (ExecutionState.DONE, "pass")


def test_a_record_is_finished_again_only_by_finishing_it_again(tmp_path, shell):
    step = Stepping(tmp_path, shell, WORK)
    step.run(
        PARAMETERS,
        step.bind,
        WORK,
        FINISH,
        "session.add_results({'loss': 2.5})",
        "session.finish()",
        ERROR,
    )
    assert (step.record.state, step.record.results["loss"]) == (ExecutionState.DONE, 2.5)


def test_an_end_that_failed_freezes_nothing(tmp_path, shell):
    broken = f"{FINISH}\nif 'mended' not in globals():\n    raise {NOT_YET!r}"
    step = Stepping(tmp_path, shell, WORK)
    step.run(PARAMETERS, step.bind, WORK, broken)
    assert (step.record.state, step.record.reason) == (
        ExecutionState.FAILED,
        text_of_error(NOT_YET),
    )
    step.run("mended = True")
    assert (step.record.state, step.record.ended) == (ExecutionState.INTERRUPTED, ""), (
        "a cell of one's own; nothing is finished"
    )
    step.run(broken, ERROR)
    assert (step.record.state, step.record.reason) == (ExecutionState.DONE, "")


def test_a_kernel_that_goes_on_with_another_run_leaves_the_first_record_as_it_was(tmp_path, shell):
    first, second = (Stepping(tmp_path / name, shell, WORK) for name in ("one", "two"))
    first.run(PARAMETERS, first.bind, WORK)
    before = first.record
    second.run(PARAMETERS, second.bind, "raise KeyboardInterrupt")
    assert second.record.reason == RecordMessage.CELL_INTERRUPTED.fill()
    assert first.record == before
    first.run(first.bind, WORK, FINISH)
    assert (first.record.state, first.record.started) == (ExecutionState.DONE, before.started)
    assert second.record.reason == RecordMessage.CELL_INTERRUPTED.fill()
    done = first.record
    second.run(second.bind, "raise KeyboardInterrupt")
    assert first.record == done


def test_without_a_kernel_the_same_calls_write_the_same_record(tmp_path):
    settings = SimpleNamespace(
        project=tmp_path, name="toy", parameters=lambda: {"run": {"value": "toy", "origin": "x"}}
    )
    session = sessions.start(settings, PHASE, tmp_path / "runs" / "toy")
    session.plan.update(loss=2.5)
    session.add_results({"loss": numpy.float32(2.5), "shape": (2, numpy.int64(3))})
    session.add_results({"grad": float("nan")})
    session.check(Check("loss", "warn", "2.5", "below 2"))
    session.check(Check("loss", "pass", "2.5", "below 3"))
    record = session.finish()
    assert record == find_phase_record(tmp_path / "runs" / "toy", PHASE)
    assert record.results == {"loss": 2.5, "shape": [2, 3], "grad": "nan"}
    assert (record.state, record.verdict, record.cells, record.commit) == (
        ExecutionState.DONE,
        "pass",
        (),
        "",
    )
    assert [(check.verdict, check.rule) for check in record.checks] == [("pass", "below 3")]
    assert record.versions["python"]
    assert "torch" in record.versions, "found by its metadata; nothing imports it"


def test_what_cannot_be_recorded_is_refused_with_its_name(tmp_path):
    settings = SimpleNamespace(project=tmp_path, name="toy", parameters=dict)
    session = sessions.start(settings, PHASE, tmp_path / "runs" / "toy")
    with refuses(
        RecordError,
        RecordMessage.VALUE_NOT_RECORDABLE,
        where="result model.layers[1]",
        kind="object",
    ):
        session.add_results({"model": {"layers": [1, object()]}})


def test_long_error_text_is_cut_short_in_the_record(tmp_path, shell):
    long = "raise ValueError('\\n'.join(f'line {n}' for n in range(40)))"
    step = Stepping(tmp_path, shell, long)
    step.run(PARAMETERS, step.bind, long)
    lines = step.record.reason.splitlines()
    assert lines[0].split(": ") == ["ValueError", "line 0"]
    assert lines[-1] == RecordMessage.MORE_LINES.fill(lines=28)
