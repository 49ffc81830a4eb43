"""A run file with other values keeps its comments, its order, and every unchanged line."""

from __future__ import annotations

import pytest
from suite.messages import refuses

from runbook.core.errors import ParamsError
from runbook.params.editing import edited_text, without_sums
from runbook.params.layers import document_layer
from runbook.params.messages import ParamsMessage
from runbook.params.yaml12 import read_mapping

TEXT = """\
# What this is for.
run: mine  # the stem

model: tiny
data: {dataset: corpus}  # on one line
training:
  # 1 micro x 8 replicas
  iterations: 40   # a quick one
  learning_rate: 6.0e-4
  shape: {}

jobs:
  3:
    walltime: 00:30:00  # half an hour
  training:
    nodes: 1
# the end
"""


def test_sums_in_comments_go_with_the_values_they_were_made_of():
    quoted = "'a # 1 x 2 = 2'"
    text = TEXT.replace("# half an hour", "# 2 x 15 min = 30").replace("tiny", quoted)
    expected = text.replace("  # 1 micro x 8 replicas\n", "").replace("  # 2 x 15 min = 30", "")
    assert without_sums(text, "x.yaml") == expected


def values_of(text: str) -> dict[str, object]:
    return {
        key: origin.value
        for key, origin in document_layer("run file", read_mapping(text, "x")).leaves.items()
    }


def changed(**changes: object) -> dict[str, object]:
    return values_of(TEXT) | {key.replace("__", "."): value for key, value in changes.items()}


def test_a_text_that_says_it_already_stays_as_it_is():
    assert edited_text(TEXT, "x", values_of(TEXT)) == TEXT


def test_a_changed_value_stands_where_the_old_one_stood():
    text = edited_text(
        TEXT, "x", changed(run="other", training__iterations=7, jobs__smoke__walltime="00:20:00")
    )
    assert text == TEXT.replace("run: mine ", "run: other ").replace(
        "iterations: 40 ", "iterations: 7 "
    ).replace("walltime: 00:30:00 ", 'walltime: "00:20:00" ')


def test_a_new_value_stands_below_the_last_of_its_section():
    new = changed(
        site="local",
        data__split="9,1,0",
        training__seed=7,
        training__shape__layers=2,
        training__smoke__model="pair",
        jobs__training__walltime="12:00:00",
        jobs__data__nodes=2,
        parallel__tensor=2,
    )
    text = edited_text(TEXT, "x", new)
    assert values_of(text) == new
    expected = TEXT
    for old, line in (
        ("{dataset: corpus}", '{dataset: corpus, split: "9,1,0"}'),
        ("  shape: {}\n", "  shape: {layers: 2}\n  seed: 7\n  smoke:\n    model: pair\n"),
        ("    nodes: 1\n", '    nodes: 1\n    walltime: "12:00:00"\n  data:\n    nodes: 2\n'),
        ("# the end\n", "site: local\nparallel:\n  tensor: 2\n# the end\n"),
    ):
        assert TEXT.count(old) == 1
        expected = expected.replace(old, line)
    assert text == expected


def test_what_papermill_would_read_otherwise_is_quoted_on_the_way():
    text = TEXT.replace("00:30:00", "12:00:00").replace("6.0e-4", "6e-4")
    quoted = TEXT.replace("00:30:00", '"12:00:00"').replace("6.0e-4", "0.0006")
    assert edited_text(text, "x", values_of(text)) == quoted


@pytest.mark.parametrize(
    "text", ["run: mine\ntraining:\n", "run: mine\nmodel: tiny\nsite: local\n"]
)
def test_a_text_that_cannot_be_edited_line_by_line_is_refused(text):
    """Refuse texts with an empty section, and texts from which a value is to be removed."""
    with refuses(ParamsError, ParamsMessage.LINES_NOT_EDITABLE, where="x"):
        edited_text(text, "x", {"run": "mine", "model": "tiny", "training.seed": 7})
