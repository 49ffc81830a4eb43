"""The vocabulary size, read from only the tokenizer file, matches what the packages that load it
report.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from suite.messages import refuses

from runbook.core.errors import DataError
from runbook.tokens.messages import TokenMessage
from runbook.tokens.tokenizer import load_tokenizer
from runbook.tokens.vocabulary_size import read_vocabulary_size


def write_json(path: Path, vocabulary: object, added: list[dict]) -> str:
    path.write_text(json.dumps({"model": {"vocab": vocabulary}, "added_tokens": added}))
    return str(path)


def field(number: int, kind: int, value: bytes) -> bytes:
    return bytes([number << 3 | kind]) + value


def piece(text: str) -> bytes:
    content = field(1, 2, bytes([len(text)]) + text.encode())
    return field(1, 2, bytes([len(content)]) + content)


def test_gpt2_is_known_without_a_file():
    assert read_vocabulary_size("gpt2") == load_tokenizer("gpt2").vocabulary == 50257


def test_a_file_that_is_not_at_hand_is_not_known(tmp_path):
    assert read_vocabulary_size(str(tmp_path / "tokenizer.json")) is None


def test_the_largest_id_counts_with_added_tokens_and_gaps(tmp_path):
    path = tmp_path / "tokenizer.json"
    assert read_vocabulary_size(write_json(path, {"a": 0, "b": 1}, [])) == 2
    assert read_vocabulary_size(write_json(path, {"a": 0, "b": 1}, [{"id": 9}])) == 10
    assert read_vocabulary_size(write_json(path, [["a", -1.0], ["b", -2.0]], [])) == 2
    assert read_vocabulary_size(str(tmp_path)) == 2, "a folder stands for its tokenizer.json"


def test_a_tokenizer_json_has_the_size_that_the_tokenizers_package_says(tmp_path):
    from tokenizers import Tokenizer, models

    tokenizer = Tokenizer(models.BPE(vocab={"a": 0, "b": 1, "ab": 2}, merges=[("a", "b")]))
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    size = read_vocabulary_size(str(tmp_path / "tokenizer.json"))
    assert size == tokenizer.get_vocab_size(with_added_tokens=True) == 4


def test_the_pieces_of_a_sentencepiece_model_are_counted(tmp_path):
    path = tmp_path / "small.model"
    trainer = field(2, 2, bytes([3]) + b"abc")
    path.write_bytes(b"".join(map(piece, ("<unk>", "<s>", "</s>", "a"))) + trainer)
    assert read_vocabulary_size(str(path)) == 4


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("tokenizer.json", b"{}", TokenMessage.NO_VOCABULARY.of()),
        ("tokenizer.json", b"\xff\x00", TokenMessage.NO_VOCABULARY.of()),
        ("x.model", b"", TokenMessage.MODEL_WITHOUT_PIECES.of()),
        ("x.model", b"\x0a\x7f", TokenMessage.MODEL_CUT_SHORT.of()),
        ("x.model", b"\xff" * 20, TokenMessage.MODEL_CUT_SHORT.of()),
    ],
)
def test_another_file_is_refused_by_name(tmp_path, name, content, told):
    (tmp_path / name).write_bytes(content)
    with refuses(DataError, told):
        read_vocabulary_size(str(tmp_path / name))
