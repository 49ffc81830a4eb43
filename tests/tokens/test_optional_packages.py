"""Parquet and SentencePiece, and a clear error if their packages are not installed."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from suite.messages import containing, refuses

from runbook.core.errors import DataError
from runbook.tokens.messages import TokenMessage
from runbook.tokens.pipeline.tokenize import prepare
from runbook.tokens.pipeline.tokenize_options import TokenizeOptions
from runbook.tokens.sources import documents
from runbook.tokens.sources.input_files import cut_shards, find_inputs
from runbook.tokens.tokenizer import load_tokenizer

from .reference import EDGE_TEXTS, expected, json_lines, made


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    source = tmp_path / "in.parquet"
    source.write_bytes(b"PAR1")
    with refuses(DataError, TokenMessage.PYARROW_MISSING, segment=containing(source)):
        prepare([source], tmp_path / "out")


def test_parquet_gives_the_same(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    source = tmp_path / "in.parquet"
    texts = EDGE_TEXTS * 150
    pyarrow.parquet.write_table(
        pyarrow.table({"id": list(range(len(texts))), "text": texts}), source, row_group_size=700
    )
    prepare([source], tmp_path / "out")
    assert made(tmp_path / "out") == expected(texts)


def test_a_parquet_file_is_read_in_parts_whatever_its_row_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow")
    import pyarrow.parquet

    source = tmp_path / "in.parquet"
    texts = [f"{number:04}" * 250 for number in range(600)]
    table = pyarrow.table({"other": [1] * 600, "text": texts})
    pyarrow.parquet.write_table(table, source, row_group_size=600, use_dictionary=False)
    monkeypatch.setattr(documents, "PARQUET_BYTES", 100_000)
    (shard,) = cut_shards(find_inputs([source]), 1 << 30)
    parts = [batch.texts for batch in documents._parquet(shard.segments[0], "text", 1 << 20)]
    assert [text for part in parts for text in part] == texts
    assert max(map(len, parts)) <= 100


def test_bad_parquet(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    source = tmp_path / "in.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a", None, "b"], "n": [1, 2, 3]}), source)
    reason = TokenMessage.NOT_A_TEXT.fill(text_key="text", kind="null")
    problem = TokenMessage.RECORD_LEFT_OUT.fill(path=source, place="row 1", reason=reason)
    with refuses(DataError, TokenMessage.BAD_RECORD, problem=problem):
        prepare([source], tmp_path / "out")
    prepare([source], tmp_path / "out", TokenizeOptions(bad_records="skip"))
    assert made(tmp_path / "out") == expected(["a", "b"])
    with refuses(DataError, TokenMessage.NO_SUCH_COLUMN, text_key="content", columns="text, n"):
        prepare([source], tmp_path / "out", TokenizeOptions(text_key="content"))
    source.write_bytes(source.read_bytes()[:-30])
    with refuses(
        DataError, TokenMessage.BROKEN_FILE, reason=containing("not a whole Parquet file")
    ):
        prepare([source], tmp_path / "out")


def test_sentencepiece_model(tmp_path: Path) -> None:
    import sentencepiece

    texts = tmp_path / "texts.txt"
    texts.write_text("the cat sat on the mat\na quick brown fox\n" * 30)
    sentencepiece.SentencePieceTrainer.train(
        input=str(texts),
        model_prefix=str(tmp_path / "own"),
        vocab_size=40,
        hard_vocab_limit=False,
        minloglevel=3,
    )
    model = str(tmp_path / "own.model")
    tokenizer = load_tokenizer(model)
    source = tmp_path / "in.jsonl"
    source.write_bytes(json_lines(["the cat", "", "a fox"]))
    manifest = prepare([source], tmp_path / "out", TokenizeOptions(tokenizer=model))
    end = tokenizer.end_of_document()
    assert end == tokenizer.judge.token_id("</s>")
    tokens = np.frombuffer(made(tmp_path / "out")[0], dtype="<u2").tolist()
    assert tokens == [*tokenizer.encode("the cat"), end, *tokenizer.encode("a fox"), end]
    assert tokenizer.decode(tokenizer.encode("the cat")) == "the cat"
    assert manifest.tokenizer["encoder"].startswith("sentencepiece ")


def test_sentencepiece_without_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    model = tmp_path / "own.model"
    model.write_bytes(b"\n")
    with refuses(DataError, TokenMessage.SENTENCEPIECE_MISSING, model=model):
        load_tokenizer(str(model))
