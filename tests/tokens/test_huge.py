"""Huge documents: the same tokens as if encoded at once, with little memory."""

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
from runbook.tokens import huge_text
from runbook.tokens.huge_text import TextCut, cut_of, cut_text, is_exact
from runbook.tokens.pipeline import amount_done
from runbook.tokens.pipeline.amount_done import DataProgress
from runbook.tokens.pipeline.tokenize import prepare
from runbook.tokens.pipeline.tokenize_options import TokenizeOptions
from runbook.tokens.sources import documents, input_files
from runbook.tokens.sources.documents import HugeText, decode_plain
from runbook.tokens.tokenizer import Tokenizer, load_tokenizer

from .reference import EDGE_TEXTS, encoded, expected, json_lines, made


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "HUGE", 1000)
    monkeypatch.setattr(input_files, "HUGE", 1000)
    monkeypatch.setattr(input_files, "BLOCK", 300)
    monkeypatch.setattr(documents, "PIECE", 50)
    monkeypatch.setattr(huge_text, "FAST_PIECE", 50)
    monkeypatch.setattr(huge_text, "PIECE", 50)
    monkeypatch.setattr(huge_text, "WINDOW", 40)


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
    """For any mixture of texts, the ids for all pieces together equal those for the complete text."""
    text = "".join(parts)
    before = documents.PIECE
    documents.PIECE = 3
    try:
        pieces = list(HugeText(memoryview(text.encode()), decode_plain).pieces())
    finally:
        documents.PIECE = before
    assert "".join(pieces) == text
    assert [token for piece in pieces for token in encoded(piece, True)] == encoded(text, True)


def test_a_long_word_is_reported_before_it_is_encoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(amount_done, "LONG_PIECE", 2500)
    monkeypatch.setattr(amount_done, "EVERY_SECONDS", 0.0)
    source = tmp_path / "in.jsonl"
    source.write_bytes(json_lines(["x" * 3000]))
    reports: list[DataProgress] = []
    prepare([source], tmp_path / "out", TokenizeOptions(workers=1), progress=reports.append)
    facts = reports[0].as_facts()
    assert (facts["encoding in one piece"], facts["MB/s of text"]) == ("2.93 KiB", None)
    assert reports[-1].as_facts()["encoding in one piece"] is None
    assert reports[-1].text_bytes == 3000


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
        (b'"text": "', b'"text": 5, "x": "', "'text' is a number, not a string"),
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


def gpt2_with(tmp_path: Path, **changes: object) -> Tokenizer:
    """Write tokenizer.json for GPT-2 with some parts replaced."""
    content = json.loads(load_tokenizer("gpt2").judge.tokenizer.to_str())
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content | changes))
    return load_tokenizer(str(path), encoder="tokenizers")


def sentencepiece_tokenizer(tmp_path: Path, kind: str, **options: object) -> Tokenizer:
    """Train a SentencePiece model of 300 pieces on the edge texts."""
    import sentencepiece

    words = [" ".join([text, WORDS]) for text in EDGE_TEXTS if text.strip()] * 3
    lines = [line for text in words for line in text.splitlines() if line.strip()]
    options |= {"model_type": kind, "vocab_size": 400, "hard_vocab_limit": False}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_prefix=str(tmp_path / kind),
        minloglevel=2,
        byte_fallback=True,
        **options,
    )
    return load_tokenizer(str(tmp_path / f"{kind}.model"))


def assert_exact(tokenizer: Tokenizer) -> None:
    """Check that text that arrives in parts is cut into many pieces, and that their ids equal those
    for the complete text.
    """
    cut = cut_of(tokenizer)
    text = WORDS * 60
    parts = [text[start : start + 77] for start in range(0, len(text), 77)]
    pieces = list(cut_text(parts, tokenizer.encoder, cut))
    assert [token for piece in pieces for token in tokenizer.encode(piece)] == tokenizer.encode(
        text
    )
    assert len(pieces) > 20


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize(
    ("prefix", "strips", "cut"),
    [
        (True, True, TextCut.BEFORE_SPACE),  # SentencePiece's own default
        (True, False, TextCut.INSTEAD_OF_SPACE),  # Llama
        (False, False, TextCut.BEFORE_SPACE),
        (False, True, TextCut.NEVER),  # a space at the beginning of a piece would be lost
    ],
)
def test_sentencepiece_models_are_cut(
    tmp_path: Path, kind: str, prefix: bool, strips: bool, cut: TextCut
) -> None:
    tokenizer = sentencepiece_tokenizer(
        tmp_path, kind, add_dummy_prefix=prefix, remove_extra_whitespaces=strips
    )
    assert cut_of(tokenizer) is cut
    if cut is not TextCut.NEVER:
        assert_exact(tokenizer)


def test_a_tokenizer_that_puts_a_space_before_every_text_gets_none_of_ours(tmp_path: Path) -> None:
    tokenizer = gpt2_with(
        tmp_path,
        normalizer={
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "\u2581"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
            ],
        },
        pre_tokenizer=None,
        decoder=None,
        model={
            "type": "BPE",
            "vocab": {chr(code): code - 32 for code in range(32, 127)}
            | {"\u2581": 95, "\u2581a": 96},
            "merges": ["\u2581 a"],
        },
        added_tokens=[],
    )
    assert cut_of(tokenizer) is TextCut.INSTEAD_OF_SPACE
    assert_exact(tokenizer)


def test_a_normalizer_does_not_hinder_a_cut(tmp_path: Path) -> None:
    tokenizer = gpt2_with(tmp_path, normalizer={"type": "NFC"})
    assert cut_of(tokenizer) is TextCut.BEFORE_SPACE
    assert_exact(tokenizer)


@pytest.mark.parametrize(
    "added",
    [{"content": "went home"}, {"content": "<x>", "lstrip": True}],
    ids=["with a space", "with white space"],
)
def test_a_tokenizer_whose_tokens_reach_over_a_border_is_not_cut(
    tmp_path: Path, added: dict[str, object]
) -> None:
    content = json.loads(load_tokenizer("gpt2").judge.tokenizer.to_str())
    tokens = [*content["added_tokens"], content["added_tokens"][0] | {"id": 50257} | added]
    tokenizer = gpt2_with(tmp_path, added_tokens=tokens)
    assert cut_of(tokenizer) is TextCut.NEVER
    pieces = ["They all ", "went home"]
    assert list(cut_text(pieces, tokenizer.encoder, TextCut.NEVER)) == ["".join(pieces)]


def test_a_border_that_changes_an_id_is_passed_over() -> None:
    """Encode the window around each border both whole and in two parts, and compare the ids."""

    class Glues:
        """Encodes `so on` as one token, and every other word as one token."""

        name = "glues"

        def encode_batch(self, texts):  # type: ignore[no-untyped-def]
            words = [word for text in texts for word in text.replace("so on", "so_on").split()]
            return np.array([len(word) for word in words]), np.array([0])

    encoder = Glues()
    assert not is_exact(encoder, TextCut.BEFORE_SPACE, "and so", " on it")  # type: ignore[arg-type]
    pieces = list(cut_text(["and so on " * 100], encoder, TextCut.BEFORE_SPACE))  # type: ignore[arg-type]
    assert len(pieces) > 5
    assert not any(piece.endswith("so") for piece in pieces)


def test_other_tokenizers_get_the_whole(tmp_path: Path) -> None:
    """Tokens from other tokenizers may cross a border, because a token may contain a space."""
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
tokenizer = sys.argv.pop(1)
from runbook.tokens.pipeline.tokenize_options import TokenizeOptions
from runbook.tokens.pipeline import amount_done
from runbook.tokens.pipeline.amount_done import DataProgress
from runbook.tokens.pipeline.tokenize import prepare
sizes = []
for source in sys.argv[1:]:
    options = TokenizeOptions(workers=1, tokenizer=tokenizer, append_eod=tokenizer == "gpt2")
    prepare([Path(source)], Path(source).with_suffix(".out"), options)
    sizes.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
print(*sizes)
"""


@pytest.mark.parametrize(("kind", "times"), [("gpt2", 800_000), ("sentencepiece", 250_000)])
def test_one_huge_document_needs_less_than_three_times_its_size(
    tmp_path: Path, kind: str, times: int
) -> None:
    """Use a text with an emoji, so that Python needs four bytes per character."""
    small = tmp_path / "small.jsonl"
    large = tmp_path / "large.jsonl"
    small.write_bytes(json_lines(["one"]))
    text = (
        "It was \u201cthe best\u201d of times, it was the worst of times \U0001f600 and so on. "
        * times
    )
    tokenizer = "gpt2"
    if kind == "sentencepiece":
        tokenizer = sentencepiece_tokenizer(tmp_path, "bpe").name
    large.write_bytes(json.dumps({"text": text}, ensure_ascii=False).encode())
    out = subprocess.run(
        [sys.executable, "-c", PROGRAM, tokenizer, str(small), str(large)],
        capture_output=True,
        text=True,
        check=True,
    )
    before, after = map(int, out.stdout.split())
    assert after - before < 3 * large.stat().st_size
