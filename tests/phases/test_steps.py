"""Each notebook cell is a step in its phase, and the work in a step determines when it is done."""

from __future__ import annotations

import ast
import importlib
import json
from pathlib import Path

import pytest
from toy_run import PROJECT, open_run

from runbook import phases
from runbook.phases import runner
from runbook.phases.phase_steps import (
    MEASURING,
    PHASE_ENDS,
    TOKENIZING,
    TRAININGS,
    WORKS,
    phase_end_work,
    work_within,
)
from runbook.phases.steps import PhaseStep, plan_only, run_only, step
from runbook.plan_file.phase_names import PHASES
from runbook.runs.step import StepState, StepStatus, write_mark

PACKAGES = {
    phase: importlib.import_module(f"runbook.phases.p{phase.replace('-', '_')}.phase")
    for phase in PHASES
}


def called_steps(phase: str) -> list[str]:
    """Return each NAME called as `phase.NAME(open_phase)` in the notebook cells, in order."""
    notebook = json.loads((PROJECT / "notebooks" / f"{phase}.ipynb").read_text())
    names = []
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        for node in ast.walk(ast.parse("".join(cell["source"]))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and ast.unparse(node.func.value) == "phase"
                and node.func.attr != "bind"
            ):
                names.append(node.func.attr)

    return names


@pytest.mark.parametrize("phase", PHASES)
def test_a_notebook_calls_the_steps_of_its_phase_in_their_order(phase):
    package = PACKAGES[phase]
    assert [getattr(package, name) for name in called_steps(phase)] == list(package.STEPS)


@pytest.mark.parametrize("phase", PHASES)
def test_a_resumed_run_asks_the_work_that_the_steps_of_the_phase_do(phase):
    of_steps = {one.work.name for one in PACKAGES[phase].STEPS if one.work}
    of_resume = {work.name for work in (*work_within(phase), phase_end_work(phase))}
    assert of_steps == of_resume
    assert PACKAGES[phase].STEPS[-1].work is phase_end_work(phase)


def test_every_work_has_a_marker_of_its_own():
    names = [work.name for work in WORKS]
    assert len(set(names)) == len(names)
    assert [work.name for work in PHASE_ENDS] == list(PHASES)
    assert {TOKENIZING, MEASURING, *TRAININGS} == set(WORKS) - set(PHASE_ENDS)


def test_no_function_of_a_phase_takes_the_whole_open_phase():
    """Only a step receives the whole open phase.

    Its selectors, which choose the arguments of its function, receive it too.
    """
    takers = []
    for path in sorted(Path(phases.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef):
                continue
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            for argument in arguments:
                if argument.annotation and "OpenPhase" in ast.unparse(argument.annotation):
                    takers.append(f"{path.name}: {node.name}")

    assert sorted(takers) == [
        "steps.py: __call__",
        "steps.py: __init__",
        "steps.py: plan_only",
        "steps.py: run_only",
        "steps.py: step",
    ]


def test_a_step_gives_its_function_the_values_that_it_takes_and_no_others(runs):
    opened = open_run("05-analysis", runs=runs)

    @step(takes=lambda opened: (opened.folder, opened.phase))
    def place(folder: Path, phase: str, *further: str) -> tuple[object, ...]:
        """Return the received values."""
        return (folder, phase, *further)

    text = "Return the received values."

    assert isinstance(place, PhaseStep)
    assert place(opened) == (opened.folder, "05-analysis")
    assert place(opened, "mine") == (opened.folder, "05-analysis", "mine")
    assert place.run("x", "y") == ("x", "y")
    assert place.__doc__ == text
    assert (plan_only(opened), run_only(opened)) == ((opened.plan,), (opened.run,))


def test_a_step_is_done_until_an_output_or_an_input_changes(runs):
    opened = open_run("00-plan", runs=runs)
    work = phase_end_work("00-plan")
    assert work.of(opened.run).status().state is StepState.NOT_DONE
    PACKAGES["00-plan"].finish(opened)
    assert work.of(opened.run).status().state is StepState.DONE
    assert [Path(output.path).name for output in work.of(opened.run).marker().outputs] == [
        "plan.json",
        "run.yaml",
    ]
    other = open_run("00-plan", "as=other", "training.seed=9", runs=runs)
    assert work.fingerprint(other.run) != work.fingerprint(opened.run)
    (opened.folder / "plan.json").unlink()
    assert work.of(opened.run).status().state is StepState.OUTPUT_MISSING


@pytest.mark.parametrize("work", [TOKENIZING, MEASURING], ids=lambda work: work.phase)
def test_a_phase_runs_again_when_its_work_lost_an_output(runs, work):
    opened = open_run(work.phase, runs=runs)
    made = opened.folder / "made"
    made.write_text("made")
    write_mark(opened.folder, work.name, 1, work.fingerprint(opened.run), [made])
    phase_end_work(work.phase).of(opened.run).mark_done()

    def why_again() -> str:
        return runner.why_not_done(opened.settings, opened.plan, opened.folder, work.phase)

    assert work.status_of_outputs(opened.run).state is StepState.DONE
    lost = StepStatus(StepState.OUTPUT_MISSING, "made")
    assert why_again() != lost.as_text()
    made.unlink()
    assert work.status_of_outputs(opened.run) == lost
    assert why_again() == lost.as_text()
