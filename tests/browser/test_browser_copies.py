"""`runbook lab RUN`: a person steps through notebook copies.

Nothing else changes, and the records are the same as for the masters.
"""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from conftest import cells_of, step_through
from suite.messages import containing, says
from toy_project import RUN_FILE, json_of, tree

from runbook.phases.messages import PhaseMessage

pytestmark = [pytest.mark.browser, pytest.mark.notebooks]

RUN = "copied"
NOT_COMPARED = ("started", "ended")


@pytest.fixture(scope="module")
def stepped(browser, toy, tmp_path_factory) -> SimpleNamespace:
    """Step through copies: 00 with a changed value in its parameters cell, 01 unchanged, and 04 up
    to the launch."""
    from lab import Lab, Notebook

    toy.write_run_file(RUN_FILE.replace("run: local", f"run: {RUN}"), RUN)
    masters = tree(toy.root / "notebooks")
    folder = toy.root / "runs" / RUN
    lab = Lab(toy.root, tmp_path_factory.mktemp("copies-home"), toy.environment(), RUN)
    copy = folder / "lab" / "00-plan.ipynb"
    copy.write_text(
        copy.read_text().replace("training: dict = {}", r"training: dict = {\"seed\": 7}")
    )
    said = {}
    try:
        for phase, until in (("00-plan", ""), ("01-environment", ""), ("04-training", "rehearse")):
            context = browser.new_context(viewport={"width": 1200, "height": 1000})
            notebook = Notebook(context.new_page(), lab, f"runs/{RUN}/lab/{phase}.ipynb")
            said[phase] = step_through(notebook, cells_of(toy, phase), until=until)
            context.close()
    finally:
        lab.close()
    return SimpleNamespace(folder=folder, said=said, masters=masters)


def test_a_copy_knows_its_run_and_hands_on_what_it_was_given(stepped):
    assert PhaseMessage.WHAT_IS_BOUND.fill(phase="00-plan") in stepped.said["00-plan"]["bind"]
    kept = PhaseMessage.KEPT_OVERRIDES.fill(
        run=RUN, file="overrides.yaml", values="training.seed=7"
    )
    assert kept in stepped.said["01-environment"]["bind"]


def test_no_master_and_no_other_run_is_changed(stepped, toy):
    assert tree(toy.root / "notebooks") == stepped.masters
    assert toy.call("runbook", "verify", RUN).code == 0


def test_where_the_check_failed_the_next_cell_submits_nothing(stepped):
    said = stepped.said["04-training"]
    assert says(said["ready"], PhaseMessage.CHECKS_FAILED, number_of_failures=2, number_of_checks=2)
    assert says(
        said["launch"],
        PhaseMessage.NOTHING_SUBMITTED,
        phase="04-training",
        reasons=containing("smoke test: not done"),
    )
    assert not (stepped.folder / "jobs").exists()


def test_the_record_of_a_copy_is_that_of_the_master(stepped, toy, tmp_path):
    output = tmp_path / "out.ipynb"
    words = ("-p", "run", RUN, "-p", "training", json.dumps({"seed": 7}), "--no-progress-bar")
    ended = toy.call(
        "papermill", "notebooks/00-plan.ipynb", output, *words, RUNBOOK_RUNS=str(tmp_path / "runs")
    )
    assert ended.code == 0, ended
    ours, theirs = (
        json_of(folder / "records/00-plan.json")
        for folder in (stepped.folder, tmp_path / "runs" / RUN)
    )
    for record in (ours, theirs):
        for name in NOT_COMPARED:
            record.pop(name)
    assert ours == theirs
    assert (stepped.folder / "plan.json").read_bytes() == (
        tmp_path / "runs" / RUN / "plan.json"
    ).read_bytes()
