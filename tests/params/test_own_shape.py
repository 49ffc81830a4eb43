"""training.shape: what NUM_LAYERS, HIDDEN_SIZE and NUM_ATTENTION_HEADS set in the documents, for
any model.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from suite.messages import has_rule, problem_of

from runbook import params
from runbook.core.errors import ParamsError
from runbook.params.messages import ParamsMessage
from runbook.params.unknown_keys import right_name
from runbook.planning import make_plan

PROJECT = Path(__file__).parents[2]


def settings_of(*words: str) -> params.Settings:
    return params.load("azure-175b", set_words=words, project=PROJECT)


def test_the_documents_smoke_shape_is_counted_whatever_model_it_is_made_from():
    words = ("layers=12", "hidden=512", "heads=8")
    settings = settings_of(
        *(f"training.shape.{word}" for word in words),
        "parallel.tensor=1",
        "parallel.pipeline=1",
        "parallel.sequence=false",
        "jobs.training.nodes=2",
    )
    assert make_plan(settings).phases["04-training"].model.parameters == 64_633_856
    assert settings.model.label.split(" x ") == ["12", "512"]


def test_a_shape_that_is_not_chosen_changes_nothing():
    assert settings_of().model.label == "175B"
    assert settings_of("training.shape.positions=4096").model.label == "175B"


def test_another_width_takes_its_own_feed_forward_block():
    model = params.load(
        "local", set_words=["model=llama_7b", "training.shape.hidden=1024"], project=PROJECT
    ).model
    assert (model.hidden, model.ffn_hidden) == (1024, 0)


@pytest.mark.parametrize(
    ("name", "key"),
    [("NUM_LAYERS", "layers"), ("HIDDEN_SIZE", "hidden"), ("NUM_ATTENTION_HEADS", "heads")],
)
def test_the_documents_names_are_answered_with_ours(name, key):
    assert right_name((name,))[0] == f"training.shape.{key}"


def test_a_shape_below_nothing_is_refused():
    with pytest.raises(ParamsError) as error:
        settings_of("training.shape.layers=-1")
    problem = problem_of(error.value, "training.shape.layers")
    assert has_rule(problem, ParamsMessage.BROKEN_RULE, kind="greater_than_equal", ge=0)
