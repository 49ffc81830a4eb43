"""Huge documents: the same tokens as in one go, in little memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runbook.core.errors import DataError
from runbook.tokens.pipeline.options import TokenizeOptions
from runbook.tokens.pipeline.tokenize import prepare
from runbook.tokens.sources import documents, input_files
from runbook.tokens.sources.documents import HugeText, decode_plain
from runbook.tokens.tokenizer import load_tokenizer

from .reference import EDGE_TEXTS, encoded, expected, json_lines, made


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "HUGE", 1000)
    monkeypatch.setattr(input_files, "HUGE", 1000)
    monkeypatch.setattr(input_files, "BLOCK", 300)
    monkeypatch.setattr(documents, "PIECE", 50)


WORDS = (
    "It\\'s the ends' of \u00e9t\u00e9 and na\u00efve  words\nline two\\n tab\there <|endoftext|> 12 ab 34 \u2028 "
    "\U0001f600 don't we'll see "
)


@pytest.mark.parametrize("special_tokens", [True, False])
@pytest.mark.parametrize("escaped", [True, False])
def test_pieces_give_the_tokens_of_the_whole(
    tmp_path: Path, escaped: bool, special_tokens: bool
) -> None:
    texts = ["before", WORDS * 40, "", "between", "x" * 3000, WORDS * 20, "after"]
    lines = [
        json.dumps({"text": text, "meta": {"source": "a"}}, ensure_ascii=escaped) for text in texts
    ]
    source = tmp_path / "in.jsonl"
    source.write_text("\n".join(lines))
    manifest = prepare([source], tmp_path / "out", TokenizeOptions(special_tokens=special_tokens))
    assert made(tmp_path / "out") == expected(texts, special_tokens=special_tokens)
    assert (manifest.records, manifest.sources["a"]["documents"]) == (7, 7)
    assert manifest.text_bytes == sum(len(text.encode()) for text in texts)


def test_edge_texts_among_words(tmp_path: Path) -> None:
    texts = [" and then some words ".join([text] * 60) for text in EDGE_TEXTS]
    source = tmp_path / "in.jsonl"
    source.write_bytes(json_lines(texts))
    prepare([source], tmp_path / "out")
    assert made(tmp_path / "out") == expected(texts)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [" a", " word", "'s", " ", "\n", "1", ".", "\u00e9", "B", "<|endoftext|>", "  c d"]
        ),
        max_size=60,
    )
)
def test_a_border_is_a_border_of_tokens(parts: list[str]) -> None:
    """For any mixture: the ids of the pieces, one after the other, are those of the whole."""
    text = "".join(parts)
    before = documents.PIECE
    documents.PIECE = 3
    try:
        pieces = list(HugeText(memoryview(text.encode()), decode_plain).pieces(cut=True))
    finally:
        documents.PIECE = before
    assert "".join(pieces) == text
    assert [token for piece in pieces for token in encoded(piece, True)] == encoded(text, True)


def test_huge_text_file(tmp_path: Path) -> None:
    source = tmp_path / "in.txt"
    source.write_text(WORDS * 50)
    prepare([source], tmp_path / "out")
    assert made(tmp_path / "out") == expected([WORDS * 50])


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (b"tab\\there", b"tab\\qhere", "Invalid \\escape"),
        (b"line two", b"line\\ud800 two", "a lone surrogate \\ud800"),
        (b"line two", b"line \xff two", "invalid UTF-8"),
        (b'"text": "', b'"text": 5, "x": "', "'text' is a number, not a text"),
        (b'"}', b'"', "Expecting ',' delimiter"),
    ],
)
def test_bad_huge_record_leaves_nothing(
    tmp_path: Path, old: bytes, new: bytes, reason: str
) -> None:
    bad = json_lines([WORDS * 40])
    at = bad.rindex(old)
    bad = bad[:at] + new + bad[at + len(old) :]
    source = tmp_path / "in.jsonl"
    source.write_bytes(json_lines(["good"]) + bad + json_lines(["also good"]))
    with pytest.raises(DataError) as caught:
        prepare([source], tmp_path / "out")
    assert str(caught.value).startswith(f"{source}, line 2, byte {len(json_lines(['good']))}: ")
    assert reason in str(caught.value)
    manifest = prepare([source], tmp_path / "out", TokenizeOptions(bad_records="quarantine"))
    assert made(tmp_path / "out") == expected(["good", "also good"])
    assert manifest.skipped_records == 1


def test_other_tokenizers_get_the_whole(tmp_path: Path) -> None:
    """Their words may reach over a border: with a normalizer, another splitter, a token with a space in it."""
    content = json.loads(load_tokenizer("gpt2").judge.tokenizer.to_str())
    content["added_tokens"].append(
        content["added_tokens"][0] | {"id": 50257, "content": "went home"}
    )
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    text = "They all went home " * 100
    source = tmp_path / "in.jsonl"
    source.write_bytes(json_lines([text]))
    prepare([source], tmp_path / "out", TokenizeOptions(tokenizer=str(path), special_tokens=True))
    whole = load_tokenizer(str(path), special_tokens=True)
    ids = [*whole.encode(text), whole.end_of_document()]
    assert made(tmp_path / "out")[0] == np.array(ids, dtype="<u2").tobytes()


PROGRAM = """
import resource, sys
from pathlib import Path
from runbook.tokens.pipeline.options import TokenizeOptions
from runbook.tokens.pipeline.tokenize import prepare
sizes = []
for source in sys.argv[1:]:
    prepare([Path(source)], Path(source).with_suffix(".out"), TokenizeOptions(workers=1))
    sizes.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
print(*sizes)
"""


def test_one_huge_document_needs_less_than_three_times_its_size(tmp_path: Path) -> None:
    """With curly quotes and an emoji, for which a str takes four bytes a character."""
    small = tmp_path / "small.jsonl"
    large = tmp_path / "large.jsonl"
    small.write_bytes(json_lines(["one"]))
    text = (
        "It was \u201cthe best\u201d of times, it was the worst of times \U0001f600 and so on. "
        * 800_000
    )
    large.write_bytes(json.dumps({"text": text}, ensure_ascii=False).encode())
    out = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(small), str(large)],
        capture_output=True,
        text=True,
        check=True,
    )
    before, after = map(int, out.stdout.split())
    assert after - before < 3 * large.stat().st_size
