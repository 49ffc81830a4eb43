"""Text repaired in parts equals what ftfy.fix_text returns for the complete document, however it is
divided.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from suite.messages import refuses

from runbook.core.errors import DataError
from runbook.tokens.messages import TokenMessage
from runbook.tokens.pipeline.tokenize import prepare
from runbook.tokens.pipeline.tokenize_options import TokenizeOptions
from runbook.tokens.sources import documents, input_files
from runbook.tokens.sources.fixed_text import fixed_pieces

from .reference import expected, json_lines, made

MOJIBAKE = "Itâ€™s &lt;here&gt; &amp; there\nthe naÃ¯ve cafÃ© <b>\n&amp; stays, ﬁne\r\nlast "


def test_a_missing_ftfy_is_said_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ftfy", None)
    source = tmp_path / "in.jsonl"
    source.write_bytes(json_lines(["one"]))
    with refuses(DataError, TokenMessage.FTFY_MISSING):
        prepare([source], tmp_path / "out", TokenizeOptions(fix_text="ftfy"))
    assert not (tmp_path / "out.parts").exists()


@pytest.mark.parametrize("size", [1, 7, 40, 10_000])
def test_pieces_of_any_size_give_the_repaired_whole(size: int) -> None:
    ftfy = pytest.importorskip("ftfy", reason="pip install 'gpt3-runbook[ftfy]'")
    text = MOJIBAKE * 3
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    assert "".join(fixed_pieces(pieces)) == ftfy.fix_text(text) != text


@pytest.mark.parametrize("length", [999_999, 1_000_000, 1_000_001, 2_000_003])
def test_a_line_of_more_than_a_million_characters_is_cut_as_ftfy_cuts_it(length: int) -> None:
    ftfy = pytest.importorskip("ftfy", reason="pip install 'gpt3-runbook[ftfy]'")
    around = "Ã©" * 20
    line = "a" * 999_980 + around + "b" * 1_000_000
    text = line[: length - 21] + around[:20] + "\n" + "Ã¯ &lt;"
    pieces = [text[start : start + 300_001] for start in range(0, len(text), 300_001)]
    assert "".join(fixed_pieces(pieces)) == ftfy.fix_text(text)


def test_small_and_huge_documents_are_repaired_and_the_choice_is_in_the_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ftfy = pytest.importorskip("ftfy", reason="pip install 'gpt3-runbook[ftfy]'")
    monkeypatch.setattr(documents, "HUGE", 1000)
    monkeypatch.setattr(input_files, "HUGE", 1000)
    monkeypatch.setattr(documents, "PIECE", 50)
    texts = [MOJIBAKE, "plain", (MOJIBAKE + "and so on ") * 30]
    source = tmp_path / "in.jsonl"
    source.write_bytes(json_lines(texts))
    manifest = prepare([source], tmp_path / "out", TokenizeOptions(fix_text="ftfy", workers=1))
    assert made(tmp_path / "out") == expected(list(map(ftfy.fix_text, texts)))
    assert manifest.options["fix_text"] == "ftfy"
    assert manifest.versions["ftfy"]
    assert "fix_text" not in prepare([source], tmp_path / "plain").options
