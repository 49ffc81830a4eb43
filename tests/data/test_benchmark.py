"""The benchmark measures what it says, at a size where it says nothing about speed."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import data_tokenize


def test_corpus_is_whole_and_repeatable(tmp_path: Path) -> None:
    first = list(data_tokenize.prose(200_000))
    assert first == list(data_tokenize.prose(200_000))
    assert 200_000 <= sum(len(text.encode()) for text in first) < 300_000
    assert next(data_tokenize.code(10))


def test_measured_commands_and_floors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = data_tokenize.prose(600_000)
    data_tokenize.write_corpus(tmp_path / "prose", texts, 600_000)
    figures = data_tokenize.measure("prose", tmp_path / "prose", [1], 1)
    assert set(figures["commands"]) == {"fastokens, 1", "tokenizers, 1"}
    assert set(figures["stages"]) == {"decompress", "parse", "encode", "join and write"}
    data_tokenize.show(figures)
    assert "fastokens against tokenizers, one worker: " in capsys.readouterr().out
