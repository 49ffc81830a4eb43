"""Several token files as one training set."""

from __future__ import annotations

from pathlib import Path

import pytest

from runbook.data import TokenizeOptions, blend_checks, prepare, token_weights
from runbook.errors import DataError

from .reference import json_lines


@pytest.fixture
def prefixes(tmp_path: Path) -> list[Path]:
    made = []
    for number in (1, 2, 3):
        source = tmp_path / f"{number}.jsonl"
        source.write_bytes(json_lines(["word"] * number))
        prepare([source], tmp_path / f"out{number}")
        made.append(tmp_path / f"out{number}")
    return made


def test_weights_are_shares_of_tokens(prefixes: list[Path]) -> None:
    assert token_weights(prefixes) == [0.166666667, 0.333333333, 0.5]
    assert token_weights(prefixes[:1]) == [1.0]
    with pytest.raises(DataError, match="no tokens in no files"):
        token_weights([])


def test_roles_that_share_nothing_pass(prefixes: list[Path]) -> None:
    roles = {"train": prefixes[:1], "validation": prefixes[1:2], "test": prefixes[2:]}
    assert [check.verdict for check in blend_checks(roles)] == ["pass", "pass", "pass"]


def test_file_in_two_roles_and_nothing_to_train_on(prefixes: list[Path]) -> None:
    other = prefixes[0].with_name("out1_text_document")
    roles = {"train": [prefixes[0]], "validation": [other], "test": [prefixes[1]]}
    told = {check.name: check for check in blend_checks(roles)}
    assert (told["held-out files"].verdict, told["held-out files"].value) == ("fail", "out1")
    told = {check.name: check for check in blend_checks({"train": [], "validation": prefixes})}
    assert (told["training tokens"].verdict, told["training tokens"].value) == ("fail", "0 to train on, 12 held out")


def test_mixed_endings_are_refused(tmp_path: Path, prefixes: list[Path]) -> None:
    prepare([tmp_path / "1.jsonl"], tmp_path / "bare", TokenizeOptions(append_eod=False))
    told = {check.name: check for check in blend_checks({"train": [*prefixes, tmp_path / "bare"]})}
    assert told["one tokenizer"].verdict == "fail"
    assert told["one tokenizer"].value == "1 vocabularies, end-of-document tokens ['50256', 'None']"
