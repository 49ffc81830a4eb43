"""Edited files of a run, and invalid numbers: a clear refusal or a skipped line, and no traceback."""

from __future__ import annotations

import json
import os

import pytest
from click.testing import CliRunner
from suite.messages import refuses

from runbook.cli.program import cli
from runbook.core.errors import DataError
from runbook.phases.run_plan import load_plan
from runbook.phases.training_results import sample_rows
from runbook.plan_file.phase_names import FULL
from runbook.records.logbook import write_logbook
from runbook.results.history import parse_events, parse_metrics, read_scores, read_validation
from runbook.tokens.messages import TokenMessage
from runbook.tokens.tokenizer import load_tokenizer

GOOD = {"iteration": 5, "prompt_ids": [464], "ids": [995], "time": 1.0}
EDITED = [
    {**GOOD, "iteration": "x"},
    {**GOOD, "iteration": None},
    {**GOOD, "ids": "abc"},
    {**GOOD, "ids": [-1]},
    {**GOOD, "ids": [1.5]},
    {**GOOD, "ids": [2**70]},
    {**GOOD, "prompt_ids": None},
    {"iteration": 3},
    {},
]


def lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_edited_samples_are_passed_over(tmp_path):
    _, plan = load_plan("local", ())
    phase = plan.phases[FULL]
    lines(tmp_path / phase.log.samples, [*EDITED, GOOD])
    (row,) = sample_rows(tmp_path, phase, "gpt2")
    assert (row["after iteration"], row["prompt"], row["continuation"]) == (5, "The", " world")


def test_edited_metrics_scores_and_events_are_passed_over(tmp_path):
    step = {"iteration": 1, "seconds": 2.0, "loss": 3.0, "grad_norm": None}
    edited = [{**step, "loss": "3"}, {**step, "iteration": "1"}, {**step, "seconds": None}]
    history = parse_metrics([json.dumps(row) for row in [*edited, step]])
    assert (len(history.steps), history.unread_lines) == (1, 3)
    one = {"iteration": 1, "loss": 3.0, "perplexity": 20.0, "samples": 4, "seconds": 1.0}
    rows = [{**one, "iteration": "x"}, {**one, "loss": []}, {**one, "iteration": 2, "loss": None}]
    found = read_validation(lines(tmp_path / "validation.jsonl", [*rows, one]))
    assert [each.iteration for each in found] == [1, 2]
    events = [{"event": "saved", "iteration": "x"}, {"event": "saved", "iteration": 5}]
    assert [event.iteration for event in parse_events(events)] == [5]
    score = {"what": "a", "measure": "b", "samples": 1, "before": None, "after": 2.0}
    (tmp_path / "evaluation").mkdir()
    lines(tmp_path / "evaluation" / "x.jsonl", [{"what": 3}, {**score, "after": "x"}, score])
    assert read_scores(tmp_path) == [{**score, "iteration": None}]


def test_the_logbook_shows_an_edited_event_key_by_key(tmp_path):
    events = [
        {"time": "x", "event": "saved"},
        {"time": 1e300, "event": "network", "bytes": "many"},
        {"time": True, "event": "alarm", "kind": 3, "since": "y", "metric": "loss"},
        {"time": -5, "event": {"a": 1}, "value": [1, {"b": 2}]},
        {"time": 0, "event": "hang", "rank": 0, "seconds": None},
    ]
    lines(tmp_path / "events.jsonl", events)
    assert len(write_logbook(tmp_path)) == 2, "saved and network are routine"


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "1e308"])
@pytest.mark.parametrize(
    "words",
    [
        ["export", "local", "--out", "x", "--shard-gb"],
        ["sample", "local", "--top-p"],
        ["sample", "local", "--temperature"],
    ],
)
def test_a_number_that_is_none_is_wrong_usage(words, value):
    result = CliRunner().invoke(cli, [*words, value])
    assert result.exit_code == 2 and "range" in result.output


@pytest.mark.parametrize("option", ["--slower", "--worse", "--memory"])
def test_a_tolerance_that_is_no_number_is_wrong_usage(option):
    result = CliRunner().invoke(cli, ["compare", "a", "b", option, "nan"])
    assert result.exit_code == 2 and "range" in result.output


def test_a_pipe_as_a_tokenizer_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "tokenizer.json")
    with refuses(DataError, TokenMessage.TOKENIZER_NOT_A_FILE):
        load_tokenizer(str(tmp_path / "tokenizer.json"))
