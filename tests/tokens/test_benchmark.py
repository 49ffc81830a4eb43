"""The benchmark measures what it claims to measure. The size used here is too small to say anything
about speed.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from benchmarks import data_commands, data_corpus, data_kills, data_tokenize


def test_corpus_is_repeatable_and_varied() -> None:
    first = list(data_corpus.prose(60_000))
    assert first == list(data_corpus.prose(60_000))
    assert 60_000 <= sum(len(text.encode()) for text in first) < 160_000
    texts = ["a b a", "b c"]
    assert data_corpus.variety(texts) == (8, 3)
    assert next(data_corpus.code(10))


def test_measured_commands_and_floors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data_corpus.write_corpus(tmp_path / "prose", data_corpus.prose(300_000), 300_000)
    figures = data_tokenize.measure("prose", tmp_path / "prose", None, 1, 0)
    expected = {
        "ours, .jsonl, 1 worker",
        "ours, .jsonl.zst, 1 worker",
        "ours, .jsonl.zst, 2 workers",
        "tokenizers in our reader, a tenth",
    }
    if data_tokenize.has_gigatoken():
        expected |= {"gigatoken, .jsonl, one core", "gigatoken, .jsonl.zst, one core"}
    assert set(figures["rows"]) == expected
    assert set(figures["stages"]) == {"decompress", "parse", "encode", "join and write"}
    data_tokenize.show(figures)
    said = capsys.readouterr().out
    assert "ours with one worker against tokenizers in our reader, a tenth: " in said
    assert "the fused loop reaches " in said


def test_no_checkout_is_said(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as caught:
        data_commands.Megatron.found(tmp_path, None)
    assert str(caught.value) == data_commands.NO_CHECKOUT.format(folder=tmp_path)


def test_kills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data_corpus.write_corpus(
        tmp_path / "text", itertools.islice(data_corpus.prose(10**9), 300), 10**6
    )
    (tmp_path / "text" / "whole.jsonl").unlink()
    monkeypatch.setattr("sys.argv", ["data_kills", str(tmp_path / "text"), "--kills", "3"])
    data_kills.main()
    assert capsys.readouterr().out.startswith("3 kills in ")
