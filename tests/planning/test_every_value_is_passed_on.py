"""Every value that a run file and a plan share under the same name reaches the plan."""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import asdict, fields, replace
from typing import Any, get_args

import pytest

from runbook.params.schema.entries import Model
from runbook.params.schema.run_file import OPTIMIZER_KEYS, Data, Training
from runbook.phases.token_inputs import tokenize_options
from runbook.plan_file.ranges import Range
from runbook.plan_file.schema import Layout, ModelShape, Optimizer, Tuning
from runbook.planning import choice
from runbook.planning.choice import Choice, full_choice
from runbook.planning.cost import step_inputs
from runbook.planning.cost.iteration import StepSetup
from runbook.tokens.pipeline.tokenize_options import TokenizeOptions
from runbook.tools.speed import planned_choice, predict
from runbook.tools.speed.published_rows import PublishedRow

from .conftest import build


def another_value(value: Any, annotation: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    others = [choice for choice in get_args(annotation) if choice != value]
    return others[0] if others else "another"


@pytest.mark.parametrize("name", [member.name for member in fields(Tuning)])
def test_how_a_step_is_carried_out_is_the_runs_choice(name: str) -> None:
    choice = full_choice(build())
    value = getattr(choice.training, name)
    changed = another_value(value, Training.model_fields[name].annotation)
    training = choice.training.model_copy(update={name: changed})
    # Pieces of sequences are sent only if the sequence is divided.
    layout = replace(choice.layout, sequence=True)
    tuning = replace(choice, training=training, layout=layout).tuning
    assert getattr(tuning, name) == changed != value


@pytest.mark.parametrize("key", OPTIMIZER_KEYS)
def test_the_optimizer_is_the_runs_choice(key: str) -> None:
    training = full_choice(build()).training
    name = key.removeprefix("training.")
    changed = training.model_copy(update={name: getattr(training, name) / 2})
    before = asdict(training.optimizer)
    after = asdict(changed.optimizer)
    assert [after[name] / before[name] for name in before if after[name] != before[name]] == [0.5]


def test_every_value_of_the_optimizer_has_a_key_and_a_range() -> None:
    members = fields(Optimizer)
    assert len(members) == len(OPTIMIZER_KEYS)
    assert all(isinstance(member.metadata["range"], Range) for member in members)


SHARED = sorted({member.name for member in fields(TokenizeOptions)} & set(Data.model_fields))


@pytest.mark.parametrize("name", SHARED)
def test_how_text_becomes_tokens_is_the_runs_choice(name: str) -> None:
    settings = build()
    value = getattr(settings.run.data, name)
    changed = another_value(value, Data.model_fields[name].annotation)
    data = settings.run.data.model_copy(update={name: changed})
    run = settings.run.model_copy(update={"data": data})
    options = tokenize_options(replace(settings, run=run))
    expected = ("another",) if name.endswith("_sources") else changed
    assert getattr(options, name) == expected != getattr(tokenize_options(settings), name)


def keywords_of(function: Any, kind: str) -> set[str]:
    source = textwrap.dedent(inspect.getsource(function))
    calls = ast.walk(ast.parse(source))
    return {
        str(keyword.arg)
        for call in calls
        if isinstance(call, ast.Call) and ast.unparse(call.func) == kind
        for keyword in call.keywords
    }


def test_a_modelled_step_takes_all_that_a_published_row_says() -> None:
    shared = {member.name for member in fields(PublishedRow)} & {
        member.name for member in fields(StepSetup)
    }
    assert shared <= keywords_of(predict, "StepSetup")


def test_a_modelled_step_takes_all_that_a_choice_says() -> None:
    shared = {member.name for member in fields(StepSetup) if hasattr(Choice, member.name)}
    shared |= {member.name for member in fields(StepSetup)} & {
        member.name for member in fields(Choice)
    }
    assert shared <= keywords_of(step_inputs.setup_for, "StepSetup")


def test_a_described_model_takes_all_that_its_shape_says() -> None:
    shared = {member.name for member in fields(ModelShape)} & set(Model.model_fields)
    assert shared <= keywords_of(planned_choice, "Model")


def test_a_planned_layout_takes_every_size() -> None:
    # Replicas and ranks follow from the devices.
    counted = {"data", "world_size"}
    assert {member.name for member in fields(Layout)} - counted <= keywords_of(choice, "Layout")
    assert keywords_of(Layout.over, "dataclasses.replace") == counted
