"""Launching a job: the purpose of each action in a step, and their order."""

from __future__ import annotations

import ast
import inspect
from dataclasses import replace
from pathlib import Path

import pytest
from toy_run import FakeScheduler

from runbook.core.errors import JobError
from runbook.core.locks import may_be_held
from runbook.jobs.job_folder import JobState
from runbook.jobs.render.training_job import RenderedJob
from runbook.phases.job_control import job_step as job_steps
from runbook.phases.job_control.job_step import JobStep, launch, resubmit
from runbook.runs.step import StepOfRun, StepState

PHASE = "04-training"
SCRIPT = "#!/bin/bash\n"


@pytest.fixture
def calls() -> list[str | tuple[str, object]]:
    return []


@pytest.fixture
def training(tmp_path: Path, runs: Path, calls: list[str | tuple[str, object]]) -> JobStep:
    step = StepOfRun(tmp_path, f"{PHASE}--train", version=1, inputs={"tokens": ["ab"]})

    def slow_gate() -> None:
        calls.append(("slow gate", may_be_held(tmp_path)))

    def gate() -> None:
        calls.append(("gate", may_be_held(tmp_path)))

    def prepare_folder() -> None:
        calls.append("prepare")
        step.note_start({})

    def render() -> RenderedJob:
        calls.append("render")
        return RenderedJob(SCRIPT, [])

    return JobStep(
        run_name="toy",
        phase=PHASE,
        step=step,
        scheduler=FakeScheduler(),
        slow_gate=slow_gate,
        gate=gate,
        why_continued=lambda: "",
        prepare_folder=prepare_folder,
        render=render,
        record_event=lambda event, **facts: calls.append((event, facts["job"])),
    )


def test_the_run_is_held_only_once_the_slow_gate_is_passed(training, calls):
    launch(training)
    assert calls == [
        ("slow gate", False),
        ("gate", True),
        "prepare",
        "render",
        ("submitted", PHASE),
    ]
    assert (training.step.run_folder / "jobs" / PHASE / "job.sh").read_text() == SCRIPT


@pytest.mark.parametrize("name", ["slow_gate", "gate"])
def test_a_gate_that_refuses_leaves_no_job_and_prepares_nothing(training, calls, name):
    def refuse() -> None:
        raise JobError("no")

    with pytest.raises(JobError):
        launch(replace(training, **{name: refuse}))
    assert "prepare" not in calls
    assert training.latest() is None


def test_a_job_that_goes_on_passes_the_gate_and_keeps_the_folder(training, calls):
    launch(training)
    calls.clear()
    training.scheduler.states[PHASE] = JobState.FAILED
    resubmit(training)
    assert calls == [("gate", True), "render", ("submitted", f"{PHASE}-2")]


def test_a_finished_step_asks_no_gate(training, calls):
    training.step.mark_done()
    launch(training)
    assert calls == []
    assert training.step.status().state is StepState.DONE


def test_what_a_job_trains_is_unknown_to_its_launch():
    """A launch reads parameters, plan and records only through the step's own actions."""
    tree = ast.parse(inspect.getsource(job_steps))
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    ours = {module for module in modules if module.startswith("runbook.")}
    assert {module.split(".")[1] for module in ours} == {
        "core",
        "display",
        "jobs",
        "phases",
        "runs",
    }
    assert {module for module in ours if ".phases." in module} == {"runbook.phases.messages"}
