"""A tokenizer whose size does not match the models is detected when the run is planned, and again
in 02-data.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from suite.messages import containing, says
from toy_run import PROJECT

from runbook import params
from runbook.core.checks import Check
from runbook.core.errors import PlanError
from runbook.phases.p02_data import phase as data
from runbook.phases.token_inputs import tokenize_options
from runbook.planning import Plan
from runbook.planning.data_rules import VOCABULARY_CHECK
from runbook.planning.messages import PlanningMessage
from runbook.runs.this_machine import make_plan_here
from runbook.tokens.messages import TokenMessage


def settings_with(tokenizer: Path) -> params.Settings:
    return params.load("local", set_words=[f"data.tokenizer={tokenizer}"], project=PROJECT)


def write_tokenizer(folder: Path, size: int) -> Path:
    path = folder / "tokenizer.json"
    vocabulary = {f"t{number}": number for number in range(size)}
    path.write_text(json.dumps({"model": {"type": "BPE", "vocab": vocabulary, "merges": []}}))
    return path


def verdicts(plan: Plan) -> dict[str, str]:
    return {check.name: check.verdict for check in plan.checks if "vocabulary" in check.name}


def vocabulary_check(error: PlanError) -> Check:
    """Return the failed check of the tokenizer."""
    (check,) = error.checks
    assert check.name == VOCABULARY_CHECK
    return check


def test_more_tokens_than_rows_stop_the_plan_and_name_both_models(tmp_path):
    with pytest.raises(PlanError) as refused:
        make_plan_here(settings_with(write_tokenizer(tmp_path, 60_000)))
    check = vocabulary_check(refused.value)
    assert says(
        check.value,
        PlanningMessage.TOKENIZER_AND_VOCABULARY,
        tokenizer=containing("tokenizer.json"),
        size=60_000,
        rows=containing("50,257 of model small, 50,257 of smoke model 375m"),
    )
    assert check.remedy == PlanningMessage.VOCABULARY_TOO_SMALL.fill(size=60_000)


def test_a_smoke_model_alone_that_is_too_small_stops_the_plan(tmp_path):
    settings = settings_with(write_tokenizer(tmp_path, 60_000))
    wide = settings.model.model_copy(update={"vocabulary": 60_000})
    with pytest.raises(PlanError) as refused:
        make_plan_here(replace(settings, model=wide))
    assert says(
        vocabulary_check(refused.value).value,
        PlanningMessage.TOKENIZER_AND_VOCABULARY,
        size=60_000,
        rows="50,257 of smoke model 375m",
    )


def test_rows_that_no_token_uses_are_a_warning(tmp_path):
    plan = make_plan_here(settings_with(write_tokenizer(tmp_path, 32_000)))
    assert verdicts(plan)[VOCABULARY_CHECK] == "pass"
    (check,) = (check for check in plan.checks if check.name == "unused vocabulary")
    assert check.verdict == "warn"
    assert says(
        check.value,
        PlanningMessage.UNUSED_ROWS,
        vocabulary=50_257,
        model="small",
        size=32_000,
        spare=18_257,
    )


def test_padding_and_room_for_special_tokens_are_no_warning(tmp_path):
    plan = make_plan_here(settings_with(write_tokenizer(tmp_path, 49_300)))
    assert "unused vocabulary" not in verdicts(plan)


def test_a_tokenizer_that_is_only_on_the_cluster_is_not_known_here(tmp_path):
    plan = make_plan_here(settings_with(tmp_path / "there" / "tokenizer.json"))
    assert verdicts(plan)[VOCABULARY_CHECK] == "unknown"


def test_a_relative_path_begins_at_the_project_in_whatever_folder_one_works(tmp_path, monkeypatch):
    write_tokenizer(tmp_path, 60_000)
    settings = replace(settings_with(Path("tokenizer.json")), project=tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert settings.tokenizer == str(tmp_path / "tokenizer.json")
    assert tokenize_options(settings).tokenizer == settings.tokenizer
    with pytest.raises(PlanError) as refused:
        make_plan_here(settings)
    value = vocabulary_check(refused.value).value
    assert says(value, PlanningMessage.TOKENIZER_AND_VOCABULARY, size=60_000)
    assert settings_with(Path("/models/tokenizer.json")).tokenizer == "/models/tokenizer.json"
    assert tokenize_options(settings_with(Path("gpt2"))).tokenizer == "gpt2"


def test_a_file_that_is_no_tokenizer_stops_the_plan(tmp_path):
    (tmp_path / "x.model").write_bytes(b"not a model")
    with pytest.raises(PlanError) as refused:
        make_plan_here(settings_with(tmp_path / "x.model"))
    value = vocabulary_check(refused.value).value
    assert says(value, TokenMessage.MODEL_CUT_SHORT, path=tmp_path / "x.model")


def test_the_data_phase_compares_the_tokenizers_of_its_token_files():
    manifest = SimpleNamespace(tokenizer={"name": "big.json", "vocabulary": 60_000})
    settings = params.load("local", project=PROJECT)
    (check,) = data.vocabulary_checks(settings, [manifest, manifest])
    assert check.verdict == "fail"
    assert says(
        check.value,
        PlanningMessage.TOKENIZER_AND_VOCABULARY,
        tokenizer="the tokenizer big.json",
        size=60_000,
    )
